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

// patience is how long a test waits for what a slow machine may take long for, before it fails.
const patience = 30 * time.Second

// newLimiter makes a limiter for the tests. Where they set no timeout, a call still can't hang for ever.
func newLimiter(t testing.TB, client rueidis.Client, cfg sluice.Config) *sluice.Limiter {
	t.Helper()
	if cfg.Timeout == 0 {
		cfg.Timeout = patience
	}
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
	type state struct {
		limit
		model   *model.State
		charges []charge
	}
	type subject struct {
		key    string
		states []*state // of each limit
	}
	var subjects []subject
	for _, key := range []string{"{a}", "b:\x00c"} {
		s := subject{key: fmt.Sprint(key, seed)}
		for _, lim := range limits {
			s.states = append(s.states, &state{limit: lim, model: model.New()})
		}
		subjects = append(subjects, s)
	}
	units := func(p model.Policy) int64 { return 1 + r.Int64N(p.Limit/2+1)%p.Limit }

	for ; step < steps; step++ {
		if advance != nil {
			advance(r)
		}
		subject := subjects[r.IntN(len(subjects))]
		key := subject.key
		s := subject.states[r.IntN(len(limits))]
		op, cost, receipt := "take", units(s.exact), int64(0)
		if r.IntN(8) == 0 {
			cost = 0
		}
		var res sluice.Result
		switch n := r.IntN(12); {
		case n < 5:
			res, err = l.AllowN(ctx, key, s.policy, cost)
		case n < 7:
			op = "peek"
			res, err = l.Peek(ctx, key, s.policy, cost)
		case n < 8:
			cost = max(cost, 1)
			out := l.Batch(ctx, sluice.Request{Key: key, Policy: s.policy, Cost: cost})[0]
			res, err = out.Result, out.Err
		case n < 9:
			op = "reset"
			s.model.Lose()
			s.charges = nil
			err = l.Reset(ctx, key, s.policy)
		case n < 10:
			var requests []sluice.Request
			for _, one := range subject.states {
				requests = append(requests, sluice.Request{Key: key, Policy: one.policy, Cost: units(one.exact)})
			}
			doing = fmt.Sprintf("AllowAll %v", requests)
			var all sluice.Results
			if all, err = l.AllowAll(ctx, requests...); err != nil {
				return err
			}
			// Denied, each answers as a peek; allowed, as a take.
			allowed, retry := true, int64(0)
			for i, one := range subject.states {
				peek := one.model.Call(all.Each[i].ServerTime.UnixMicro(), "peek", requests[i].Cost, one.exact, 0)
				allowed, retry = allowed && peek.Allowed, max(retry, peek.RetryAfterMS)
			}
			if all.Allowed != allowed || all.RetryAfter != time.Duration(retry)*time.Millisecond {
				return fmt.Errorf("got %v %v, want %v %d ms", all.Allowed, all.RetryAfter, allowed, retry)
			}
			op = "peek"
			if allowed {
				op = "take"
			}
			for i, one := range subject.states {
				want := one.model.Call(all.Each[i].ServerTime.UnixMicro(), op, requests[i].Cost, one.exact, 0)
				if err := compare(all.Each[i], want); err != nil {
					return fmt.Errorf("limit %d: %w", i, err)
				}
				if allowed {
					one.charges = append(one.charges, charge{all.Each[i], requests[i].Cost})
				}
			}
			continue
		default:
			if len(s.charges) == 0 {
				continue
			}
			var last charge
			last, s.charges = s.charges[len(s.charges)-1], s.charges[:len(s.charges)-1]
			actual := r.Int64N(2*last.cost + 2)
			op, cost, receipt = "settle", actual-last.cost, last.res.ServerTime.UnixMicro()
			res, err = l.Settle(ctx, last.res, actual)
		}
		doing = fmt.Sprintf("%s %d of %s on %q", op, cost, s.policy, key)
		if err != nil {
			return err
		}
		if op == "reset" {
			continue
		}
		want := s.model.Call(res.ServerTime.UnixMicro(), op, cost, s.exact, receipt)
		if err := compare(res, want); err != nil {
			return err
		}
		if op == "take" && res.Allowed {
			s.charges = append(s.charges, charge{res, cost})
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
