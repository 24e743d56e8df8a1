package main

import (
	"bytes"
	"context"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"github.com/redis/rueidis"

	"github.com/sluicego/sluice"
	"github.com/sluicego/sluice/conformance/model"
	"github.com/sluicego/sluice/conformance/servers"
)

// theLimit is 10/1m, as a user, the scripts and the model write it.
var theLimit = struct {
	text     string
	policies []sluice.Policy
	model    []model.Policy
}{
	text: "10/1m",
	policies: []sluice.Policy{
		sluice.SlidingLog(10, time.Minute), sluice.SlidingCounter(10, time.Minute), sluice.TokenBucket(10, 10, time.Minute),
	},
	model: []model.Policy{
		{Kind: model.Log, Limit: 10, WindowMS: 60_000},
		{Kind: model.Counter, Limit: 10, WindowMS: 60_000},
		{Kind: model.Bucket, Limit: 10, Refill: 10, WindowMS: 60_000},
	},
}

// modelDecisions asks the exact model for every visit, in order, at the time of the decision that is given for it.
func modelDecisions(log *accessLog, p model.Policy, at []decision) []bool {
	states := make([]*model.State, len(log.subjects))
	allowed := make([]bool, len(log.visits))
	for i, v := range log.visits {
		if states[v.subject] == nil {
			states[v.subject] = model.New()
		}
		allowed[i] = states[v.subject].Call(at[i].at.UnixMicro(), "take", 1, p, 0).Allowed
	}
	return allowed
}

// checkDecisions compares every decision with the model's, and returns how many were admitted.
func checkDecisions(t *testing.T, log *accessLog, p model.Policy, got []decision, at []decision) int {
	t.Helper()
	want := modelDecisions(log, p, at)
	if len(got) != len(want) {
		t.Fatalf("%s: got %d decisions, want %d", p.Kind, len(got), len(want))
	}
	admitted, wrong := 0, 0
	for i := range want {
		if want[i] {
			admitted++
		}
		if got[i].allowed != want[i] {
			if wrong++; wrong == 1 {
				t.Errorf("%s: visit %d of %s at %v: got %t, want %t", p.Kind, i, log.subjects[log.visits[i].subject], at[i].at, got[i].allowed, want[i])
			}
		}
	}
	if n := summarize(log, got, time.Minute).admitted; n != admitted || wrong > 0 {
		t.Errorf("%s: got %d admitted, want %d; %d decisions differ", p.Kind, n, admitted, wrong)
	}
	return admitted
}

// logsAtHand are the sample, always, and the log of a real site where there is one: $SLUICE_TRIAL_LOG, or access.log among
// the trial data beside the repository. $SLUICE_REQUIRE_TRIAL=1 insists on it.
func logsAtHand(t *testing.T) map[string]*accessLog {
	t.Helper()
	files := map[string]string{"sample": "testdata/access.log"}
	trial := os.Getenv("SLUICE_TRIAL_LOG")
	if trial == "" {
		beside := filepath.FromSlash("../../../shared/data/access.log")
		_, err := os.Stat(beside)
		if err == nil || os.Getenv("SLUICE_REQUIRE_TRIAL") == "1" {
			trial = beside
		}
	}
	if trial != "" {
		files["trial"] = trial
	} else {
		t.Log("no trial log: set SLUICE_TRIAL_LOG to check the decisions on the log of a real site, too")
	}
	logs := make(map[string]*accessLog)
	for name, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if logs[name], err = readLog(bytes.NewReader(text)); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
	}
	return logs
}

// TestLogDecisionsAreTheModels replays logs on every server under a controlled clock, and holds every decision of all three
// algorithms against the exact model.
func TestLogDecisionsAreTheModels(t *testing.T) {
	all := servers.All(t)
	logs := logsAtHand(t)
	for _, name := range slices.Sorted(maps.Keys(logs)) {
		log := logs[name]
		for _, server := range all {
			t.Run(name+"/"+server.Name, func(t *testing.T) {
				server.Flush(t)
				limiter, err := sluice.New(server.Client, sluice.Config{})
				if err != nil {
					t.Fatal(err)
				}
				moveTo := func(_ context.Context, at time.Time) error {
					server.SetTime(at.UnixMicro())
					return nil
				}
				decisions, err := replay(t.Context(), limiter, theLimit.policies, log, moveTo, func(int) {})
				if err != nil {
					t.Fatal(err)
				}
				for i, p := range theLimit.model {
					admitted := checkDecisions(t, log, p, decisions[i], unlimited(log))
					t.Logf("%s admits %d of %d", p.Kind, admitted, len(log.visits))
				}
			})
		}
	}
}

// TestRealTimeDecisionsAreTheModels replays the sample at full tilt on a clock that nobody holds. The decisions are then not
// those of the log's times, but for the times that the server tells they must be the model's all the same.
func TestRealTimeDecisionsAreTheModels(t *testing.T) {
	server, err := startEmbedded()
	if err != nil {
		t.Fatal(err)
	}
	defer server.close()
	limiter, err := sluice.New(server.client, sluice.Config{})
	if err != nil {
		t.Fatal(err)
	}
	log, err := readLog(bytes.NewReader(sample))
	if err != nil {
		t.Fatal(err)
	}
	window, speed, err := compress(time.Minute, 3600)
	if err != nil {
		t.Fatal(err)
	}
	var policies []sluice.Policy
	for _, p := range theLimit.policies {
		p, err := withWindow(p, window)
		if err != nil {
			t.Fatal(err)
		}
		policies = append(policies, p)
	}
	decisions, err := replay(t.Context(), limiter, policies, log, (&pacer{speed: speed}).moveTo, func(int) {})
	if err != nil {
		t.Fatal(err)
	}
	for i, p := range theLimit.model {
		p.WindowMS = window.Milliseconds()
		checkDecisions(t, log, p, decisions[i], decisions[i])
	}
}

// runProgram runs the program as main does, with no environment but REDIS_ADDR.
func runProgram(ctx context.Context, t *testing.T, redisAddr, stdin string, args ...string) (stdout, stderr string, err error) {
	t.Helper()
	var out, errs strings.Builder
	getenv := func(name string) string {
		if name == "REDIS_ADDR" {
			return redisAddr
		}
		return ""
	}
	err = run(ctx, args, getenv, strings.NewReader(stdin), &out, &errs)
	return out.String(), errs.String(), err
}

// TestOutput holds what a new user sees against testdata/output.txt: go run . > testdata/output.txt.
func TestOutput(t *testing.T) {
	want, err := os.ReadFile("testdata/output.txt")
	if err != nil {
		t.Fatal(err)
	}
	got, _, err := runProgram(t.Context(), t, "", "")
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	for line := range strings.Lines(got) {
		if n := utf8.RuneCountInString(strings.TrimSuffix(line, "\n")); n > 80 {
			t.Errorf("%d columns: %s", n, line)
		}
	}
}

// TestOnePolicy tries one algorithm, on a log from standard input, in spite of REDIS_ADDR.
func TestOnePolicy(t *testing.T) {
	got, _, err := runProgram(t.Context(), t, "localhost:1", aBurst, "-log", "-", "-redis", "", "-policy", "night=bucket:3+1/1d")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"standard input\n", "night=bucket:3+1/1d for", "in any 1d", "token bucket", "by bucket\n"} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in\n%s", want, got)
		}
	}
	if strings.Contains(got, "sliding") {
		t.Errorf("another algorithm than asked for in\n%s", got)
	}
}

func TestHelp(t *testing.T) {
	got, _, err := runProgram(t.Context(), t, "", "", "-h")
	if err != nil || got != usage {
		t.Errorf("got %q, %v; want the usage", got, err)
	}
}

func TestErrorsHelp(t *testing.T) {
	empty := filepath.Join(t.TempDir(), "empty.log")
	if err := os.WriteFile(empty, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		args []string
		want []string
	}{
		{[]string{"-log", "no/such.log"}, []string{"no file no/such.log", "without -log"}},
		{[]string{"-log", empty}, []string{empty, "empty"}},
		{[]string{"-log", "main.go"}, []string{"main.go", "Common or Combined Log Format", "line 1"}},
		{[]string{"-policy", "10"}, []string{"-policy 10:", "10/1m"}},
		{[]string{"-policy", "leaky:10/1m"}, []string{"-policy leaky:10/1m:", "bucket:50+10/1m"}},
		{[]string{"-policy", "0/1m"}, []string{"limit is 0", "1 to 1000000000"}},
		{[]string{"-policy", "bucket:1+x/1m"}, []string{`refill is "x"`}},
		{[]string{"-policy", "10/1us"}, []string{"window is", "whole milliseconds"}},
		{[]string{"-speed", "10"}, []string{"-redis"}},
		{[]string{"-redis", "localhost:1", "-speed", "0.5"}, []string{"-speed is 0.5", "1 to 60000"}},
		{[]string{"-redis", "localhost:1", "-speed", "NaN"}, []string{"-speed is NaN", "1 to 60000"}},
		{[]string{"-redis", "localhost:1", "-speed", "60001"}, []string{"-speed is 60001", "1ms"}},
		{[]string{"-redis", "127.0.0.1:1"}, []string{"127.0.0.1:1", "refused", "without -redis"}},
		{[]string{"-redis", "redis://user:hunter2@127.0.0.1:1/0"}, []string{"127.0.0.1:1", "refused"}},
		{[]string{"-redis", "redis://user:hunter2@127.0.0.1:x/0"}, []string{"-redis", "port"}},
		{[]string{"-colour"}, []string{"-colour", "-h"}},
		{[]string{"access.log"}, []string{`"access.log"`, "-log"}},
	}
	for _, tt := range tests {
		t.Run(strings.Join(tt.args, " "), func(t *testing.T) {
			out, _, err := runProgram(t.Context(), t, "", "", tt.args...)
			if err == nil || out != "" {
				t.Fatalf("got the output %q and no error", out)
			}
			for _, want := range tt.want {
				if !strings.Contains(strings.ToLower(err.Error()), strings.ToLower(want)) {
					t.Errorf("no %q in %q", want, err)
				}
			}
			if strings.Contains(err.Error(), "hunter2") {
				t.Errorf("a password in %q", err)
			}
		})
	}
}

// aBurst is a log of 15 requests within a second, and one more ten seconds on.
var aBurst = strings.Repeat(`192.0.2.1 - - [30/Mar/2025:12:00:00 +0000] "GET / HTTP/1.1" 200 1`+"\n", 15) +
	`192.0.2.2 - - [30/Mar/2025:12:00:10 +0000] "GET / HTTP/1.1" 200 1` + "\n"

// keysOf are all keys of a server.
func keysOf(t *testing.T, server *servers.Server) []string {
	t.Helper()
	keys, err := server.Client.Do(t.Context(), server.Client.B().Keys().Pattern("*").Build()).AsStrSlice()
	if err != nil {
		t.Fatal(err)
	}
	return keys
}

// TestLiveServer runs the program on servers as though their clocks were real. They stand still, so keys can't expire:
// those of the run must have been removed, and no other.
func TestLiveServer(t *testing.T) {
	for _, server := range servers.All(t) {
		t.Run(server.Name, func(t *testing.T) {
			theirs := server.Client.B().Set().Key("sluice-quickstart-of-another").Value("1").Build()
			if err := server.Client.Do(t.Context(), theirs).Error(); err != nil {
				t.Fatal(err)
			}
			started := time.Now()
			out, progress, err := runProgram(t.Context(), t, server.Addr, aBurst, "-log", "-", "-speed", "25")
			if err != nil {
				t.Fatal(err)
			}
			if took, want := time.Since(started), 400*time.Millisecond; took < want {
				t.Errorf("ten seconds at 25 times the speed took %v, want at least %v", took, want)
			}
			flat := strings.Join(strings.Fields(out), " ")
			for _, want := range []string{
				server.Addr + ", 25 times as fast: 1m of the log took 2.4s", "sliding log 11 5 ", "sliding counter 11 5 ", "token bucket 11 5 ",
			} {
				if !strings.Contains(flat, want) {
					t.Errorf("no %q in\n%s", want, out)
				}
			}
			if want := "10s of log in 400ms"; !strings.Contains(progress, want) {
				t.Errorf("no %q in %q", want, progress)
			}
			if keys := keysOf(t, server); len(keys) != 1 {
				t.Errorf("left the keys %q, want only the one that was there", keys)
			}
		})
	}
}

func TestInterrupted(t *testing.T) {
	server := servers.Miniredis(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() { // interrupts once there are keys, and at the latest with the test
		for ctx.Err() == nil {
			if n, _ := server.Client.Do(ctx, server.Client.B().Dbsize().Build()).AsInt64(); n > 0 {
				cancel()
			}
		}
	}()
	out, _, err := runProgram(ctx, t, server.Addr, aBurst, "-log", "-", "-speed", "1")
	if err == nil || err.Error() != "interrupted" || out != "" {
		t.Errorf("got %q, %v; want interrupted", out, err)
	}
	if keys := keysOf(t, server); len(keys) != 0 {
		t.Errorf("left the keys %q", keys)
	}
}

// TestServerFails: what a server refuses is an error that says where in the log, and not a denial.
func TestServerFails(t *testing.T) {
	server := servers.Miniredis(t)
	limiter, err := sluice.New(server.Client, sluice.Config{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := limiter.Allow(t.Context(), sluice.Key("192.0.2.2"), theLimit.policies[0]); err != nil {
		t.Fatal(err)
	}
	foreign := server.Client.B().Set().Key(keysOf(t, server)[0]).Value("not ours").Build()
	if err := server.Client.Do(t.Context(), foreign).Error(); err != nil {
		t.Fatal(err)
	}
	log, err := readLog(strings.NewReader(aBurst))
	if err != nil {
		t.Fatal(err)
	}
	moveTo := func(context.Context, time.Time) error { return nil }
	_, err = replay(t.Context(), limiter, theLimit.policies, log, moveTo, func(int) {})
	if !errors.Is(err, sluice.ErrBackend) || !strings.Contains(err.Error(), "log:10/1m at 2025-03-30 12:00:10") {
		t.Errorf("got %v", err)
	}

	broken := errors.New("no clock")
	moveTo = func(context.Context, time.Time) error { return broken }
	if _, err := replay(t.Context(), limiter, theLimit.policies, log, moveTo, func(int) {}); !errors.Is(err, broken) {
		t.Errorf("got %v, want %v", err, broken)
	}
}

// TestReplayInPieces: more visits of one time than go out together are all decided, once each.
func TestReplayInPieces(t *testing.T) {
	server := servers.Miniredis(t)
	limiter, err := sluice.New(server.Client, sluice.Config{})
	if err != nil {
		t.Fatal(err)
	}
	log := &accessLog{subjects: []string{"192.0.2.1"}, visits: make([]visit, 2*maxTogether+1)}
	var done []int
	moveTo := func(context.Context, time.Time) error { return nil }
	policy := sluice.TokenBucket(maxTogether+1, 1, time.Hour)
	decisions, err := replay(t.Context(), limiter, []sluice.Policy{policy}, log, moveTo, func(n int) { done = append(done, n) })
	if err != nil {
		t.Fatal(err)
	}
	got := summarize(log, decisions[0], time.Hour).tally
	if want := (tally{admitted: maxTogether + 1, denied: maxTogether, burst: maxTogether + 1}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if len(done) != 3 || done[2] != len(log.visits) {
		t.Errorf("progress told %v", done)
	}
}

func TestPacer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		first := time.Date(2015, 5, 17, 10, 5, 0, 0, time.UTC)
		p := &pacer{speed: 60}
		steps := []struct {
			at   time.Duration // in the log, after its first visit
			busy time.Duration // before it is asked for
			want time.Duration // since began
			late time.Duration
		}{
			{0, 0, 0, 0},
			{0, 0, 0, 0},
			{time.Minute, 0, time.Second, 0},
			{90 * time.Second, 100 * time.Millisecond, 1500 * time.Millisecond, 0},
			{93 * time.Second, 150 * time.Millisecond, 1650 * time.Millisecond, 100 * time.Millisecond}, // was due at 1.55 s
			{96 * time.Second, 0, 1650 * time.Millisecond, 100 * time.Millisecond},
			{2 * time.Hour, 0, 2 * time.Minute, 100 * time.Millisecond},
		}
		for _, s := range steps {
			time.Sleep(s.busy)
			if err := p.moveTo(t.Context(), first.Add(s.at)); err != nil {
				t.Fatal(err)
			}
			if got := time.Since(began); got != s.want || p.late != s.late {
				t.Errorf("%v into the log: got %v, %v late; want %v, %v", s.at, got, p.late, s.want, s.late)
			}
		}

		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := p.moveTo(ctx, first.Add(24*time.Hour)); !errors.Is(err, context.DeadlineExceeded) || time.Since(began) != 121*time.Second {
			t.Errorf("got %v after %v; want to be woken by the context", err, time.Since(began))
		}
		if err := p.moveTo(ctx, first); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("late and cancelled: got %v", err)
		}
	})
}

func TestEvery(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var shown []int
		tell := every(5*time.Second, func(done int) { shown = append(shown, done) })
		for second := range 13 {
			tell(second)
			time.Sleep(time.Second)
		}
		if len(shown) != 2 || shown[0] != 5 || shown[1] != 10 {
			t.Errorf("told %v, want 5 and 10", shown)
		}
	})
}

// TestEmbeddedClock: time and expiry move together.
func TestEmbeddedClock(t *testing.T) {
	server, err := startEmbedded()
	if err != nil {
		t.Fatal(err)
	}
	defer server.close()
	do := func(cmd rueidis.Completed) rueidis.RedisResult { return server.client.Do(t.Context(), cmd) }
	at := time.Date(2015, 5, 17, 10, 5, 0, 0, time.UTC)
	if err := server.moveTo(t.Context(), at); err != nil {
		t.Fatal(err)
	}
	if err := do(server.client.B().Set().Key("k").Value("v").Pxat(at.Add(time.Minute)).Build()).Error(); err != nil {
		t.Fatal(err)
	}
	for _, step := range []struct {
		after time.Duration
		pttl  int64 // ms; -2: no such key
	}{
		{0, 60_000}, {time.Second, 59_000}, {59_999 * time.Millisecond, 1}, {time.Minute, -2},
	} {
		if err := server.moveTo(t.Context(), at.Add(step.after)); err != nil {
			t.Fatal(err)
		}
		now, err := do(server.client.B().Time().Build()).AsIntSlice()
		if err != nil || now[0] != at.Add(step.after).Unix() {
			t.Errorf("after %v: TIME is %v, %v", step.after, now, err)
		}
		if got, err := do(server.client.B().Pttl().Key("k").Build()).AsInt64(); err != nil || got != step.pttl {
			t.Errorf("after %v: got the PTTL %d, %v; want %d", step.after, got, err, step.pttl)
		}
	}
}
