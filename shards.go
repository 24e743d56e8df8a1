package sluice

import (
	"context"
	"math/rand/v2"
	"strconv"
	"time"
)

const maxShards = 256

// Sharded is the policy split over n keys, the shards, for a subject that asks more often than one key can answer: a shard
// is on one core of one server, and a cluster spreads them. Each has its part of the limit, and together they have
// exactly the limit: SlidingLog(1000, time.Minute).Sharded(8) never admits more than 1000 in any window. A bucket's
// refill is divided exactly.
//
// Each call goes to a shard at random. So the one with the most calls may deny while others have units free: see
// docs/scaling.md for how early. Remaining and the waits in a Result are those of the shard that was asked; a Peek sums
// over all of them. A cost may be at most limit / n, rounded down. AllowAll takes no policy that is sharded, since its
// shards are in different slots.
//
// n is 2 to 256, and at most the limit; a bucket's period times n is at most 366 days. With less than 2 the policy is not
// sharded. Another n is another limit, which starts afresh. In its text form the policy ends in "*8".
func (p Policy) Sharded(n int) Policy {
	p.shards, p.shard = int16(min(n, maxShards+1)), 0
	if n < 2 {
		p.shards = 0
	}
	return p
}

// Shards is the n of [Policy.Sharded]; 1 if it is not sharded.
func (p Policy) Shards() int { return int(max(p.shards, 1)) }

// validateShards checks that each shard is a policy for itself. The first one is the largest.
func (p Policy) validateShards() error {
	if n := int64(p.shards); n > maxShards || n > p.limit {
		return p.outOfRange("shards", n, "at most "+strconv.FormatInt(min(maxShards, p.limit), 10))
	}
	first := Policy{kind: p.kind, refill: p.refill}
	p.shard = 1
	first.limit, first.window = p.numbers()
	if err := first.validate(); err != nil {
		return p.outOfRange("shards", int64(p.shards), "few enough to fill each within 366d, and a period of each of 366d at most")
	}
	return nil
}

// choose makes a sharded policy one of its shards, at random: not in turn, for then two subjects who call alternately would each get every
// second shard.
func (p *Policy) choose() {
	if p.shards > 0 {
		p.shard = 1 + int16(rand.IntN(int(p.shards)))
	}
}

// whole is the policy of which this is a shard.
func (p Policy) whole() Policy {
	p.shard = 0
	return p
}

// numbers are the limit and the window that a shard decides by; those of the policy if it is not one.
func (p *Policy) numbers() (limit int64, window time.Duration) {
	if p.shard == 0 {
		return p.limit, p.window
	}
	n := int64(p.shards)
	limit, window = p.limit/n, p.window
	if int64(p.shard) <= p.limit%n {
		limit++
	}
	if p.kind == tokenBucket {
		window *= time.Duration(n)
	}
	return limit, window
}

// most is the highest cost that any shard could admit.
func (p *Policy) most() int64 { return p.limit / max(int64(p.shards), 1) }

// shardKeys are the keys of all shards of a policy; its one key if it is not sharded.
func (l *Limiter) shardKeys(subject, tag string, p Policy) []string {
	keys := make([]string, max(p.shards, 1))
	for n := range keys {
		if p.shards > 0 {
			p.shard = int16(n) + 1
		}
		keys[n] = l.keys.key(subject, tag, p)
	}
	return keys
}

// peekShards peeks at all shards of a policy at once, and sums up.
func (l *Limiter) peekShards(ctx context.Context, req *Request) (Result, error) {
	whole := l.question(opPeek, req)
	questions := make([]question, req.Policy.shards)
	invocations := make([]*invocation, len(questions))
	for n := range questions {
		one := *req
		one.Policy.shard = int16(n) + 1
		questions[n] = l.question(opPeek, &one)
		invocations[n] = questions[n].invocation()
	}
	t := l.depart(1)
	t.commands = len(invocations)
	answers, failed := l.loader.runAll(ctx, invocations)
	l.arrive(&t, answers...)
	sum := Result{Limit: req.Policy.limit}
	for n := range questions {
		var one Result
		err := failed
		if err == nil {
			one, err = questions[n].answer(answers[n])
		}
		if err != nil {
			return l.finish(ctx, &whole, 0, &t, Result{}, failure(ctx, opPeek, invocations[n].keys, err))
		}
		if n == 0 || one.RetryAfter < sum.RetryAfter {
			sum.RetryAfter = one.RetryAfter
		}
		sum.Allowed = sum.Allowed || one.Allowed
		sum.Remaining += one.Remaining
		sum.ResetAfter = max(sum.ResetAfter, one.ResetAfter)
		if one.ServerTime.After(sum.ServerTime) {
			sum.ServerTime = one.ServerTime
		}
	}
	return l.finish(ctx, &whole, 0, &t, sum, nil)
}
