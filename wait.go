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
// Calls of one limiter on one limit stand in line: the one in front asks and the others follow in the order of their
// coming, so that waiting costs Redis about two calls for each that is admitted, however many wait. One with a large cost
// is not overtaken by smaller ones. Allow and its like do not stand in line, nor do other limiters and processes.
//
// It fails at once, with a *[LimitedError] that matches [ErrLimited] and carries the denial, when it is known that the
// context's deadline is not after the wait, those in front included. If the context ends during a wait the error matches
// both ErrLimited and the context's error. In both cases nothing was charged. When Redis fails the one in front, those
// behind it fail too, and their error says that nothing was sent for them.
func (l *Limiter) Wait(ctx context.Context, key string, p Policy, cost int64) (res Result, err error) {
	req := Request{Key: key, Policy: p, Cost: cost}
	if err := check(0, &req); err != nil {
		l.tellRefused(ctx, opTake, req, 0, 1, err)
		return Result{}, err
	}
	req.Policy.choose()
	q := l.question(opTake, &req)
	if cost == 0 { // always allowed, so it need not stand behind others
		return l.callBoth(ctx, &q, &req)
	}
	w := &waiter{at: limit{q.key, q.policy}, cost: cost, turn: make(chan Outcome, 1)}
	w.deadline, w.hasDeadline = ctx.Deadline()
	defer func() { l.lines.leave(w, res, err) }()
	l.lines.join(w)
	var candidate *Result // asked by the first try alone: the later ones are the same call still
	for try := 0; ; try++ {
		if res, err = l.lines.await(ctx, w); err != nil {
			return res, err
		}
		if try == 0 {
			res, err = l.callBoth(ctx, &q, &req)
			candidate = res.Candidate
		} else if res, err = l.call(ctx, &q); err == nil {
			res.Candidate = candidate
		}
		if err != nil || res.Allowed {
			return res, err
		}
		if w.hasDeadline && time.Until(w.deadline) <= res.RetryAfter {
			return res, &LimitedError{Result: res}
		}
		if !l.lines.denied(w, res) {
			continue
		}
		timer := time.NewTimer(res.RetryAfter)
		select {
		case <-timer.C:
			w.turn <- Outcome{} // still its turn
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

// lines are the calls of Wait, by limit. A limit without any has no line.
type lines struct {
	mu sync.Mutex // for all of the lines and waiters
	of map[limit]*line
}

// line is the calls of Wait on one limit. While there is a queue somebody is asking.
//
// It is a call's turn to ask when nobody else does, or when the server's last answer left room for all who do: so calls
// that fit do not wait for each other's answers. Of those that are denied all the same the last one sleeps, and the
// others go back to their place in the queue.
type line struct {
	policy Policy
	asking int64     // units of those whose turn it is
	queue  []*waiter // the others, in the order of their coming
	joined int       // how many there have been

	// The last answer, by the server's clock: answers may get here in another order.
	free int64
	said time.Time

	denial Result    // of the one that sleeps; of the last one that did, if it was admitted; else zero
	came   time.Time // when it came, by our clock
}

// waiter is one call of Wait.
type waiter struct {
	at          limit
	cost        int64
	deadline    time.Time
	hasDeadline bool
	number      int          // its place among those who joined the line
	asking      bool         // whether it is its turn
	turn        chan Outcome // an empty one: its turn has come; else why it won't
}

// join puts a new call into its line, or sends it away if it is known to be too late.
func (l *lines) join(w *waiter) {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := l.of[w.at]
	if n == nil {
		if l.of == nil {
			l.of = map[limit]*line{}
		}
		n = &line{policy: w.at.policy}
		l.of[w.at] = n
	}
	n.joined++
	w.number = n.joined
	n.queue = append(n.queue, w)
	if w.hasDeadline {
		n.sendAway()
	}
	n.advance()
}

// await returns when it is the call's turn; with an error when that will not be, or too late.
func (l *lines) await(ctx context.Context, w *waiter) (Result, error) {
	select {
	case out := <-w.turn:
		return out.Result, out.Err
	case <-ctx.Done():
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	select { // a turn in the same instant: to be passed on, by a call that sees that the context has ended
	case out := <-w.turn:
		return out.Result, out.Err
	default:
	}
	n := l.of[w.at]
	i := slices.Index(n.queue, w)
	var res Result
	if n.denial != (Result{}) {
		res = n.outlook(units(n.queue[:i+1]))
	}
	n.queue = slices.Delete(n.queue, i, i+1)
	return res, &LimitedError{Result: res, Err: ctx.Err()}
}

// denied notes that a call whose turn it is was denied, and says whether it is to sleep. Otherwise it is in the queue again.
func (l *lines) denied(w *waiter, res Result) (sleep bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := l.of[w.at]
	n.answered(res)
	if n.asking > w.cost {
		n.asking -= w.cost
		w.asking = false
		i, _ := slices.BinarySearchFunc(n.queue, w, func(a, b *waiter) int { return a.number - b.number })
		n.queue = slices.Insert(n.queue, i, w)
		n.advance()
		return false
	}
	n.denial, n.came = res, time.Now()
	n.sendAway()
	return true
}

// leave ends a call, with what it got, and gives those behind it their turn if it had the turn.
func (l *lines) leave(w *waiter, res Result, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !w.asking {
		return
	}
	n := l.of[w.at]
	n.asking -= w.cost
	if err == nil {
		n.answered(res)
	} else {
		n.denial = Result{} // nobody waits for that any more
	}
	if errors.Is(err, ErrBackend) { // or they would find out one by one, each for as long as the timeout
		for _, behind := range n.queue {
			behind.turn <- Outcome{Err: notSent(err)}
		}
		n.queue = nil
	}
	if res.charge == nowhere { // let in by FailOpen or in shadow mode: so will the others be, and need not find out in turn
		n.free = math.MaxInt64
	}
	n.advance()
	if n.asking == 0 {
		delete(l.of, w.at)
	}
}

// answered notes what the server said is free.
func (n *line) answered(res Result) {
	if res.Allowed && (res.Degraded || res.Shadowed) { // nothing is gained by asking one by one
		n.free = math.MaxInt64
		return
	}
	switch res.ServerTime.Compare(n.said) {
	case 0:
		n.free = min(n.free, res.Remaining)
	case 1:
		n.free, n.said = res.Remaining, res.ServerTime
	}
}

// advance gives their turn to those in front who may ask now.
func (n *line) advance() {
	turns := 0
	for _, w := range n.queue {
		if n.asking > 0 && n.asking+w.cost > n.free {
			break
		}
		n.asking += w.cost
		w.asking = true
		w.turn <- Outcome{}
		turns++
	}
	n.queue = slices.Delete(n.queue, 0, turns)
}

// sendAway removes from the queue who is known to be too late.
func (n *line) sendAway() {
	if n.denial == (Result{}) {
		return
	}
	var before int64
	n.queue = slices.DeleteFunc(n.queue, func(w *waiter) bool {
		res := n.outlook(before + w.cost)
		if w.hasDeadline && !w.deadline.After(n.came.Add(res.RetryAfter)) {
			w.turn <- Outcome{res, &LimitedError{Result: res}}
			return true
		}
		before += w.cost
		return false
	})
}

// outlook is the denial of the one that sleeps as it concerns a call in the queue, with so many units up to its own.
func (n *line) outlook(queued int64) Result {
	res := n.denial
	res.RetryAfter += n.policy.spread(queued)
	return res
}

func units(queue []*waiter) int64 {
	var sum int64
	for _, w := range queue {
		sum += w.cost
	}
	return sum
}

// spread is a time within which the policy does not admit so many units more, after a call that had to wait has been admitted.
func (p Policy) spread(units int64) time.Duration {
	limit, window := p.numbers()
	var spread float64 // an estimate does not need the last digit
	switch p.kind {
	case tokenBucket: // The one that waited left the bucket empty, but for the millisecond to which waits are rounded.
		spread = float64(units)/float64(p.refill)*float64(window) - float64(time.Millisecond)
	case slidingLog: // A unit and the limit after it are never within one window.
		spread = float64(units/limit) * float64(window)
	case slidingCounter: // Nor in one aligned window; but the first may come at its end, and the last at the start of the next.
		spread = float64(units/limit-1) * float64(window)
	}
	return time.Duration(min(max(spread, 0), math.MaxInt64/4))
}

// notSent is the error of another's call, for one whose own call was not sent because of it.
func notSent(err error) error {
	var call *CallError
	if !errors.As(err, &call) {
		return err
	}
	own := *call
	own.Unknown = false
	return &own
}
