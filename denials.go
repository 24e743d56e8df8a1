package sluice

import (
	"cmp"
	"context"
	"hash/maphash"
	"strings"
	"sync/atomic"
	"time"
)

// A DenyCache keeps denials in this process: a bounded map from keys to values that means nothing by itself. It may
// forget an entry at any time, and must not make one up. It is safe for concurrent use. Package denycache has one.
type DenyCache interface {
	Get(k DenyKey) (d *Denial, ok bool)
	Set(k DenyKey, d *Denial)
}

// A DenyKey is a limit of a subject, by the limiter that asks. It holds the whole policy, so a changed policy never meets the
// denials of the old one.
type DenyKey struct {
	Key     string // at most 256 bytes
	Policy  Policy
	limiter uint64 // another one may have other keys, or another server
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
	mark       mark
}

// A mark is a moment in the life of a Redis key: it holds until this limiter settles or resets the key, which may make its
// limits freer, whatever their policies.
type mark struct {
	corrections *atomic.Uint64
	count       uint64
}

func (m mark) holds() bool { return m.corrections.Load() == m.count }

func (d *Denial) holds(now int64) bool { return now <= d.until && d.mark.holds() }

const (
	maxDenyKey     = 256 // bytes; beyond, callers would decide how much memory an entry takes
	defaultDenyFor = 10 * time.Second
)

// denials answers for keys that are known to be shut.
type denials struct {
	cache   DenyCache // nil: none
	longest time.Duration
	began   time.Time
	limiter uint64

	// Corrections are counted by the hash of the Redis key. Two keys with one hash cost a call to Redis now and then.
	corrections *[1024]atomic.Uint64
	seed        maphash.Seed
}

// limiters counts those with a DenyCache.
var limiters atomic.Uint64

func newDenials(cfg Config) (denials, error) {
	if cfg.DenyFor < 0 {
		return denials{}, &InputError{Field: "DenyFor", Value: cfg.DenyFor.String(), Want: "0 for 10s, or more", fault: ErrInvalidConfig}
	}
	if cfg.DenyCache == nil {
		return denials{}, nil
	}
	return denials{
		cache:       cfg.DenyCache,
		longest:     cmp.Or(cfg.DenyFor, defaultDenyFor),
		began:       time.Now(),
		limiter:     limiters.Add(1),
		corrections: new([1024]atomic.Uint64),
		seed:        maphash.MakeSeed(),
	}, nil
}

func (d *denials) clock() int64 { return int64(time.Since(d.began)) }

func (d *denials) correctionsOf(key string) *atomic.Uint64 {
	return &d.corrections[maphash.String(d.seed, key)%uint64(len(d.corrections))]
}

// corrected notes that keys are about to be settled or reset, or that they have been. It takes both: a denial from before is
// known no more, and neither is one that was decided before and arrives after.
func (d *denials) corrected(keys ...string) {
	if d.cache == nil {
		return
	}
	for _, key := range keys {
		d.correctionsOf(key).Add(1)
	}
}

// depart takes note of a question that is about to be sent.
func (d *denials) depart(q *question) {
	switch {
	case d.cache == nil:
	case q.op == opSettle:
		d.corrected(q.key)
	case q.op == opTake:
		corrections := d.correctionsOf(q.key)
		q.mark = mark{corrections, corrections.Load()}
	}
}

// covers says whether denials of the request are remembered.
func (d *denials) covers(req *Request) bool {
	return d.cache != nil && req.Cost > 0 && len(req.Key) <= maxDenyKey && req.Tag == ""
}

// get makes the Result of a request that is known to be denied.
func (d *denials) get(req *Request, res *Result) bool {
	known, ok := d.cache.Get(DenyKey{req.Key, req.Policy, d.limiter})
	if !ok || req.Cost < known.cost {
		return false
	}
	now := d.clock()
	if !known.holds(now) {
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
		mark:       q.mark,
	}
	hold := min(res.RetryAfter-time.Millisecond-res.RetryAfter/1024, d.longest)
	known.until = known.asked + int64(hold)
	now := d.clock()
	if !known.holds(now) {
		return
	}
	k := DenyKey{strings.Clone(q.subject), q.policy, d.limiter} // the subject may be a small piece of something large
	if old, ok := d.cache.Get(k); ok && old.holds(now) && (old.cost < known.cost || old.cost == known.cost && old.until > known.until) {
		return
	}
	d.cache.Set(k, known)
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
	l.tell(ctx, &q, index, &trip{of: of}, res, nil)
	return true
}

// remember takes note of what became of a question.
func (l *Limiter) remember(q *question, t *trip, res *Result, err error) {
	switch {
	case q.op == opSettle: // whatever the answer: units may have been given back
		l.denials.corrected(q.key)
	case q.op != opTake || q.beside || err != nil || res.Degraded || res.Allowed:
	case l.denials.covers(&Request{Key: q.subject, Tag: q.tag, Cost: q.cost}):
		l.denials.put(q, t.began, res)
	}
}
