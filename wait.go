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
// is not overtaken by smaller ones. Allow and its like do not stand in line, nor do other limiters and processes. The one in front
// asks again when this limiter has given units back (Settle, Reset), and every 10 s in any case, since others may have.
//
// Of a sharded policy each call is for one shard, chosen at random, and stands in the line of that shard: like Allow it may be
// denied while others have units free.
//
// It fails at once, with a *[LimitedError] that matches [ErrLimited] and carries the denial, when it is known that the
// context's deadline is not after the wait, those in front included. If the context ends during a wait the error matches
// both ErrLimited and the context's error. In both cases nothing was charged. If it has ended already, nothing is sent and
// the error is that of AllowN, the context's alone. When Redis fails the one in front, those behind it fail too, and their
// error says that nothing was sent for them.
//
// Where Config.OnFailure decides, a denial tells nothing of what Redis will say, so that nobody is sent away because of
// it: the one in front asks again after the RetryAfter that it was told, and a deadline is waited for.
func (l *Limiter) Wait(ctx context.Context, key string, p Policy, cost int64) (res Result, err error) {
	req := Request{Key: key, Policy: p, Cost: cost}
	if err := check(0, &req); err != nil {
		l.tellRefused(ctx, opTake, req, 0, 1, err)
		return Result{}, err
	}
	req.Policy.choose()
	q := l.question(opTake, &req)
	if cost == 0 || ctx.Err() != nil { // always allowed, or not even sent: neither need stand behind others
		return l.callBoth(ctx, &q, &req)
	}
	w := l.lines.join(ctx, q.key, q.policy, cost)
	defer func() { l.lines.leave(w, res, err) }()
	var candidate *Result // asked by the first try alone: the later ones are the same call still
	for try := 0; ; try++ {
		if res, err = w.await(ctx); err != nil {
			if try == 0 { // otherwise its tries have been told
				l.tell(ctx, &q, 0, &trip{of: 1}, &res, err)
			}
			return res, err
		}
		if try == 0 {
			res, err = l.callBoth(ctx, &q, &req)
			candidate = res.Candidate
		} else {
			res, err = l.call(ctx, &q)
			res.Candidate = candidate
		}
		if err != nil || res.Allowed {
			return res, err
		}
		if w.denied(res) {
			return res, &LimitedError{Result: res}
		}
	}
}

// askAgain is the longest that the one in front sleeps, and that its denial tells newcomers anything: units may have been given
// back elsewhere.
const askAgain = 10 * time.Second

// lines are the calls of Wait, by Redis key. A key for which nobody waits has no desk.
type lines struct {
	mu sync.Mutex // for the map, and for how many calls a desk has
	of map[string]*desk
}

// desk is where the calls on one Redis key wait. Policies of one name share a key, but not their waits, so there is a line for
// each policy.
type desk struct {
	key   string
	calls int

	mu    sync.Mutex // for the lines and all who stand in them
	lines map[Policy]*line
}

// line is the calls of Wait on one limit.
//
// It is a call's turn to ask when the last answer left room for it and all who are asking: so calls that fit do not wait for each
// other's answers. The one in front, who came before all others, may ask in any case, but if it was denied not before that
// denial says so. Whoever is denied goes back to its place.
type line struct {
	desk   *desk
	policy Policy
	asking group // those whose turn it is
	queue  group // the others
	joined int   // how many there have been
	freed  int   // how often units were given back
	timer  *time.Timer

	// What the last answer left free, by the server's clock: answers may get here in another order.
	free int64
	said time.Time
}

// waiter is one call of Wait.
type waiter struct {
	line        *line
	number      int // its place among those who joined the line
	cost        int64
	deadline    time.Time
	hasDeadline bool
	freed       int          // the line's, when its turn came
	denial      *denial      // what it knows: its own, or that of the one in front; nil if nothing yet
	behind      int64        // units that are to be admitted after that denial's, its own included; 0 if it's its own
	turn        chan Outcome // an empty one: its turn has come; else why it won't
}

// denial is what a call in line was told.
type denial struct {
	Result
	of    *waiter
	came  time.Time // by our clock
	freed int       // the line's, when the call was made
}

// join puts a new call into its line, or sends it away if it is known to be too late.
func (l *lines) join(ctx context.Context, key string, p Policy, cost int64) *waiter {
	d := l.enter(key)
	d.mu.Lock()
	defer d.mu.Unlock()
	n := d.line(p)
	n.joined++
	w := &waiter{line: n, number: n.joined, cost: cost, turn: make(chan Outcome, 1)}
	w.deadline, w.hasDeadline = ctx.Deadline()
	if front := n.front(); front != nil {
		behind := n.queue.units
		if !n.asking.has(front) {
			behind -= front.cost
		}
		if known := front.denial; known != nil && known.of == front && known.tells(n) && !w.hear(known, behind+cost) {
			return w
		}
	}
	n.queue.add(w)
	n.advance()
	return w
}

// enter is the desk of a key, with one call more.
func (l *lines) enter(key string) *desk {
	l.mu.Lock()
	defer l.mu.Unlock()
	d := l.of[key]
	if d == nil {
		d = &desk{key: key, lines: map[Policy]*line{}}
		if l.of == nil {
			l.of = map[string]*desk{}
		}
		l.of[key] = d
	}
	d.calls++
	return d
}

func (d *desk) line(p Policy) *line {
	n := d.lines[p]
	if n == nil {
		n = &line{desk: d, policy: p}
		n.timer = time.AfterFunc(askAgain, func() {
			d.mu.Lock()
			defer d.mu.Unlock()
			n.advance()
		})
		d.lines[p] = n
	}
	return n
}

// await returns when it is the call's turn; with an error when that will not be, or too late.
func (w *waiter) await(ctx context.Context) (Result, error) {
	select {
	case out := <-w.turn:
		if out.Err != nil || ctx.Err() == nil {
			return out.Result, out.Err
		}
	case <-ctx.Done():
	}
	w.line.desk.mu.Lock()
	defer w.line.desk.mu.Unlock()
	select {
	case out := <-w.turn:
		if out.Err != nil {
			return out.Result, out.Err
		}
	default:
	}
	res := w.outlook()
	return res, &LimitedError{Result: res, Err: ctx.Err()}
}

// denied puts a call that asked back to its place, and says whether it is known to be too late.
func (w *waiter) denied(res Result) (late bool) {
	n := w.line
	n.desk.mu.Lock()
	defer n.desk.mu.Unlock()
	n.answered(w, &res)
	n.asking.remove(w)
	n.queue.add(w)
	d := &denial{Result: res, of: w, came: time.Now(), freed: w.freed}
	if w.denial, w.behind = d, 0; d.tells(n) {
		if !w.inTime() {
			return true
		}
		if n.front() == w {
			n.announce(d)
		}
	}
	n.advance()
	return false
}

// leave ends a call, with what it got, and gives those behind it their turn.
func (l *lines) leave(w *waiter, res Result, err error) {
	n := w.line
	n.leave(w, res, err)
	l.mu.Lock()
	defer l.mu.Unlock()
	if n.desk.calls--; n.desk.calls == 0 {
		delete(l.of, n.desk.key)
	}
}

func (n *line) leave(w *waiter, res Result, err error) {
	n.desk.mu.Lock()
	defer n.desk.mu.Unlock()
	n.queue.remove(w)
	if n.asking.remove(w) {
		if err == nil {
			n.answered(w, &res)
		}
		if errors.Is(err, ErrBackend) { // or they would find out one by one, each for as long as the timeout
			for _, other := range n.queue.waiters {
				other.turn <- Outcome{Err: notSent(err)}
			}
			n.queue = group{}
		}
	}
	n.advance()
}

// freed tells those who wait that units of a key have been given back. What was denied before may be free now; so may
// be what a call under way is about to be denied.
func (l *lines) freed(keys ...string) {
	for _, key := range keys {
		l.mu.Lock()
		d := l.of[key]
		l.mu.Unlock()
		if d == nil {
			continue
		}
		d.mu.Lock()
		for _, n := range d.lines {
			n.freed++
			n.advance()
		}
		d.mu.Unlock()
	}
}

// answered notes what is free.
func (n *line) answered(w *waiter, res *Result) {
	switch newer := res.ServerTime.Compare(n.said); {
	case res.charge == nowhere: // let in by FailOpen or in shadow mode: so will the others be, and need not find out in turn
		n.free = math.MaxInt64
	case res.Degraded: // by a clock and a share of its own
		n.free = res.Remaining
	case newer > 0:
		n.free, n.said = res.Remaining, res.ServerTime
	case newer == 0:
		n.free = min(n.free, res.Remaining)
	}
	if !res.Allowed { // whatever the time: should the server's clock have stepped back, no call asks twice in a row
		n.free = min(n.free, w.cost-1)
	}
}

// advance gives their turn to those who may ask now, and sees to it that the one in front will get its.
func (n *line) advance() {
	n.timer.Stop()
	for len(n.queue.waiters) > 0 {
		w := n.queue.waiters[0]
		if w.cost > n.free-n.asking.units {
			if w != n.front() {
				return
			}
			if sleep := w.sleep(); sleep > 0 {
				n.timer.Reset(sleep)
				return
			}
		}
		n.queue.remove(w)
		n.asking.add(w)
		w.freed = n.freed
		w.turn <- Outcome{}
	}
}

// front is who came before all others; nil if there is nobody.
func (n *line) front() *waiter {
	var front *waiter
	for _, g := range []group{n.asking, n.queue} {
		if len(g.waiters) > 0 && (front == nil || g.waiters[0].number < front.number) {
			front = g.waiters[0]
		}
	}
	return front
}

// announce tells those in the queue what the denial of the one in front means to them, and sends away who is too late.
func (n *line) announce(d *denial) {
	var behind int64
	stay := n.queue.waiters[:0]
	for _, w := range n.queue.waiters {
		if w != d.of {
			if !w.hear(d, behind+w.cost) {
				n.queue.units -= w.cost
				continue
			}
			behind += w.cost
		}
		stay = append(stay, w)
	}
	clear(n.queue.waiters[len(stay):])
	n.queue.waiters = stay
}

// tells says whether a denial tells anything of when another call would be admitted: not if OnFailure made it up, nor if
// units were given back since, or may have been.
func (d *denial) tells(n *line) bool {
	return !d.Degraded && d.freed == n.freed && time.Since(d.came) < askAgain
}

// hear tells a call the denial of the one in front, and how many units come after that one's, its own included. It sends the call
// away if that is too late for it.
func (w *waiter) hear(d *denial, behind int64) (stays bool) {
	w.denial, w.behind = d, behind
	if w.inTime() {
		return true
	}
	res := w.outlook()
	w.turn <- Outcome{res, &LimitedError{Result: res}}
	return false
}

// due is when a call may be admitted, by what it knows.
func (w *waiter) due() time.Time {
	return w.denial.came.Add(w.denial.RetryAfter + w.line.policy.spread(w.behind))
}

func (w *waiter) inTime() bool { return !w.hasDeadline || w.deadline.After(w.due()) }

// sleep is for how long the one in front need not ask.
func (w *waiter) sleep() time.Duration {
	if d := w.denial; d != nil && d.of == w && d.freed == w.line.freed {
		return min(d.RetryAfter, askAgain) - time.Since(d.came)
	}
	return 0
}

// outlook is what a call knows, as a denial of its own.
func (w *waiter) outlook() Result {
	if w.denial == nil {
		return Result{}
	}
	res := w.denial.Result
	if w.denial.of != w {
		passed := time.Since(w.denial.came)
		res.RetryAfter = roundUp(time.Until(w.due()))
		res.ResetAfter = max(roundUp(res.ResetAfter-passed), res.RetryAfter)
		res.ServerTime = res.ServerTime.Add(passed)
		res.Candidate = nil
	}
	return res
}

// group is calls in the order of their coming.
type group struct {
	waiters []*waiter
	units   int64
}

func (g *group) find(w *waiter) (int, bool) {
	return slices.BinarySearchFunc(g.waiters, w, func(a, b *waiter) int { return a.number - b.number })
}

func (g *group) has(w *waiter) bool {
	_, is := g.find(w)
	return is
}

func (g *group) add(w *waiter) {
	i, _ := g.find(w)
	g.waiters = slices.Insert(g.waiters, i, w)
	g.units += w.cost
}

func (g *group) remove(w *waiter) bool {
	i, is := g.find(w)
	switch {
	case !is:
		return false
	case i == 0: // as nearly always, and without moving the others
		g.waiters[0] = nil
		g.waiters = g.waiters[1:]
	default:
		g.waiters = slices.Delete(g.waiters, i, i+1)
	}
	g.units -= w.cost
	return true
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
