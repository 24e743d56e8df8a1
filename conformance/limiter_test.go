package conformance_test

import (
	"context"
	"errors"
	"math"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/sluicego/sluice"
	"github.com/sluicego/sluice/conformance/servers"
)

// caller is a Limiter on a server whose clock the test moves.
type caller struct {
	*sluice.Limiter
	*servers.Server
	t   *testing.T
	now int64 // us
}

// onServers runs a test of the Go API on every server, each time on an empty one.
func onServers(t *testing.T, cfg sluice.Config, test func(c *caller)) {
	t.Helper()
	for _, s := range servers.All(t) {
		t.Run(s.Name, func(t *testing.T) {
			s.Flush(t)
			c := &caller{Server: s, t: t, now: servers.Epoch}
			s.SetTime(c.now)
			var err error
			if c.Limiter, err = sluice.New(s.Caller, cfg); err != nil {
				t.Fatal(err)
			}
			test(c)
		})
	}
}

func (c *caller) advance(d time.Duration) {
	c.now += d.Microseconds()
	c.SetTime(c.now)
}

// take is AllowN for tests that take no error.
func (c *caller) take(t *testing.T, key string, p sluice.Policy, cost int64) sluice.Result {
	t.Helper()
	res, err := c.AllowN(t.Context(), key, p, cost)
	if err != nil {
		t.Fatal(err)
	}
	return res
}

func (c *caller) peek(t *testing.T, key string, p sluice.Policy, cost int64) sluice.Result {
	t.Helper()
	res, err := c.Peek(t.Context(), key, p, cost)
	if err != nil {
		t.Fatal(err)
	}
	return res
}

func (c *caller) settle(t *testing.T, res sluice.Result, actual int64) sluice.Result {
	t.Helper()
	res, err := c.Settle(t.Context(), res, actual)
	if err != nil {
		t.Fatal(err)
	}
	return res
}

func (c *caller) forgetScripts(t *testing.T) {
	t.Helper()
	if err := c.Client.Do(t.Context(), c.Client.B().ScriptFlush().Build()).Error(); err != nil {
		t.Fatal(err)
	}
}

// keysLeft are all keys on the server, sorted.
func (c *caller) keysLeft(t *testing.T) []string {
	t.Helper()
	keys, err := c.Client.Do(t.Context(), c.Client.B().Keys().Pattern("*").Build()).AsStrSlice()
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(keys)
	return keys
}

// Ten a minute by each algorithm. Window and capacity are such that a charge of 10 is free again one minute later.
var tenAMinute = map[string]sluice.Policy{
	"log":     sluice.SlidingLog(10, time.Minute),
	"counter": sluice.SlidingCounter(10, time.Minute),
	"bucket":  sluice.TokenBucket(10, 10, time.Minute),
}

func TestLimitIsHeldAndWaitsAreExact(t *testing.T) {
	onServers(t, sluice.Config{}, func(c *caller) {
		t := c.t
		for name, p := range tenAMinute {
			for i := range int64(10) {
				if res := c.take(t, "a", p, 1); !res.Allowed || res.Limit != 10 || res.Remaining != 9-i || res.RetryAfter != 0 || res.ServerTime.UnixMicro() != c.now {
					t.Errorf("%s: call %d: %+v", name, i+1, res)
				}
			}
			for _, cost := range []int64{1, 3, 10} {
				denied := c.take(t, "a", p, cost)
				if denied.Allowed || denied.RetryAfter <= 0 || denied.Remaining != 0 {
					t.Fatalf("%s: cost %d: %+v, want it denied", name, cost, denied)
				}
				if peeked := c.peek(t, "a", p, cost); peeked != denied {
					t.Errorf("%s: cost %d: peek tells %+v, the denial %+v", name, cost, peeked, denied)
				}
				start := c.now
				c.advance(denied.RetryAfter - time.Millisecond)
				if res := c.peek(t, "a", p, cost); res.Allowed {
					t.Errorf("%s: cost %d: admitted 1 ms before %v", name, cost, denied.RetryAfter)
				}
				c.advance(time.Millisecond)
				if res := c.peek(t, "a", p, cost); !res.Allowed {
					t.Errorf("%s: cost %d: denied after %v", name, cost, denied.RetryAfter)
				}
				c.now = start
				c.SetTime(c.now)
			}
			denied := c.take(t, "a", p, 1)
			c.advance(denied.ResetAfter)
			if res := c.peek(t, "a", p, 0); res.Remaining != 10 || res.ResetAfter != 0 {
				t.Errorf("%s: after a reset in %v: %+v, want all of it free", name, denied.ResetAfter, res)
			}
			if res := c.take(t, "a", p, 10); !res.Allowed {
				t.Errorf("%s: %+v, want the whole limit", name, res)
			}
		}
	})
}

func TestCostZeroAndTheWholeLimit(t *testing.T) {
	onServers(t, sluice.Config{}, func(c *caller) {
		t := c.t
		for name, p := range tenAMinute {
			if res := c.take(t, "a", p, 0); !res.Allowed || res.Remaining != 10 {
				t.Errorf("%s: cost 0: %+v, want it allowed and all free", name, res)
			}
			if keys := c.keysLeft(t); len(keys) != 0 {
				t.Errorf("%s: cost 0 left %q", name, keys)
			}
			if res := c.take(t, "a", p, 10); !res.Allowed || res.Remaining != 0 {
				t.Errorf("%s: cost 10: %+v, want it allowed and none free", name, res)
			}
			if res := c.take(t, "a", p, 0); !res.Allowed || res.Remaining != 0 {
				t.Errorf("%s: cost 0: %+v, want it allowed and none free", name, res)
			}
			c.Flush(t)
		}
	})
}

func TestSettleBothWays(t *testing.T) {
	onServers(t, sluice.Config{}, func(c *caller) {
		t := c.t
		for name, p := range tenAMinute {
			res := c.take(t, "down", p, 6)
			if res := c.settle(t, res, 2); !res.Allowed || res.Remaining != 8 {
				t.Errorf("%s: 6 settled as 2: %+v, want 8 free", name, res)
			}
			res = c.take(t, "up", p, 6)
			if res := c.settle(t, res, 9); !res.Allowed || res.Remaining != 1 {
				t.Errorf("%s: 6 settled as 9: %+v, want 1 free", name, res)
			}
			res = c.take(t, "debt", p, 6)
			if res := c.settle(t, res, 15); !res.Allowed || res.Remaining != 0 || c.peek(t, "debt", p, 1).Allowed {
				t.Errorf("%s: 6 settled as 15: %+v, want none free", name, res)
			}
			res = c.take(t, "free", p, 0)
			if res := c.settle(t, res, 3); res.Remaining != 7 {
				t.Errorf("%s: 0 settled as 3: %+v, want 7 free", name, res)
			}
			res = c.take(t, "same", p, 6)
			if res := c.settle(t, res, 6); res.Remaining != 4 {
				t.Errorf("%s: 6 settled as 6: %+v, want 4 free", name, res)
			}
			res = c.take(t, "all", p, 6)
			if res := c.settle(t, res, 0); res.Remaining != 10 || res.ResetAfter != 0 {
				t.Errorf("%s: 6 settled as 0: %+v, want all free", name, res)
			}
			// A charge that has left its window is not given back from the charges of others.
			res = c.take(t, "late", p, 6)
			c.advance(2 * time.Minute)
			c.take(t, "late", p, 10)
			if res := c.settle(t, res, 0); res.Remaining != 0 {
				t.Errorf("%s: given back late: %+v, want none free", name, res)
			}
			c.Flush(t)
		}
	})
}

func TestLimitChangeIgnoredOnLiveKeys(t *testing.T) {
	onServers(t, sluice.Config{}, func(c *caller) {
		t := c.t
		for name, change := range map[string]func(limit int64) sluice.Policy{
			"log":     func(limit int64) sluice.Policy { return sluice.SlidingLog(limit, time.Minute) },
			"counter": func(limit int64) sluice.Policy { return sluice.SlidingCounter(limit, time.Minute) },
			"bucket":  func(limit int64) sluice.Policy { return sluice.TokenBucket(limit, 10, time.Minute) },
		} {
			c.take(t, "a", change(10), 10)
			if res := c.take(t, "a", change(5), 1); res.Allowed {
				t.Errorf("%s: 10 used, limit lowered to 5: %+v, want it denied", name, res)
			}
			if res := c.take(t, "a", change(20), 10); !res.Allowed || res.Remaining != 0 {
				t.Errorf("%s: 10 used, limit raised to 20: %+v, want 10 more", name, res)
			}
			if res := c.take(t, "a", change(20), 1); res.Allowed {
				t.Errorf("%s: 20 used of 20: %+v, want it denied", name, res)
			}
		}
		// Under one name, the window may change too.
		for name, p := range tenAMinute {
			hourly := sluice.SlidingLog(10, time.Hour)
			switch name {
			case "counter":
				hourly = sluice.SlidingCounter(10, time.Hour)
			case "bucket":
				hourly = sluice.TokenBucket(10, 10, time.Hour)
			}
			c.take(t, "a", p.Named(name), 10)
			if res := c.take(t, "a", hourly.Named(name), 1); res.Allowed {
				t.Errorf("%s: 10 used in a minute, window changed to an hour: %+v, want it denied", name, res)
			}
		}
	})
}

func TestTwoRulesShareAKey(t *testing.T) {
	for _, cfg := range []sluice.Config{{}, {PlainKeys: true}, {Secret: []byte("0123456789abcdef")}} {
		onServers(t, cfg, func(c *caller) {
			t := c.t
			one := func(key string, p sluice.Policy) {
				t.Helper()
				if res := c.take(t, key, p, 1); !res.Allowed {
					t.Errorf("%q by %v: %+v, want a limit of its own", key, p, res)
				}
			}
			log := sluice.SlidingLog(1, time.Minute)
			for _, key := range []string{
				sluice.Key("a:b", "c"), sluice.Key("a", "b:c"), sluice.Key("a", "b", "c"), sluice.Key("a:b:c"), "a:b:c",
			} {
				one(key, log)
			}
			for _, p := range []sluice.Policy{
				log, sluice.SlidingLog(1, time.Hour), sluice.SlidingCounter(1, time.Minute), sluice.TokenBucket(1, 1, time.Minute),
				log.Named("burst"), sluice.SlidingCounter(1, time.Minute).Named("daily"),
			} {
				one("subject", p)
			}
			for _, tag := range []string{"", "t", "u"} {
				if out := c.Batch(t.Context(), sluice.Request{Key: "tagged", Tag: tag, Policy: log, Cost: 1})[0]; out.Err != nil || !out.Result.Allowed {
					t.Errorf("under the tag %q: %+v, want a limit of its own", tag, out)
				}
			}
			if got := len(c.keysLeft(t)); got != 14 {
				t.Errorf("%d keys for 14 limits: %q", got, c.keysLeft(t))
			}
		})
	}
}

func TestHostileSubjects(t *testing.T) {
	for _, cfg := range []sluice.Config{{}, {PlainKeys: true}} {
		onServers(t, cfg, func(c *caller) {
			t := c.t
			subjects := []string{
				"{", "}", "{}", "}{", "{a}", "a{b}c", "\x00", "a\x00b", "\r\n", "*?[]", "%", "%7B", "%00", " ", "é", "\xff\xfe",
				"sluice:{a}:log/60000", "-1", "nil", strings.Repeat("x", 1<<20),
			}
			p := sluice.SlidingLog(1, time.Minute)
			for round, want := range []bool{true, false} {
				for _, key := range subjects {
					if res := c.take(t, key, p, 1); res.Allowed != want {
						t.Errorf("round %d: subject of %d bytes %.20q: allowed %v, want %v", round, len(key), key, res.Allowed, want)
					}
				}
			}
			if got := len(c.keysLeft(t)); got != len(subjects) {
				t.Errorf("%d keys for %d subjects", got, len(subjects))
			}
			for _, key := range c.keysLeft(t) {
				if strings.Count(key, "{") != 1 || strings.Count(key, "}") != 1 || strings.ContainsFunc(key, func(r rune) bool { return r <= ' ' || r > '~' }) {
					t.Errorf("key %.100q has braces of the subject's, or is not printable", key)
				}
				if ttl, err := c.Client.Do(t.Context(), c.Client.B().Pttl().Key(key).Build()).AsInt64(); err != nil || ttl <= 0 || ttl > 120_000 {
					t.Errorf("key %.100q expires in %d ms, %v", key, ttl, err)
				}
			}
			if _, err := c.Allow(t.Context(), "", p); !errors.Is(err, sluice.ErrInvalidKey) {
				t.Errorf("empty subject: %v, want ErrInvalidKey", err)
			}
		})
	}
}

func TestResetByPatternWipesOthers(t *testing.T) {
	for _, cfg := range []sluice.Config{{}, {PlainKeys: true}} {
		onServers(t, cfg, func(c *caller) {
			t := c.t
			p, other := sluice.SlidingLog(1, time.Minute), sluice.SlidingLog(1, time.Hour)
			subjects := []string{"*?[]", "*", "a", "abcd", "?", "[]", "*?[]x"}
			for _, key := range subjects {
				c.take(t, key, p, 1)
				c.take(t, key, other, 1)
			}
			if err := c.Reset(t.Context(), "*?[]", p); err != nil {
				t.Fatal(err)
			}
			if got, want := len(c.keysLeft(t)), 2*len(subjects)-1; got != want {
				t.Errorf("%d keys left, want %d: all but one", got, want)
			}
			for _, key := range subjects {
				if got, want := c.peek(t, key, p, 1).Allowed, key == "*?[]"; got != want {
					t.Errorf("%q: free %v, want %v", key, got, want)
				}
				if c.peek(t, key, other, 1).Allowed {
					t.Errorf("%q: its other policy was reset too", key)
				}
			}
			if err := c.Reset(t.Context(), "never used", p); err != nil {
				t.Errorf("reset of nothing: %v", err)
			}
		})
	}
}

func TestBadNumbersLeaveNoKey(t *testing.T) {
	onServers(t, sluice.Config{}, func(c *caller) {
		t := c.t
		fine := sluice.SlidingLog(1_000_000_000, time.Minute)
		charged := c.take(t, "a", fine, 1)
		if err := c.Reset(t.Context(), "a", fine); err != nil {
			t.Fatal(err)
		}
		refused := func(want, err error) {
			t.Helper()
			if !errors.Is(err, want) {
				t.Errorf("got %v, want %v", err, want)
			}
			var input *sluice.InputError
			if !errors.As(err, &input) || input.Field == "" || input.Want == "" {
				t.Errorf("got %v, want an InputError with field and range", err)
			}
		}
		for _, n := range []int64{0, -1, 1_000_000_001, 1 << 31, 1 << 40, 1<<53 - 1, 1<<53 + 1, math.MaxInt64, math.MinInt64} {
			for _, p := range []sluice.Policy{
				sluice.SlidingLog(n, time.Minute), sluice.SlidingCounter(n, time.Minute),
				sluice.TokenBucket(n, 1, time.Minute), sluice.TokenBucket(1, n, time.Minute),
			} {
				_, err := c.Allow(t.Context(), "a", p)
				refused(sluice.ErrInvalidPolicy, err)
				_, err = c.Peek(t.Context(), "a", p, 1)
				refused(sluice.ErrInvalidPolicy, err)
				_, err = c.Wait(t.Context(), "a", p, 1)
				refused(sluice.ErrInvalidPolicy, err)
				refused(sluice.ErrInvalidPolicy, c.Reset(t.Context(), "a", p))
				refused(sluice.ErrInvalidPolicy, c.Batch(t.Context(), sluice.Request{Key: "a", Policy: p, Cost: 1})[0].Err)
			}
			if n == 0 {
				continue // a cost may be 0
			}
			_, err := c.AllowN(t.Context(), "a", fine, n)
			refused(sluice.ErrInvalidCost, err)
			_, err = c.Peek(t.Context(), "a", fine, n)
			refused(sluice.ErrInvalidCost, err)
			_, err = c.Settle(t.Context(), charged, n)
			refused(sluice.ErrInvalidCost, err)
			refused(sluice.ErrInvalidCost, c.Batch(t.Context(), sluice.Request{Key: "a", Policy: fine, Cost: n})[0].Err)
		}
		for _, d := range []time.Duration{0, -1, -time.Minute, 1, time.Microsecond, time.Millisecond + 1, 366*24*time.Hour + time.Millisecond, math.MaxInt64, math.MinInt64} {
			for _, p := range []sluice.Policy{sluice.SlidingLog(1, d), sluice.SlidingCounter(1, d), sluice.TokenBucket(1, 1, d)} {
				_, err := c.Allow(t.Context(), "a", p)
				refused(sluice.ErrInvalidPolicy, err)
			}
		}
		if keys := c.keysLeft(t); len(keys) != 0 {
			t.Errorf("keys left: %q", keys)
		}
	})
}

func TestLargestNumbers(t *testing.T) {
	const billion = 1_000_000_000
	onServers(t, sluice.Config{}, func(c *caller) {
		t := c.t
		for _, p := range []sluice.Policy{
			sluice.SlidingLog(billion, 366*24*time.Hour), sluice.SlidingCounter(billion, 366*24*time.Hour), sluice.TokenBucket(billion, billion, 366*24*time.Hour),
		} {
			res := c.take(t, "a", p, billion)
			if !res.Allowed || res.Remaining != 0 || c.take(t, "a", p, 1).Allowed {
				t.Errorf("%v: %+v, want it allowed, and no more", p, res)
			}
			if res := c.settle(t, res, 0); res.Remaining != billion {
				t.Errorf("%v: settled as 0: %+v, want all free", p, res)
			}
		}
	})
}

func TestScriptFlushUnderCallers(t *testing.T) {
	onServers(t, sluice.Config{}, func(c *caller) {
		t := c.t
		const callers, calls = 100, 10
		policies := map[string]sluice.Policy{
			"log": sluice.SlidingLog(callers*calls/2, time.Minute), "counter": sluice.SlidingCounter(callers*calls/2, time.Minute),
			"bucket": sluice.TokenBucket(callers*calls/2, 1, time.Minute),
		}
		for name, p := range policies {
			var admitted atomic.Int64
			var wg sync.WaitGroup
			for n := range callers {
				wg.Go(func() {
					for i := range calls {
						if n%10 == 0 {
							c.forgetScripts(t)
						}
						var out sluice.Outcome
						if i%2 == 0 {
							out.Result, out.Err = c.Allow(t.Context(), "a", p)
						} else {
							out = c.Batch(t.Context(), sluice.Request{Key: "a", Policy: p, Cost: 1})[0]
						}
						if out.Err != nil {
							t.Errorf("%s: %v", name, out.Err)
						}
						if out.Result.Allowed {
							admitted.Add(1)
						}
					}
				})
			}
			wg.Wait()
			// Twice as many calls as the limit: one charged twice would leave one too few.
			if got := admitted.Load(); got != callers*calls/2 {
				t.Errorf("%s: %d admitted, want %d", name, got, callers*calls/2)
			}
		}
	})
}

func TestUnknownScriptIsChargedOnce(t *testing.T) {
	onServers(t, sluice.Config{}, func(c *caller) {
		t := c.t
		for name, p := range tenAMinute {
			c.forgetScripts(t)
			if res := c.take(t, "a", p, 3); res.Remaining != 7 {
				t.Errorf("%s: %+v, want 7 free", name, res)
			}
			c.forgetScripts(t)
			var reqs []sluice.Request
			for range 5 {
				reqs = append(reqs, sluice.Request{Key: "a", Policy: p, Cost: 2})
			}
			for i, out := range c.Batch(t.Context(), reqs...) {
				want := max(7-2*int64(i+1), 1)
				if out.Err != nil || out.Result.Allowed != (i < 3) || out.Result.Remaining != want {
					t.Errorf("%s: request %d: %+v, want %d free", name, i, out, want)
				}
			}
		}
	})
}

func TestLoadSendsEveryScript(t *testing.T) {
	onServers(t, sluice.Config{Timeout: time.Minute}, func(c *caller) {
		t := c.t
		c.forgetScripts(t)
		if err := c.Load(t.Context()); err != nil {
			t.Fatal(err)
		}
		digests := &recorder{Client: c.Caller}
		limiter, err := sluice.New(digests, sluice.Config{})
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range tenAMinute {
			if _, err := limiter.Allow(t.Context(), "a", p); err != nil {
				t.Fatal(err)
			}
		}
		if got := strings.Join(digests.verbs, " "); got != "EVALSHA EVALSHA EVALSHA" {
			t.Errorf("after Load the calls took %s, want one EVALSHA each", got)
		}
	})
}

// recorder keeps the first word of each command.
type recorder struct {
	rueidis.Client
	verbs []string
}

func (r *recorder) Do(ctx context.Context, cmd rueidis.Completed) rueidis.RedisResult {
	r.verbs = append(r.verbs, cmd.Commands()[0])
	return r.Client.Do(ctx, cmd)
}

func TestForeignState(t *testing.T) {
	onServers(t, sluice.Config{PlainKeys: true}, func(c *caller) {
		t := c.t
		check := func(key, want string, p sluice.Policy) {
			t.Helper()
			res, err := c.Allow(t.Context(), key, p)
			var state *sluice.StateError
			if res.Allowed || !errors.Is(err, sluice.ErrBackend) || !errors.As(err, &state) || state.Key != want {
				t.Errorf("got %+v, %v, want a StateError for %s", res, err, want)
			}
		}
		for name, p := range tenAMinute {
			key := "sluice:{foreign}:" + name + "/60000"
			for _, command := range [][]string{{"SET", key, "hello"}, {"RPUSH", key, "hello"}, {"HSET", key, "hello", "1"}, {"SADD", key, "hello"}, {"ZADD", key, "1", "hello"}} {
				if err := c.Client.Do(t.Context(), c.Client.B().Arbitrary(command[0]).Keys(command[1]).Args(command[2:]...).Build()).Error(); err != nil {
					t.Fatal(err)
				}
				check("foreign", key, p)
				if err := c.Reset(t.Context(), "foreign", p); err != nil {
					t.Fatal(err)
				}
			}
			if res := c.take(t, "foreign", p, 1); !res.Allowed {
				t.Errorf("%s: after the reset: %+v, want it allowed", name, res)
			}
		}
		// Two algorithms under one name.
		for first, p := range tenAMinute {
			c.Flush(t)
			c.take(t, "a", p.Named("shared"), 1)
			for second, q := range tenAMinute {
				if first != second {
					check("a", "sluice:{a}:shared", q.Named("shared"))
				}
			}
			if res := c.take(t, "a", p.Named("shared"), 1); res.Remaining != 8 {
				t.Errorf("%s: %+v, want its own two charges and no more", first, res)
			}
		}
	})
}

func TestBatchDecidesInOrder(t *testing.T) {
	onServers(t, sluice.Config{}, func(c *caller) {
		t := c.t
		var reqs []sluice.Request
		for range 12 {
			for _, name := range []string{"log", "counter", "bucket"} {
				reqs = append(reqs, sluice.Request{Key: "a", Policy: tenAMinute[name], Cost: 1})
			}
		}
		for i, out := range c.Batch(t.Context(), reqs...) {
			nth := int64(i / 3)
			if out.Err != nil || out.Result.Allowed != (nth < 10) || out.Result.Remaining != max(9-nth, 0) {
				t.Errorf("request %d, %v: %+v", i, reqs[i].Policy, out)
			}
		}
	})
}

// following makes a server's clock follow real time, so that a sleep passes there as well.
type following struct {
	rueidis.Client
	c     *caller
	start time.Time
}

func (f *following) Do(ctx context.Context, cmd rueidis.Completed) rueidis.RedisResult {
	f.c.SetTime(f.c.now + time.Since(f.start).Microseconds())
	return f.Client.Do(ctx, cmd)
}

func TestWaitIsAdmitted(t *testing.T) {
	onServers(t, sluice.Config{}, func(c *caller) {
		t := c.t
		limiter, err := sluice.New(&following{Client: c.Caller, c: c, start: time.Now()}, sluice.Config{})
		if err != nil {
			t.Fatal(err)
		}
		p := sluice.TokenBucket(1, 1, 20*time.Millisecond)
		var last time.Time
		for i := range 4 {
			res, err := limiter.Wait(t.Context(), "a", p, 1)
			if err != nil || !res.Allowed {
				t.Fatalf("got %+v, %v, want it allowed", res, err)
			}
			if gap := res.ServerTime.Sub(last); i > 0 && gap < 20*time.Millisecond {
				t.Errorf("%v after the one before, want at least 20ms", gap)
			}
			last = res.ServerTime
		}
	})
}

func TestWaitThatCannotBeMet(t *testing.T) {
	onServers(t, sluice.Config{}, func(c *caller) {
		t := c.t
		for name, p := range tenAMinute {
			c.take(t, "a", p, 10)
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			res, err := c.Wait(ctx, "a", p, 10)
			var limited *sluice.LimitedError
			if !errors.As(err, &limited) || !errors.Is(err, sluice.ErrLimited) || limited.Result != res || res.Allowed || res.RetryAfter < 30*time.Second {
				t.Errorf("%s: got %+v, %v, want a LimitedError with the denial", name, res, err)
			}
			if ctx.Err() != nil {
				t.Errorf("%s: the deadline has passed, want an answer at once", name)
			}
			cancel()
			// Nothing was charged by the wait, or by one that was cancelled.
			if _, err := c.Wait(ctx, "a", p, 1); !errors.Is(err, context.Canceled) {
				t.Errorf("%s: got %v, want Canceled", name, err)
			}
			if got := c.peek(t, "a", p, 10); got.RetryAfter != res.RetryAfter || got.ResetAfter != res.ResetAfter {
				t.Errorf("%s: now %+v, before %+v, want no difference", name, got, res)
			}
		}
	})
}
