package servers

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/redis/rueidis"
)

// do runs a command and returns its reply as text, errors included, so that two servers can be compared.
func do(t *testing.T, s *Server, args ...string) string {
	t.Helper()
	v, err := s.Client.Do(t.Context(), s.Client.B().Arbitrary(args...).Build()).ToAny()
	if err != nil && !rueidis.IsRedisNil(err) {
		return err.Error()
	}
	return fmt.Sprint(v)
}

// inScript runs a command from a script, where the time stands still on its own account.
func inScript(t *testing.T, s *Server, args ...string) string {
	t.Helper()
	return do(t, s, append([]string{"EVAL", "return redis.call(unpack(ARGV))", "0"}, args...)...)
}

func TestTimeIsWhatWasSet(t *testing.T) {
	for _, s := range All(t) {
		t.Run(s.Name, func(t *testing.T) {
			for _, us := range []int64{Epoch, Epoch + 1, Epoch - 1, 1_000_000, 999_999, 4_102_444_800_123_456, Epoch} {
				s.SetTime(us)
				want := fmt.Sprintf("[%d %d]", us/1e6, us%1e6)
				if got := do(t, s, "TIME"); got != want {
					t.Errorf("at %d: TIME = %s, want %s", us, got, want)
				}
				if got := inScript(t, s, "TIME"); got != want {
					t.Errorf("at %d: TIME in a script = %s, want %s", us, got, want)
				}
			}
		})
	}
}

// Each row moves the clock, to us relative to Epoch, and then runs the commands.
func TestKeysExpireByTheClock(t *testing.T) {
	at := func(ms int64) string { return fmt.Sprint(Epoch/1000 + ms) }
	type step struct {
		us   int64
		cmd  []string
		want string
	}
	cases := map[string][]step{
		"lives through the millisecond of its expiry": {
			{0, []string{"SET", "k", "v", "PX", "10"}, "OK"},
			{0, []string{"PTTL", "k"}, "10"},
			{9_999, []string{"PTTL", "k"}, "1"},
			{10_000, []string{"PTTL", "k"}, "0"},
			{10_999, []string{"GET", "k"}, "v"},
			{11_000, []string{"GET", "k"}, "<nil>"},
		},
		"absolute expiry between milliseconds": {
			{1_500, []string{"ZADD", "k", "1", "m"}, "1"},
			{1_500, []string{"PEXPIREAT", "k", at(5)}, "1"},
			{1_500, []string{"PTTL", "k"}, "4"},
			{1_999, []string{"PTTL", "k"}, "4"},
			{2_000, []string{"PTTL", "k"}, "3"},
			{5_999, []string{"ZCARD", "k"}, "1"},
			{6_000, []string{"ZCARD", "k"}, "0"},
		},
		"relative expiry between milliseconds": {
			{1_500, []string{"HSET", "k", "f", "v"}, "1"},
			{1_500, []string{"PEXPIRE", "k", "5"}, "1"},
			{6_999, []string{"PTTL", "k"}, "0"},
			{7_000, []string{"PTTL", "k"}, "-2"},
		},
		"an expiry that is now deletes": {
			{500, []string{"SET", "k", "v"}, "OK"},
			{500, []string{"PEXPIREAT", "k", at(0)}, "1"},
			{500, []string{"EXISTS", "k"}, "0"},
		},
		"back makes it live longer": {
			{0, []string{"SET", "k", "v", "PX", "10"}, "OK"},
			{-3_600_000_000, []string{"PTTL", "k"}, "3600010"},
			{10_999, []string{"PTTL", "k"}, "0"},
			{11_000, []string{"PTTL", "k"}, "-2"},
		},
		"back does not bring back the dead": {
			{0, []string{"SET", "k", "v", "PX", "10"}, "OK"},
			{11_000, []string{"PING"}, "PONG"},
			{0, []string{"EXISTS", "k"}, "0"},
		},
		"back within the last millisecond": {
			{0, []string{"SET", "k", "v", "PX", "10"}, "OK"},
			{10_500, []string{"PTTL", "k"}, "0"},
			{9_000, []string{"PTTL", "k"}, "1"},
			{10_999, []string{"PTTL", "k"}, "0"},
		},
		"KEEPTTL in the last millisecond": {
			{0, []string{"SET", "k", "v", "PX", "10"}, "OK"},
			{10_000, []string{"SET", "k", "w", "KEEPTTL"}, "OK"},
			{10_999, []string{"GET", "k"}, "w"},
			{11_000, []string{"GET", "k"}, "<nil>"},
		},
		"no expiry stays": {
			{0, []string{"SET", "k", "v", "PX", "10"}, "OK"},
			{0, []string{"PERSIST", "k"}, "1"},
			{366 * 86_400_000_000, []string{"PTTL", "k"}, "-1"},
			{-1, []string{"PTTL", "k"}, "-1"},
		},
	}
	for _, s := range All(t) {
		t.Run(s.Name, func(t *testing.T) {
			for name, steps := range cases {
				for how, run := range map[string]func(*testing.T, *Server, ...string) string{"command": do, "script": inScript} {
					t.Run(name+"/"+how, func(t *testing.T) {
						s.SetTime(Epoch)
						s.Flush(t)
						for i, step := range steps {
							s.SetTime(Epoch + step.us)
							if got := run(t, s, step.cmd...); got != step.want {
								t.Errorf("step %d, at %d us: %v = %s, want %s", i, step.us, step.cmd, got, step.want)
							}
						}
					})
				}
			}
		})
	}
}

func TestFlushRemovesEveryKey(t *testing.T) {
	for _, s := range All(t) {
		do(t, s, "MSET", "a", "1", "b", "2")
		s.Flush(t)
		if got := do(t, s, "DBSIZE"); got != "0" {
			t.Errorf("%s: DBSIZE after Flush = %s, want 0", s.Name, got)
		}
	}
}

// TestTheWallClockDoesNotShowThrough: neither time passing outside nor the server's own cron moves anything.
func TestTheWallClockDoesNotShowThrough(t *testing.T) {
	all := All(t)
	for _, s := range all {
		do(t, s, "SET", "k", "v", "PX", "1")
	}
	time.Sleep(20 * time.Millisecond) // the one clock that can't be moved is the one under test
	for _, s := range all {
		if got := do(t, s, "PTTL", "k"); got != "1" {
			t.Errorf("%s: PTTL after 20 ms outside = %s, want 1", s.Name, got)
		}
	}
}

func TestEval(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("SLUICE_SCRIPTS", dir)
	text := `if ARGV[1] == 'fail' then return redis.error_reply('ERR told to') end
return {#KEYS, string.len(KEYS[1]), ARGV[1] + ARGV[2]}`
	if err := os.WriteFile(filepath.Join(dir, "sum.lua"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, s := range All(t) {
		got, err := s.Eval(t.Context(), "sum", "key", "40", "2")
		if err != nil || fmt.Sprint(got) != "[1 3 42]" {
			t.Errorf("%s: Eval = %v, %v, want [1 3 42]", s.Name, got, err)
		}
		got, err = s.EvalKeys(t.Context(), "sum", []string{"{k}1", "{k}two"}, "40", "2")
		if err != nil || fmt.Sprint(got) != "[2 4 42]" {
			t.Errorf("%s: EvalKeys = %v, %v, want [2 4 42]", s.Name, got, err)
		}
		if _, err := s.Eval(t.Context(), "sum", "key", "fail"); err == nil || !strings.Contains(err.Error(), "told to") {
			t.Errorf("%s: the error reply came as %v", s.Name, err)
		}
	}
	if _, err := (&Server{}).Eval(t.Context(), "absent", "key"); !os.IsNotExist(err) {
		t.Errorf("a script that is not there: %v, want a missing file", err)
	}
}

func TestScriptsIsThisRepositorys(t *testing.T) {
	t.Setenv("SLUICE_SCRIPTS", "")
	if _, err := os.Stat(filepath.Join(Scripts(), "..", "go.work")); err != nil {
		t.Errorf("Scripts() = %q is not in the repository: %v", Scripts(), err)
	}
}

// listener is a testing.TB that notes what is logged, and the message of Fatal instead of ending the test.
type listener struct {
	testing.TB
	logged, fatal string
}

func (l *listener) Helper() {}

func (l *listener) Log(args ...any) { l.logged += fmt.Sprint(args...) }

func (l *listener) Fatal(args ...any) {
	l.fatal = fmt.Sprint(args...)
	panic(l)
}

func TestAMissingRedisIsLoudAndFailsIfRequired(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	t.Setenv("SLUICE_SERVERS", "")
	t.Setenv("SLUICE_REDIS_SERVER", "")
	t.Setenv("SLUICE_REQUIRE_REDIS", "")
	l := &listener{TB: t}
	if got := All(l); len(got) != 1 || got[0].Name != "miniredis" {
		t.Errorf("without a redis-server there are %d servers, want miniredis alone", len(got))
	}
	if !strings.Contains(l.logged, "NOT RUN ON A REAL SERVER") {
		t.Errorf("without a redis-server All logged %q", l.logged)
	}

	t.Setenv("SLUICE_REQUIRE_REDIS", "1")
	func() {
		defer func() {
			if r := recover(); r != nil && r != l {
				panic(r)
			}
		}()
		All(l)
	}()
	if !strings.Contains(l.fatal, "no redis-server") {
		t.Errorf("with SLUICE_REQUIRE_REDIS=1 All ended with %q", l.fatal)
	}
}

func TestServersAreGoneAfterTheirTest(t *testing.T) {
	var all []*Server
	t.Run("inner", func(t *testing.T) { all = All(t) })
	for _, s := range all {
		if ping(s.Addr) {
			t.Errorf("%s at %s still answers after its test", s.Name, s.Addr)
		}
	}
}

func BenchmarkStart(b *testing.B) {
	for b.Loop() {
		for _, s := range All(b) {
			if err := s.Client.Do(context.Background(), s.Client.B().Ping().Build()).Error(); err != nil {
				b.Fatal(err)
			}
		}
	}
}
