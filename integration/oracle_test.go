package integration

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/sluicego/sluice"
	"github.com/sluicego/sluice/conformance/model"
)

// limit is a policy as the API and as the model know it.
type limit struct {
	policy sluice.Policy
	exact  model.Policy
}

func logOf(units int64, window time.Duration) limit {
	return limit{sluice.SlidingLog(units, window), model.Policy{Kind: model.Log, Limit: units, WindowMS: window.Milliseconds()}}
}

func counterOf(units int64, window time.Duration) limit {
	return limit{sluice.SlidingCounter(units, window), model.Policy{Kind: model.Counter, Limit: units, WindowMS: window.Milliseconds()}}
}

func bucketOf(capacity, refill int64, period time.Duration) limit {
	return limit{sluice.TokenBucket(capacity, refill, period),
		model.Policy{Kind: model.Bucket, Limit: capacity, Refill: refill, WindowMS: period.Milliseconds()}}
}

// fits reports how a result differs from the model's reply at the same moment; empty if it does not.
func fits(got sluice.Result, want model.Reply) string {
	g := fmt.Sprint(got.Allowed, got.Remaining, got.RetryAfter, got.ResetAfter)
	w := fmt.Sprint(want.Allowed, want.Remaining, time.Duration(want.RetryAfterMS)*time.Millisecond,
		time.Duration(want.ResetAfterMS)*time.Millisecond)
	if g != w {
		return fmt.Sprintf("got %s, want %s (allowed remaining retry reset)", g, w)
	}
	return ""
}

// newLimiter makes a limiter for the tests.
func newLimiter(t testing.TB, client rueidis.Client, cfg sluice.Config) *sluice.Limiter {
	t.Helper()
	l, err := sluice.New(client, cfg)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// walk makes random calls of the API on a few subjects and holds every result to the model, which is driven by the time
// that each result carries: exact on a clock that is held, and on one that runs. advance is called before each step.
func walk(t *testing.T, l *sluice.Limiter, steps int, limits []limit, advance func(*rand.Rand)) {
	t.Helper()
	ctx := t.Context()
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 0))
	type subject struct {
		key     string
		limit   limit
		state   *model.State
		charged []sluice.Result
		costs   []int64
	}
	var subjects []*subject
	for i, lim := range limits {
		for _, key := range []string{"{a}", "b:\x00c"} {
			subjects = append(subjects, &subject{key: fmt.Sprint(key, seed, i), limit: lim, state: model.New()})
		}
	}
	for step := range steps {
		advance(r)
		s := subjects[r.IntN(len(subjects))]
		p := s.limit.exact
		cost := r.Int64N(p.Limit/2+2) % (p.Limit + 1)
		op, receipt := "take", int64(0)
		var res sluice.Result
		var err error
		switch n := r.IntN(10); {
		case n < 5:
			if res, err = l.AllowN(ctx, s.key, s.limit.policy, cost); res.Allowed {
				s.charged, s.costs = append(s.charged, res), append(s.costs, cost)
			}
		case n < 7:
			op = "peek"
			res, err = l.Peek(ctx, s.key, s.limit.policy, cost)
		case n < 8:
			out := l.Batch(ctx, sluice.Request{Key: s.key, Policy: s.limit.policy, Cost: cost})[0]
			res, err = out.Result, out.Err
		case n < 9 && len(s.charged) > 0:
			last := len(s.charged) - 1
			actual := r.Int64N(2*s.costs[last] + 2)
			op, receipt = "settle", s.charged[last].ServerTime.UnixMicro()
			res, err = l.Settle(ctx, s.charged[last], actual)
			cost = actual - s.costs[last]
			s.charged, s.costs = s.charged[:last], s.costs[:last]
		default:
			if err := l.Reset(ctx, s.key, s.limit.policy); err != nil {
				t.Fatalf("seed %d, step %d: reset: %v", seed, step, err)
			}
			s.state.Lose()
			s.charged, s.costs = nil, nil
			continue
		}
		if err != nil {
			t.Fatalf("seed %d, step %d: %s %d: %v", seed, step, op, cost, err)
		}
		want := s.state.Call(res.ServerTime.UnixMicro(), op, cost, p, receipt)
		if diff := fits(res, want); diff != "" {
			t.Fatalf("seed %d, step %d: %s %d of %s on %q: %s", seed, step, op, cost, s.limit.policy, s.key, diff)
		}
	}
}
