package sluice

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/rueidis"
)

// bucketServer is a server of buckets, in the time of a synctest bubble: a call takes it a millisecond.
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
		return s.take(words)
	}}
	return s
}

func (s *bucketServer) policy() Policy {
	return TokenBucket(s.capacity, int64(time.Second/s.every), time.Second)
}

func (s *bucketServer) take(words []string) rueidis.RedisResult {
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
	if wait <= 0 {
		allowed, wait, full = 1, 0, full.Add(time.Duration(cost)*s.every)
		s.full[key] = full
	}
	free := s.capacity - int64((full.Sub(now)+s.every-1)/s.every)
	return fiveReply(allowed, free, milliseconds(wait), milliseconds(full.Sub(now)), now.UnixMicro())
}

func milliseconds(d time.Duration) int64 { return int64((d + time.Millisecond - 1) / time.Millisecond) }

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
		synctest.Test(t, func(t *testing.T) {
			server := newBucketServer(tt.capacity, tt.every)
			start := time.Now()
			var wg sync.WaitGroup
			for range tt.processes {
				l := newLimiter(t, server, Config{})
				for range waiters / tt.processes {
					wg.Go(func() {
						if res, err := l.Wait(t.Context(), "a", server.policy(), 1); err != nil || !res.Allowed {
							t.Errorf("got %+v, %v, want it allowed", res, err)
						}
					})
				}
			}
			wg.Wait()
			took, calls := time.Since(start), float64(server.count())/waiters
			t.Logf("%d waiters in %d processes, bucket of %d and one more every %v: %.2f calls to Redis for each, all admitted in %v",
				waiters, tt.processes, tt.capacity, tt.every, calls, took)
			if calls > tt.calls {
				t.Errorf("%.2f calls, want at most %v", calls, tt.calls)
			}
			if least := time.Duration(max(waiters-tt.capacity, 0)) * tt.every; took > least+tt.within {
				t.Errorf("%v, want at most %v more than the %v that the bucket needs", took, tt.within, least)
			}
		})
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
