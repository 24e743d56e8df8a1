// Package model says what the scripts must answer, to the last unit.
//
// It is written from the script contract and docs/decisions/0001 alone, with exact arithmetic and in the most
// direct form there is: usage is a function of time, and a wait is found by asking that function about later
// moments. It knows nothing of how the scripts store their states or solve for their waits, which is what makes
// it an oracle for them.
package model

import (
	"fmt"
	"math/big"
	"sort"
)

// A Kind names an algorithm.
type Kind string

// The three algorithms, and several limits of them at once, which is no policy's kind.
const (
	Log     Kind = "log"     // sliding log
	Counter Kind = "counter" // sliding counter
	Bucket  Kind = "bucket"  // token bucket
	Multi   Kind = "multi"   // see CallAll
)

// Script is the name of the script that does it, without its extension.
func (k Kind) Script() string {
	switch k {
	case Log:
		return "sliding_log"
	case Counter:
		return "sliding_counter"
	case Bucket:
		return "token_bucket"
	case Multi:
		return "multi"
	}
	panic("model: unknown kind " + string(k))
}

// The domain of decision 0001.
const (
	MaxUnits    = 1_000_000_000  // limit, capacity, refill and cost, in units
	MaxWindowMS = 31_622_400_000 // window, period and a bucket's time to full: 366 days
	MaxReceipt  = 1<<53 - 1      // microseconds
	MaxUsage    = 1_000_000_000_000
)

// Policy is what a call is decided by.
type Policy struct {
	Kind     Kind
	Limit    int64 // 1 to MaxUnits units; a bucket's capacity
	Refill   int64 // buckets only: 1 to MaxUnits units per window
	WindowMS int64 // 1 to MaxWindowMS; a bucket's period
}

// Reply is what a script answers, in the order of its five numbers.
type Reply struct {
	Allowed      bool
	Remaining    int64 // units
	RetryAfterMS int64 // -1: never
	ResetAfterMS int64
	ServerTimeUS int64
}

// Numbers returns the reply as the script sends it.
func (r Reply) Numbers() []int64 {
	allowed := int64(0)
	if r.Allowed {
		allowed = 1
	}
	return []int64{allowed, r.Remaining, r.RetryAfterMS, r.ResetAfterMS, r.ServerTimeUS}
}

// TimeToFullUS is the bucket's T: the time an empty one needs to fill, in microseconds rounded up.
func (p Policy) TimeToFullUS() int64 {
	return ceil(p.refillTime(new(big.Rat).SetInt64(p.Limit))).Int64()
}

// Valid reports whether the policy is inside the domain.
func (p Policy) Valid() bool {
	in := func(n, most int64) bool { return 1 <= n && n <= most }
	if !in(p.Limit, MaxUnits) || !in(p.WindowMS, MaxWindowMS) {
		return false
	}
	if p.Kind != Bucket {
		return true
	}
	longest := new(big.Rat).SetInt64(MaxWindowMS * 1000)
	return in(p.Refill, MaxUnits) && p.refillTime(new(big.Rat).SetInt64(p.Limit)).Cmp(longest) <= 0
}

// spanUS is how far back a state matters: W, or the bucket's T.
func (p Policy) spanUS() int64 {
	if p.Kind == Bucket {
		return p.TimeToFullUS()
	}
	return p.WindowMS * 1000
}

// refillTime is the exact time, in microseconds, in which the bucket regains so many tokens.
func (p Policy) refillTime(tokens *big.Rat) *big.Rat {
	perToken := big.NewRat(p.WindowMS*1000, p.Refill)
	return perToken.Mul(perToken, tokens)
}

// usage is what one algorithm keeps, as it stands at a moment (at). It is a value: nothing changes it.
type usage interface {
	// lastUS is the moment of the last write.
	lastUS() int64
	// at tells what is left of the usage at a moment, under a policy that may be another than it was written by.
	at(us int64, p Policy) usage
	// used is the number of units in use, rounded against the caller. Valid for a usage that at returned.
	used() int64
	// charge adds units, up to the bound on debts, and reports whether that changed anything.
	charge(units int64, p Policy) (usage, bool)
	// refund takes units back, at most what is there, and reports whether that changed anything.
	refund(units int64, receiptUS, nowUS int64, p Policy) (usage, bool)
	// none reports that there is nothing left to keep.
	none() bool
	// needMS is the absolute moment from which the usage can't matter any more.
	needMS(p Policy) int64
}

func nothing(k Kind, atUS int64, p Policy) usage {
	switch k {
	case Log:
		return logUsage{atUS: atUS}
	case Counter:
		return counterUsage{windowMS: p.WindowMS, lastMS: atUS / 1000}
	case Bucket:
		return bucketUsage{periodMS: p.WindowMS, at0US: atUS, deficit: new(big.Rat)}
	}
	panic("model: unknown kind " + string(k))
}

// State is what one key holds. The zero State is a missing key.
type State struct {
	held    usage // nil: no key
	untilMS int64
	writes  int
}

// New returns a missing key.
func New() *State { return new(State) }

// Until is the moment at which the key expires, in milliseconds since the epoch; 0 if there is no key.
func (s *State) Until() int64 { return s.untilMS }

// Void reports that there is a state whose time has come: it reads as nothing used, whether or not the server
// has removed the key yet.
func (s *State) Void(nowUS int64) bool { return s.held != nil && nowUS/1000 >= s.untilMS }

// Writes is how often a call has written the state or deleted it. A call that leaves it the same may touch nothing.
func (s *State) Writes() int { return s.writes }

// Lose makes the key a missing one, as eviction or expiry does.
func (s *State) Lose() { s.held, s.untilMS = nil, 0 }

// valid reports that the state counts: it is neither missing nor void nor too far in the future.
func (s *State) valid(nowUS int64, p Policy) bool {
	return s.held != nil && !s.Void(nowUS) && s.held.lastUS()-s.nowFor(nowUS, p) <= p.spanUS()
}

// nowFor is now as the algorithm compares it with the moment of the last write.
func (s *State) nowFor(nowUS int64, p Policy) int64 {
	if p.Kind == Counter {
		return nowUS / 1000 * 1000
	}
	return nowUS
}

// view is what the state amounts to at a moment.
func (s *State) view(nowUS int64, p Policy) usage {
	if !s.valid(nowUS, p) {
		return nothing(p.Kind, nowUS, p)
	}
	return s.held.at(max(nowUS, s.held.lastUS()), p) // before the last write, time stands still
}

// write replaces the state by what a call made of it.
func (s *State) write(nowUS int64, p Policy, u usage) {
	s.writes++
	if u.none() {
		s.Lose()
		return
	}
	need := u.needMS(p)
	longest := nowUS/1000 + 2*ceilDiv(p.spanUS(), 1000)
	fresh := !s.valid(nowUS, p) || p.Kind == Log && s.view(nowUS, p).none()
	keep := !fresh && need <= s.untilMS && s.untilMS <= longest
	switch {
	case p.Kind == Counter:
		s.untilMS = need
	case !keep:
		s.untilMS = max(need, longest)
	}
	if p.Kind == Bucket { // a lowered policy could make it ages
		s.untilMS = min(s.untilMS, nowUS/1000+2*MaxWindowMS)
	}
	s.held = u
}

// wait is the least number of milliseconds after which no more than so many units are in use.
func (s *State) wait(nowUS int64, p Policy, units int64) int64 {
	enough := func(ms int64) bool { return s.view(nowUS+1000*ms, p).used() <= units }
	if enough(0) {
		return 0
	}
	// Usage only ever falls while nobody writes, and at its end the state is void, so a search by halves finds
	// the first moment; sort.Search wants an int, which has 64 bits wherever this runs.
	return int64(sort.Search(int(s.untilMS-nowUS/1000), func(ms int) bool { return enough(int64(ms)) }))
}

// Call does what the script does: op is take, peek or settle, cost the units (settle: the difference), receipt
// that of the settled take in microseconds (settle only, 0 if there is none). All arguments must be in the domain.
func (s *State) Call(nowUS int64, op string, cost int64, p Policy, receiptUS int64) Reply {
	before := s.view(nowUS, p)
	reply := Reply{Allowed: true, ServerTimeUS: nowUS}
	switch op {
	case "take", "peek":
		reply.Allowed = cost == 0 || before.used()+cost <= p.Limit
		switch {
		case cost > p.Limit:
			reply.RetryAfterMS = -1
		case !reply.Allowed:
			reply.RetryAfterMS = s.wait(nowUS, p, p.Limit-cost)
		case op == "take" && cost > 0:
			after, _ := before.charge(cost, p)
			s.write(nowUS, p, after)
		}
	case "settle":
		var after usage
		var changed bool
		if cost >= 0 {
			after, changed = before.charge(cost, p)
		} else {
			after, changed = before.refund(-cost, receiptUS, nowUS, p)
		}
		if changed {
			s.write(nowUS, p, after)
		}
	default:
		panic(fmt.Sprintf("model: unknown operation %q", op))
	}
	reply.Remaining = max(0, p.Limit-s.view(nowUS, p).used())
	reply.ResetAfterMS = s.wait(nowUS, p, 0)
	return reply
}

// receiptCounts reports whether a refund with this receipt still is worth something (log and bucket).
func receiptCounts(receiptUS, nowUS int64, p Policy) bool {
	return receiptUS == 0 || nowUS-p.spanUS() < receiptUS && receiptUS <= nowUS+p.spanUS()
}

func ceilDiv(a, b int64) int64 { return ceil(big.NewRat(a, b)).Int64() }

// ceil rounds up to a whole number.
func ceil(r *big.Rat) *big.Int {
	q, m := new(big.Int).DivMod(r.Num(), r.Denom(), new(big.Int))
	if m.Sign() > 0 {
		q.Add(q, big.NewInt(1))
	}
	return q
}

// floor rounds down to a whole number.
func floor(r *big.Rat) *big.Int { return new(big.Int).Div(r.Num(), r.Denom()) }
