package main

import (
	"context"
	"fmt"
	"time"

	"github.com/sluicego/sluice"
)

// maxTogether bounds how many visits share a round trip.
const maxTogether = 500

// replay asks for every visit of the log under every policy, and returns the decisions by policy and visit.
// Before it asks, it calls moveTo, which returns once the server's clock stands at the visit's time. All visits
// of one time, under all policies, go out in one pipeline. Now and then it calls progress with the visits done.
func replay(
	ctx context.Context, limiter *sluice.Limiter, policies []sluice.Policy, log *accessLog,
	moveTo func(ctx context.Context, at time.Time) error, progress func(done int),
) ([][]decision, error) {
	decisions := make([][]decision, len(policies))
	for rest := log.visits; len(rest) > 0; {
		now := rest[0].at
		n := 1
		for n < len(rest) && n < maxTogether && rest[n].at.Equal(now) {
			n++
		}
		if err := moveTo(ctx, now); err != nil {
			return nil, err
		}
		var requests []sluice.Request
		for _, v := range rest[:n] {
			for _, p := range policies {
				requests = append(requests, sluice.Request{Key: sluice.Key(log.subjects[v.subject]), Policy: p, Cost: 1})
			}
		}
		for i, o := range limiter.Batch(ctx, requests...) {
			if o.Err != nil {
				return nil, fmt.Errorf("%s at %s: %w", requests[i].Policy, now.UTC().Format(time.DateTime), o.Err)
			}
			p := i % len(policies)
			decisions[p] = append(decisions[p], decision{allowed: o.Result.Allowed, at: o.Result.ServerTime})
		}
		rest = rest[n:]
		progress(len(log.visits) - len(rest))
	}
	return decisions, nil
}

// every returns a function that calls show with what it is called with, but not more often than once in a while.
func every(while time.Duration, show func(done int)) func(done int) {
	last := time.Now()
	return func(done int) {
		if time.Since(last) >= while {
			last = time.Now()
			show(done)
		}
	}
}

// A pacer replays a log in real time, faster than it was written.
type pacer struct {
	speed float64 // seconds of the log in a second

	started time.Time
	first   time.Time     // the log's time at started
	late    time.Duration // the longest that a visit was behind its time
}

// takes is how long so much of the log takes.
func (p *pacer) takes(d time.Duration) time.Duration {
	return time.Duration(float64(d) / p.speed)
}

// moveTo sleeps until the visit's time has come.
func (p *pacer) moveTo(ctx context.Context, at time.Time) error {
	if p.started.IsZero() {
		p.started, p.first = time.Now(), at
	}
	due := p.started.Add(p.takes(at.Sub(p.first)))
	if early := time.Until(due); early > 0 {
		select {
		case <-ctx.Done():
		case <-time.After(early):
		}
	}
	p.late = max(p.late, time.Since(due))
	return ctx.Err()
}
