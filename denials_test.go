package sluice

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
	"unsafe"

	"github.com/redis/rueidis"

	"github.com/sluicego/sluice/internal/local"
)

// denyMap is the simplest DenyCache.
type denyMap struct {
	mu sync.Mutex
	m  map[DenyKey]*Denial
}

func newDenyMap() *denyMap { return &denyMap{m: map[DenyKey]*Denial{}} }

func (c *denyMap) Get(k DenyKey) (*Denial, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	d, ok := c.m[k]
	return d, ok
}

func (c *denyMap) Set(k DenyKey, d *Denial) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.m[k] = d
}

// exact is a client whose server decides exactly, by the test's clock, and whose network takes as long as delay says,
// there and back.
func exact(store *local.Store, delay func() time.Duration) *fake {
	kinds := map[string]local.Kind{}
	for k := slidingLog; k <= tokenBucket; k++ {
		kinds[scripts[k].sha1] = localKinds[k]
	}
	return &fake{answer: func(_ context.Context, words []string) rueidis.RedisResult {
		time.Sleep(delay())
		defer func() { time.Sleep(delay()) }()
		if words[0] == "UNLINK" {
			store.Reset(words[1])
			return textReply("OK")
		}
		var n []int64
		for _, word := range words[5:] {
			i, err := strconv.ParseInt(word, 10, 64)
			if err != nil {
				panic(err)
			}
			n = append(n, i)
		}
		c := local.Call{Key: words[3], Cost: n[0]}
		switch words[4] {
		case opPeek:
			c.Op = local.Peek
		case opSettle:
			c.Op, c.Receipt, n = local.Settle, n[len(n)-1], n[:len(n)-1]
		}
		c.Policy = local.Policy{Kind: kinds[words[1]], Limit: n[1], WindowMS: n[len(n)-1]}
		if len(n) == 4 {
			c.Policy.Refill = n[2]
		}
		r := store.Call(time.Now().UnixMicro(), c)
		allowed := int64(0)
		if r.Allowed {
			allowed = 1
		}
		return fiveReply(allowed, r.Remaining, r.RetryAfterMS, r.ResetAfterMS, r.ServerTimeUS)
	}}
}

// TestCachedDenialsAreTrue makes random calls through a cache, with others' calls on the same limits in between, and asks
// the server itself at the moment of every cached denial.
func TestCachedDenialsAreTrue(t *testing.T) {
	cached := 0
	for seed := range uint64(300) {
		synctest.Test(t, func(t *testing.T) {
			random := rand.New(rand.NewPCG(seed, 5))
			between := func(least, most int64) int64 { return least + random.Int64N(most-least+1) }
			time.Sleep(time.Duration(between(0, int64(time.Second)))) // anywhere in a window and in a millisecond
			limit, window := between(1, 12), time.Duration(between(1, 400))*time.Millisecond
			p := []Policy{SlidingLog(limit, window), SlidingCounter(limit, window), TokenBucket(limit, between(1, 12), window)}[seed%3]
			slowest := []int64{0, int64(300 * time.Microsecond), int64(window)}[between(0, 2)]

			store := local.NewStore(10)
			client := exact(store, func() time.Duration { return time.Duration(between(0, slowest)) })
			l := newLimiter(t, client, Config{PlainKeys: true, DenyCache: newDenyMap(), DenyFor: time.Hour})
			key := l.keys.key("a", "", p)
			share := l.standIn.share(p)
			for range 60 {
				cost := between(1, limit)
				res, err := l.AllowN(t.Context(), "a", p, cost)
				if err != nil {
					t.Fatal(err)
				}
				if res.Cached {
					cached++
					truth := store.Call(time.Now().UnixMicro(), local.Call{Key: key, Policy: share, Op: local.Peek, Cost: cost})
					if truth.Allowed {
						t.Fatalf("seed %d, %s: a cost of %d was denied by the cache, and is free: %+v", seed, p, cost, truth)
					}
					if res.Allowed || res.RetryAfter < time.Millisecond || res.ResetAfter < res.RetryAfter || res.Limit != limit ||
						res.RetryAfter > time.Duration(truth.RetryAfterMS+1)*time.Millisecond { // rounded up twice
						t.Fatalf("seed %d, %s: cost %d: got %+v, the server says %+v", seed, p, cost, res, truth)
					}
				}
				switch between(0, 4) {
				case 0: // another process
					store.Call(time.Now().UnixMicro(), local.Call{Key: key, Policy: share, Op: local.Take, Cost: between(0, limit)})
				case 1:
					time.Sleep(res.RetryAfter - time.Duration(between(0, 2))*time.Millisecond)
				case 2:
					time.Sleep(time.Duration(between(0, int64(window/4))))
				}
			}
		})
	}
	if cached < 1000 {
		t.Errorf("%d denials came from the cache, which shows little", cached)
	}
}

// shut is a limiter with a cache, and a client that denies a cost of 3 or more of SlidingLog(10, time.Minute).
func shut(t *testing.T, cfg Config) (*Limiter, *fake, *recorder) {
	t.Helper()
	client := &fake{answer: func(_ context.Context, words []string) rueidis.RedisResult {
		if words[0] == "UNLINK" {
			return textReply("OK")
		}
		if cost, _ := strconv.Atoi(words[5]); cost >= 3 && words[4] != opSettle {
			return fiveReply(0, 2, 5000, 9000, time.Now().UnixMicro())
		}
		return fiveReply(1, 2, 0, 9000, time.Now().UnixMicro())
	}}
	seen := &recorder{}
	cfg.DenyCache, cfg.Observe = newDenyMap(), seen.observe
	return newLimiter(t, client, cfg), client, seen
}

func TestDenyCache(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, client, seen := shut(t, Config{})
		p := SlidingLog(10, time.Minute)
		allow := func(key string, p Policy, cost int64, wantCached, wantAllowed bool) Result {
			t.Helper()
			before := client.count()
			res, err := l.AllowN(t.Context(), key, p, cost)
			if err != nil || res.Cached != wantCached || res.Allowed != wantAllowed || (client.count() == before) != wantCached {
				t.Errorf("%s, %s, %d: got %+v, %v, want cached %t, allowed %t", key, p, cost, res, err, wantCached, wantAllowed)
			}
			if e := seen.take(); len(e) != 1 || e[0].Cached != wantCached || e[0].Sent == wantCached || e[0].Allowed != wantAllowed {
				t.Errorf("told %+v", e)
			}
			return res
		}
		allow("a", p, 4, false, false)
		first := allow("a", p, 4, true, false)
		allow("a", p, 10, true, false) // all above are denied too
		allow("a", p, 3, false, false) // less is asked, and known from now on
		allow("a", p, 3, true, false)
		allowed := allow("a", p, 2, false, true)
		allow("b", p, 4, false, false)
		allow("a", SlidingLog(11, time.Minute), 4, false, false) // a changed policy
		allow("a", p.Named("other"), 4, false, false)
		allow(strings.Repeat("a", 257), p, 4, false, false)
		allow(strings.Repeat("a", 257), p, 4, false, false)

		if first.RetryAfter != 5*time.Second || first.ResetAfter != 9*time.Second || first.Remaining != 2 || first.Limit != 10 {
			t.Errorf("got %+v, want what was told", first)
		}
		time.Sleep(time.Second)
		if res := allow("a", p, 4, true, false); res.RetryAfter != 4*time.Second || res.ResetAfter != 8*time.Second ||
			res.ServerTime.Sub(first.ServerTime) != time.Second {
			t.Errorf("a second later: got %+v, want a second less", res)
		}

		if out := l.Batch(t.Context(), Request{Key: "a", Policy: p, Cost: 4}, Request{Key: "c", Policy: p, Cost: 1}); !out[0].Result.Cached || !out[1].Result.Allowed {
			t.Errorf("Batch: got %+v", out)
		}
		seen.take()

		// What makes the limit freer is noticed.
		if _, err := l.Settle(t.Context(), allowed, 0); err != nil {
			t.Fatal(err)
		}
		seen.take()
		allow("a", p, 4, false, false)
		if err := l.Reset(t.Context(), "a", p); err != nil {
			t.Fatal(err)
		}
		seen.take()
		allow("a", p, 4, false, false)

		// Nothing else comes from the cache.
		if res, err := l.Peek(t.Context(), "a", p, 4); err != nil || res.Cached {
			t.Errorf("Peek: got %+v, %v", res, err)
		}
		seen.take()
		if _, err := l.AllowN(t.Context(), "a", p, 11); !errors.Is(err, ErrInvalidCost) {
			t.Errorf("a cost above the limit: %v", err)
		}
		seen.take()
		if res := allow("a", p, 4, true, false); res.Allowed {
			t.Error("it was allowed")
		}
		if _, err := l.Settle(t.Context(), first, 1); !errors.Is(err, ErrNotCharged) {
			t.Errorf("settled a cached denial: %v", err)
		}
		seen.take()

		time.Sleep(5 * time.Second) // the wait is over, but for a thousandth
		allow("a", p, 4, false, false)
	})
}

func TestDenyForBoundsTheDenials(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, client, _ := shut(t, Config{DenyFor: time.Second})
		for range 51 {
			if res, err := l.AllowN(t.Context(), "a", SlidingLog(10, time.Minute), 4); err != nil || res.Allowed {
				t.Fatalf("got %+v, %v", res, err)
			}
			time.Sleep(100 * time.Millisecond)
		}
		if got := client.count(); got != 5 {
			t.Errorf("%d of 51 calls in 5 s reached Redis, want one a second and a bit", got)
		}
	})
}

// A settle whose answer is lost may have given units back.
func TestLostSettleForgetsTheDenial(t *testing.T) {
	l, client, _ := shut(t, Config{})
	p := SlidingLog(10, time.Minute)
	res, err := l.AllowN(t.Context(), "a", p, 2)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if _, err := l.AllowN(t.Context(), "a", p, 4); err != nil {
			t.Fatal(err)
		}
	}
	answer := client.answer
	client.answer = func(context.Context, []string) rueidis.RedisResult { return rueidis.NewErrorResult(io.EOF) }
	if _, err := l.Settle(t.Context(), res, 0); !errors.Is(err, ErrBackend) {
		t.Fatalf("%v, want ErrBackend", err)
	}
	client.answer = answer
	if res, err := l.AllowN(t.Context(), "a", p, 4); err != nil || res.Cached {
		t.Errorf("got %+v, %v, want Redis to be asked", res, err)
	}
}

// TestDenialOvertakenByASettle: a denial that was decided before a settle and arrives during it, or after it, is forgotten.
func TestDenialOvertakenByASettle(t *testing.T) {
	p := SlidingLog(5, time.Hour)
	for name, correct := range map[string]func(*Limiter, Result) error{
		"settle": func(l *Limiter, res Result) error { _, err := l.Settle(t.Context(), res, 0); return err },
		"reset":  func(l *Limiter, _ Result) error { return l.Reset(t.Context(), "a", p) },
	} {
		for n := range 16 {
			synctest.Test(t, func(t *testing.T) {
				var way atomic.Int64
				delay := func() time.Duration { return time.Duration(way.Load()) }
				l := newLimiter(t, exact(local.NewStore(10), delay), Config{DenyCache: newDenyMap()})
				res, err := l.AllowN(t.Context(), "a", p, 5)
				if err != nil {
					t.Fatal(err)
				}
				calls := []func() error{
					func() error { _, err := l.AllowN(t.Context(), "a", p, 5); return err },
					func() error { return correct(l, res) },
				}
				first, wait := n/8, time.Duration(n%8)*time.Millisecond
				way.Store(int64(4 * time.Millisecond)) // the first is sent at 0, decided at 4 and answered at 6
				done := make(chan error)
				go func() { done <- calls[first]() }()
				time.Sleep(wait)
				way.Store(int64(2 * time.Millisecond))
				if err := errors.Join(calls[1-first](), <-done); err != nil {
					t.Fatal(err)
				}
				if res, err := l.AllowN(t.Context(), "a", p, 5); err != nil || res.Cached {
					t.Errorf("%s, call %d first, the other after %v: got %+v, %v, want Redis to be asked", name, first, wait, res, err)
				}
			})
		}
	}
}

// hookedMap calls a function before it keeps a denial.
type hookedMap struct {
	*denyMap
	before func()
}

func (c *hookedMap) Set(k DenyKey, d *Denial) {
	if before := c.before; before != nil {
		c.before = nil
		before()
	}
	c.denyMap.Set(k, d)
}

func TestSettleWhileADenialIsKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cache := &hookedMap{denyMap: newDenyMap()}
		l := newLimiter(t, exact(local.NewStore(10), func() time.Duration { return 0 }), Config{DenyCache: cache})
		p := SlidingLog(5, time.Hour)
		res, err := l.AllowN(t.Context(), "a", p, 5)
		if err != nil {
			t.Fatal(err)
		}
		cache.before = func() {
			if _, err := l.Settle(t.Context(), res, 0); err != nil {
				t.Error(err)
			}
		}
		for n, wantAllowed := range []bool{false, true} {
			if res, err := l.AllowN(t.Context(), "a", p, 5); err != nil || res.Cached || res.Allowed != wantAllowed {
				t.Errorf("call %d: got %+v, %v, want Redis to say %t", n, res, err, wantAllowed)
			}
		}
	})
}

// TestCorrectionUnderAnotherPolicy: policies that share a key are corrected together.
func TestCorrectionUnderAnotherPolicy(t *testing.T) {
	five, six := SlidingLog(5, time.Hour).Named("api"), SlidingLog(6, time.Hour).Named("api")
	other := SlidingLog(50, time.Hour).Named("other")
	for name, tt := range map[string]struct {
		charged Policy
		correct func(*Limiter, Result) error
	}{
		"settle":           {five, func(l *Limiter, res Result) error { _, err := l.Settle(t.Context(), res, 0); return err }},
		"reset":            {five, func(l *Limiter, _ Result) error { return l.Reset(t.Context(), "a", five) }},
		"candidate":        {other, func(l *Limiter, res Result) error { _, err := l.Settle(t.Context(), res, 0); return err }},
		"own tag":          {five, func(l *Limiter, res Result) error { _, err := l.Settle(t.Context(), res, 0); return err }},
		"the whole's name": {five, func(l *Limiter, _ Result) error { return l.Reset(t.Context(), "a", six) }},
	} {
		synctest.Test(t, func(t *testing.T) {
			l := newLimiter(t, exact(local.NewStore(10), func() time.Duration { return 0 }), Config{
				DenyCache: newDenyMap(), Candidates: map[Policy]Policy{other: six},
			})
			out := l.Batch(t.Context(), Request{Key: "a", Tag: "a", Policy: tt.charged, Cost: 5})[0]
			for n := range 2 {
				if res, err := l.AllowN(t.Context(), "a", six, 2); err != nil || res.Allowed || res.Cached != (n > 0) {
					t.Fatalf("%s: got %+v, %v, want it denied", name, res, err)
				}
			}
			if err := tt.correct(l, out.Result); err != nil {
				t.Fatal(err)
			}
			if res, err := l.AllowN(t.Context(), "a", six, 2); err != nil || !res.Allowed {
				t.Errorf("%s: got %+v, %v, want it allowed", name, res, err)
			}
		})
	}
}

// TestResetForgetsTheDenialsOfAllShards, each of which has a key of its own.
func TestResetForgetsTheDenialsOfAllShards(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLimiter(t, exact(local.NewStore(100), func() time.Duration { return 0 }), Config{DenyCache: newDenyMap()})
		p := SlidingLog(4, time.Hour).Sharded(4)
		for range 100 {
			if _, err := l.Allow(t.Context(), "a", p); err != nil {
				t.Fatal(err)
			}
		}
		if err := l.Reset(t.Context(), "a", p); err != nil {
			t.Fatal(err)
		}
		for range 100 {
			if res, err := l.Allow(t.Context(), "a", p); err != nil || res.Cached && res.ServerTime.IsZero() {
				t.Fatal(res, err)
			}
		}
		if res, err := l.Peek(t.Context(), "a", p, 0); err != nil || res.Remaining != 0 {
			t.Errorf("got %+v, %v, want all units taken anew", res, err)
		}
	})
}

// TestDeniedSubjectIsCopied, since it may be a small piece of a request's body.
func TestDeniedSubjectIsCopied(t *testing.T) {
	l, _, _ := shut(t, Config{})
	subject := "203.0.113.7"
	if _, err := l.AllowN(t.Context(), subject, SlidingLog(10, time.Minute), 4); err != nil {
		t.Fatal(err)
	}
	cache := l.denials.cache.(*denyMap)
	if len(cache.m) != 1 {
		t.Fatalf("%d denials, want 1", len(cache.m))
	}
	for k := range cache.m {
		if k.Key != subject || unsafe.StringData(k.Key) == unsafe.StringData(subject) {
			t.Errorf("the cache keeps %q itself, want a copy", k.Key)
		}
	}
}

// TestLimitersMayShareACache: each has its own clock, and perhaps its own server.
func TestLimitersMayShareACache(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cache := newDenyMap()
		p := SlidingLog(10, time.Minute)
		a, _, _ := shut(t, Config{})
		a.denials.cache = cache
		time.Sleep(3 * time.Second)
		b, client, _ := shut(t, Config{})
		b.denials.cache = cache
		if _, err := a.AllowN(t.Context(), "a", p, 4); err != nil {
			t.Fatal(err)
		}
		time.Sleep(6 * time.Second)
		if res, err := b.AllowN(t.Context(), "a", p, 4); err != nil || res.Cached || client.count() != 1 {
			t.Errorf("got %+v, %v, want Redis to be asked", res, err)
		}
		if res, err := b.AllowN(t.Context(), "a", p, 4); err != nil || !res.Cached {
			t.Errorf("got %+v, %v, want its own denial", res, err)
		}
	})
}

// TestNoDenialIsKnownDuringASettle: the server may have made the limit freer before its answer is here.
func TestNoDenialIsKnownDuringASettle(t *testing.T) {
	l, client, _ := shut(t, Config{})
	p := SlidingLog(10, time.Minute)
	ask := func(cost int64, wantCached bool) Result {
		t.Helper()
		res, err := l.AllowN(t.Context(), "a", p, cost)
		if err != nil || res.Cached != wantCached {
			t.Errorf("got %+v, %v, want cached %t", res, err, wantCached)
		}
		return res
	}
	charged := ask(2, false)
	ask(4, false)
	ask(4, true)
	answer := client.answer
	client.answer = func(ctx context.Context, words []string) rueidis.RedisResult {
		client.answer = answer
		ask(4, false)
		return answer(ctx, words)
	}
	if _, err := l.Settle(t.Context(), charged, 0); err != nil {
		t.Fatal(err)
	}
}

func TestDegradedDenialsAreNotRemembered(t *testing.T) {
	client := replying(errorReply("LOADING"))
	l := newLimiter(t, client, Config{OnFailure: FailClosed, DenyCache: newDenyMap()})
	for range 3 {
		if res, err := l.Allow(t.Context(), "a", SlidingLog(10, time.Minute)); err != nil || res.Cached {
			t.Fatalf("got %+v, %v, want Redis to be asked", res, err)
		}
	}
}

func TestShadowedDenialsFromTheCache(t *testing.T) {
	l, client, _ := shut(t, Config{ShadowPercent: 100})
	for n := range 3 {
		res, err := l.AllowN(t.Context(), "a", SlidingLog(10, time.Minute), 4)
		if err != nil || !res.Allowed || !res.Shadowed || res.Cached != (n > 0) {
			t.Fatalf("call %d: got %+v, %v, want it let through", n, res, err)
		}
	}
	if got := client.count(); got != 1 {
		t.Errorf("%d calls reached Redis, want 1", got)
	}
}

func TestCandidatesSeeAllCalls(t *testing.T) {
	p := SlidingLog(10, time.Minute)
	l, client, _ := shut(t, Config{Candidates: map[Policy]Policy{p: p.Named("new")}})
	for range 3 {
		if res, err := l.AllowN(t.Context(), "a", p, 4); err != nil || res.Cached || res.Candidate == nil {
			t.Fatalf("got %+v, %v, want both to be asked", res, err)
		}
	}
	if got := client.count(); got != 6 {
		t.Errorf("%d calls reached Redis, want 6", got)
	}
}

func TestCachedDenialAllocatesNothing(t *testing.T) {
	l, _, _ := shut(t, Config{})
	l.observe = nil
	p := SlidingLog(10, time.Minute).Named("login")
	if got := testing.AllocsPerRun(100, func() {
		if res, err := l.AllowN(t.Context(), "203.0.113.7", p, 4); err != nil || res.Allowed {
			t.Fatalf("%+v, %v", res, err)
		}
	}); got != 0 {
		t.Errorf("%v allocations", got)
	}
}
