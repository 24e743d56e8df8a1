package sluice

import (
	"context"
	"time"
)

// A DenyCache keeps denials in this process: a bounded map from keys to values that means nothing by itself. It may
// forget an entry at any time, and must not make one up. It is safe for concurrent use. Package denycache has one.
type DenyCache interface {
	Get(k DenyKey) (d *Denial, ok bool)
	Set(k DenyKey, d *Denial)
	Delete(k DenyKey)
}

// A DenyKey is a limit of a subject. It holds the whole policy, so a changed policy never meets the denials of the old one.
type DenyKey struct {
	Key    string // at most 256 bytes
	Policy Policy
}

// A Denial is what is remembered of one. Times are nanoseconds by the limiter's monotonic clock.
type Denial struct {
	cost       int64 // the least that is known to be denied
	asked      int64 // when the call was made; Redis decided later, and so its waits end later than if they counted from here
	until      int64 // the last moment at which the denial is known to hold
	remaining  int64
	retry      time.Duration
	reset      time.Duration
	serverTime time.Time
}

const (
	maxDenyKey     = 256 // bytes; beyond, callers would decide how much memory an entry takes
	defaultDenyFor = 10 * time.Second
)

// denials answers for keys that are known to be shut.
type denials struct {
	cache   DenyCache // nil: none
	longest time.Duration
	began   time.Time
}

func newDenials(cfg Config) (denials, error) {
	if cfg.DenyFor < 0 {
		return denials{}, &InputError{Field: "DenyFor", Value: cfg.DenyFor.String(), Want: "0 for 10s, or more", fault: ErrInvalidConfig}
	}
	d := denials{cache: cfg.DenyCache, longest: cfg.DenyFor, began: time.Now()}
	if d.longest == 0 {
		d.longest = defaultDenyFor
	}
	return d, nil
}

func (d *denials) clock() int64 { return int64(time.Since(d.began)) }

// covers says whether denials of the request are remembered.
func (d *denials) covers(req *Request) bool {
	return d.cache != nil && req.Cost > 0 && len(req.Key) <= maxDenyKey && req.Tag == ""
}

// get makes the Result of a request that is known to be denied.
func (d *denials) get(req *Request, res *Result) bool {
	known, ok := d.cache.Get(DenyKey{req.Key, req.Policy})
	if !ok || req.Cost < known.cost {
		return false
	}
	now := d.clock()
	if now > known.until {
		return false
	}
	passed := time.Duration(now - known.asked)
	res.Cached = true
	res.Limit, res.Remaining = req.Policy.limit, known.remaining
	res.RetryAfter = roundUp(known.retry - passed)
	res.ResetAfter = max(roundUp(known.reset-passed), res.RetryAfter)
	res.ServerTime = known.serverTime.Add(passed)
	return true
}

// put remembers a denial by Redis. It holds for the cost and all above it, since nothing but time, a settle or a reset
// makes a limit freer.
//
// A wait is the least number of whole milliseconds, so what is known is that 1 ms sooner the call is denied still. Of that
// a thousandth goes, in case this process' clock runs slower than the server's.
func (d *denials) put(q *question, asked time.Time, res *Result) {
	known := &Denial{
		cost:       q.cost,
		asked:      int64(asked.Sub(d.began)),
		remaining:  res.Remaining,
		retry:      res.RetryAfter,
		reset:      res.ResetAfter,
		serverTime: res.ServerTime,
	}
	hold := min(res.RetryAfter-time.Millisecond-res.RetryAfter/1024, d.longest)
	known.until = known.asked + int64(hold)
	now := d.clock()
	if now >= known.until {
		return
	}
	k := DenyKey{q.subject, q.policy}
	if old, ok := d.cache.Get(k); ok && now < old.until && (old.cost < known.cost || old.cost == known.cost && old.until > known.until) {
		return
	}
	d.cache.Set(k, known)
}

// forget forgets the denials of a limit that was reset.
func (l *Limiter) forget(key string, p Policy) {
	if l.denials.cache == nil {
		return
	}
	l.denials.cache.Delete(DenyKey{Key: key, Policy: p})
	for p.shard < p.shards {
		p.shard++
		l.denials.cache.Delete(DenyKey{Key: key, Policy: p})
	}
}

// roundUp rounds up to whole milliseconds, at least one.
func roundUp(d time.Duration) time.Duration {
	return max((d + time.Millisecond - 1).Truncate(time.Millisecond), time.Millisecond)
}

// known answers a take that needs no call: the limit is known to be shut.
func (l *Limiter) known(ctx context.Context, req *Request, index, of int, res *Result) bool {
	if !l.denials.covers(req) || !l.denials.get(req, res) {
		return false
	}
	if l.rollout.tried(&req.Policy) { // a candidate is to see all calls
		*res = Result{}
		return false
	}
	if l.observe == nil && l.rollout.percent == 0 { // 20 ns that a flood need not pay
		return true
	}
	q := question{op: opTake, policy: req.Policy, cost: req.Cost}
	if l.shadows(req.Key) {
		q.shadow(res)
	}
	l.tell(ctx, &q, index, &trip{of: of}, false, res, nil)
	return true
}

// remember takes note of what became of a question.
func (l *Limiter) remember(q *question, t *trip, res *Result, err error) {
	switch {
	case q.op == opSettle: // whatever the answer: units may have been given back
		l.denials.cache.Delete(DenyKey{q.subject, q.policy})
	case q.op != opTake || err != nil || res.Degraded:
	case res.Allowed:
		res.subject = q.subject
	case l.denials.covers(&Request{Key: q.subject, Tag: q.tag, Cost: q.cost}):
		l.denials.put(q, t.began, res)
	}
}
