package sluice

import (
	"context"
	"errors"
	"math"
	"slices"
	"sync"
	"time"
)

// Wait asks as AllowN does and, while the limit denies, sleeps for as long as the denial says and asks again. It returns when
// the units are charged.
//
// Calls of one limiter on one limit stand in line: the one in front asks, and the others follow in the order of their
// coming, so that waiting costs Redis about two calls for each that is admitted, however many wait. One with a large cost
// is not overtaken by smaller ones. Allow and its like do not stand in line, nor do other limiters and processes.
//
// It fails at once, with a *[LimitedError] that matches [ErrLimited] and carries the denial, when the context's deadline
// is not after the wait, those in front included. If the context ends during a wait the error matches both ErrLimited
// and the context's error. In both cases nothing was charged. When Redis fails, all who stand in line fail with the one in front.
func (l *Limiter) Wait(ctx context.Context, key string, p Policy, cost int64) (res Result, err error) {
	q, err := l.ask(opTake, 0, Request{Key: key, Policy: p, Cost: cost})
	if err != nil {
		return Result{}, err
	}
	if cost == 0 { // always allowed, so it need not stand behind others
		return l.call(ctx, &q)
	}
	at := limit{q.key, p}
	if res, err = l.lines.enter(ctx, at, cost); err != nil {
		return res, err
	}
	defer func() { l.lines.leave(at, cost, res, err) }()
	for {
		res, err = l.call(ctx, &q)
		if err != nil || res.Allowed {
			return res, err
		}
		l.lines.denied(at, res)
		if deadline, ok := ctx.Deadline(); ok && time.Until(deadline) <= res.RetryAfter {
			return res, &LimitedError{Result: res}
		}
		timer := time.NewTimer(res.RetryAfter)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return res, &LimitedError{Result: res, Err: ctx.Err()}
		}
	}
}

// limit is what a line is for. Policies of one name share a key, but not their waits.
type limit struct {
	key    string
	policy Policy
}

// lines are the calls of Wait, by limit. A limit with no such call has no line.
type lines struct {
	mu sync.Mutex
	of map[limit]*line
}

// line is the calls of Wait on one limit.
//
// Those whose turn it is ask, sleep when they are denied, and ask again. It is one's turn when nobody else is asking, or when
// the last answer left room for all who are: so the answers to a burst that fits do not wait for each other, and of many
// who don't fit only one asks.
type line struct {
	asking int64     // units of those whose turn it is
	queue  []*waiter // the others, in the order of their coming
	denial Result    // the last one; zero if there was none yet
	came   time.Time // when the denial came, by our clock
}

type waiter struct {
	cost        int64
	deadline    time.Time
	hasDeadline bool
	turn        chan Outcome // an empty one: its turn has come; else why it won't
}

// enter returns when it is the call's turn; with an error when there is no point in waiting for that.
func (l *lines) enter(ctx context.Context, at limit, cost int64) (Result, error) {
	w := &waiter{cost: cost, turn: make(chan Outcome, 1)}
	w.deadline, w.hasDeadline = ctx.Deadline()
	l.join(at, w)
	select {
	case out := <-w.turn:
		return out.Result, out.Err
	case <-ctx.Done():
		l.quit(at, w, ctx.Err())
		out := <-w.turn // if the turn came first, the call will see that the context has ended
		return out.Result, out.Err
	}
}

func (l *lines) join(at limit, w *waiter) {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := l.of[at]
	if n == nil {
		if l.of == nil {
			l.of = map[limit]*line{}
		}
		l.of[at] = &line{asking: w.cost}
		w.turn <- Outcome{}
		return
	}
	if w.hasDeadline && n.denial != (Result{}) {
		if res, late := n.outlook(at.policy, n.queued()+w.cost, w); late {
			w.turn <- Outcome{res, &LimitedError{Result: res}}
			return
		}
	}
	n.queue = append(n.queue, w)
}

// quit takes out of the queue a call whose context has ended.
func (l *lines) quit(at limit, w *waiter, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := l.of[at]
	if n == nil {
		return
	}
	i := slices.Index(n.queue, w)
	if i < 0 {
		return
	}
	var ahead int64
	for _, other := range n.queue[:i+1] {
		ahead += other.cost
	}
	n.queue = slices.Delete(n.queue, i, i+1)
	var res Result
	if n.denial != (Result{}) {
		res, _ = n.outlook(at.policy, ahead, w)
	}
	w.turn <- Outcome{res, &LimitedError{Result: res, Err: err}}
}

// denied notes a denial, and sends away those in the queue who can't be admitted before their deadline.
func (l *lines) denied(at limit, res Result) {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := l.of[at]
	n.denial, n.came = res, time.Now()
	var ahead int64
	n.queue = slices.DeleteFunc(n.queue, func(w *waiter) bool {
		res, late := n.outlook(at.policy, ahead+w.cost, w)
		if late {
			w.turn <- Outcome{res, &LimitedError{Result: res}}
			return true
		}
		ahead += w.cost
		return false
	})
}

// leave ends the turn of a call, with what it got, and gives the next ones theirs.
func (l *lines) leave(at limit, cost int64, res Result, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := l.of[at]
	n.asking -= cost
	if errors.Is(err, ErrBackend) { // so they would ask one after the other, each for as long as the timeout
		for _, w := range n.queue {
			w.turn <- Outcome{Err: neverSent(err)}
		}
		n.queue = nil
	}
	turns := 0
	for _, w := range n.queue {
		if n.asking > 0 && n.asking+w.cost > res.Remaining {
			break
		}
		n.asking += w.cost
		turns++
		w.turn <- Outcome{}
	}
	n.queue = slices.Delete(n.queue, 0, turns)
	if n.asking == 0 {
		delete(l.of, at)
	}
}

func (n *line) queued() int64 {
	var units int64
	for _, w := range n.queue {
		units += w.cost
	}
	return units
}

// outlook is the last denial as it concerns a call in the queue, up to and with which so many units are queued; and whether
// that is too late for it.
func (n *line) outlook(p Policy, units int64, w *waiter) (res Result, late bool) {
	res = n.denial
	res.RetryAfter += p.spread(units)
	return res, w.hasDeadline && !w.deadline.After(n.came.Add(res.RetryAfter))
}

// spread is a time within which the policy does not admit so many units more, after a call that had to wait has been admitted.
func (p Policy) spread(units int64) time.Duration {
	var spread float64 // an estimate does not need the last digit
	switch p.kind {
	case tokenBucket: // The one that waited left the bucket empty, but for what came in the millisecond to which waits are rounded.
		spread = float64(units)/float64(p.refill)*float64(p.window) - float64(time.Millisecond)
	case slidingLog: // A unit and the limit after it are never within one window.
		spread = float64(units/p.limit) * float64(p.window)
	case slidingCounter: // Nor in one aligned window; but the first may come at its end, the last at the start of the next one.
		spread = float64(units/p.limit-1) * float64(p.window)
	}
	return time.Duration(min(max(spread, 0), math.MaxInt64/4))
}

// neverSent is the error of another's call, for one whose own call was not sent because of it.
func neverSent(err error) error {
	var call *CallError
	if !errors.As(err, &call) {
		return err
	}
	own := *call
	own.Unknown = false
	return &own
}
