package sluice

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/rueidis"
)

// bucketServer is a server of buckets, in the time of a synctest bubble: a call takes it a millisecond, and is decided in the
// middle of that.
type bucketServer struct {
	*fake
	capacity int64
	every    time.Duration // for a unit to come

	mu   sync.Mutex
	full map[string]time.Time // when the bucket of a key is full again
	now  time.Time            // of the last call: no two are at one time
}

func newBucketServer(capacity int64, every time.Duration) *bucketServer {
	s := &bucketServer{capacity: capacity, every: every, full: map[string]time.Time{}}
	s.fake = &fake{answer: func(_ context.Context, words []string) rueidis.RedisResult {
		time.Sleep(time.Millisecond / 2)
		defer time.Sleep(time.Millisecond / 2)
		if words[0] == "UNLINK" {
			s.mu.Lock()
			defer s.mu.Unlock()
			delete(s.full, words[1])
			return rueidis.NewResult(message(element(':', 1)), nil)
		}
		return s.decide(words)
	}}
	return s
}

func (s *bucketServer) policy() Policy {
	return TokenBucket(s.capacity, int64(time.Second/s.every), time.Second)
}

func (s *bucketServer) decide(words []string) rueidis.RedisResult {
	s.mu.Lock()
	defer s.mu.Unlock()
	var cost int64
	if _, err := fmt.Sscan(words[5], &cost); err != nil {
		panic(err)
	}
	now, key := time.Now(), words[3]
	if !now.After(s.now) {
		now = s.now.Add(time.Microsecond)
	}
	s.now = now
	full := s.full[key]
	if full.Before(now) {
		full = now
	}
	allowed, wait := int64(0), full.Add(time.Duration(cost)*s.every).Sub(now.Add(time.Duration(s.capacity)*s.every))
	if wait <= 0 || words[4] == opSettle {
		allowed, wait, full = 1, 0, full.Add(time.Duration(cost)*s.every)
		s.full[key] = full
	}
	free := s.capacity - int64((full.Sub(now)+s.every-1)/s.every)
	return fiveReply(allowed, min(free, s.capacity), milliseconds(wait), milliseconds(max(full.Sub(now), 0)), now.UnixMicro())
}

func milliseconds(d time.Duration) int64 { return int64((d + time.Millisecond - 1) / time.Millisecond) }

// waitAlone is what Wait would be without a line: each sleeps for as long as it is told.
func waitAlone(ctx context.Context, l *Limiter, p Policy) (Result, error) {
	for {
		res, err := l.Allow(ctx, "a", p)
		if err != nil || res.Allowed {
			return res, err
		}
		time.Sleep(res.RetryAfter)
	}
}

// The figures are those of docs/operating.md.
func TestWaitDoesNotStampede(t *testing.T) {
	const waiters = 100
	tests := []struct {
		processes int
		capacity  int64
		every     time.Duration
		calls     float64       // at most, per waiter
		within    time.Duration // of the time that the bucket needs for all
	}{
		{1, 1, 100 * time.Millisecond, 2, 100 * time.Millisecond},
		{4, 1, 100 * time.Millisecond, 6, 100 * time.Millisecond},
		{10, 1, 100 * time.Millisecond, 12, 100 * time.Millisecond},
		{1, 50, 100 * time.Millisecond, 1.5, 100 * time.Millisecond},
		{10, 50, 100 * time.Millisecond, 6, 100 * time.Millisecond},
		{1, 200, 100 * time.Millisecond, 1, 2 * time.Millisecond},   // all of them at once, in two round trips
		{1, 20, 100 * time.Microsecond, 2.5, 20 * time.Millisecond}, // faster than a round trip: they ask side by side
	}
	for _, tt := range tests {
		inLine := func(ctx context.Context, l *Limiter, p Policy) (Result, error) { return l.Wait(ctx, "a", p, 1) }
		var took [2]time.Duration
		var calls [2]float64
		for i, wait := range []func(context.Context, *Limiter, Policy) (Result, error){inLine, waitAlone} {
			synctest.Test(t, func(t *testing.T) {
				server := newBucketServer(tt.capacity, tt.every)
				start := time.Now()
				var wg sync.WaitGroup
				for range tt.processes {
					l := newLimiter(t, server, Config{})
					for range waiters / tt.processes {
						wg.Go(func() {
							if res, err := wait(t.Context(), l, server.policy()); err != nil || !res.Allowed {
								t.Errorf("got %+v, %v, want it allowed", res, err)
							}
						})
					}
				}
				wg.Wait()
				took[i], calls[i] = time.Since(start), float64(server.count())/waiters
			})
		}
		t.Logf("%d waiters in %d processes, bucket of %d and one more every %v: %.1f calls to Redis for each, all admitted in %v; without a line %.1f, %v",
			waiters, tt.processes, tt.capacity, tt.every, calls[0], took[0], calls[1], took[1])
		if calls[0] > tt.calls {
			t.Errorf("%.2f calls, want at most %v", calls[0], tt.calls)
		}
		if least := time.Duration(max(waiters-tt.capacity, 0)) * tt.every; took[0] > least+tt.within {
			t.Errorf("%v, want at most %v more than the %v that the bucket needs", took[0], tt.within, least)
		}
	}
}

// waitCall is a call of Wait under way. What it got is there once it is done.
type waitCall struct {
	res    Result
	err    error
	after  time.Duration
	closed chan struct{}
}

func (w *waitCall) done() bool {
	select {
	case <-w.closed:
		return true
	default:
		return false
	}
}

// waiting starts a call of Wait in a bubble and lets it get as far as it can without time passing.
func waiting(ctx context.Context, l *Limiter, p Policy, cost int64) *waitCall {
	w := &waitCall{closed: make(chan struct{})}
	start := time.Now()
	go func() {
		w.res, w.err = l.Wait(ctx, "a", p, cost)
		w.after = time.Since(start)
		close(w.closed)
	}()
	synctest.Wait()
	return w
}

func TestWaitIsFirstComeFirstServed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := newBucketServer(10, 100*time.Millisecond)
		l := newLimiter(t, server, Config{})
		if _, err := l.AllowN(t.Context(), "a", server.policy(), 10); err != nil {
			t.Fatal(err)
		}
		var calls []*waitCall
		for _, cost := range []int64{5, 1, 10, 1} { // the large ones are not overtaken
			calls = append(calls, waiting(t.Context(), l, server.policy(), cost))
		}
		other := waiting(t.Context(), l, TokenBucket(10, 1, time.Second).Named("other"), 1)
		free := waiting(t.Context(), l, server.policy(), 0)
		time.Sleep(2 * time.Millisecond)
		synctest.Wait()
		if !free.done() || free.err != nil || !free.res.Allowed || !other.done() {
			t.Errorf("cost 0: %+v, another limit: %+v, want both to be answered at once", free, other)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		for i, least := range []time.Duration{500, 600, 1600, 1700} {
			least *= time.Millisecond
			if w := calls[i]; !w.done() || w.err != nil || !w.res.Allowed || w.after < least-5*time.Millisecond || w.after > least+10*time.Millisecond {
				t.Errorf("call %d: %+v, want it allowed after %v", i, w, least)
			}
		}
	})
}

func TestWaitLeavesAtOnce(t *testing.T) {
	const ahead = 5 // calls in line, of which the one in front is let in after 100 ms
	tests := map[string]struct {
		policy Policy
		least  time.Duration // until the next one may be admitted
	}{
		"bucket":  {TokenBucket(1, 1, 100*time.Millisecond), 599 * time.Millisecond},
		"log":     {SlidingLog(2, time.Second), 2100 * time.Millisecond},
		"counter": {SlidingCounter(2, time.Second), 1100 * time.Millisecond},
	}
	for name, tt := range tests {
		for _, inTime := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/%v", name, inTime), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					start := time.Now()
					l := newLimiter(t, drip(start.Add(100*time.Millisecond)), Config{})
					ctx, cancel := context.WithCancel(t.Context())
					for range ahead {
						waiting(ctx, l, tt.policy, 1)
					}
					deadline := tt.least
					if inTime {
						deadline++
					}
					bounded, stop := context.WithDeadline(ctx, start.Add(deadline))
					w := waiting(bounded, l, tt.policy, 1)
					if w.done() == inTime {
						t.Fatalf("%+v, want it to be done at once: %v", w, !inTime)
					}
					var limited *LimitedError
					if w.done() && (!errors.Is(w.err, ErrLimited) || !errors.As(w.err, &limited) || limited.Result != w.res || w.res.Allowed ||
						w.res.RetryAfter != tt.least || errors.Is(w.err, context.DeadlineExceeded)) {
						t.Errorf("%+v, want a LimitedError with a wait of %v", w, tt.least)
					}
					stop()
					cancel()
				})
			})
		}
	}
}

// A call that joined before anything was known leaves as soon as it is.
func TestWaitLeavesOnceItIsKnown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := newBucketServer(1, 100*time.Millisecond)
		l := newLimiter(t, server, Config{})
		if _, err := l.Allow(t.Context(), "a", server.policy()); err != nil {
			t.Fatal(err)
		}
		var calls []*waitCall
		for _, limit := range []time.Duration{1000, 150, 1000, 250, 1000} { // milliseconds; the third is hopeless once the second has left
			ctx, cancel := context.WithTimeout(t.Context(), limit*time.Millisecond)
			t.Cleanup(cancel)
			calls = append(calls, waiting(ctx, l, server.policy(), 1))
		}
		time.Sleep(time.Millisecond)
		synctest.Wait()
		var left []int
		for i, w := range calls {
			if w.done() {
				left = append(left, i)
			}
		}
		if !slices.Equal(left, []int{1, 3}) {
			t.Errorf("calls %v left at the first denial, want 1 and 3", left)
		}
		time.Sleep(time.Second)
		synctest.Wait()
		if got := server.count(); got > 7 {
			t.Errorf("%d calls to Redis, want at most 7", got)
		}
		for _, i := range []int{0, 2, 4} {
			if !calls[i].done() || calls[i].err != nil || !calls[i].res.Allowed {
				t.Errorf("call %d: %+v, want it allowed", i, calls[i])
			}
		}
	})
}

func TestWaitCancelledInLine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := newBucketServer(1, 100*time.Millisecond)
		l := newLimiter(t, server, Config{})
		if _, err := l.Allow(t.Context(), "a", server.policy()); err != nil {
			t.Fatal(err)
		}
		front, leaveFront := context.WithCancel(t.Context())
		middle, leaveMiddle := context.WithCancel(t.Context())
		first, second, third := waiting(front, l, server.policy(), 1), waiting(middle, l, server.policy(), 1), waiting(t.Context(), l, server.policy(), 1)
		leaveMiddle() // behind a call that has no answer yet
		synctest.Wait()
		if want := "sluice: limited: context canceled"; !second.done() || second.err == nil || second.err.Error() != want || !errors.Is(second.err, ErrLimited) || !errors.Is(second.err, context.Canceled) {
			t.Errorf("%+v, want it to say %q", second, want)
		}
		time.Sleep(10 * time.Millisecond)
		fourth := waiting(t.Context(), l, server.policy(), 1)
		late, leaveLate := context.WithTimeout(t.Context(), 500*time.Millisecond)
		defer leaveLate()
		fifth := waiting(late, l, server.policy(), 1)
		leaveFront()
		synctest.Wait()
		var limited *LimitedError
		if !first.done() || !errors.As(first.err, &limited) || !errors.Is(first.err, context.Canceled) || first.res.RetryAfter != 99*time.Millisecond {
			t.Errorf("%+v, want a LimitedError that is Canceled, with the denial", first)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		for i, w := range []*waitCall{third, fourth, fifth} {
			if !w.done() || w.err != nil || !w.res.Allowed || w.after > time.Duration(i+1)*100*time.Millisecond+5*time.Millisecond {
				t.Errorf("call %d: %+v, want it allowed in turn", i, w)
			}
		}
		if n := len(l.lines.of); n != 0 {
			t.Errorf("%d lines left when nobody waits", n)
		}
		// Three were admitted: whoever left charged nothing.
		if got := server.count(); got > 1+1+3*2 {
			t.Errorf("%d calls to Redis", got)
		}
	})
}

// Behind a call that has no answer nothing is known, so there the deadline just passes.
func TestWaitDeadlinePassesInLine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, release := silent()
		defer release()
		l := newLimiter(t, client, Config{})
		p := SlidingLog(5, time.Minute)
		waiting(t.Context(), l, p, 1)
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		w := waiting(ctx, l, p, 1)
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if !w.done() || w.after != 10*time.Second || !errors.Is(w.err, ErrLimited) || !errors.Is(w.err, context.DeadlineExceeded) || w.res != (Result{}) {
			t.Errorf("%+v, want a LimitedError that is DeadlineExceeded after 10s", w)
		}
	})
}

func TestWaitFailsWithTheOneInFront(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, release := silent()
		defer release()
		l := newLimiter(t, client, Config{Timeout: 50 * time.Millisecond})
		p := SlidingLog(5, time.Minute)
		var calls []*waitCall
		for range 20 {
			calls = append(calls, waiting(t.Context(), l, p, 1))
		}
		time.Sleep(50 * time.Millisecond)
		synctest.Wait()
		for i, w := range calls {
			var call *CallError
			if !w.done() || w.after != 50*time.Millisecond || !errors.Is(w.err, ErrBackend) || !errors.As(w.err, &call) || call.Unknown != (i == 0) {
				t.Errorf("call %d: %+v, want ErrBackend within the timeout, unknown for the first alone", i, w)
			}
		}
		if got := client.count(); got != 1 {
			t.Errorf("%d calls to a dead server, want 1", got)
		}
	})
	// The end of a context is not the fault of the server, and concerns no other call.
	synctest.Test(t, func(t *testing.T) {
		stuck := make(chan struct{})
		client := &fake{}
		client.answer = func(ctx context.Context, _ []string) rueidis.RedisResult {
			if client.count() > 1 {
				return fiveReply(1, 0, 0, 1, 1)
			}
			<-ctx.Done()
			close(stuck)
			return rueidis.NewErrorResult(io.ErrUnexpectedEOF)
		}
		l := newLimiter(t, client, Config{})
		ctx, cancel := context.WithCancel(t.Context())
		first, second := waiting(ctx, l, SlidingLog(5, time.Minute), 1), waiting(t.Context(), l, SlidingLog(5, time.Minute), 1)
		cancel()
		<-stuck
		synctest.Wait()
		if !first.done() || errors.Is(first.err, ErrBackend) || !second.done() || second.err != nil || !second.res.Allowed {
			t.Errorf("first %+v, second %+v, want only the first to fail", first, second)
		}
	})
}

func TestWaitOpensForAllAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, release := silent()
		defer release()
		l := newLimiter(t, client, Config{Timeout: 50 * time.Millisecond, OnFailure: FailOpen})
		var calls []*waitCall
		for range 20 {
			calls = append(calls, waiting(t.Context(), l, SlidingLog(5, time.Minute), 1))
		}
		time.Sleep(100 * time.Millisecond)
		synctest.Wait()
		for i, w := range calls {
			if !w.done() || w.err != nil || !w.res.Allowed || !w.res.Degraded {
				t.Errorf("call %d: %+v, want it let in within two timeouts", i, w)
			}
		}
	})
}

// Calls that ask side by side and are all denied, since another process was faster, wait in the order of their coming, whoever
// was answered first.
func TestWaitersDeniedSideBySideKeepTheirOrder(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for name, costs := range map[string][]int64{"one large": {1, 10, 1}, "alike": {1, 1, 1, 1, 1}, "large first": {10, 1, 2}} {
		t.Run(name, func(t *testing.T) {
			for range 20 {
				synctest.Test(t, func(t *testing.T) {
					server := newBucketServer(20, 100*time.Millisecond)
					onTime := server.answer
					var calls atomic.Int64
					server.answer = func(ctx context.Context, words []string) rueidis.RedisResult {
						if calls.Add(1) < 3 {
							return onTime(ctx, words)
						}
						server.mu.Lock()
						before, after := time.Duration(random.IntN(200)), time.Duration(random.IntN(200))
						server.mu.Unlock()
						time.Sleep(before * time.Microsecond)
						defer time.Sleep(after * time.Microsecond)
						return onTime(ctx, words)
					}
					l, other := newLimiter(t, server, Config{}), newLimiter(t, server, Config{})
					p := server.policy()
					waiting(t.Context(), l, p, 1) // leaves 19 free, but not for long
					var all []*waitCall
					units := int64(0)
					for _, cost := range costs {
						units += cost
						ctx, cancel := context.WithTimeout(t.Context(), time.Duration(units)*100*time.Millisecond+50*time.Millisecond)
						t.Cleanup(cancel)
						all = append(all, waiting(ctx, l, p, cost))
					}
					time.Sleep(600 * time.Microsecond) // the first is decided
					if res, err := other.AllowN(t.Context(), "a", p, 19); err != nil || !res.Allowed {
						t.Fatalf("%+v, %v", res, err)
					}
					time.Sleep(time.Minute)
					synctest.Wait()
					for n, w := range all {
						if w.err != nil || n > 0 && w.after < all[n-1].after {
							t.Errorf("call %d: after %v, %v; want it allowed, in the order of coming", n, w.after, w.err)
						}
					}
				})
			}
		})
	}
}

// A denial counts whatever its time: the server's clock may step back.
func TestWaitDoesNotSpinWhenTheClockStepsBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stepped := time.Now().Add(2 * time.Second) // from here on the state is no longer in the future
		client := &fake{}
		client.answer = func(context.Context, []string) rueidis.RedisResult {
			time.Sleep(time.Millisecond)
			now := time.Now()
			switch wait := time.Until(stepped.Add(100 * time.Millisecond)); {
			case client.count() == 1:
				return fiveReply(1, 5, 0, 1000, now.UnixMicro())
			case wait > 0:
				return fiveReply(0, 0, milliseconds(wait), milliseconds(wait), now.Add(-2*time.Second).UnixMicro())
			}
			return fiveReply(1, 5, 0, 1000, now.Add(-2*time.Second).UnixMicro())
		}
		l := newLimiter(t, client, Config{})
		var all []*waitCall
		for range 6 {
			all = append(all, waiting(t.Context(), l, TokenBucket(20, 10, time.Second), 1))
		}
		time.Sleep(time.Second)
		if got := client.count(); got != 6 {
			t.Errorf("%d calls to Redis in the first second, want 6", got)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		for i, w := range all {
			if !w.done() || w.err != nil {
				t.Errorf("call %d: %+v, want it allowed", i, w)
			}
		}
	})
}

// This process' clock, by which FailLocal decides, is not the server's.
func TestWaitDoesNotSpinWhenRedisIsBack(t *testing.T) {
	for _, skew := range []time.Duration{-3 * time.Second, 3 * time.Second} {
		synctest.Test(t, func(t *testing.T) {
			var back atomic.Bool
			var calls atomic.Int64
			client := &fake{answer: func(ctx context.Context, _ []string) rueidis.RedisResult {
				if !back.Load() {
					<-ctx.Done()
					return rueidis.NewErrorResult(ctx.Err())
				}
				calls.Add(1)
				time.Sleep(time.Millisecond)
				return fiveReply(0, 0, 60_000, 60_000, time.Now().Add(skew).UnixMicro())
			}}
			l := newLimiter(t, client, Config{OnFailure: FailLocal, Processes: 2, Timeout: 200 * time.Millisecond})
			ctx, cancel := context.WithCancel(t.Context())
			var all []*waitCall
			for range 40 {
				all = append(all, waiting(ctx, l, TokenBucket(4, 1, time.Second), 1))
			}
			time.Sleep(2300 * time.Millisecond) // while one asks that will be let in
			back.Store(true)
			time.Sleep(5 * time.Second)
			if got := calls.Load(); got > 2 {
				t.Errorf("%d calls to Redis in 5 s of a denial for a minute, want at most 2", got)
			}
			admitted := 0
			for _, w := range all {
				if w.done() && w.err == nil && w.res.Degraded {
					admitted++
				}
			}
			if admitted != 3 { // a bucket of 2 and one each 2 s
				t.Errorf("%d were let in without Redis, want this process' share of 3", admitted)
			}
			cancel()
			synctest.Wait()
		})
	}
}

// A denial that OnFailure made up is not what Redis will say.
func TestWaitSendsNobodyAwayWithoutRedis(t *testing.T) {
	for _, cfg := range []Config{{OnFailure: FailClosed}, {OnFailure: FailLocal, Processes: 200}} {
		synctest.Test(t, func(t *testing.T) {
			server := newBucketServer(100, time.Second)
			alive := server.answer
			server.answer = func(ctx context.Context, words []string) rueidis.RedisResult {
				if server.count() == 1 {
					<-ctx.Done()
					return rueidis.NewErrorResult(ctx.Err())
				}
				return alive(ctx, words)
			}
			cfg.Timeout = 50 * time.Millisecond
			l := newLimiter(t, server, cfg)
			var all []*waitCall
			for range 50 {
				ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
				t.Cleanup(cancel)
				all = append(all, waiting(ctx, l, server.policy(), 1))
			}
			time.Sleep(500 * time.Millisecond)
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			all = append(all, waiting(ctx, l, server.policy(), 1)) // with no more than the wait that was made up
			time.Sleep(time.Minute)
			synctest.Wait()
			for i, w := range all {
				if !w.done() || w.err != nil || !w.res.Allowed {
					t.Errorf("call %d: %+v, want it allowed by a full bucket", i, w)
				}
			}
		})
		// The one in front stays as well, until its deadline.
		synctest.Test(t, func(t *testing.T) {
			cfg.Timeout = 0
			l := newLimiter(t, replying(errorReply("LOADING")), cfg)
			ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
			defer cancel()
			w := waiting(ctx, l, TokenBucket(100, 1, time.Second), 1)
			time.Sleep(time.Second)
			synctest.Wait()
			if !w.done() || w.after != 500*time.Millisecond || !errors.Is(w.err, ErrLimited) || !errors.Is(w.err, context.DeadlineExceeded) || !w.res.Degraded {
				t.Errorf("%+v, want it to wait for its deadline", w)
			}
		})
	}
}

// What this limiter gives back is noticed at once: by those who wait, whatever their policy on the key, and by who comes.
func TestWaitIsWokenByUnitsGivenBack(t *testing.T) {
	const slowly = 24 * time.Hour // for a unit to come
	tests := map[string]func(l *Limiter, charged Result, p Policy) error{
		"settle": func(l *Limiter, charged Result, _ Policy) error {
			_, err := l.Settle(context.Background(), charged, 0)
			return err
		},
		"reset": func(l *Limiter, _ Result, p Policy) error { return l.Reset(context.Background(), "a", p) },
	}
	for name, giveBack := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				server := newBucketServer(5, slowly)
				l := newLimiter(t, server, Config{})
				p := TokenBucket(5, 1, slowly).Named("p")
				wider := TokenBucket(5, 2, 2*slowly).Named("p")
				charged, err := l.AllowN(t.Context(), "a", p, 5)
				if err != nil {
					t.Fatal(err)
				}
				all := []*waitCall{waiting(t.Context(), l, p, 1), waiting(t.Context(), l, p, 1), waiting(t.Context(), l, wider, 1)}
				time.Sleep(time.Second)
				if err := giveBack(l, charged, p); err != nil {
					t.Fatal(err)
				}
				soon, cancel := context.WithTimeout(t.Context(), time.Hour)
				defer cancel()
				all = append(all, waiting(soon, l, p, 1))
				time.Sleep(10 * time.Millisecond)
				synctest.Wait()
				for i, w := range all {
					if !w.done() || w.err != nil {
						t.Errorf("call %d: %+v, want it allowed at once", i, w)
					}
				}
			})
			// It is given back while a denial of before is on its way.
			synctest.Test(t, func(t *testing.T) {
				server := newBucketServer(5, slowly)
				fast := server.answer
				server.answer = func(ctx context.Context, words []string) rueidis.RedisResult {
					res := fast(ctx, words)
					if server.count() == 2 { // of the one that waits
						time.Sleep(100 * time.Millisecond)
					}
					return res
				}
				l := newLimiter(t, server, Config{})
				p := TokenBucket(5, 1, slowly)
				charged, err := l.AllowN(t.Context(), "a", p, 5)
				if err != nil {
					t.Fatal(err)
				}
				soon, cancel := context.WithTimeout(t.Context(), time.Hour)
				defer cancel()
				w := waiting(soon, l, p, 1)
				time.Sleep(10 * time.Millisecond)
				if err := giveBack(l, charged, p); err != nil {
					t.Fatal(err)
				}
				time.Sleep(time.Second)
				synctest.Wait()
				if !w.done() || w.err != nil {
					t.Errorf("%+v, want it allowed as soon as it was answered", w)
				}
			})
		})
	}
}

// What others give back is noticed within 10 s.
func TestWaitAsksAgainNowAndThen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := newBucketServer(1, 24*time.Hour)
		l, other := newLimiter(t, server, Config{}), newLimiter(t, server, Config{})
		p := TokenBucket(1, 1, 24*time.Hour)
		if _, err := l.Allow(t.Context(), "a", p); err != nil {
			t.Fatal(err)
		}
		first := waiting(t.Context(), l, p, 1)
		time.Sleep(time.Hour + time.Second)
		if got := server.count(); got < 350 || got > 370 {
			t.Errorf("%d calls in an hour, want one each 10 s", got)
		}
		hour, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		if w := waiting(hour, l, p, 1); !w.done() || !errors.Is(w.err, ErrLimited) || w.res.RetryAfter < 46*time.Hour || w.res.RetryAfter > 47*time.Hour {
			t.Errorf("%+v, want it sent away at once: it is a day until the first is let in, and another one after that", w)
		}
		if err := other.Reset(t.Context(), "a", p); err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if !first.done() || first.err != nil {
			t.Errorf("%+v, want it allowed within 10 s of the reset", first)
		}
	})
	// A newcomer is not sent away for a denial that is older, but for the next one.
	synctest.Test(t, func(t *testing.T) {
		client := &fake{}
		client.answer = func(context.Context, []string) rueidis.RedisResult {
			if client.count() > 1 {
				time.Sleep(time.Second)
			}
			return fiveReply(0, 0, 60_000, 60_000, time.Now().UnixMicro())
		}
		l := newLimiter(t, client, Config{})
		ctx, cancel := context.WithCancel(t.Context())
		waiting(ctx, l, SlidingLog(1, time.Minute), 1)
		time.Sleep(10500 * time.Millisecond)
		soon, stop := context.WithTimeout(ctx, 5*time.Second)
		defer stop()
		w := waiting(soon, l, SlidingLog(1, time.Minute), 1)
		if w.done() {
			t.Errorf("%+v, want it to wait for the answer that is due", w)
		}
		time.Sleep(time.Second)
		synctest.Wait()
		if !w.done() || w.after != 500*time.Millisecond || !errors.Is(w.err, ErrLimited) {
			t.Errorf("%+v, want it sent away by that answer", w)
		}
		cancel()
		synctest.Wait()
	})
}

// To join a line, or to leave it, takes no longer for its length, and no time from other limits.
func TestWaitInALongLine(t *testing.T) {
	const waiters = 20_000
	l := newLimiter(t, replying(fiveReply(1, 5, 0, 1000, 1)), Config{})
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Hour)
	defer cancel()
	p := TokenBucket(1000, 1000, time.Second)
	start := time.Now()
	var all []*waiter
	for range waiters {
		w := l.lines.join(ctx, "long", p, 1)
		if all = append(all, w); len(all) == 1 {
			w.denied(Result{RetryAfter: time.Hour})
		}
	}
	d := l.lines.of["long"]
	if got := len(d.line(p).queue.waiters); got != waiters {
		t.Errorf("%d stand in line, want %d", got, waiters)
	}
	d.mu.Lock()
	if _, err := l.Wait(ctx, "a", p, 1); err != nil {
		t.Errorf("on another limit: %v", err)
	}
	d.mu.Unlock()
	cancel()
	for n := range all {
		w := all[(n+waiters/2)%waiters] // those in the middle first
		res, err := w.await(ctx)
		l.lines.leave(w, res, err)
	}
	if took := time.Since(start); took > 2*time.Second {
		t.Errorf("%d calls joined and left in %v", waiters, took)
	}
	if len(l.lines.of) != 0 {
		t.Errorf("%d desks are left", len(l.lines.of))
	}
}

// A context that has ended is the context's error alone, as for AllowN: nothing was tried, so nothing was limited.
func TestWaitWithAContextThatHasEnded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := newBucketServer(1, time.Second)
		l := newLimiter(t, server, Config{})
		cancelled, cancel := context.WithCancel(t.Context())
		cancel()
		past, stop := context.WithDeadline(t.Context(), time.Now().Add(-time.Second))
		defer stop()
		for _, where := range []string{"first", "behind one that is asking", "behind one that was denied"} {
			for _, ctx := range []context.Context{cancelled, past} {
				w := waiting(ctx, l, server.policy(), 1)
				var call *CallError
				if !w.done() || w.res != (Result{}) || !errors.Is(w.err, ctx.Err()) || errors.Is(w.err, ErrLimited) || errors.Is(w.err, ErrBackend) ||
					!errors.As(w.err, &call) || call.Class != ClassCanceled || call.Unknown {
					t.Errorf("%s: %+v, want %v, and nothing sent", where, w, ctx.Err())
				}
			}
			waiting(t.Context(), l, server.policy(), 1)
			if where == "behind one that is asking" {
				time.Sleep(100 * time.Millisecond)
			}
		}
		time.Sleep(time.Minute)
	})
}

// Which shard it is, is drawn once: a call keeps its place in the line of that one.
func TestWaitStaysWithItsShard(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := replying(fiveReply(0, 0, 100, 100, 1))
		l := newLimiter(t, client, Config{})
		ctx, cancel := context.WithCancel(t.Context())
		waiting(ctx, l, SlidingLog(256, time.Minute).Sharded(256), 1)
		time.Sleep(time.Second)
		cancel()
		synctest.Wait()
		for _, words := range client.sent {
			if words[3] != client.sent[0][3] {
				t.Errorf("asked %s after %s", words[3], client.sent[0][3])
			}
		}
		if got := client.count(); got != 10 && got != 11 {
			t.Errorf("%d calls, want one each 100 ms", got)
		}
	})
}

// Whatever comes together: nobody is forgotten, nobody spins, no unit is charged to who was not let in.
func TestWaitAtRandom(t *testing.T) {
	for seed := range uint64(40) {
		synctest.Test(t, func(t *testing.T) {
			random, delays := rand.New(rand.NewPCG(seed, 0)), rand.New(rand.NewPCG(seed, 1))
			const waiters = 60
			server := newBucketServer(10, 20*time.Millisecond)
			onTime := server.answer
			var charged, calls atomic.Int64
			server.answer = func(ctx context.Context, words []string) rueidis.RedisResult {
				calls.Add(1)
				server.mu.Lock()
				before, after, fails := time.Duration(delays.IntN(5000)), time.Duration(delays.IntN(5000)), delays.IntN(100) == 0
				server.mu.Unlock()
				if fails {
					return errorReply("LOADING")
				}
				time.Sleep(before * time.Microsecond)
				defer time.Sleep(after * time.Microsecond)
				res := onTime(ctx, words)
				if reply, err := res.AsIntSlice(); err != nil {
					t.Error(err)
				} else if words[4] == opTake && reply[0] == 1 {
					charged.Add(1)
				}
				return res
			}
			cfg := Config{OnFailure: OnFailure(seed % 4), Processes: 2}
			l := newLimiter(t, server, cfg)
			policies := []Policy{server.policy().Named("p"), TokenBucket(10, 100, 2*time.Second).Named("p")}
			var admitted, settled atomic.Int64
			var wg sync.WaitGroup
			for range waiters {
				comes, ends := time.Duration(random.IntN(300)), time.Duration(random.IntN(3000))
				cost, how, p := 1+random.Int64N(5), random.IntN(4), policies[random.IntN(8)/7]
				wg.Go(func() {
					time.Sleep(comes * time.Millisecond)
					ctx, cancel := context.WithCancel(t.Context())
					defer cancel()
					switch how {
					case 0:
						time.AfterFunc(ends*time.Millisecond, cancel)
					case 1:
						ctx, cancel = context.WithTimeout(ctx, ends*time.Millisecond)
						defer cancel()
					}
					res, err := l.Wait(ctx, "a", p, cost)
					switch {
					case err != nil && res.Allowed, err == nil && !res.Allowed:
						t.Errorf("%+v, %v", res, err)
					case err != nil && !errors.Is(err, ErrLimited) && !errors.Is(err, ErrBackend) && !errors.Is(err, context.Canceled) && !errors.Is(err, context.DeadlineExceeded):
						t.Error(err)
					case err == nil && !res.Degraded:
						admitted.Add(1)
						if how == 2 {
							settled.Add(1)
							if _, err := l.Settle(context.Background(), res, 0); err != nil && !errors.Is(err, ErrBackend) {
								t.Error(err)
							}
						}
					}
				})
			}
			wg.Wait()
			if took := calls.Load(); took > 4*waiters+3*settled.Load() {
				t.Errorf("seed %d: %d calls to Redis for %d waiters and %d settles", seed, took, waiters, settled.Load())
			}
			// A call whose context ended while it was asking may have been charged.
			if charged.Load() < admitted.Load() {
				t.Errorf("seed %d: %d were let in, %d charged", seed, admitted.Load(), charged.Load())
			}
			if len(l.lines.of) != 0 {
				t.Errorf("seed %d: %d desks are left", seed, len(l.lines.of))
			}
		})
	}
}

// TestGivenBackInThisProcess: what a degraded call is settled by, or reset by, wakes who waits for it.
func TestGivenBackInThisProcess(t *testing.T) {
	p := TokenBucket(1, 1, 8*time.Second)
	for name, giveBack := range map[string]func(l *Limiter, res Result){
		"settle": func(l *Limiter, res Result) {
			if _, err := l.Settle(t.Context(), res, 0); err != nil {
				t.Error(err)
			}
		},
		"reset": func(l *Limiter, _ Result) {
			if err := l.Reset(t.Context(), "k", p); !errors.Is(err, ErrBackend) {
				t.Errorf("got %v, want ErrBackend", err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := newLimiter(t, replying(rueidis.NewErrorResult(io.EOF)), Config{OnFailure: FailLocal, Processes: 1})
				res, err := l.Wait(t.Context(), "k", p, 1)
				if err != nil || !res.Degraded {
					t.Fatalf("got %+v, %v, want it degraded", res, err)
				}
				start := time.Now()
				time.AfterFunc(time.Second, func() { giveBack(l, res) })
				if _, err := l.Wait(t.Context(), "k", p, 1); err != nil || time.Since(start) > 2*time.Second {
					t.Errorf("admitted after %v, %v, want about a second", time.Since(start), err)
				}
			})
		})
	}
}
