package conformance_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/sluicego/sluice"
)

// layers are a limit of each algorithm on one subject: 5, 10 and 20 units.
var layers = []sluice.Policy{
	sluice.TokenBucket(5, 1, time.Second).Named("burst"),
	sluice.SlidingCounter(10, time.Minute),
	sluice.SlidingLog(20, time.Hour),
}

// requests are the layers for a subject, at these costs.
func requests(key string, costs ...int64) []sluice.Request {
	var reqs []sluice.Request
	for i, cost := range costs {
		reqs = append(reqs, sluice.Request{Key: key, Policy: layers[i], Cost: cost})
	}
	return reqs
}

func (c *caller) takeAll(t *testing.T, reqs ...sluice.Request) sluice.Results {
	t.Helper()
	res, err := c.AllowAll(t.Context(), reqs...)
	if err != nil {
		t.Fatal(err)
	}
	return res
}

func (c *caller) peekAll(t *testing.T, reqs ...sluice.Request) sluice.Results {
	t.Helper()
	res, err := c.PeekAll(t.Context(), reqs...)
	if err != nil {
		t.Fatal(err)
	}
	return res
}

// remaining is what is free of each layer, by calls for one limit.
func (c *caller) remaining(t *testing.T, key string) string {
	t.Helper()
	var free []int64
	for _, p := range layers {
		free = append(free, c.peek(t, key, p, 0).Remaining)
	}
	return fmt.Sprint(free)
}

func TestAllowAllSharesItsLimitsWithSingleCalls(t *testing.T) {
	onServers(t, sluice.Config{}, func(c *caller) {
		t := c.t
		c.take(t, "a", layers[0], 1)
		c.take(t, "a", layers[1], 2)
		c.take(t, "a", layers[2], 3)
		res := c.takeAll(t, requests("a", 1, 1, 2)...)
		if !res.Allowed || res.RetryAfter != 0 || len(res.Denied()) != 0 {
			t.Errorf("%+v, want it allowed", res)
		}
		if got, want := c.remaining(t, "a"), "[3 7 15]"; got != want {
			t.Errorf("free are %s, want %s", got, want)
		}
		for i, p := range layers {
			// Nothing happens in between, so a peek tells the same but for what only a charge has.
			one, all := c.peek(t, "a", p, 1), res.Each[i]
			if all.Limit != p.Limit() || all.Remaining != one.Remaining || all.ResetAfter != one.ResetAfter || all.ServerTime != one.ServerTime {
				t.Errorf("%v: together %+v, by itself %+v", p, all, one)
			}
			if peeked := c.peekAll(t, sluice.Request{Key: "a", Policy: p, Cost: 1}); peeked.Each[0] != one {
				t.Errorf("%v: PeekAll tells %+v, Peek %+v", p, peeked.Each[0], one)
			}
		}
		if got, want := c.remaining(t, "a"), "[3 7 15]"; got != want {
			t.Errorf("after the peeks free are %s, want %s", got, want)
		}
		if got := len(c.keysLeft(t)); got != 3 {
			t.Errorf("%d keys for 3 limits: %q", got, c.keysLeft(t))
		}
	})
}

func TestOneOfSeveralChargedThoughAnotherDenied(t *testing.T) {
	onServers(t, sluice.Config{PlainKeys: true}, func(c *caller) {
		t := c.t
		c.takeAll(t, requests("a", 1, 1, 1)...)
		for denies, p := range layers {
			c.Flush(t)
			c.takeAll(t, requests("a", 1, 1, 1)...)
			c.take(t, "a", p, p.Limit()-1)
			before := c.contents(t)
			for range 10 {
				res := c.takeAll(t, requests("a", 1, 1, 1)...)
				if res.Allowed || !slices.Equal(res.Denied(), []int{denies}) || res.RetryAfter != res.Each[denies].RetryAfter || res.RetryAfter <= 0 {
					t.Fatalf("%v exhausted: %+v, want it denied by that", p, res)
				}
				for i, each := range res.Each {
					if _, err := c.Settle(t.Context(), each, 0); !errors.Is(err, sluice.ErrNotCharged) {
						t.Errorf("settling %v of a denied call: %v, want ErrNotCharged", layers[i], err)
					}
				}
			}
			if after := c.contents(t); after != before {
				t.Errorf("%v exhausted: the keys were\n%s\nand are\n%s", p, before, after)
			}
		}
		// All of them deny.
		for _, p := range layers {
			c.take(t, "all", p, p.Limit())
		}
		res := c.takeAll(t, requests("all", 1, 1, 1)...)
		if res.Allowed || !slices.Equal(res.Denied(), []int{0, 1, 2}) {
			t.Errorf("%+v, want it denied by all", res)
		}
	})
}

// contents is all there is to see of all keys.
func (c *caller) contents(t *testing.T) string {
	t.Helper()
	var all strings.Builder
	for _, key := range c.keysLeft(t) {
		s := &subject{server: c.Server, key: key}
		fmt.Fprintln(&all, key, s.content(t))
	}
	return all.String()
}

func TestAllowAllWaitsAreExact(t *testing.T) {
	onServers(t, sluice.Config{}, func(c *caller) {
		t := c.t
		c.take(t, "a", layers[2], 20)
		c.advance(time.Hour - 20*time.Second)
		for c.takeAll(t, requests("a", 1, 1)...).Allowed {
		}
		// The bucket has one again in a second, and the log all of it in twenty.
		for _, want := range []struct {
			wait   time.Duration
			denied []int
		}{{20 * time.Second, []int{0, 2}}, {19 * time.Second, []int{2}}} {
			res := c.takeAll(t, requests("a", 1, 1, 1)...)
			if res.Allowed || res.RetryAfter != want.wait || !slices.Equal(res.Denied(), want.denied) {
				t.Errorf("%+v, want it denied by %v for %v", res, want.denied, want.wait)
			}
			c.advance(time.Second)
		}
		res := c.takeAll(t, requests("a", 1, 1, 1)...)
		c.advance(res.RetryAfter - time.Millisecond)
		if res := c.peekAll(t, requests("a", 1, 1, 1)...); res.Allowed || res.RetryAfter != time.Millisecond {
			t.Errorf("%+v, want it denied for 1 ms", res)
		}
		c.advance(time.Millisecond)
		if res := c.takeAll(t, requests("a", 1, 1, 1)...); !res.Allowed {
			t.Errorf("%+v, want it allowed", res)
		}
	})
}

func TestAllowAllIsSettledOneByOne(t *testing.T) {
	onServers(t, sluice.Config{}, func(c *caller) {
		t := c.t
		res := c.takeAll(t, requests("a", 2, 4, 6)...)
		c.advance(time.Millisecond)
		for i, actual := range []int64{1, 9, 0} {
			c.settle(t, res.Each[i], actual)
		}
		if got, want := c.remaining(t, "a"), "[4 1 20]"; got != want {
			t.Errorf("free are %s, want %s", got, want)
		}
	})
}

func TestAllowAllUnderOneTag(t *testing.T) {
	for _, cfg := range []sluice.Config{{}, {PlainKeys: true}, {Secret: []byte("0123456789abcdef")}} {
		onServers(t, cfg, func(c *caller) {
			t := c.t
			minute := sluice.SlidingLog(2, time.Minute)
			both := func(user, route string) sluice.Results {
				return c.takeAll(t,
					sluice.Request{Key: user, Policy: sluice.SlidingLog(3, time.Minute), Cost: 1},
					sluice.Request{Key: sluice.Key(user, route), Tag: user, Policy: minute, Cost: 1},
				)
			}
			for i, want := range []struct {
				route  string
				denied []int
			}{{"/a", nil}, {"/a", nil}, {"/a", []int{1}}, {"/b", nil}, {"/b", []int{0}}, {"/a", []int{0, 1}}} {
				if got := both("{u}", want.route); got.Allowed != (want.denied == nil) || !slices.Equal(got.Denied(), want.denied) {
					t.Errorf("call %d to %s: %+v, want it denied by %v", i+1, want.route, got, want.denied)
				}
			}
			for _, key := range c.keysLeft(t) {
				if tag, want := hashTag(key), hashTag(c.keysLeft(t)[0]); tag != want {
					t.Errorf("key %s has the hash tag %s, others %s", key, tag, want)
				}
			}
			if _, err := c.AllowAll(t.Context(), sluice.Request{Key: "u", Policy: minute, Cost: 1}, sluice.Request{Key: "v", Policy: minute, Cost: 1}); !errors.Is(err, sluice.ErrCrossSlot) {
				t.Errorf("two subjects: %v, want ErrCrossSlot, on a single server too", err)
			}
		})
	}
}

// hashTag is the part of a key by which a cluster places it.
func hashTag(key string) string {
	_, after, _ := strings.Cut(key, "{")
	tag, _, _ := strings.Cut(after, "}")
	return tag
}

func TestAllowAllAdmitsExactlyTheLeast(t *testing.T) {
	onServers(t, sluice.Config{}, func(c *caller) {
		t := c.t
		const callers, calls = 40, 5
		var admitted atomic.Int64
		var wg sync.WaitGroup
		for n := range callers {
			wg.Go(func() {
				for range calls {
					if n%10 == 0 {
						c.forgetScripts(t)
					}
					res, err := c.AllowAll(t.Context(),
						sluice.Request{Key: "a", Policy: sluice.TokenBucket(60, 1, time.Hour), Cost: 1},
						sluice.Request{Key: "a", Policy: sluice.SlidingCounter(130, time.Hour), Cost: 2},
						sluice.Request{Key: "a", Policy: sluice.SlidingLog(150, time.Hour), Cost: 3},
					)
					if err != nil {
						t.Error(err)
					}
					if res.Allowed {
						admitted.Add(1)
					}
				}
			})
		}
		wg.Wait()
		// 150 / 3, whatever was denied or sent again for an unknown script.
		if got := admitted.Load(); got != 50 {
			t.Errorf("%d admitted, want 50", got)
		}
		if got := c.peek(t, "a", sluice.TokenBucket(60, 1, time.Hour), 0).Remaining; got != 10 {
			t.Errorf("%d left in the bucket, want 10", got)
		}
	})
}

// hooked is a client that does something to every result.
type hooked struct {
	rueidis.Client
	hook func(rueidis.RedisResult) rueidis.RedisResult
}

func (h *hooked) Do(ctx context.Context, cmd rueidis.Completed) rueidis.RedisResult {
	return h.hook(h.Client.Do(ctx, cmd))
}

func TestAllowAllBehindClientsWithHooks(t *testing.T) {
	onServers(t, sluice.Config{}, func(c *caller) {
		t := c.t
		limiter := func(hook func(rueidis.RedisResult) rueidis.RedisResult) *sluice.Limiter {
			l, err := sluice.New(&hooked{c.Caller, hook}, sluice.Config{})
			if err != nil {
				t.Fatal(err)
			}
			return l
		}
		// Wrapped errors do not hide that a script is unknown.
		c.forgetScripts(t)
		res, err := limiter(func(res rueidis.RedisResult) rueidis.RedisResult {
			if err := res.Error(); err != nil {
				return rueidis.NewErrorResult(fmt.Errorf("traced: %w", err))
			}
			return res
		}).AllowAll(t.Context(), requests("a", 1, 1, 1)...)
		if err != nil || !res.Allowed {
			t.Errorf("got %+v, %v, want it allowed", res, err)
		}
		// An answer that is lost was charged once, and the error says that nobody knows.
		_, err = limiter(func(rueidis.RedisResult) rueidis.RedisResult {
			return rueidis.NewErrorResult(io.EOF)
		}).AllowAll(t.Context(), requests("a", 1, 1, 1)...)
		var call *sluice.CallError
		if !errors.Is(err, sluice.ErrBackend) || !errors.As(err, &call) || !call.Unknown {
			t.Errorf("got %v, want a CallError whose outcome is unknown", err)
		}
		if got, want := c.remaining(t, "a"), "[3 8 18]"; got != want {
			t.Errorf("free are %s, want %s: each charged twice in two calls", got, want)
		}
	})
}

func TestForeignStateAmongSeveral(t *testing.T) {
	onServers(t, sluice.Config{PlainKeys: true}, func(c *caller) {
		t := c.t
		keys := []string{"sluice:{a}:burst", "sluice:{a}:counter/60000", "sluice:{a}:log/3600000"}
		for i, key := range keys {
			c.Flush(t)
			if err := c.Client.Do(t.Context(), c.Client.B().Set().Key(key).Value("hello").Build()).Error(); err != nil {
				t.Fatal(err)
			}
			res, err := c.AllowAll(t.Context(), requests("a", 1, 1, 1)...)
			var state *sluice.StateError
			if res.Allowed || !errors.Is(err, sluice.ErrBackend) || !errors.As(err, &state) || state.Key != key {
				t.Errorf("limit %d: got %+v, %v, want a StateError for %s", i, res, err, key)
			}
			if got := c.keysLeft(t); !slices.Equal(got, []string{key}) {
				t.Errorf("limit %d: keys %q, want nothing written", i, got)
			}
		}
	})
}
