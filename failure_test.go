package sluice

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/rueidis"
)

// recorder keeps the events of a limiter.
type recorder struct {
	mu     sync.Mutex
	events []Event
}

func (r *recorder) observe(_ context.Context, e Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.events = append(r.events, e)
}

// take returns the events since the last time.
func (r *recorder) take() []Event {
	r.mu.Lock()
	defer r.mu.Unlock()
	events := r.events
	r.events = nil
	return events
}

// asking are the verbs that ask, each for one subject and cost.
func asking(l *Limiter) map[string]func(ctx context.Context, key string, p Policy, cost int64) (Result, error) {
	first := func(res Results, err error) (Result, error) {
		if err != nil || len(res.Each) == 0 {
			return Result{}, err
		}
		one := res.Each[0]
		if res.Allowed != one.Allowed || res.Degraded != one.Degraded {
			return Result{Allowed: true}, fmt.Errorf("the verdict is not that of its only limit: %+v", res)
		}
		return one, nil
	}
	return map[string]func(ctx context.Context, key string, p Policy, cost int64) (Result, error){
		"AllowN": l.AllowN,
		"Peek":   l.Peek,
		"Batch": func(ctx context.Context, key string, p Policy, cost int64) (Result, error) {
			out := l.Batch(ctx, Request{Key: key, Policy: p, Cost: cost})[0]
			return out.Result, out.Err
		},
		"AllowAll": func(ctx context.Context, key string, p Policy, cost int64) (Result, error) {
			return first(l.AllowAll(ctx, Request{Key: key, Policy: p, Cost: cost}))
		},
		"PeekAll": func(ctx context.Context, key string, p Policy, cost int64) (Result, error) {
			return first(l.PeekAll(ctx, Request{Key: key, Policy: p, Cost: cost}))
		},
	}
}

// faults are what a failed Redis says, or what stands in for its words.
var faults = map[string]struct {
	res   rueidis.RedisResult
	class ErrorClass
}{
	"connection refused":       {rueidis.NewErrorResult(errors.New("connect: connection refused")), ClassConnection},
	"broken connection":        {rueidis.NewErrorResult(io.EOF), ClassConnection},
	"no slot":                  {rueidis.NewErrorResult(rueidis.ErrNoSlot), ClassConnection},
	"closing":                  {rueidis.NewErrorResult(rueidis.ErrClosing), ClassConnection},
	"timeout of the client":    {rueidis.NewErrorResult(context.DeadlineExceeded), ClassTimeout},
	"LOADING":                  {errorReply("LOADING Redis is loading the dataset in memory"), ClassUnavailable},
	"READONLY":                 {errorReply("READONLY You can't write against a read only replica."), ClassUnavailable},
	"OOM":                      {errorReply("OOM command not allowed when used memory > 'maxmemory'."), ClassUnavailable},
	"CLUSTERDOWN":              {errorReply("CLUSTERDOWN The cluster is down"), ClassUnavailable},
	"denied in a script, 7.0":  {errorReply("ERR The user executing the script can't run this command or subcommand script: 1, on @user_script:9."), ClassUnavailable},
	"denied in a script, 7.2":  {errorReply("ERR ACL failure in script: User sluice has no permissions to run the 'pexpireat' command script: 1"), ClassUnavailable},
	"NOPERM":                   {errorReply("NOPERM this user has no permissions to run the 'rpush' command"), ClassUnavailable},
	"too many clients":         {errorReply("ERR max number of clients reached"), ClassUnavailable},
	"in a script of Redis 6.0": {errorReply("ERR Error running script (call to f_3e): @user_script:9: @user_script: 9: -OOM command not allowed"), ClassUnavailable},
}

func TestFaultsDegrade(t *testing.T) {
	p := SlidingLog(10, time.Minute)
	for name, fault := range faults {
		for _, mode := range []OnFailure{ReturnError, FailOpen, FailClosed, FailLocal} {
			var seen recorder
			l := newLimiter(t, replying(fault.res), Config{OnFailure: mode, Processes: 2, Observe: seen.observe})
			for verb, call := range asking(l) {
				res, err := call(t.Context(), "a", p, 1)
				var failed *CallError
				switch {
				case mode == ReturnError:
					if !errors.As(err, &failed) || failed.Class != fault.class || res != (Result{}) {
						t.Errorf("%s, %s: got %+v, %v, want an error of class %s", name, verb, res, err, fault.class)
					}
				case err != nil || !res.Degraded || res.Limit != 10 || res.ServerTime.IsZero():
					t.Errorf("%s, %s: got %+v, %v, want a result that is degraded", name, verb, res, err)
				case res.Allowed != (mode != FailClosed):
					t.Errorf("%s, %s, mode %d: allowed is %t", name, verb, mode, res.Allowed)
				case res.Allowed != (res.RetryAfter == 0), mode == FailClosed && res.RetryAfter != time.Second:
					t.Errorf("%s, %s, mode %d: retry after %v", name, verb, mode, res.RetryAfter)
				case mode != FailLocal && res.Remaining != 0, mode == FailLocal && (res.Remaining < 2 || res.Remaining > 5):
					t.Errorf("%s, %s, mode %d: %d remaining", name, verb, mode, res.Remaining)
				}
				for _, e := range seen.take() {
					if e.Class != fault.class || e.Err == nil || e.Degraded != (mode != ReturnError) || e.Allowed != res.Allowed {
						t.Errorf("%s, %s, mode %d: told %+v", name, verb, mode, e)
					}
				}
			}
		}
	}
}

// The errors that are no decision are never made up for.
func TestSettleResetAndLoadReturnTheirErrors(t *testing.T) {
	p := SlidingLog(10, time.Minute)
	client := replying(errorReply("LOADING"))
	client.nodes = map[string]rueidis.Client{"a:1": client}
	l := newLimiter(t, client, Config{OnFailure: FailOpen})
	_, settle := l.Settle(t.Context(), Result{key: "k", policy: p, charged: 1}, 2)
	for verb, err := range map[string]error{"Settle": settle, "Reset": l.Reset(t.Context(), "a", p), "Load": l.Load(t.Context())} {
		if !errors.Is(err, ErrBackend) {
			t.Errorf("%s: %v, want ErrBackend", verb, err)
		}
	}
}

// TestNoCallerSwitchesLimitingOff makes the calls that somebody could make on purpose. None of them may be decided by
// OnFailure, let alone be allowed.
func TestNoCallerSwitchesLimitingOff(t *testing.T) {
	p := SlidingLog(10, time.Minute)
	denied := fiveReply(0, 0, 1000, 1000, 1)
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	late, cancel := context.WithDeadline(t.Context(), time.Now().Add(-time.Second))
	defer cancel()
	tests := map[string]struct {
		ctx  context.Context
		key  string
		p    Policy
		cost int64
		res  rueidis.RedisResult // what Redis would say
	}{
		"cancelled":          {cancelled, "a", p, 1, denied},
		"deadline passed":    {late, "a", p, 1, denied},
		"cost above limit":   {t.Context(), "a", p, 11, denied},
		"huge cost":          {t.Context(), "a", p, 1<<63 - 1, denied},
		"negative cost":      {t.Context(), "a", p, -1, denied},
		"no key":             {t.Context(), "", p, 1, denied},
		"no policy":          {t.Context(), "a", Policy{}, 1, denied},
		"key with braces":    {t.Context(), "}{", p, 1, denied},
		"key of NUL":         {t.Context(), "\x00", p, 1, denied},
		"key of 1 MiB":       {t.Context(), strings.Repeat("\xff", 1<<20), p, 1, denied},
		"key with a newline": {t.Context(), "a\r\n*1\r\n$8\r\nFLUSHALL", p, 1, denied},
		"two algorithms on one name, by calling one first": {t.Context(), "a", p, 1,
			errorReply("SLUICESTATE KEYS[1] holds something that is not a sliding log")},
		"an argument that the script refuses": {t.Context(), "a", p, 1, errorReply("SLUICEARG cost must be an integer from 0 to 1000000000")},
		"an argument that breaks the script":  {t.Context(), "a", p, 1, errorReply("ERR user_script:53: attempt to compare number with nil")},
		"the same on Redis 6.0": {t.Context(), "a", p, 1,
			errorReply("ERR Error running script (call to f_3e): @user_script:53: user_script:53: attempt to compare number with nil")},
		"a reply out of range": {t.Context(), "a", p, 1, fiveReply(1, 11, 0, 0, 1)},
		"a nil reply":          {t.Context(), "a", p, 1, rueidis.NewResult(message(element('_', 0)), nil)},
	}
	for name, tt := range tests {
		for _, mode := range []OnFailure{FailOpen, FailClosed, FailLocal} {
			var seen recorder
			l := newLimiter(t, replying(tt.res), Config{OnFailure: mode, Processes: 1, Observe: seen.observe})
			for verb, call := range asking(l) {
				if strings.HasSuffix(verb, "All") && tt.res == denied {
					continue // answers to several are of another shape
				}
				res, err := call(tt.ctx, tt.key, tt.p, tt.cost)
				if res.Allowed || res.Degraded || err == nil && tt.res != denied {
					t.Errorf("%s, %s, mode %d: got %+v, %v, want a denial by Redis or an error", name, verb, mode, res, err)
				}
				for _, e := range seen.take() {
					if e.Allowed || e.Degraded || e.Class.fault() {
						t.Errorf("%s, %s, mode %d: told %+v", name, verb, mode, e)
					}
				}
			}
		}
	}
}

// A caller who hangs up during the call gets its own error, also when Redis is dead.
func TestHangingUpIsNotAFault(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, release := silent()
		defer release()
		for _, breaker := range []Breaker{nil, &countingBreaker{}} {
			l := newLimiter(t, client, Config{OnFailure: FailOpen, Timeout: 50 * time.Millisecond, Breaker: breaker})
			for verb, call := range asking(l) {
				ctx, cancel := context.WithTimeout(t.Context(), 49*time.Millisecond)
				start := time.Now()
				res, err := call(ctx, "a", SlidingLog(10, time.Minute), 1)
				if took := time.Since(start); took != 49*time.Millisecond {
					t.Errorf("%s took %v, want 49ms", verb, took)
				}
				if res.Allowed || !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, ErrBackend) {
					t.Errorf("%s: got %+v, %v, want the context's error alone", verb, res, err)
				}
				cancel()
			}
			synctest.Wait()
		}
	})
}

func TestTimeoutDegrades(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, release := silent()
		defer release()
		var seen recorder
		l := newLimiter(t, client, Config{OnFailure: FailOpen, Timeout: 50 * time.Millisecond, Observe: seen.observe})
		for verb, call := range asking(l) {
			start := time.Now()
			res, err := call(t.Context(), "a", SlidingLog(10, time.Minute), 1)
			if took := time.Since(start); err != nil || !res.Allowed || !res.Degraded || took != 50*time.Millisecond {
				t.Errorf("%s: got %+v, %v after %v, want it allowed, degraded, after 50ms", verb, res, err, took)
			}
			for _, e := range seen.take() {
				if e.Class != ClassTimeout || !e.Sent || e.Elapsed != 50*time.Millisecond {
					t.Errorf("%s: told %+v, want a timeout after 50ms", verb, e)
				}
			}
		}
	})
}

func TestWaitDegrades(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var down atomic.Bool
		down.Store(true)
		client := &fake{answer: func(context.Context, []string) rueidis.RedisResult {
			if down.Load() {
				return rueidis.NewErrorResult(io.EOF)
			}
			return fiveReply(1, 7, 0, 1000, 1)
		}}
		p := SlidingLog(10, time.Minute)
		open := newLimiter(t, client, Config{OnFailure: FailOpen})
		var wg sync.WaitGroup
		for range 20 { // those behind don't stand in line for nothing
			wg.Go(func() {
				if res, err := open.Wait(t.Context(), "a", p, 1); err != nil || !res.Allowed || !res.Degraded {
					t.Errorf("FailOpen: got %+v, %v", res, err)
				}
			})
		}
		wg.Wait()

		closed := newLimiter(t, client, Config{OnFailure: FailClosed})
		time.AfterFunc(1500*time.Millisecond, func() { down.Store(false) })
		start := time.Now()
		res, err := closed.Wait(t.Context(), "a", p, 1)
		if took := time.Since(start); err != nil || !res.Allowed || res.Degraded || took != 2*time.Second {
			t.Errorf("FailClosed: got %+v, %v after %v, want Redis' own answer after 2 s", res, err, took)
		}
	})
}

// FailLocal: this process' share, and no more than the limit for all processes together.
func TestSharesNeverAddUpToMore(t *testing.T) {
	down := replying(errorReply("LOADING"))
	for _, processes := range []int{1, 2, 3, 7, 10, 1000, maxProcesses} {
		l := newLimiter(t, down, Config{OnFailure: FailLocal, Processes: processes})
		for _, p := range []Policy{SlidingLog(10, time.Hour), SlidingCounter(999, time.Hour), TokenBucket(25, 1, time.Hour), SlidingLog(1, time.Minute)} {
			admitted := int64(0)
			for range p.limit + 1 {
				if res, err := l.Allow(t.Context(), "a", p); err != nil || !res.Degraded {
					t.Fatalf("%+v, %v", res, err)
				} else if res.Allowed {
					admitted++
				} else if res.RetryAfter <= 0 || res.ResetAfter < res.RetryAfter {
					t.Fatalf("%d processes, %s: a denial without a wait: %+v", processes, p, res)
				}
			}
			if want := p.limit / int64(processes); admitted != want {
				t.Errorf("%d processes, %s: %d admitted, want %d", processes, p, admitted, want)
			}
		}
	}
}

func TestSharedBucketRefillsExactly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := TokenBucket(30, 10, time.Second) // of which each of 7 processes gets 4 at once, and one every 700 ms
		l := newLimiter(t, replying(errorReply("LOADING")), Config{OnFailure: FailLocal, Processes: 7})
		if res, err := l.AllowN(t.Context(), "a", p, 4); err != nil || !res.Allowed || res.ResetAfter != 2800*time.Millisecond {
			t.Fatalf("the burst: %+v, %v", res, err)
		}
		for range 10 {
			res, err := l.Allow(t.Context(), "a", p)
			if err != nil || res.Allowed || res.RetryAfter != 700*time.Millisecond {
				t.Fatalf("empty: %+v, %v", res, err)
			}
			time.Sleep(res.RetryAfter)
			if res, err := l.Allow(t.Context(), "a", p); err != nil || !res.Allowed {
				t.Fatalf("after the wait: %+v, %v", res, err)
			}
		}
	})
}

// A cost that fits the limit but not the share is denied, and the wait is not never.
func TestCostAboveTheShare(t *testing.T) {
	l := newLimiter(t, replying(errorReply("LOADING")), Config{OnFailure: FailLocal, Processes: 2})
	res, err := l.AllowN(t.Context(), "a", SlidingLog(10, time.Minute), 6)
	if err != nil || res.Allowed || res.Remaining != 5 || res.RetryAfter != time.Second {
		t.Errorf("got %+v, %v, want a denial, 5 remaining, to be asked again in 1 s", res, err)
	}
}

func TestAllowAllInProcess(t *testing.T) {
	l := newLimiter(t, replying(errorReply("LOADING")), Config{OnFailure: FailLocal, Processes: 2})
	reqs := []Request{
		{Key: "a", Policy: SlidingLog(2, time.Minute), Cost: 1},
		{Key: "a", Policy: SlidingCounter(20, time.Minute), Cost: 3},
	}
	res, err := l.AllowAll(t.Context(), reqs...)
	if err != nil || !res.Allowed || !res.Degraded || res.Each[0].Remaining != 0 || res.Each[1].Remaining != 7 {
		t.Fatalf("got %+v, %v, want both charged", res, err)
	}
	for range 3 {
		denied, err := l.AllowAll(t.Context(), reqs...)
		if err != nil || denied.Allowed || !denied.Each[1].Allowed || denied.Each[1].Remaining != 7 {
			t.Fatalf("got %+v, %v, want only the first limit to deny and nothing charged", denied, err)
		}
		if _, err := l.Settle(t.Context(), denied.Each[1], 0); !errors.Is(err, ErrNotCharged) {
			t.Fatalf("settled what was not charged: %v", err)
		}
	}
	if got, err := l.Settle(t.Context(), res.Each[1], 1); err != nil || got.Remaining != 9 {
		t.Errorf("settled: %+v, %v, want 9 remaining", got, err)
	}
	// A share of nothing, in one of the limits, denies all.
	res, err = l.AllowAll(t.Context(), reqs[1], Request{Key: "a", Policy: SlidingLog(1, time.Hour).Named("one"), Cost: 1})
	if err != nil || res.Allowed || res.RetryAfter != time.Second {
		t.Errorf("got %+v, %v, want a denial", res, err)
	}
}

// A degraded Result is settled where it was charged, whatever has become of Redis.
func TestDegradedResultsAreNotSettledInRedis(t *testing.T) {
	p := SlidingLog(10, time.Minute)
	for _, mode := range []OnFailure{FailOpen, FailClosed, FailLocal} {
		client := replying(errorReply("LOADING"))
		l := newLimiter(t, client, Config{OnFailure: mode, Processes: 1})
		res, err := l.AllowN(t.Context(), "a", p, 4)
		if err != nil {
			t.Fatal(err)
		}
		peeked, err := l.Peek(t.Context(), "a", p, 4)
		if err != nil {
			t.Fatal(err)
		}
		client.answer = func(_ context.Context, words []string) rueidis.RedisResult {
			t.Errorf("mode %d: sent %q", mode, words)
			return errorReply("ERR")
		}
		if _, err := l.Settle(t.Context(), peeked, 1); !errors.Is(err, ErrNotCharged) {
			t.Errorf("mode %d: settled a peek: %v", mode, err)
		}
		settled, err := l.Settle(t.Context(), res, 1)
		switch {
		case mode == FailClosed:
			if !errors.Is(err, ErrNotCharged) {
				t.Errorf("settled a denial: %v", err)
			}
		case err != nil || !settled.Allowed || !settled.Degraded:
			t.Errorf("mode %d: got %+v, %v, want it allowed and degraded", mode, settled, err)
		case mode == FailLocal && settled.Remaining != 9:
			t.Errorf("%d remaining after 4 were charged and 3 given back, want 9", settled.Remaining)
		}
		if _, err := l.Settle(t.Context(), res, -1); err == nil {
			t.Errorf("mode %d: settled to -1", mode)
		}
		if _, err := l.Settle(t.Context(), settled, 1); !errors.Is(err, ErrNotCharged) {
			t.Errorf("mode %d: settled a settle: %v", mode, err)
		}
	}
}

// What FailLocal charged is in that limiter alone; another one has nothing to correct.
func TestSettleByAnotherLimiter(t *testing.T) {
	client := replying(errorReply("LOADING"))
	p := SlidingLog(10, time.Minute)
	res, err := newLimiter(t, client, Config{OnFailure: FailLocal, Processes: 1}).AllowN(t.Context(), "a", p, 4)
	if err != nil {
		t.Fatal(err)
	}
	sent := client.count()
	settled, err := newLimiter(t, client, Config{}).Settle(t.Context(), res, 1)
	if err != nil || !settled.Allowed || !settled.Degraded || client.count() != sent {
		t.Errorf("got %+v, %v, want it allowed and degraded, and nothing sent", settled, err)
	}
}

func TestResetForgetsWhatTheProcessCharged(t *testing.T) {
	p := SlidingLog(1, time.Minute)
	l := newLimiter(t, replying(errorReply("LOADING")), Config{OnFailure: FailLocal, Processes: 1})
	for range 2 {
		if res, err := l.Allow(t.Context(), "a", p); err != nil || !res.Allowed {
			t.Fatalf("got %+v, %v, want it allowed", res, err)
		}
		if err := l.Reset(t.Context(), "a", p); !errors.Is(err, ErrBackend) {
			t.Fatalf("%v, want ErrBackend", err)
		}
	}
}

func TestLocalKeysBoundsTheMemory(t *testing.T) {
	p := SlidingLog(1, time.Hour)
	l := newLimiter(t, replying(errorReply("LOADING")), Config{OnFailure: FailLocal, Processes: 1, LocalKeys: 10})
	for n := range 1000 {
		if _, err := l.Allow(t.Context(), fmt.Sprint(n), p); err != nil {
			t.Fatal(err)
		}
	}
	if got := l.standIn.store.Len(); got != 10 {
		t.Errorf("%d limits are remembered, want 10", got)
	}
	if res, err := l.Allow(t.Context(), "999", p); err != nil || res.Allowed {
		t.Errorf("the latest: %+v, %v, want a denial", res, err)
	}
}

// countingBreaker lets all through, or none.
type countingBreaker struct {
	mu             sync.Mutex
	open           bool
	answers, fault int
	unfinished     int
}

var errOpen = errors.New("open")

func (b *countingBreaker) Allow() (func(error), error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.open {
		return nil, errOpen
	}
	b.unfinished++
	return func(err error) {
		b.mu.Lock()
		defer b.mu.Unlock()
		if b.unfinished--; err == nil {
			b.answers++
		} else {
			b.fault++
		}
	}, nil
}

func (b *countingBreaker) counts() [3]int {
	b.mu.Lock()
	defer b.mu.Unlock()
	got := [3]int{b.answers, b.fault, b.unfinished}
	b.answers, b.fault = 0, 0
	return got
}

func TestBreakerLearnsWhatRedisDid(t *testing.T) {
	p := SlidingLog(10, time.Minute)
	answered := map[string]rueidis.RedisResult{
		"allowed": fiveReply(1, 7, 0, 0, 1),
		"denied":  fiveReply(0, 0, 1000, 1000, 1),
		"state":   errorReply("SLUICESTATE KEYS[1] holds something else"),
		"script":  errorReply("ERR user_script:53: attempt to compare number with nil"),
		"garbage": textReply("what?"),
	}
	for name, res := range answered {
		b := &countingBreaker{}
		l := newLimiter(t, replying(res), Config{OnFailure: FailOpen, Timeout: time.Second, Breaker: b})
		for _, call := range asking(l) {
			call(t.Context(), "a", p, 1) //nolint:errcheck // some are errors, as other tests say
		}
		if got := b.counts(); got != [3]int{5, 0, 0} {
			t.Errorf("%s: %v answers, faults and open calls, want 5, 0, 0", name, got)
		}
		call(t, l, "", 1)
		call(t, l, "a", 11)
		if got := b.counts(); got != [3]int{} {
			t.Errorf("%s: %v for arguments that were refused, want nothing", name, got)
		}
	}
	for name, fault := range faults {
		b := &countingBreaker{}
		l := newLimiter(t, replying(fault.res), Config{OnFailure: FailOpen, Timeout: time.Second, Breaker: b})
		for verb, call := range asking(l) {
			if res, err := call(t.Context(), "a", p, 1); err != nil || !res.Degraded {
				t.Errorf("%s, %s: %+v, %v", name, verb, res, err)
			}
		}
		if got := b.counts(); got != [3]int{0, 5, 0} {
			t.Errorf("%s: %v answers, faults and open calls, want 0, 5, 0", name, got)
		}
	}
}

// call makes a call that must be refused.
func call(t *testing.T, l *Limiter, key string, cost int64) {
	t.Helper()
	var refused *InputError
	if _, err := l.AllowN(t.Context(), key, SlidingLog(10, time.Minute), cost); !errors.As(err, &refused) {
		t.Errorf("%q, %d: %v, want an InputError", key, cost, err)
	}
}

// Callers who hang up can neither open the breaker nor keep it from learning: their calls go on without them.
func TestHangingUpDoesNotFoolTheBreaker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &countingBreaker{}
		client := &fake{answer: func(ctx context.Context, _ []string) rueidis.RedisResult {
			select {
			case <-time.After(10 * time.Millisecond):
				return fiveReply(1, 7, 0, 0, 1)
			case <-ctx.Done():
				return rueidis.NewErrorResult(ctx.Err())
			}
		}}
		l := newLimiter(t, client, Config{OnFailure: FailOpen, Timeout: 50 * time.Millisecond, Breaker: b})
		for range 100 {
			ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
			res, err := l.Allow(ctx, "a", SlidingLog(10, time.Minute))
			var failed *CallError
			if res.Allowed || !errors.As(err, &failed) || failed.Class != ClassCanceled || !failed.Unknown {
				t.Fatalf("got %+v, %v, want the context's error, outcome unknown", res, err)
			}
			cancel()
		}
		time.Sleep(10 * time.Millisecond)
		if got := b.counts(); got != [3]int{100, 0, 0} {
			t.Errorf("%v answers, faults and open calls, want 100, 0, 0", got)
		}
	})
}

func TestTimeoutsAreFaultsForTheBreaker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, release := silent()
		defer release()
		b := &countingBreaker{}
		l := newLimiter(t, client, Config{OnFailure: FailOpen, Timeout: 50 * time.Millisecond, Breaker: b})
		hurried, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		for _, ctx := range []context.Context{hurried, t.Context()} {
			l.Allow(ctx, "a", SlidingLog(10, time.Minute)) //nolint:errcheck // it is the breaker that matters
		}
		synctest.Wait()
		if got := b.counts(); got != [3]int{0, 2, 0} {
			t.Errorf("%v answers, faults and open calls, want 0, 2, 0", got)
		}
	})
}

func TestOpenBreakerSendsNothing(t *testing.T) {
	client := replying(fiveReply(1, 7, 0, 0, 1))
	client.nodes = map[string]rueidis.Client{"a:1": client}
	p := SlidingLog(10, time.Minute)
	for _, mode := range []OnFailure{ReturnError, FailOpen, FailClosed, FailLocal} {
		var seen recorder
		b := &countingBreaker{open: true}
		l := newLimiter(t, client, Config{OnFailure: mode, Processes: 1, Timeout: time.Second, Breaker: b, Observe: seen.observe})
		for verb, call := range asking(l) {
			res, err := call(t.Context(), "a", p, 1)
			var failed *CallError
			if mode == ReturnError {
				if !errors.As(err, &failed) || failed.Class != ClassBreaker || failed.Unknown || !errors.Is(err, errOpen) || !errors.Is(err, ErrBackend) {
					t.Errorf("%s: %v, want the breaker's error, outcome known", verb, err)
				}
			} else if err != nil || !res.Degraded || res.Allowed == (mode == FailClosed) {
				t.Errorf("%s, mode %d: %+v, %v", verb, mode, res, err)
			}
			for _, e := range seen.take() {
				if e.Sent || e.Elapsed != 0 || e.Class != ClassBreaker {
					t.Errorf("%s: told %+v, want nothing sent", verb, e)
				}
			}
		}
		if _, err := l.Settle(t.Context(), Result{key: "k", policy: p, charged: 1}, 2); !errors.Is(err, errOpen) {
			t.Errorf("Settle: %v, want the breaker's error", err)
		}
	}
	if got := client.count(); got != 0 {
		t.Errorf("%d commands were sent", got)
	}
	l := newLimiter(t, client, Config{Timeout: time.Second, Breaker: &countingBreaker{open: true}})
	if l.Load(t.Context()); client.count() != 4 { //nolint:errcheck // the replies are no digests
		t.Errorf("Load sent %d commands, want one for each script: it is how one finds out", client.count())
	}
}
