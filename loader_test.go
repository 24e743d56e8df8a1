package sluice

import (
	"context"
	"crypto/sha1"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/rueidis"
)

func TestPinnedDigests(t *testing.T) {
	sums, err := os.ReadFile("scripts/SHA1SUMS")
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range scripts[slidingLog:] {
		sum := sha1.Sum([]byte(s.text))
		if got := hex.EncodeToString(sum[:]); got != s.sha1 {
			t.Errorf("%s has the digest %s, pinned in loader.go is %s", s.name, got, s.sha1)
		}
		if line := s.sha1 + "  " + s.name + ".lua\n"; !strings.Contains(string(sums), line) {
			t.Errorf("scripts/SHA1SUMS has no line %q", line)
		}
		if strings.Contains(s.text, "\r") {
			t.Errorf("%s has carriage returns, so another digest", s.name)
		}
	}
}

func TestArguments(t *testing.T) {
	client := replying(fiveReply(1, 5, 0, 60_000, 1_700_000_000_123_456))
	l := newLimiter(t, client, Config{PlainKeys: true})
	log, counter, bucket := SlidingLog(10, time.Minute), SlidingCounter(1_000_000_000, days366), TokenBucket(50, 10, 1500*time.Millisecond)
	ask := func(key string, p Policy, cost int64) Result {
		res, err := l.AllowN(t.Context(), key, p, cost)
		if err != nil {
			t.Fatal(err)
		}
		return res
	}
	settle := func(res Result, actual int64) {
		if _, err := l.Settle(t.Context(), res, actual); err != nil {
			t.Fatal(err)
		}
	}
	peek := func(key string, p Policy, cost int64) {
		if _, err := l.Peek(t.Context(), key, p, cost); err != nil {
			t.Fatal(err)
		}
	}
	tests := []struct {
		do   func()
		want string // without the digest
	}{
		{func() { ask("a", log, 1) }, "EVALSHA log 1 sluice:{a}:log/60000 take 1 10 60000"},
		{func() { ask("a", log, 0) }, "EVALSHA log 1 sluice:{a}:log/60000 take 0 10 60000"},
		{func() { peek("a", log, 10) }, "EVALSHA log 1 sluice:{a}:log/60000 peek 10 10 60000"},
		{func() { ask("a", counter, 1_000_000_000) }, "EVALSHA counter 1 sluice:{a}:counter/31622400000 take 1000000000 1000000000 31622400000"},
		{func() { ask("a", bucket.Named("n"), 7) }, "EVALSHA bucket 1 sluice:{a}:n take 7 50 10 1500"},
		{func() { settle(ask("a", log, 7), 3) }, "EVALSHA log 1 sluice:{a}:log/60000 settle -4 10 60000 1700000000123456"},
		{func() { settle(ask("a", bucket, 7), 1_000_000_000) }, "EVALSHA bucket 1 sluice:{a}:bucket/1500 settle 999999993 50 10 1500 1700000000123456"},
		{func() { settle(ask("a", log, 7), 7) }, "EVALSHA log 1 sluice:{a}:log/60000 settle 0 10 60000 1700000000123456"},
		{func() { settle(ask("a", log, 0), 2) }, "EVALSHA log 1 sluice:{a}:log/60000 settle 2 10 60000 1700000000123456"},
		{func() { l.Batch(t.Context(), Request{Key: "a", Tag: "b", Policy: log, Cost: 2}) }, "EVALSHA log 1 sluice:{b}:a:log/60000 take 2 10 60000"},
		{func() { settle(l.Batch(t.Context(), Request{Key: "a", Tag: "b", Policy: log, Cost: 2})[0].Result, 1) }, "EVALSHA log 1 sluice:{b}:a:log/60000 settle -1 10 60000 1700000000123456"},
		{func() {
			if err := l.Reset(t.Context(), "*?[]", log); err != nil {
				t.Fatal(err)
			}
		}, "UNLINK sluice:{*?[]}:log/60000"},
	}
	digests := strings.NewReplacer(slidingLogSHA1, "log", slidingCounterSHA1, "counter", tokenBucketSHA1, "bucket")
	for _, tt := range tests {
		client.sent = nil
		tt.do()
		if got := digests.Replace(strings.Join(client.sent[len(client.sent)-1], " ")); got != tt.want {
			t.Errorf("sent %s, want %s", got, tt.want)
		}
	}
}

func TestUnknownScriptIsSentOnce(t *testing.T) {
	for name, p := range map[string]Policy{"log": SlidingLog(10, time.Minute), "counter": SlidingCounter(10, time.Minute), "bucket": TokenBucket(10, 1, time.Second)} {
		t.Run(name, func(t *testing.T) {
			client, forget := forgetful(fiveReply(1, 5, 0, 60_000, 1))
			l := newLimiter(t, client, Config{})
			for range 2 {
				if res, err := l.AllowN(t.Context(), "a", p, 2); err != nil || !res.Allowed {
					t.Fatalf("got %+v, %v, want it allowed", res, err)
				}
			}
			forget()
			if res, err := l.Peek(t.Context(), "a", p, 2); err != nil || !res.Allowed {
				t.Fatalf("got %+v, %v, want it allowed", res, err)
			}
			if got, want := client.verbs(), "EVALSHA EVAL EVALSHA EVALSHA EVAL"; got != want {
				t.Errorf("sent %s, want %s", got, want)
			}
			if first, second := client.sent[0][2:], client.sent[1][2:]; strings.Join(first, " ") != strings.Join(second, " ") {
				t.Errorf("by digest %q, by text %q, want the same call", first, second)
			}
		})
	}
}

func TestAnswerOfTheSecondTryIsFinal(t *testing.T) {
	// A server that goes on claiming not to know the script gets no third call.
	client := replying(errorReply("NOSCRIPT No matching script."))
	l := newLimiter(t, client, Config{})
	if _, err := l.Allow(t.Context(), "a", SlidingLog(10, time.Minute)); !errors.Is(err, ErrBackend) {
		t.Errorf("got %v, want ErrBackend", err)
	}
	l.Batch(t.Context(), Request{Key: "a", Policy: SlidingLog(10, time.Minute), Cost: 1})
	if got, want := client.verbs(), "EVALSHA EVAL EVALSHA EVAL"; got != want {
		t.Errorf("sent %s, want %s", got, want)
	}
}

// wrapping is a client that wraps its errors, as one with hooks may.
type wrapping struct{ *fake }

func (w wrapping) Do(ctx context.Context, cmd rueidis.Completed) rueidis.RedisResult {
	return wrapped(w.fake.Do(ctx, cmd))
}

func (w wrapping) DoMulti(ctx context.Context, multi ...rueidis.Completed) []rueidis.RedisResult {
	results := w.fake.DoMulti(ctx, multi...)
	for i := range results {
		results[i] = wrapped(results[i])
	}
	return results
}

func wrapped(res rueidis.RedisResult) rueidis.RedisResult {
	if err := res.Error(); err != nil {
		return rueidis.NewErrorResult(fmt.Errorf("traced: %w", err))
	}
	return res
}

// replyingOnceKnown is the answer of a fake, but with another reply where it has one.
func replyingOnceKnown(f *fake, res rueidis.RedisResult) func(context.Context, []string) rueidis.RedisResult {
	answer := f.answer
	return func(ctx context.Context, words []string) rueidis.RedisResult {
		if got := answer(ctx, words); got.Error() != nil {
			return got
		}
		return res
	}
}

func TestWrappedErrorHidesNoScript(t *testing.T) {
	client, forget := forgetful(fiveReply(1, 5, 0, 60_000, 1))
	l := newLimiter(t, wrapping{client}, Config{})
	p := SlidingLog(10, time.Minute)
	if res, err := l.Allow(t.Context(), "a", p); err != nil || !res.Allowed {
		t.Errorf("got %+v, %v, want it allowed", res, err)
	}
	forget()
	if out := l.Batch(t.Context(), Request{Key: "a", Policy: p, Cost: 1})[0]; out.Err != nil || !out.Result.Allowed {
		t.Errorf("batch: got %+v, want it allowed", out)
	}
	forget()
	client.answer = replyingOnceKnown(client, fiveReply(1, 0, 1, 5, 0, 60_000, 1))
	if res, err := l.AllowAll(t.Context(), Request{Key: "a", Policy: p, Cost: 1}); err != nil || !res.Allowed {
		t.Errorf("all: got %+v, %v, want it allowed", res, err)
	}
	if got, want := client.verbs(), "EVALSHA EVAL EVALSHA EVAL EVALSHA EVAL"; got != want {
		t.Errorf("sent %s, want %s", got, want)
	}

	l = newLimiter(t, wrapping{replying(errorReply("SLUICESTATE KEYS[1] is not ours"))}, Config{})
	var state *StateError
	if _, err := l.Allow(t.Context(), "a", p); !errors.As(err, &state) {
		t.Errorf("got %v, want a StateError", err)
	}
}

func TestBatchIsOnePipeline(t *testing.T) {
	client, _ := forgetful(fiveReply(1, 5, 0, 60_000, 1))
	log, bucket := SlidingLog(10, time.Minute), TokenBucket(10, 1, time.Second)
	// The log is known already, the bucket not: only its calls are sent again.
	l := newLimiter(t, client, Config{})
	if _, err := l.Allow(t.Context(), "a", log); err != nil {
		t.Fatal(err)
	}
	client.sent = nil
	outcomes := l.Batch(t.Context(),
		Request{Key: "a", Policy: log, Cost: 1},
		Request{Key: "b", Policy: bucket, Cost: 2},
		Request{Key: "", Policy: log, Cost: 1},
		Request{Key: "c", Policy: log, Cost: 11},
		Request{Key: "d", Policy: Policy{}, Cost: 1},
		Request{Key: "e", Policy: bucket, Cost: 3},
	)
	wantErrs := []error{nil, nil, ErrInvalidKey, ErrInvalidCost, ErrInvalidPolicy, nil}
	for i, out := range outcomes {
		if !errors.Is(out.Err, wantErrs[i]) || out.Result.Allowed != (wantErrs[i] == nil) {
			t.Errorf("outcome %d: %+v, want error %v", i, out, wantErrs[i])
		}
	}
	if got, want := fmt.Sprint(client.pipelines), "[3 2]"; got != want {
		t.Errorf("pipelines of %s commands, want %s", got, want)
	}
	if got, want := client.verbs(), "EVALSHA EVALSHA EVALSHA EVAL EVAL"; got != want {
		t.Errorf("sent %s, want %s", got, want)
	}
	if got := client.sent[3][5] + client.sent[4][5]; got != "23" {
		t.Errorf("costs of the calls sent again: %s, want 2 and 3", got)
	}
	if out := l.Batch(t.Context()); len(out) != 0 || len(client.pipelines) != 2 {
		t.Errorf("an empty batch: %v, %d pipelines, want nothing sent", out, len(client.pipelines))
	}
	if out := l.Batch(t.Context(), Request{}); out[0].Err == nil || len(client.pipelines) != 2 {
		t.Errorf("a batch with nothing fit to send: %v, %d pipelines, want nothing sent", out, len(client.pipelines))
	}
}

func TestBatchOutcomesAreIndependent(t *testing.T) {
	client := &fake{answer: func(_ context.Context, words []string) rueidis.RedisResult {
		switch key := words[3]; {
		case strings.Contains(key, "{denied}"):
			return fiveReply(0, 0, 1, 1, 1)
		case strings.Contains(key, "{broken}"):
			return rueidis.NewErrorResult(io.EOF)
		case strings.Contains(key, "{foreign}"):
			return errorReply("SLUICESTATE KEYS[1] is not ours")
		case strings.Contains(key, "{odd}"):
			return textReply("OK")
		}
		return fiveReply(1, 5, 0, 1, 1)
	}}
	l := newLimiter(t, client, Config{PlainKeys: true})
	p := SlidingLog(10, time.Minute)
	var reqs []Request
	for _, key := range []string{"fine", "denied", "broken", "foreign", "odd", "fine"} {
		reqs = append(reqs, Request{Key: key, Policy: p, Cost: 1})
	}
	out := l.Batch(t.Context(), reqs...)
	for i, want := range []bool{true, false, false, false, false, true} {
		if out[i].Result.Allowed != want {
			t.Errorf("%s: allowed %v, want %v", reqs[i].Key, out[i].Result.Allowed, want)
		}
	}
	if out[0].Err != nil || out[1].Err != nil {
		t.Errorf("errors %v, %v, want none", out[0].Err, out[1].Err)
	}
	var call *CallError
	var state *StateError
	if !errors.As(out[2].Err, &call) || !call.Unknown || !errors.Is(out[2].Err, io.EOF) {
		t.Errorf("broken: %v, want an unknown outcome", out[2].Err)
	}
	if !errors.As(out[3].Err, &state) || !strings.Contains(state.Key, "{foreign}") {
		t.Errorf("foreign: %v, want a StateError for its key", out[3].Err)
	}
	if !errors.Is(out[4].Err, ErrReply) {
		t.Errorf("odd: %v, want ErrReply", out[4].Err)
	}
}

func TestLoad(t *testing.T) {
	good := func() *fake {
		return &fake{answer: func(_ context.Context, words []string) rueidis.RedisResult {
			sum := sha1.Sum([]byte(words[2]))
			return textReply(hex.EncodeToString(sum[:]))
		}}
	}
	primary, replica := good(), good()
	altered, broken := replying(textReply("da39a3ee5e6b4b0d3255bfef95601890afd80709")), replying(rueidis.NewErrorResult(io.EOF))

	l := newLimiter(t, &fake{nodes: map[string]rueidis.Client{"primary:1": primary, "replica:1": replica}}, Config{})
	if err := l.Load(t.Context()); err != nil {
		t.Fatal(err)
	}
	for name, node := range map[string]*fake{"primary": primary, "replica": replica} {
		if node.verbs() != "SCRIPT SCRIPT SCRIPT SCRIPT" || len(node.pipelines) != 1 {
			t.Errorf("%s was sent %s in %d pipelines, want four scripts in one", name, node.verbs(), len(node.pipelines))
		}
	}

	l = newLimiter(t, &fake{nodes: map[string]rueidis.Client{"a:1": altered, "b:1": broken, "c:1": good()}}, Config{})
	err := l.Load(t.Context())
	if !errors.Is(err, ErrReply) || !errors.Is(err, ErrBackend) || !errors.Is(err, io.EOF) {
		t.Fatalf("got %v, want what both nodes did wrong", err)
	}
	if text := err.Error(); !strings.Contains(text, "a:1") || !strings.Contains(text, "b:1") || strings.Contains(text, "c:1") {
		t.Errorf("message %q, want it to name a:1 and b:1 alone", text)
	}
	var call *CallError
	if !errors.As(err, &call) || call.Op != "load" || call.Unknown {
		t.Errorf("got %+v, want a CallError for load", call)
	}
}

func TestUnknownOutcome(t *testing.T) {
	dial := &net.OpError{Op: "dial", Net: "tcp", Err: errors.New("connection refused")}
	read := &net.OpError{Op: "read", Net: "tcp", Err: errors.New("connection reset")}
	p := SlidingLog(10, time.Minute)
	tests := []struct {
		err     error
		unknown bool
	}{
		{io.EOF, true},
		{read, true},
		{fmt.Errorf("traced: %w", read), true},
		{rueidis.ErrClosing, true}, // it may have been closed under the call
		{context.DeadlineExceeded, true},
		{dial, false},
		{fmt.Errorf("traced: %w", dial), false},
		{rueidis.ErrNoSlot, false},
	}
	for _, tt := range tests {
		client := replying(fiveReply(1, 5, 0, 60_000, 1))
		l := newLimiter(t, client, Config{})
		charged, err := l.Allow(t.Context(), "a", p)
		if err != nil {
			t.Fatal(err)
		}
		client.sent = nil
		client.answer = replying(rueidis.NewErrorResult(tt.err)).answer
		_, takeErr := l.Allow(t.Context(), "a", p)
		_, settleErr := l.Settle(t.Context(), charged, 3)
		_, peekErr := l.Peek(t.Context(), "a", p, 1)
		for op, got := range map[string]struct {
			err     error
			unknown bool
		}{
			"take":   {takeErr, tt.unknown},
			"settle": {settleErr, tt.unknown},
			"reset":  {l.Reset(t.Context(), "a", p), tt.unknown},
			"peek":   {peekErr, false},
		} {
			var call *CallError
			if !errors.Is(got.err, ErrBackend) || !errors.Is(got.err, tt.err) || !errors.As(got.err, &call) || call.Op != op || call.Unknown != got.unknown {
				t.Errorf("%v: %s: got %v, want a CallError that is ErrBackend, unknown %v", tt.err, op, got.err, got.unknown)
			}
		}
		if got, want := client.verbs(), "EVALSHA EVALSHA EVALSHA UNLINK"; got != want {
			t.Errorf("%v: sent %s, want each once", tt.err, got)
		}
	}
}

// A server that drops the connection instead of answering, seen by a real client.
func TestReplayAfterAnUnknownOutcome(t *testing.T) {
	var calls atomic.Int64
	var drop atomic.Bool
	addr := Serve(t, func([]string) string {
		calls.Add(1)
		if drop.Load() {
			return ""
		}
		return FiveReply(1, 5, 0, 60_000, 1)
	})
	client, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{addr}, ForceSingleClient: true})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	p := SlidingLog(10, time.Minute)
	for _, timeout := range []time.Duration{0, time.Minute} {
		l := newLimiter(t, client, Config{Timeout: timeout})
		drop.Store(true)
		calls.Store(0)
		_, err := l.Allow(t.Context(), "a", p)
		var call *CallError
		if !errors.Is(err, ErrBackend) || !errors.As(err, &call) || !call.Unknown {
			t.Errorf("got %v, want an unknown outcome", err)
		}
		out := l.Batch(t.Context(), Request{Key: "a", Policy: p, Cost: 1})
		if !errors.As(out[0].Err, &call) || !call.Unknown {
			t.Errorf("batch: got %v, want an unknown outcome", out[0].Err)
		}
		if got := calls.Load(); got != 2 {
			t.Errorf("the server saw %d calls, want 2: one each", got)
		}
		drop.Store(false)
		if res, err := l.Allow(t.Context(), "a", p); err != nil || !res.Allowed {
			t.Errorf("once the server answers again: %+v, %v, want it allowed", res, err)
		}
	}
}

// silent is a client that never answers and does not look at the context.
func silent() (client *fake, release func()) {
	closed := make(chan struct{})
	return &fake{answer: func(context.Context, []string) rueidis.RedisResult {
		<-closed
		return rueidis.NewErrorResult(io.EOF)
	}}, func() { close(closed) }
}

func TestTimeoutBoundsEveryCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, release := silent()
		defer release()
		client.nodes = map[string]rueidis.Client{"a:1": client, "b:1": client}
		l := newLimiter(t, client, Config{Timeout: 50 * time.Millisecond})
		p := SlidingLog(10, time.Minute)
		allowed := Result{key: "k", policy: p, charged: 1}
		for name, call := range map[string]func() error{
			"Allow":    func() error { _, err := l.Allow(t.Context(), "a", p); return err },
			"Peek":     func() error { _, err := l.Peek(t.Context(), "a", p, 1); return err },
			"Wait":     func() error { _, err := l.Wait(t.Context(), "a", p, 1); return err },
			"Settle":   func() error { _, err := l.Settle(t.Context(), allowed, 2); return err },
			"Batch":    func() error { return l.Batch(t.Context(), Request{Key: "a", Policy: p, Cost: 1})[0].Err },
			"AllowAll": func() error { _, err := l.AllowAll(t.Context(), Request{Key: "a", Policy: p, Cost: 1}); return err },
			"PeekAll":  func() error { _, err := l.PeekAll(t.Context(), Request{Key: "a", Policy: p, Cost: 1}); return err },
			"Reset":    func() error { return l.Reset(t.Context(), "a", p) },
			"Load":     func() error { return l.Load(t.Context()) },
		} {
			start := time.Now()
			err := call()
			if took := time.Since(start); took != 50*time.Millisecond {
				t.Errorf("%s took %v, want 50ms", name, took)
			}
			if !errors.Is(err, ErrBackend) || !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("%s: %v, want ErrBackend and DeadlineExceeded", name, err)
			}
			var call *CallError
			if !errors.As(err, &call) || call.Unknown != (name != "Peek" && name != "PeekAll" && name != "Load") {
				t.Errorf("%s: %v, want its outcome unknown if it changes anything", name, err)
			}
		}
	})
}

// A server that takes commands and never answers, seen by a real client: by the call that finds it out and by those behind it.
func TestDeadRedisBlocks(t *testing.T) {
	hole := make(chan struct{})
	addr := Serve(t, func([]string) string {
		<-hole
		return ""
	})
	client, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{addr}, ForceSingleClient: true})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	defer close(hole)
	const timeout = time.Second
	l := newLimiter(t, client, Config{Timeout: timeout})
	// A busy machine delays this test at times, a call that blocks delays it every time.
	var slowest time.Duration
	for range 5 {
		took := make([]time.Duration, 20)
		var wg sync.WaitGroup
		for n := range took {
			wg.Go(func() {
				start := time.Now()
				_, err := l.Allow(t.Context(), "a", SlidingLog(10, time.Minute))
				took[n] = time.Since(start)
				if !errors.Is(err, ErrBackend) {
					t.Errorf("got %v, want ErrBackend", err)
				}
			})
		}
		wg.Wait()
		if slowest = slices.Max(took); slowest <= timeout*11/10 {
			return
		}
	}
	t.Errorf("took %v, want at most 10 %% more than %v", slowest, timeout)
}

// The caller's own context is not Redis' fault, whichever way it ends and whoever notices first.
func TestCallersContextIsNotABackendError(t *testing.T) {
	p := SlidingLog(10, time.Minute)
	check := func(t *testing.T, err, want error, unknown bool) {
		t.Helper()
		var call *CallError
		if !errors.Is(err, want) || errors.Is(err, ErrBackend) || !errors.As(err, &call) || call.Unknown != unknown {
			t.Errorf("got %v, want a CallError that is %v and not ErrBackend, unknown %v", err, want, unknown)
		}
	}
	t.Run("ended before", func(t *testing.T) {
		for _, timeout := range []time.Duration{0, time.Second} {
			client := replying(fiveReply(1, 0, 0, 0, 0))
			l := newLimiter(t, client, Config{Timeout: timeout})
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			_, err := l.Allow(ctx, "a", p)
			check(t, err, context.Canceled, false)
			_, err = l.Wait(ctx, "a", p, 1)
			check(t, err, context.Canceled, false)
			check(t, l.Batch(ctx, Request{Key: "a", Policy: p, Cost: 1})[0].Err, context.Canceled, false)
			check(t, l.Reset(ctx, "a", p), context.Canceled, false)
			if client.count() != 0 {
				t.Errorf("sent %q, want nothing", client.sent)
			}
		}
	})
	t.Run("cancelled during", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			client, release := silent()
			defer release()
			l := newLimiter(t, client, Config{Timeout: time.Second})
			ctx, cancel := context.WithCancel(t.Context())
			time.AfterFunc(10*time.Millisecond, cancel)
			start := time.Now()
			_, err := l.Allow(ctx, "a", p)
			check(t, err, context.Canceled, true)
			if took := time.Since(start); took != 10*time.Millisecond {
				t.Errorf("took %v, want 10ms", took)
			}
		})
	})
	t.Run("deadline before the timeout", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			client, release := silent()
			defer release()
			l := newLimiter(t, client, Config{Timeout: time.Second})
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
			defer cancel()
			_, err := l.Allow(ctx, "a", p)
			check(t, err, context.DeadlineExceeded, true)
		})
	})
	t.Run("the client notices the deadline first", func(t *testing.T) {
		// As a read with a deadline does: the context's timer has not run yet, but the time has come.
		client := replying(rueidis.NewErrorResult(context.DeadlineExceeded))
		l := newLimiter(t, client, Config{})
		_, err := l.Allow(lateContext{t.Context()}, "a", p)
		check(t, err, context.DeadlineExceeded, true)
	})
}

// lateContext has a deadline that has passed, and has not noticed.
type lateContext struct{ context.Context }

func (lateContext) Deadline() (time.Time, bool) { return time.Now(), true }

func TestScriptFlushUnderCallers(t *testing.T) {
	client, forget := forgetful(fiveReply(1, 5, 0, 60_000, 1))
	l := newLimiter(t, client, Config{})
	p := SlidingLog(10, time.Minute)
	var evals atomic.Int64
	answer := client.answer
	client.answer = func(ctx context.Context, words []string) rueidis.RedisResult {
		res := answer(ctx, words)
		if res.Error() == nil {
			evals.Add(1)
		}
		return res
	}
	var wg sync.WaitGroup
	for n := range 100 {
		wg.Go(func() {
			for range 20 {
				if n == 0 {
					forget()
				}
				if res, err := l.Allow(t.Context(), "a", p); err != nil || !res.Allowed {
					t.Errorf("got %+v, %v, want it allowed", res, err)
				}
			}
		})
	}
	wg.Wait()
	if got := evals.Load(); got != 2000 {
		t.Errorf("%d scripts ran for 2000 calls", got)
	}
}
