// Package breaker is a circuit breaker for sluice.Config.Breaker, over github.com/sony/gobreaker.
//
//	limiter, err := sluice.New(client, sluice.Config{
//		OnFailure: sluice.FailOpen,
//		Timeout:   50 * time.Millisecond,
//		Breaker:   breaker.New(breaker.Options{}),
//	})
//
// While Redis is dead, each call would wait for its timeout. A breaker opens after some of them have; calls then don't
// reach Redis any more, and are decided at once by sluice.Config.OnFailure. After a while it lets a few calls through, the probes:
// if they are answered it closes, if one fails it stays open for as long again.
package breaker

import (
	"cmp"
	"time"

	"github.com/sony/gobreaker/v2"
)

// Options say when a breaker opens and closes. The zero Options are good ones.
type Options struct {
	// Failures is how many calls must fail within the Window to open, 5 if 0. Fewer open it sooner, and on a hiccup.
	Failures uint32

	// Ratio is which part of the calls within the Window must fail besides, 0.5 if 0: with 0.5, 5 failures beside 10 answers
	// do not open. In a cluster of 4 masters of which one is dead, a quarter of the calls fails: with a ratio below that, all
	// calls are then decided without Redis; with one above, those of that master wait for their timeout.
	Ratio float64

	// Window is how far back calls count, 10 s if 0. It moves in tenths.
	Window time.Duration

	// Open is how long no call reaches Redis before the first probe, 1 s if 0: about how long a recovery goes unnoticed.
	Open time.Duration

	// Probes is how many calls are let through then, and must all be answered, to close: 1 if 0.
	Probes uint32

	// OnChange, if not nil, is told each change of state. It is called in the midst of a call, under the breaker's lock: it
	// must be quick and not use the breaker.
	OnChange func(from, to State)
}

// A State is what a breaker does with calls.
type State string

// The states.
const (
	Closed   State = "closed"    // calls reach Redis
	Open     State = "open"      // none does
	HalfOpen State = "half-open" // the probes do
)

// A Breaker is a circuit breaker, safe for concurrent use. Give each limiter its own, or one to all limiters of a client.
type Breaker struct {
	steps *gobreaker.TwoStepCircuitBreaker[struct{}]
}

// New makes a breaker that is closed.
func New(o Options) *Breaker {
	window := cmp.Or(max(o.Window, 0), 10*time.Second)
	failures, ratio := cmp.Or(o.Failures, 5), cmp.Or(max(o.Ratio, 0), 0.5)
	settings := gobreaker.Settings{
		MaxRequests:  cmp.Or(o.Probes, 1),
		Interval:     window,
		BucketPeriod: max(window/10, 1),
		Timeout:      cmp.Or(max(o.Open, 0), time.Second),
		ReadyToTrip: func(c gobreaker.Counts) bool {
			return c.TotalFailures >= failures && float64(c.TotalFailures) >= ratio*float64(c.TotalFailures+c.TotalSuccesses)
		},
	}
	if o.OnChange != nil {
		settings.OnStateChange = func(_ string, from, to gobreaker.State) { o.OnChange(State(from.String()), State(to.String())) }
	}
	return &Breaker{gobreaker.NewTwoStepCircuitBreaker[struct{}](settings)}
}

// Allow says whether a call may go to Redis. If err is nil it may, and must report by done, once, how that went: nil if
// Redis answered.
func (b *Breaker) Allow() (done func(err error), err error) { return b.steps.Allow() }

// State is what the breaker does now.
func (b *Breaker) State() State { return State(b.steps.State().String()) }
