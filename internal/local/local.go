// Package local decides as the three scripts do, in the memory of this process: the same contract and the same rounding
// (docs/decisions/0001), to the last unit, in integers. It passes the scripts' vectors.
package local

import (
	"math/bits"
	"sort"
)

// A Kind is an algorithm.
type Kind uint8

// The algorithms, by the scripts' names.
const (
	SlidingLog Kind = iota + 1
	SlidingCounter
	TokenBucket
)

// A Policy is what a call is decided by. Its numbers must be in the domain of the scripts, but that a bucket's period may
// be up to 10^4 times as long, as long as the bucket fills within 366 days.
type Policy struct {
	Kind     Kind
	Limit    int64 // units, 1 to 10^9; a bucket's capacity
	Refill   int64 // bucket only: units per period, 1 to 10^9
	WindowMS int64 // a bucket's period
}

// An Op is what a call does.
type Op uint8

// The operations of the scripts.
const (
	Take Op = iota
	Peek
	Settle
)

// A Reply is the five numbers that a script answers.
type Reply struct {
	Allowed      bool
	Remaining    int64 // units
	RetryAfterMS int64 // -1: never
	ResetAfterMS int64
	ServerTimeUS int64 // now, as the call was told; the receipt of a charge
}

const (
	maxUsage   = 1_000_000_000_000  // units in use, debts included
	maxUntilMS = 2 * 31_622_400_000 // from now
	never      = 1 << 62            // a time (us) that is later than all that matter, with room to add to
)

// A State is what one key holds. The zero State is a missing key. It is for calls of one Kind.
type State struct {
	untilMS int64 // from then on the state is void; 0: no state
	window  int64 // ms; of the last write. Counter and bucket only
	last    int64 // moment of the last write: us; counter: ms

	a, b int64 // counter: previous, current. Bucket: deficit, fraction of a token in 1/(1000 window)

	// The log: entries with running totals, of which differences alone mean something, so that they may wrap around.
	entries []entry
	base    uint64 // the total before the first unit that is in use
}

type entry struct {
	time  int64 // us
	total uint64
}

// Until is the moment from which the state counts no more, in ms since the epoch; 0 if there is none.
func (s *State) Until() int64 { return s.untilMS }

// Void says whether nothing of the state counts at a moment.
func (s *State) Void(nowUS int64) bool { return nowUS/1000 >= s.untilMS }

// Call does what the script does. cost is in units (settle: the signed difference); receipt (us) is for settle only, 0 is
// none.
func (s *State) Call(nowUS int64, op Op, cost int64, p Policy, receiptUS int64) Reply {
	switch p.Kind {
	case SlidingLog:
		return s.slidingLog(nowUS, op, cost, p, receiptUS)
	case SlidingCounter:
		return s.slidingCounter(nowUS, op, cost, p, receiptUS)
	case TokenBucket:
		return s.tokenBucket(nowUS, op, cost, p, receiptUS)
	}
	panic("local: unknown kind")
}

func (s *State) slidingLog(now int64, op Op, cost int64, p Policy, receipt int64) Reply {
	window := p.WindowMS * 1000
	at := now
	live, base := []entry(nil), uint64(0) // the entries that count, and the total before them
	if !s.Void(now) && s.last-now <= window {
		at = max(now, s.last)
		gone := sort.Search(len(s.entries), func(i int) bool { return s.entries[i].time > at-window })
		live, base = s.entries[gone:], s.base
		if gone > 0 {
			base = s.entries[gone-1].total
		}
	}
	used, newest := int64(0), int64(0)
	if len(live) > 0 {
		used = int64(live[len(live)-1].total - base)
		newest = live[len(live)-1].time
	}
	// passing is the first entry with which so many units have passed.
	passing := func(units int64) int {
		return sort.Search(len(live), func(i int) bool { return int64(live[i].total-base) >= units })
	}

	reply := Reply{Allowed: true, ServerTimeUS: now}
	charge, refund, retry := int64(0), int64(0), int64(0) // retry: us
	switch {
	case op == Settle && cost > 0:
		charge = min(cost, maxUsage-used)
	case op == Settle:
		if counts(receipt, now, window) {
			refund = min(-cost, used)
		}
	case cost == 0 || used+cost <= p.Limit:
		if op == Take {
			charge = cost
		}
	default:
		reply.Allowed, reply.RetryAfterMS = false, -1
		if cost <= p.Limit {
			retry = live[passing(used+cost-p.Limit)].time + window - now
		}
	}

	until := s.untilMS
	if charge > 0 || refund > 0 {
		fresh := len(live) == 0
		if refund > 0 {
			live = live[passing(refund+1):]
			base += uint64(refund)
		}
		used += charge - refund
		if charge > 0 {
			newest = at
			live = append(live, entry{at, base + uint64(used)})
		}
		if used == 0 {
			*s = State{}
		} else {
			until = keep(until, fresh, ceilDiv(newest+window, 1000), now/1000+2*p.WindowMS)
			s.entries, s.base, s.last, s.untilMS = live, base, newest, until
		}
	}
	if used > 0 {
		known := until*1000 - now
		reply.ResetAfterMS = ceilDiv(min(newest+window-now, known), 1000)
		if retry > 0 {
			reply.RetryAfterMS = ceilDiv(min(retry, known), 1000)
		}
	}
	reply.Remaining = max(0, p.Limit-used)
	return reply
}

// Coarsen bounds the memory of a log: with more than most entries (at least 4), those within the same of most/2 - 1 parts of
// the window become one, at the time of the latest. Their units then count for up to so much of the window longer than
// they should, and never shorter.
func (s *State) Coarsen(most int, p Policy) {
	if p.Kind != SlidingLog || len(s.entries) <= most {
		return
	}
	slice := ceilDiv(p.WindowMS*1000, int64(most/2-1))
	kept := s.entries[:0]
	for i, e := range s.entries {
		// The total of an entry includes those before it, so to leave one out gives its units to the next.
		if i == len(s.entries)-1 || e.time/slice != s.entries[i+1].time/slice {
			kept = append(kept, e)
		}
	}
	s.entries = kept
}

func (s *State) slidingCounter(now int64, op Op, cost int64, p Policy, receipt int64) Reply {
	window, nowMS := p.WindowMS, now/1000
	at := nowMS
	previous, current := int64(0), int64(0)
	if began := s.last - s.last%max(1, s.window); !s.Void(now) && s.last-nowMS <= window {
		at = max(nowMS, s.last)
		p, c := s.a, s.b
		if s.window != window { // all that the old window knew counts as charged at last, rounded up
			carried, _ := mulDiv(p, s.window-(s.last-began), s.window-1, s.window)
			p, c, began = 0, min(c+carried, maxUsage), s.last-s.last%window
		}
		switch at - at%window - began {
		case 0:
			previous, current = p, c
		case window:
			previous = c
		}
	}
	start := at - at%window
	usage := func() int64 {
		carried, _ := mulDiv(previous, window-(at-start), 0, window)
		return carried + current
	}
	used := usage()

	until := s.untilMS
	// wait is the time in ms until no more than so many units are used.
	wait := func(most int64) int64 {
		start, previous, free := start, previous, most-current
		if free < 0 { // too much in this window alone: in the next one it fades
			start, previous, free = start+window, current, most
		}
		elapsed, _ := mulDiv(window, previous-free-1, 0, previous)
		return min(start+elapsed+1, until) - nowMS
	}

	reply := Reply{Allowed: true, ServerTimeUS: now}
	toPrevious, toCurrent := int64(0), int64(0)
	switch {
	case op == Settle && cost > 0:
		toCurrent = min(cost, maxUsage-current)
	case op == Settle && receipt == 0: // the oldest first
		toPrevious = max(cost, -previous)
		toCurrent = max(cost-toPrevious, -current)
	case op == Settle:
		charged := receipt / 1000
		switch charged - charged%window {
		case start:
			toCurrent = max(cost, -current)
		case start - window:
			toPrevious = max(cost, -previous)
		}
	case cost == 0 || used+cost <= p.Limit:
		if op == Take {
			toCurrent = cost
		}
	default:
		reply.Allowed, reply.RetryAfterMS = false, -1
		if cost <= p.Limit {
			reply.RetryAfterMS = wait(p.Limit - cost)
		}
	}

	if toPrevious != 0 || toCurrent != 0 {
		previous, current = previous+toPrevious, current+toCurrent
		used = usage()
		until = start + 2*window
		if *s = (State{}); previous != 0 || current != 0 {
			*s = State{untilMS: until, window: window, last: at, a: previous, b: current}
		}
	}
	if used > 0 {
		reply.ResetAfterMS = wait(0)
	}
	reply.Remaining = max(0, p.Limit-used)
	return reply
}

func (s *State) tokenBucket(now int64, op Op, cost int64, p Policy, receipt int64) Reply {
	period := p.WindowMS * 1000
	fill, _ := mulDiv(p.Limit, period, p.Refill-1, p.Refill)

	at := now
	deficit, fraction := int64(0), int64(0) // what is missing at `at`: deficit + fraction / period
	held := !s.Void(now) && s.last-now <= fill
	if held {
		at = max(now, s.last)
		deficit, fraction = s.a, s.b
		if fraction > 0 && s.window != p.WindowMS { // of another period: round up to a whole token
			deficit, fraction = deficit+1, 0
		}
		gained, rest := mulDiv(at-s.last, p.Refill, 0, period)
		deficit, fraction = deficit-gained, fraction-rest
		if fraction < 0 {
			deficit, fraction = deficit-1, fraction+period
		}
		if deficit < 0 {
			deficit, fraction = 0, 0
		}
	}
	usage := func() int64 {
		if fraction > 0 {
			return deficit + 1
		}
		return deficit
	}
	used := usage()
	// refilled is the time in us, from now, at which the deficit has shrunk by so many tokens and its fraction.
	refilled := func(tokens int64) int64 {
		us, _ := mulDiv(tokens, period, fraction+p.Refill-1, p.Refill)
		return at + us - now
	}

	reply := Reply{Allowed: true, ServerTimeUS: now}
	change, retry := int64(0), int64(0) // retry: us
	switch {
	case op == Settle && cost > 0:
		// A debt ends at minus one capacity, so that no state has to outlive two fill times.
		if most := 2 * p.Limit; used+cost <= most {
			change = cost
		} else if deficit < most {
			change, fraction = most-deficit, 0
		}
	case op == Settle:
		if used > 0 && counts(receipt, now, fill) {
			change = cost
		}
	case cost == 0 || used+cost <= p.Limit:
		if op == Take {
			change = cost
		}
	default:
		reply.Allowed, reply.RetryAfterMS = false, -1
		if cost <= p.Limit {
			retry = refilled(deficit + cost - p.Limit)
		}
	}

	if change != 0 {
		if deficit += change; deficit < 0 {
			deficit, fraction = 0, 0
		}
		if used = usage(); used == 0 {
			*s = State{}
		}
	}
	if used == 0 {
		reply.Remaining = p.Limit
		return reply
	}
	until, reset := s.untilMS, refilled(deficit)
	if change != 0 {
		need := ceilDiv(now+max(reset, at-now+fill), 1000)
		until = min(keep(until, !held, need, now/1000+2*ceilDiv(fill, 1000)), now/1000+maxUntilMS)
		*s = State{untilMS: until, window: p.WindowMS, last: at, a: deficit, b: fraction}
	}
	known := until*1000 - now
	reply.ResetAfterMS = ceilDiv(min(reset, known), 1000)
	if retry > 0 {
		reply.RetryAfterMS = ceilDiv(min(retry, known), 1000)
	}
	reply.Remaining = max(0, p.Limit-used)
	return reply
}

// keep is the end of a state that is written: the one it has, if that is neither too soon nor too late.
func keep(until int64, fresh bool, need, most int64) int64 {
	if fresh || until < need || until > most {
		return max(need, most)
	}
	return until
}

// counts says whether a refund with this receipt still is worth something (log and bucket).
func counts(receipt, now, span int64) bool {
	return receipt == 0 || now-span < receipt && receipt <= now+span
}

// mulDiv is (a * b + extra) / c and the remainder, for numbers that are not negative; a quotient that is more than never is
// never.
func mulDiv(a, b, extra, c int64) (quotient, rest int64) {
	hi, lo := bits.Mul64(uint64(a), uint64(b))
	lo, carry := bits.Add64(lo, uint64(extra), 0)
	hi += carry
	if hi == 0 { // one division, and a cheaper one
		return min(int64(min(lo/uint64(c), never)), never), int64(lo % uint64(c))
	}
	if hi >= uint64(c) {
		return never, 0
	}
	q, r := bits.Div64(hi, lo, uint64(c))
	return int64(min(q, never)), int64(r)
}

// ceilDiv rounds up; a is not negative.
func ceilDiv(a, b int64) int64 { return (a + b - 1) / b }
