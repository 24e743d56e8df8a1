package sluice

import (
	"math"
	"math/bits"
	"strconv"
	"strings"
	"time"
)

const (
	maxUnits  = 1_000_000_000        // of limit, capacity, refill and cost
	maxWindow = 366 * 24 * time.Hour // of window, period and a bucket's time from empty to full
	maxName   = 64                   // bytes in a policy's name

	unitsRange  = "1 to 1000000000"
	windowRange = "whole milliseconds from 1ms to 366d"
	nameRange   = "1 to 64 of the characters A-Z a-z 0-9 . _ -"
	policyForms = "[name=]log:LIMIT/WINDOW, [name=]counter:LIMIT/WINDOW or [name=]bucket:CAPACITY+REFILL/PERIOD, each with an optional *SHARDS"
)

// kind is an algorithm; the zero kind is none.
type kind uint8

const (
	slidingLog kind = iota + 1
	slidingCounter
	tokenBucket
)

// kindNames are the kinds as keys and policy texts spell them.
var kindNames = [...]string{slidingLog: "log", slidingCounter: "counter", tokenBucket: "bucket"}

func (k kind) String() string { return kindNames[k] }

// A Policy is one limit: an algorithm, its numbers and, if it was given one, a name.
//
// Policies are plain values: compare them with ==, use them as map keys, keep them in package variables. They travel as text
// ("login=log:5/1m"), so they can stand in JSON, YAML and flags. The zero Policy is not a limit; calls refuse it.
//
// The constructors take any numbers. What is out of range is refused, before anything is sent, by the call that uses the
// policy, with an [InputError] that matches [ErrInvalidPolicy].
type Policy struct {
	name   string
	limit  int64 // bucket: its capacity
	refill int64 // bucket only
	window time.Duration
	shards int16 // 0: not sharded, else 2 or more
	shard  int16 // 0: the whole, else which of the shards, from 1
	kind   kind
	named  bool // tells Named("") from no name
}

// SlidingLog admits at most limit units in any window, exactly: SlidingLog(5, time.Minute) never admits a sixth unit within
// 60 s of the first. The server stores one entry per admitted call, whatever the call's cost.
//
// limit is in units, 1 to 10^9; window is whole milliseconds, 1 ms to 366 days.
func SlidingLog(limit int64, window time.Duration) Policy {
	return Policy{kind: slidingLog, limit: limit, window: window}
}

// SlidingCounter admits about limit units in any window, from two counts: those of the current window, which is aligned
// to the epoch, and those of the one before, weighted by the part of it still in view. A quarter into the window after
// one with 80 units, SlidingCounter(100, time.Minute) has 40 units free: 100 less 75 % of 80. The state is of fixed
// size.
//
// limit is in units, 1 to 10^9; window is whole milliseconds, 1 ms to 366 days.
func SlidingCounter(limit int64, window time.Duration) Policy {
	return Policy{kind: slidingCounter, limit: limit, window: window}
}

// TokenBucket admits a burst of up to capacity units and gains refill units per period, continuously: TokenBucket(50, 10,
// time.Second) admits 50 at once and then one every 100 ms. Fractions of a unit are kept. The state is of fixed size.
//
// capacity and refill are in units, 1 to 10^9; period is whole milliseconds, 1 ms to 366 days; an empty bucket must fill within
// 366 days (capacity * period / refill).
func TokenBucket(capacity, refill int64, period time.Duration) Policy {
	return Policy{kind: tokenBucket, limit: capacity, refill: refill, window: period}
}

// Named is the policy with a name: 1 to 64 of the characters A-Z a-z 0-9 . _ - (also safe in HTTP headers).
//
// The name takes the place of algorithm and window in the key. Use one to keep two limits of the same algorithm and window
// apart on one subject, or to change a window and keep what was used. Policies of one name share their state on a subject, so
// they must be of one algorithm; else calls fail with a [StateError].
func (p Policy) Named(name string) Policy {
	p.name, p.named = name, true
	return p
}

// Name is the name given by [Policy.Named], or empty.
func (p Policy) Name() string { return p.name }

// Algorithm is "log", "counter" or "bucket", as in the policy's text form; for the zero Policy it is empty.
func (p Policy) Algorithm() string { return p.kind.String() }

// Limit is the policy's limit, or the bucket's capacity, in units.
func (p Policy) Limit() int64 { return p.limit }

// Refill is what a bucket gains per period, in units; for the other algorithms it is 0.
func (p Policy) Refill() int64 { return p.refill }

// Window is the policy's window, or the bucket's period.
func (p Policy) Window() time.Duration { return p.window }

// ParsePolicy reads a policy's text form:
//
//	log:5/1m           SlidingLog(5, time.Minute)
//	counter:100/1m     SlidingCounter(100, time.Minute)
//	bucket:50+10/1s    TokenBucket(50, 10, time.Second)
//	login=log:5/1m     SlidingLog(5, time.Minute).Named("login")
//	log:1000/1m*8      SlidingLog(1000, time.Minute).Sharded(8)
//
// Windows are written as for [time.ParseDuration], and may start with days of 24 hours: 500ms, 1m30s, 1h, 7d, 1d12h.
// The error is an [InputError] that matches [ErrInvalidPolicy].
func ParsePolicy(s string) (Policy, error) {
	var p Policy
	malformed := &InputError{Field: "policy", Value: strconv.Quote(clip(s)), Want: policyForms, fault: ErrInvalidPolicy}

	rest := s
	if name, after, ok := strings.Cut(s, "="); ok {
		p, rest = p.Named(name), after
	}
	algorithm, rest, ok := strings.Cut(rest, ":")
	if !ok {
		return Policy{}, malformed
	}
	numbers, window, ok := strings.Cut(rest, "/")
	if !ok {
		return Policy{}, malformed
	}
	window, shards, sharded := strings.Cut(window, "*")

	limit, refill := "limit", ""
	switch algorithm {
	case slidingLog.String():
		p.kind = slidingLog
	case slidingCounter.String():
		p.kind = slidingCounter
	case tokenBucket.String():
		p.kind = tokenBucket
		limit = "capacity"
		if numbers, refill, ok = strings.Cut(numbers, "+"); !ok {
			return Policy{}, malformed
		}
	default:
		return Policy{}, malformed
	}

	var err error
	if p.limit, err = parseUnits(limit, numbers); err != nil {
		return Policy{}, err
	}
	if p.kind == tokenBucket {
		if p.refill, err = parseUnits("refill", refill); err != nil {
			return Policy{}, err
		}
	}
	if p.window, ok = parseWindow(window); !ok {
		return Policy{}, &InputError{Field: p.windowField(), Value: strconv.Quote(clip(window)), Want: windowRange, fault: ErrInvalidPolicy}
	}
	if sharded {
		n, err := strconv.ParseUint(shards, 10, 31)
		if err != nil || n < 2 { // "*1" is written as nothing
			return Policy{}, &InputError{Field: "shards", Value: strconv.Quote(clip(shards)), Want: "2 to 256", fault: ErrInvalidPolicy}
		}
		p = p.Sharded(int(n))
	}
	if err := p.validate(); err != nil {
		return Policy{}, err
	}
	return p, nil
}

// parseUnits reads digits and nothing else. What it reads may still be out of range.
func parseUnits(field, s string) (int64, error) {
	n, err := strconv.ParseUint(s, 10, 63)
	if err != nil {
		return 0, &InputError{Field: field, Value: strconv.Quote(clip(s)), Want: unitsRange, fault: ErrInvalidPolicy}
	}
	return int64(n), nil
}

// parseWindow reads a duration with optional leading days. What it reads may still be out of range.
func parseWindow(s string) (time.Duration, bool) {
	var sum time.Duration
	if days, rest, ok := strings.Cut(s, "d"); ok {
		n, err := strconv.ParseUint(days, 10, 63)
		if err != nil || n > uint64(maxWindow/day) {
			return 0, false
		}
		if sum, s = time.Duration(n)*day, rest; s == "" {
			return sum, true
		}
	}
	d, err := time.ParseDuration(s)
	if err != nil || s[0] == '-' || s[0] == '+' || d > math.MaxInt64-sum {
		return 0, false
	}
	return sum + d, true
}

const day = 24 * time.Hour

// String is the policy's text form, as [ParsePolicy] reads it: "login=log:5/1m". The zero Policy is "none", which can't
// be read.
func (p Policy) String() string {
	if p.kind == 0 {
		return "none"
	}
	var b []byte
	if p.named {
		b = append(append(b, p.name...), '=')
	}
	b = append(append(b, p.kind.String()...), ':')
	b = strconv.AppendInt(b, p.limit, 10)
	if p.kind == tokenBucket {
		b = strconv.AppendInt(append(b, '+'), p.refill, 10)
	}
	b = append(append(b, '/'), formatWindow(p.window)...)
	if p.shards > 0 {
		b = strconv.AppendInt(append(b, '*'), int64(p.shards), 10)
	}
	return string(b)
}

// formatWindow writes days, and leaves out the zero parts that time.Duration writes: 1d12h and not 36h0m0s.
func formatWindow(d time.Duration) string {
	var days string
	if d >= day {
		days = strconv.FormatInt(int64(d/day), 10) + "d"
		if d %= day; d == 0 {
			return days
		}
	}
	rest := d.String()
	if strings.HasSuffix(rest, "m0s") {
		rest = rest[:len(rest)-2]
	}
	if strings.HasSuffix(rest, "h0m") {
		rest = rest[:len(rest)-2]
	}
	return days + rest
}

// MarshalText is [Policy.String] for a valid policy, and an error that matches [ErrInvalidPolicy] for any other.
func (p Policy) MarshalText() ([]byte, error) {
	if err := p.validate(); err != nil {
		return nil, err
	}
	return []byte(p.String()), nil
}

// UnmarshalText is [ParsePolicy]. It leaves the policy as it was if the text can't be read.
func (p *Policy) UnmarshalText(text []byte) error {
	read, err := ParsePolicy(string(text))
	if err != nil {
		return err
	}
	*p = read
	return nil
}

// validate returns an *InputError for the first field out of its range.
func (p *Policy) validate() error {
	if p.kind == 0 {
		return &InputError{Field: "policy", Value: p.String(), Want: "one of SlidingLog, SlidingCounter, TokenBucket", fault: ErrInvalidPolicy}
	}
	if p.named && !validName(p.name) {
		return &InputError{Field: "name", Value: strconv.Quote(clip(p.name)), Want: nameRange, fault: ErrInvalidPolicy}
	}
	limit := "limit"
	if p.kind == tokenBucket {
		limit = "capacity"
	}
	if p.limit < 1 || p.limit > maxUnits {
		return p.outOfRange(limit, p.limit, unitsRange)
	}
	if p.kind == tokenBucket && (p.refill < 1 || p.refill > maxUnits) {
		return p.outOfRange("refill", p.refill, unitsRange)
	}
	if p.window < time.Millisecond || p.window > maxWindow || p.window%time.Millisecond != 0 {
		return &InputError{Field: p.windowField(), Value: p.window.String(), Want: windowRange, fault: ErrInvalidPolicy}
	}
	if p.kind == tokenBucket {
		// capacity * period <= refill * 366 days, in 128 bits: either product may pass 2^64.
		needHi, needLo := bits.Mul64(uint64(p.limit), uint64(p.window.Milliseconds()))
		mostHi, mostLo := bits.Mul64(uint64(p.refill), uint64(maxWindow.Milliseconds()))
		if needHi > mostHi || needHi == mostHi && needLo > mostLo {
			// The quotient is below the capacity here, so the division can't overflow.
			most, _ := bits.Div64(mostHi, mostLo, uint64(p.window.Milliseconds()))
			return p.outOfRange("capacity", p.limit, "at most "+strconv.FormatUint(most, 10)+", which refill at "+
				strconv.FormatInt(p.refill, 10)+"/"+formatWindow(p.window)+" within 366d")
		}
	}
	if p.shards > 0 && p.shard == 0 {
		return p.validateShards()
	}
	return nil
}

func (p Policy) outOfRange(field string, value int64, want string) error {
	return &InputError{Field: field, Value: strconv.FormatInt(value, 10), Want: want, fault: ErrInvalidPolicy}
}

func (p Policy) windowField() string {
	if p.kind == tokenBucket {
		return "period"
	}
	return "window"
}

func validName(s string) bool {
	for _, c := range []byte(s) {
		if (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && c != '.' && c != '_' && c != '-' {
			return false
		}
	}
	return 0 < len(s) && len(s) <= maxName
}

// appendKey appends the policy's part of a key: its name, else algorithm/milliseconds. A name has no slash, so the two
// never meet.
func (p Policy) appendKey(b []byte) []byte {
	if p.named {
		b = append(b, p.name...)
	} else {
		b = append(append(b, p.kind.String()...), '/')
		b = strconv.AppendInt(b, p.window.Milliseconds(), 10)
	}
	if p.shards > 0 {
		b = strconv.AppendInt(append(b, '*'), int64(p.shards), 10)
	}
	return b
}

// appendArgs appends what the policy's script takes, a blank before each: limit, window; for the bucket capacity, refill,
// period.
func (p Policy) appendArgs(b []byte) []byte {
	limit, window := p.numbers()
	b = strconv.AppendInt(append(b, ' '), limit, 10)
	if p.kind == tokenBucket {
		b = strconv.AppendInt(append(b, ' '), p.refill, 10)
	}
	return strconv.AppendInt(append(b, ' '), window.Milliseconds(), 10)
}
