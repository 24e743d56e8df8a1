package integration

import (
	"context"
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
// that each result carries: exact on a clock that is held, and on one that runs. advance, if any, is called before each step. It
// returns the first error of a call, or a difference.
func walk(ctx context.Context, l *sluice.Limiter, steps int, limits []limit, advance func(*rand.Rand)) (err error) {
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 0))
	step, doing := 0, ""
	defer func() {
		if err != nil {
			err = fmt.Errorf("seed %d, step %d: %s: %w", seed, step, doing, err)
		}
	}()

	type charge struct {
		res  sluice.Result
		cost int64
	}
	type subject struct {
		key     string
		limit   limit
		state   *model.State
		charges []charge
	}
	var subjects []*subject
	for i, lim := range limits {
		for _, key := range []string{"{a}", "b:\x00c"} {
			subjects = append(subjects, &subject{key: fmt.Sprint(key, seed, i), limit: lim, state: model.New()})
		}
	}
	for ; step < steps; step++ {
		if advance != nil {
			advance(r)
		}
		s := subjects[r.IntN(len(subjects))]
		p := s.limit.policy
		cost := r.Int64N(s.limit.exact.Limit/2+2) % (s.limit.exact.Limit + 1)
		op, receipt := "take", int64(0)
		var res sluice.Result
		switch n := r.IntN(10); {
		case n < 5:
			if res, err = l.AllowN(ctx, s.key, p, cost); res.Allowed {
				s.charges = append(s.charges, charge{res, cost})
			}
		case n < 7:
			op = "peek"
			res, err = l.Peek(ctx, s.key, p, cost)
		case n < 8:
			out := l.Batch(ctx, sluice.Request{Key: s.key, Policy: p, Cost: cost})[0]
			res, err = out.Result, out.Err
		case n < 9 && len(s.charges) > 0:
			var last charge
			last, s.charges = s.charges[len(s.charges)-1], s.charges[:len(s.charges)-1]
			actual := r.Int64N(2*last.cost + 2)
			op, cost, receipt = "settle", actual-last.cost, last.res.ServerTime.UnixMicro()
			res, err = l.Settle(ctx, last.res, actual)
		case n < 9:
			continue
		default:
			op = "reset"
			s.state.Lose()
			s.charges = nil
			err = l.Reset(ctx, s.key, p)
		}
		doing = fmt.Sprintf("%s %d of %s on %q", op, cost, p, s.key)
		if err != nil {
			return err
		}
		if op == "reset" {
			continue
		}
		want := s.state.Call(res.ServerTime.UnixMicro(), op, cost, s.limit.exact, receipt)
		if err := compare(res, want); err != nil {
			return err
		}
	}
	return nil
}

// compare holds a result to the model's reply.
func compare(got sluice.Result, want model.Reply) error {
	g := fmt.Sprint(got.Allowed, got.Remaining, got.RetryAfter, got.ResetAfter)
	w := fmt.Sprint(want.Allowed, want.Remaining, time.Duration(want.RetryAfterMS)*time.Millisecond,
		time.Duration(want.ResetAfterMS)*time.Millisecond)
	if g != w {
		return fmt.Errorf("got %s, want %s (allowed remaining retry reset)", g, w)
	}
	return nil
}
