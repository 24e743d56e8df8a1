package sluice

import (
	"context"
	"errors"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/rueidis"
)

func TestResultOfEachVerb(t *testing.T) {
	client := replying(fiveReply(1, 7, 0, 60_000, 1_700_000_000_123_456))
	l := newLimiter(t, client, Config{PlainKeys: true})
	p := SlidingLog(10, time.Minute)
	plain := Result{Allowed: true, Limit: 10, Remaining: 7, ResetAfter: time.Minute, ServerTime: time.UnixMicro(1_700_000_000_123_456).UTC()}
	charge := plain
	charge.key, charge.policy, charge.charged, charge.receipt = "sluice:{a}:log/60000", p, 3, 1_700_000_000_123_456

	one := charge
	one.charged = 1
	tests := map[string]struct {
		call func() (Result, error)
		want Result
	}{
		"Allow":  {func() (Result, error) { return l.Allow(t.Context(), "a", p) }, one},
		"AllowN": {func() (Result, error) { return l.AllowN(t.Context(), "a", p, 3) }, charge},
		"Wait":   {func() (Result, error) { return l.Wait(t.Context(), "a", p, 3) }, charge},
		"Batch": {func() (Result, error) {
			out := l.Batch(t.Context(), Request{Key: "a", Policy: p, Cost: 3})[0]
			return out.Result, out.Err
		}, charge},
		"Peek":   {func() (Result, error) { return l.Peek(t.Context(), "a", p, 3) }, plain},
		"Settle": {func() (Result, error) { return l.Settle(t.Context(), charge, 5) }, plain},
	}
	for name, tt := range tests {
		if got, err := tt.call(); err != nil || got != tt.want {
			t.Errorf("%s: got %+v, %v, want %+v", name, got, err, tt.want)
		}
	}
	if got := client.count(); got != len(tests) {
		t.Errorf("%d commands for %d calls, want one each", got, len(tests))
	}

	client.answer = replying(fiveReply(0, 2, 45_000, 55_000, 1_700_000_000_123_456)).answer
	want := Result{Limit: 10, Remaining: 2, RetryAfter: 45 * time.Second, ResetAfter: 55 * time.Second, ServerTime: time.UnixMicro(1_700_000_000_123_456).UTC()}
	if got, err := l.AllowN(t.Context(), "a", p, 5); err != nil || got != want {
		t.Errorf("denied: got %+v, %v, want %+v", got, err, want)
	}
}

func TestZeroResultDenies(t *testing.T) {
	if (Result{}).Allowed || (Outcome{}).Result.Allowed {
		t.Error("the zero Result allows")
	}
}

func TestCostsRefused(t *testing.T) {
	client := replying(fiveReply(1, 0, 0, 0, 0))
	l := newLimiter(t, client, Config{})
	for _, p := range []Policy{SlidingLog(10, time.Minute), SlidingCounter(10, time.Minute), TokenBucket(10, 1, time.Second)} {
		for _, cost := range []int64{11, -1, 1_000_000_000, 1_000_000_001, 1 << 31, 1 << 40, 1<<53 - 1, 1<<53 + 1, math.MaxInt64, math.MinInt64} {
			_, allowErr := l.AllowN(t.Context(), "a", p, cost)
			_, peekErr := l.Peek(t.Context(), "a", p, cost)
			_, waitErr := l.Wait(t.Context(), "a", p, cost)
			req := Request{Key: "a", Policy: p, Cost: cost}
			out := l.Batch(t.Context(), req)
			_, allErr := l.AllowAll(t.Context(), req)
			_, peekAllErr := l.PeekAll(t.Context(), req)
			for verb, tt := range map[string]struct {
				err         error
				field, want string
			}{
				"AllowN": {allowErr, "cost", "0 to 10, the limit"}, "Peek": {peekErr, "cost", "0 to 10, the limit"},
				"Wait": {waitErr, "cost", "0 to 10, the limit"}, "Batch": {out[0].Err, "cost", "1 to 10, the limit"},
				"AllowAll": {allErr, "cost of reqs[0]", "1 to 10, the limit"}, "PeekAll": {peekAllErr, "cost of reqs[0]", "0 to 10, the limit"},
			} {
				var input *InputError
				if !errors.Is(tt.err, ErrInvalidCost) || !errors.As(tt.err, &input) || input.Field != tt.field || input.Want != tt.want {
					t.Errorf("%s of %d on %v: %v, want an InputError for %s that is ErrInvalidCost", verb, cost, p, tt.err, tt.field)
				}
			}
		}
	}
	if client.count() != 0 {
		t.Errorf("sent %q, want nothing", client.sent)
	}
	if _, err := l.AllowN(t.Context(), "a", SlidingLog(1_000_000_000, time.Minute), 1_000_000_000); err != nil {
		t.Errorf("the largest cost: %v", err)
	}
}

func TestSettleRefused(t *testing.T) {
	client := replying(fiveReply(0, 0, 1, 1, 1))
	l := newLimiter(t, client, Config{})
	p := SlidingLog(10, time.Minute)
	denied, err := l.Allow(t.Context(), "a", p)
	if err != nil {
		t.Fatal(err)
	}
	client.answer = replying(fiveReply(1, 9, 0, 1, 1)).answer
	allowed, err := l.Allow(t.Context(), "a", p)
	if err != nil {
		t.Fatal(err)
	}
	peeked, err := l.Peek(t.Context(), "a", p, 1)
	if err != nil {
		t.Fatal(err)
	}
	settled, err := l.Settle(t.Context(), allowed, 2)
	if err != nil {
		t.Fatal(err)
	}
	before := client.count()
	for name, res := range map[string]Result{"zero": {}, "denied": denied, "peeked": peeked, "settled": settled, "made up": {Allowed: true, Limit: 10}} {
		if got, err := l.Settle(t.Context(), res, 1); !errors.Is(err, ErrNotCharged) || got != (Result{}) {
			t.Errorf("%s: got %+v, %v, want ErrNotCharged", name, got, err)
		}
	}
	for _, actual := range []int64{-1, 1_000_000_001, 1<<53 + 1, math.MaxInt64, math.MinInt64} {
		var input *InputError
		if _, err := l.Settle(t.Context(), allowed, actual); !errors.Is(err, ErrInvalidCost) || !errors.As(err, &input) || input.Field != "actual" {
			t.Errorf("actual %d: %v, want an InputError that is ErrInvalidCost", actual, err)
		}
	}
	if client.count() != before {
		t.Errorf("sent %q, want nothing", client.sent[before:])
	}
}

// A field that was forgotten must not switch limiting off.
func TestForgottenCostRefused(t *testing.T) {
	client := replying(fiveReply(1, 0, 0, 0, 0))
	l := newLimiter(t, client, Config{})
	req := Request{Key: "a", Policy: SlidingLog(10, time.Minute)}
	if out := l.Batch(t.Context(), req)[0]; !errors.Is(out.Err, ErrInvalidCost) || out.Result != (Result{}) {
		t.Errorf("Batch: %+v, want ErrInvalidCost", out)
	}
	if res, err := l.AllowAll(t.Context(), req); !errors.Is(err, ErrInvalidCost) || res.Allowed {
		t.Errorf("AllowAll: %+v, %v, want ErrInvalidCost", res, err)
	}
	if client.count() != 0 {
		t.Errorf("sent %q, want nothing", client.sent)
	}
}

// drip is a server with one unit that is free again at an instant, by the test's clock.
func drip(free time.Time) *fake {
	return &fake{answer: func(context.Context, []string) rueidis.RedisResult {
		wait := time.Until(free)
		if wait <= 0 {
			return fiveReply(1, 0, 0, 60_000, 1)
		}
		ms := int64((wait + time.Millisecond - 1) / time.Millisecond)
		return fiveReply(0, 0, ms, ms, 1)
	}}
}

func TestWait(t *testing.T) {
	p := SlidingLog(10, time.Minute)
	t.Run("sleeps as long as the denial says", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			start := time.Now()
			client := drip(start.Add(1500 * time.Millisecond))
			res, err := newLimiter(t, client, Config{}).Wait(t.Context(), "a", p, 1)
			if err != nil || !res.Allowed || time.Since(start) != 1500*time.Millisecond {
				t.Errorf("got %+v, %v after %v, want it allowed after 1.5s", res, err, time.Since(start))
			}
			if client.count() != 2 {
				t.Errorf("%d calls, want 2", client.count())
			}
		})
	})
	t.Run("asks again when another took the unit", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			start := time.Now()
			answers := []rueidis.RedisResult{fiveReply(0, 0, 100, 100, 1), fiveReply(0, 0, 200, 200, 1), fiveReply(1, 0, 0, 300, 1)}
			client := &fake{}
			client.answer = func(context.Context, []string) rueidis.RedisResult { return answers[client.count()-1] }
			res, err := newLimiter(t, client, Config{}).Wait(t.Context(), "a", p, 1)
			if err != nil || !res.Allowed || time.Since(start) != 300*time.Millisecond {
				t.Errorf("got %+v, %v after %v, want it allowed after 300ms", res, err, time.Since(start))
			}
		})
	})
	for name, tt := range map[string]struct {
		deadline time.Duration
		fails    bool
	}{
		"deadline nearer": {1499 * time.Millisecond, true},
		"deadline equal":  {1500 * time.Millisecond, true},
		"deadline later":  {1501 * time.Millisecond, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				start := time.Now()
				client := drip(start.Add(1500 * time.Millisecond))
				ctx, cancel := context.WithTimeout(t.Context(), tt.deadline)
				defer cancel()
				res, err := newLimiter(t, client, Config{}).Wait(ctx, "a", p, 1)
				if !tt.fails {
					if err != nil || !res.Allowed {
						t.Errorf("got %+v, %v, want it allowed", res, err)
					}
					return
				}
				var limited *LimitedError
				if !errors.Is(err, ErrLimited) || !errors.As(err, &limited) || limited.Result != res || res.Allowed || res.RetryAfter != 1500*time.Millisecond {
					t.Errorf("got %+v, %v, want a LimitedError with the denial", res, err)
				}
				if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, ErrBackend) {
					t.Errorf("%v is also DeadlineExceeded or ErrBackend", err)
				}
				if time.Since(start) != 0 || client.count() != 1 {
					t.Errorf("after %v and %d calls, want at once", time.Since(start), client.count())
				}
			})
		})
	}
	t.Run("cancelled during the wait", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			start := time.Now()
			client := drip(start.Add(1500 * time.Millisecond))
			ctx, cancel := context.WithCancel(t.Context())
			time.AfterFunc(time.Second, cancel)
			res, err := newLimiter(t, client, Config{Timeout: 10 * time.Millisecond}).Wait(ctx, "a", p, 1)
			var limited *LimitedError
			if !errors.Is(err, ErrLimited) || !errors.Is(err, context.Canceled) || !errors.As(err, &limited) || res.Allowed {
				t.Errorf("got %+v, %v, want a LimitedError that is Canceled", res, err)
			}
			if time.Since(start) != time.Second {
				t.Errorf("after %v, want 1s", time.Since(start))
			}
			time.Sleep(time.Minute)
			if client.count() != 1 {
				t.Errorf("%d calls, want none after the first", client.count())
			}
		})
	})
	t.Run("a failure ends it", func(t *testing.T) {
		client := replying(errorReply("OOM command not allowed"))
		if _, err := newLimiter(t, client, Config{}).Wait(t.Context(), "a", p, 1); !errors.Is(err, ErrBackend) || client.count() != 1 {
			t.Errorf("got %v after %d calls, want ErrBackend after one", err, client.count())
		}
	})
}

// Nothing that Sluice sends holds a byte of the subject, and reset names one key.
func TestResetSendsOneKey(t *testing.T) {
	client := replying(rueidis.NewResult(message(element(':', 1)), nil))
	l := newLimiter(t, client, Config{})
	p := SlidingLog(10, time.Minute)
	for _, key := range []string{"*?[]", "*", "a\x00b", strings.Repeat("x", 1<<20)} {
		client.sent = nil
		if err := l.Reset(t.Context(), key, p); err != nil {
			t.Fatal(err)
		}
		if len(client.sent) != 1 || len(client.sent[0]) != 2 || client.sent[0][0] != "UNLINK" || !hashedKey.MatchString(client.sent[0][1]) {
			t.Errorf("reset of %q sent %q, want UNLINK of one hashed key", clip(key), client.sent)
		}
	}
}

// TestLargeBatchInPipelines: who makes a batch large must not make it run into the timeout.
func TestLargeBatchInPipelines(t *testing.T) {
	p := SlidingLog(10, time.Minute)
	for _, tt := range []struct {
		size      int
		tried     bool // with a candidate
		pipelines []int
	}{{1, false, []int{1}}, {1000, false, []int{1000}}, {1001, false, []int{1000, 1}}, {2500, false, []int{1000, 1000, 500}}, {501, true, []int{1000, 2}}} {
		synctest.Test(t, func(t *testing.T) {
			client := &fake{answer: func(_ context.Context, words []string) rueidis.RedisResult {
				time.Sleep(40 * time.Microsecond) // of which a pipeline takes 40 ms
				n := strings.TrimSuffix(strings.TrimPrefix(words[3], "sluice:{"), "}:log/60000")
				remaining, err := strconv.ParseInt(strings.TrimSuffix(n, "}:new"), 10, 64)
				if err != nil {
					t.Error(words, err)
				}
				return fiveReply(1, remaining%10, 0, 0, 1)
			}}
			cfg := Config{PlainKeys: true, Timeout: 50 * time.Millisecond, OnFailure: FailOpen}
			if tt.tried {
				cfg.Candidates = map[Policy]Policy{p: p.Named("new")}
			}
			l := newLimiter(t, client, cfg)
			requests := make([]Request, tt.size)
			for n := range requests {
				requests[n] = Request{Key: strconv.Itoa(n), Policy: p, Cost: 1}
			}
			for n, out := range l.Batch(t.Context(), requests...) {
				if out.Err != nil || out.Result.Degraded || out.Result.Remaining != int64(n%10) || (out.Result.Candidate != nil) != tt.tried {
					t.Fatalf("%d of %d: got %+v", n, tt.size, out)
				}
			}
			if !slices.Equal(client.pipelines, tt.pipelines) {
				t.Errorf("%d: pipelines of %v, want %v", tt.size, client.pipelines, tt.pipelines)
			}
		})
	}
}

// TestLargeBatchAndDeadRedis: it costs one timeout and not one for each pipeline, and what was not sent is decided like the rest.
func TestLargeBatchAndDeadRedis(t *testing.T) {
	p := SlidingLog(10, time.Minute)
	for name, tt := range map[string]struct {
		timeout time.Duration
		answer  func(ctx context.Context) rueidis.RedisResult
		class   ErrorClass
		sent    int
	}{
		"no answer":     {50 * time.Millisecond, func(ctx context.Context) rueidis.RedisResult { <-ctx.Done(); return rueidis.NewErrorResult(ctx.Err()) }, ClassTimeout, 1000},
		"no connection": {0, func(context.Context) rueidis.RedisResult { return rueidis.NewErrorResult(io.EOF) }, ClassConnection, 1000},
		"an answer":     {0, func(context.Context) rueidis.RedisResult { return errorReply("LOADING") }, ClassUnavailable, 2500},
	} {
		synctest.Test(t, func(t *testing.T) {
			seen := &recorder{}
			client := &fake{answer: func(ctx context.Context, _ []string) rueidis.RedisResult { return tt.answer(ctx) }}
			l := newLimiter(t, client, Config{Timeout: tt.timeout, OnFailure: FailOpen, Observe: seen.observe})
			requests := make([]Request, 2500)
			for n := range requests {
				requests[n] = Request{Key: "a", Policy: p, Cost: 1}
			}
			start := time.Now()
			for n, out := range l.Batch(t.Context(), requests...) {
				if out.Err != nil || !out.Result.Allowed || !out.Result.Degraded {
					t.Fatalf("%s: %d: got %+v, want it let through", name, n, out)
				}
			}
			if took := time.Since(start); took != tt.timeout {
				t.Errorf("%s: it took %v, want %v", name, took, tt.timeout)
			}
			for n, e := range seen.take() {
				var call *CallError
				if e.Index != n || e.Of != 2500 || e.Class != tt.class || e.Sent != (n < tt.sent) || e.First != (n%1000 == 0 && e.Sent) ||
					!errors.As(e.Err, &call) || call.Unknown != (e.Sent && tt.sent == 1000) {
					t.Fatalf("%s: told %+v", name, e)
				}
			}
		})
	}
}
