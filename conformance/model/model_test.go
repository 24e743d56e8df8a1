package model

import (
	"math"
	"math/big"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

const (
	start  = 1_700_000_000_000_000 // us
	second = 1_000_000             // us
)

// policies draws small limits, so that denials are common.
func policies(kinds ...Kind) *rapid.Generator[Policy] {
	return rapid.Custom(func(t *rapid.T) Policy {
		return Policy{
			Kind:     rapid.SampledFrom(kinds).Draw(t, "kind"),
			Limit:    rapid.Int64Range(1, 12).Draw(t, "limit"),
			Refill:   rapid.Int64Range(1, 12).Draw(t, "refill"),
			WindowMS: rapid.Int64Range(1, 40).Draw(t, "window"),
		}
	})
}

// walk makes random calls under one policy and shows each to visit, with the state before it and after it.
func walk(t *rapid.T, p Policy, leastStepUS int64, visit func(before, after *State, now int64, op string, cost int64, r Reply)) {
	s, now := New(), int64(start)
	receipt := int64(0)
	for range rapid.IntRange(1, 30).Draw(t, "calls") {
		now += rapid.Int64Range(leastStepUS, p.WindowMS*1500).Draw(t, "step")
		op := rapid.SampledFrom([]string{"take", "take", "take", "peek", "settle"}).Draw(t, "op")
		cost := rapid.Int64Range(0, p.Limit+1).Draw(t, "cost")
		if op == "settle" && rapid.Bool().Draw(t, "back") {
			cost = -cost
		}
		if s.Void(now) { // the server may have removed it, so a step back must not bring it back
			s.Lose()
		}
		before := *s
		r := s.Call(now, op, cost, p, receipt*rapid.Int64Range(0, 1).Draw(t, "receipt"))
		if op == "take" && r.Allowed {
			receipt = r.ServerTimeUS
		}
		after := *s
		visit(&before, &after, now, op, cost, r)
	}
}

func TestWaitsAreExact(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := policies(Log, Counter, Bucket).Draw(t, "policy")
		walk(t, p, -p.WindowMS*1000, func(_, s *State, now int64, op string, cost int64, _ Reply) {
			cost = max(cost, 1)
			r := s.Call(now, "peek", cost, p, 0)
			switch {
			case cost > p.Limit:
				if r.Allowed || r.RetryAfterMS != -1 {
					t.Fatalf("cost %d above limit %d: %+v", cost, p.Limit, r)
				}
			case r.Allowed != (r.RetryAfterMS == 0):
				t.Fatalf("allowed and a wait, or denied and none: %+v", r)
			case !r.Allowed:
				// Every moment before is tried, not only the last one: the search by halves rests on it.
				for ms := range r.RetryAfterMS + 1 {
					if later := s.Call(now+1000*ms, "peek", cost, p, 0); later.Allowed != (ms == r.RetryAfterMS) {
						t.Fatalf("retry after %d ms, but after %d ms: %+v", r.RetryAfterMS, ms, later)
					}
				}
			}
			for ms := range r.ResetAfterMS + 1 {
				if later := s.Call(now+1000*ms, "peek", 0, p, 0); (later.Remaining == p.Limit) != (ms == r.ResetAfterMS) {
					t.Fatalf("reset after %d ms, but after %d ms: %+v", r.ResetAfterMS, ms, later)
				}
			}
		})
	})
}

func TestRemainingOnlyGrowsWhileNobodyCalls(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := policies(Log, Counter, Bucket).Draw(t, "policy")
		walk(t, p, -p.WindowMS*1000, func(_, s *State, now int64, _ string, _ int64, r Reply) {
			if s.held != nil && s.held.lastUS()-now > p.spanUS() {
				return // discarded for now; it counts again once the clock has caught up
			}
			last := r.Remaining
			for us := int64(0); us <= 3*p.WindowMS*1000; us += 333 {
				later := s.Call(now+us, "peek", 1, p, 0)
				if later.Remaining < last || later.Remaining > p.Limit {
					t.Fatalf("remaining %d, then %d after %d us (limit %d)", last, later.Remaining, us, p.Limit)
				}
				last = later.Remaining
			}
		})
	})
}

func TestRemainingTellsWhatWouldBeAdmitted(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := policies(Log, Counter, Bucket).Draw(t, "policy")
		walk(t, p, -p.WindowMS*1000, func(_, s *State, now int64, _ string, _ int64, r Reply) {
			if r.Remaining > 0 && !s.Call(now, "peek", r.Remaining, p, 0).Allowed {
				t.Fatalf("%d remaining, but not admitted", r.Remaining)
			}
			if s.Call(now, "peek", r.Remaining+1, p, 0).Allowed {
				t.Fatalf("%d remaining, and one more admitted", r.Remaining)
			}
		})
	})
}

func TestDeniedCallsAndPeeksChangeNothing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := policies(Log, Counter, Bucket).Draw(t, "policy")
		walk(t, p, -p.WindowMS*1000, func(before, after *State, now int64, op string, cost int64, r Reply) {
			if op == "peek" || !r.Allowed || op == "take" && cost == 0 {
				a, b := before.Call(now, "peek", 1, p, 0), after.Call(now, "peek", 1, p, 0)
				if a != b || before.Until() != after.Until() || before.Writes() != after.Writes() {
					t.Fatalf("%s of %d changed %+v until %d to %+v until %d", op, cost, a, before.Until(), b, after.Until())
				}
			}
		})
	})
}

func TestExpiryIsBounded(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := policies(Log, Counter, Bucket).Draw(t, "policy")
		walk(t, p, 0, func(_, s *State, now int64, _ string, _ int64, r Reply) {
			if s.Until() == 0 {
				if r.ResetAfterMS != 0 {
					t.Fatalf("no key, but reset after %d ms", r.ResetAfterMS)
				}
				return
			}
			least, most := now/1000+r.ResetAfterMS, ceilDiv(now, 1000)+2*ceilDiv(p.spanUS(), 1000)
			if s.Until() < least || s.Until() > most {
				t.Fatalf("expires at %d: want %d to %d", s.Until(), least, most)
			}
		})
	})
}

// admitted is one admitted take.
type admitted struct{ us, units int64 }

// takes makes random takes and returns the admitted ones.
func takes(t *rapid.T, p Policy, leastStepUS int64) []admitted {
	s, now := New(), int64(start)
	var all []admitted
	for range rapid.IntRange(1, 60).Draw(t, "calls") {
		now += rapid.Int64Range(leastStepUS, p.WindowMS*300).Draw(t, "step")
		cost := rapid.Int64Range(1, p.Limit).Draw(t, "cost")
		if s.Call(now, "take", cost, p, 0).Allowed {
			all = append(all, admitted{now, cost})
		}
	}
	return all
}

func TestLogAdmitsTheLimitInAnyWindow(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := policies(Log).Draw(t, "policy")
		// With a clock that steps back, a charge counts at the moment at which time stood still.
		all := takes(t, p, -p.WindowMS*10)
		for i := range all {
			if i > 0 {
				all[i].us = max(all[i].us, all[i-1].us)
			}
		}
		for i := range all {
			sum := int64(0)
			for _, a := range all[i:] {
				if a.us < all[i].us+p.WindowMS*1000 {
					sum += a.units
				}
			}
			if sum > p.Limit {
				t.Fatalf("%d admitted in a window from %d: %v", sum, all[i].us, all)
			}
		}
	})
}

func TestCounterAdmitsTheLimitInAnAlignedWindow(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := policies(Counter).Draw(t, "policy")
		sums := map[int64]int64{}
		for _, a := range takes(t, p, 0) {
			sums[a.us/1000/p.WindowMS] += a.units
		}
		for w, sum := range sums {
			if sum > p.Limit {
				t.Fatalf("%d admitted in window %d", sum, w)
			}
		}
	})
}

func TestBucketAdmitsCapacityAndWhatFlowsIn(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := policies(Bucket).Draw(t, "policy")
		all := takes(t, p, 0)
		for i := range all {
			sum := int64(0)
			for _, a := range all[i:] {
				sum += a.units
				most := big.NewRat((a.us-all[i].us)*p.Refill, p.WindowMS*1000)
				most.Add(most, new(big.Rat).SetInt64(p.Limit))
				if new(big.Rat).SetInt64(sum).Cmp(most) > 0 {
					t.Fatalf("%d admitted, %s flowed in: %v", sum, most.FloatString(3), all[i:])
				}
			}
		}
	})
}

// The design solves the counter's wait in closed form; the model searches for it. They must agree.
func TestCounterWaitsAgreeWithTheClosedForm(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := rapid.Int64Range(1, 5000).Draw(t, "window")
		limit := rapid.Int64Range(1, 200).Draw(t, "limit")
		previous := rapid.Int64Range(1, limit).Draw(t, "previous")
		current := rapid.Int64Range(0, limit).Draw(t, "current")
		cost := rapid.Int64Range(1, limit).Draw(t, "cost")
		elapsed := rapid.Int64Range(0, w-1).Draw(t, "elapsed")

		p := Policy{Kind: Counter, Limit: limit, WindowMS: w}
		begin := int64(start/1000) / w * w
		s := State{
			held:    counterUsage{windowMS: w, lastMS: begin + elapsed, previous: previous, current: current},
			untilMS: begin + 2*w,
		}
		got := s.Call((begin+elapsed)*1000, "peek", cost, p, 0)

		least := func(count, need int64) int64 { // the least elapsed at which count weighs no more than need
			if count <= need {
				return 0
			}
			return w*(count-need-1)/count + 1
		}
		var want int64
		if need := limit - current - cost; need >= 0 {
			want = max(0, least(previous, need)-elapsed)
		} else {
			want = w + least(current, limit-cost) - elapsed
		}
		if got.RetryAfterMS != want {
			t.Fatalf("got %+v, want to retry after %d", got, want)
		}
	})
}

func TestGivingBackWhatWasTakenRestoresTheState(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := policies(Log, Counter, Bucket).Draw(t, "policy")
		walk(t, p, 0, func(_, s *State, now int64, _ string, _ int64, r Reply) {
			if r.Remaining == 0 {
				return
			}
			taken := s.Call(now, "take", r.Remaining, p, 0)
			back := s.Call(now, "settle", -r.Remaining, p, taken.ServerTimeUS)
			if back.Remaining != r.Remaining || back.RetryAfterMS != 0 || !back.Allowed {
				t.Fatalf("before %+v, taken %+v, back %+v", r, taken, back)
			}
		})
	})
}

// call is a row of a step table: the time counts from the start of the table.
type call struct {
	us      int64
	op      string
	cost    int64
	policy  Policy
	receipt int64 // from the start too; 0 is none
	want    [4]int64
	until   int64 // ms after the start; 0: no key
}

func TestStepTables(t *testing.T) {
	log10 := Policy{Kind: Log, Limit: 10, WindowMS: 1000}
	counter := func(limit, window int64) Policy { return Policy{Kind: Counter, Limit: limit, WindowMS: window} }
	bucket := func(capacity, refill, period int64) Policy { return Policy{Bucket, capacity, refill, period} }
	tables := map[string][]call{
		"log: fill, wait, an entry leaves after exactly one window": {
			{0, "take", 4, log10, 0, [4]int64{1, 6, 0, 1000}, 2000},
			{100_500, "take", 6, log10, 0, [4]int64{1, 0, 0, 1000}, 2000},
			{100_500, "take", 1, log10, 0, [4]int64{0, 0, 900, 1000}, 2000},
			{999_999, "peek", 4, log10, 0, [4]int64{0, 0, 1, 101}, 2000},
			{1_000_000, "peek", 4, log10, 0, [4]int64{1, 4, 0, 101}, 2000},
			{1_000_000, "take", 5, log10, 0, [4]int64{0, 4, 101, 101}, 2000},
			{1_000_000, "take", 4, log10, 0, [4]int64{1, 0, 0, 1000}, 2000},
			{1_000_001, "take", 11, log10, 0, [4]int64{0, 0, -1, 1000}, 2000},
			{1_100_500, "take", 1, log10, 0, [4]int64{1, 5, 0, 1000}, 3100},
		},
		"log: time stands still for a window, then the state is discarded": {
			{1_000_000, "take", 10, log10, 0, [4]int64{1, 0, 0, 1000}, 3000},
			{0, "take", 1, log10, 0, [4]int64{0, 0, 2000, 2000}, 3000},
			{-1, "take", 1, log10, 0, [4]int64{1, 9, 0, 1000}, 1999},
		},
		"log: a refund takes the oldest units, and nothing once the receipt has left": {
			{0, "take", 3, log10, 0, [4]int64{1, 7, 0, 1000}, 2000},
			{500_000, "take", 3, log10, 0, [4]int64{1, 4, 0, 1000}, 2000},
			{600_000, "settle", -2, log10, 500_000, [4]int64{1, 6, 0, 900}, 2000},
			{999_999, "settle", -9, log10, 0, [4]int64{1, 10, 0, 0}, 0},
			{1_600_000, "take", 2, log10, 0, [4]int64{1, 8, 0, 1000}, 3600},
			{2_000_000, "settle", -1, log10, 1_000_000, [4]int64{1, 8, 0, 600}, 3600},
			{2_000_000, "settle", -1, log10, 1_000_001, [4]int64{1, 9, 0, 600}, 3600},
		},
		"counter: one millisecond into a new window 4.995 counts as 4": {
			{0, "take", 5, counter(5, 1000), 0, [4]int64{1, 0, 0, 1801}, 2000},
			{1_000_000, "peek", 1, counter(5, 1000), 0, [4]int64{0, 0, 1, 801}, 2000},
			{1_001_000, "take", 1, counter(5, 1000), 0, [4]int64{1, 0, 0, 1000}, 3000},
		},
		"counter: a gap of two windows": {
			{0, "take", 5, counter(5, 1000), 0, [4]int64{1, 0, 0, 1801}, 2000},
			{1_999_999, "peek", 5, counter(5, 1000), 0, [4]int64{1, 5, 0, 0}, 2000},
			{2_000_000, "take", 5, counter(5, 1000), 0, [4]int64{1, 0, 0, 1801}, 4000},
		},
		"counter: another window takes the estimate, rounded up, as charged at the last write": {
			{0, "take", 5, counter(10, 1000), 0, [4]int64{1, 5, 0, 1801}, 2000},
			{1_100_000, "take", 1, counter(10, 1000), 0, [4]int64{1, 5, 0, 901}, 3000},
			{1_200_000, "peek", 1, counter(10, 2000), 0, [4]int64{1, 4, 0, 1800}, 3000},
			{3_000_000, "peek", 1, counter(10, 2000), 0, [4]int64{1, 10, 0, 0}, 3000},
		},
		"bucket: fractions are kept": {
			{0, "take", 5, bucket(5, 2, 1000), 0, [4]int64{1, 0, 0, 2500}, 5000},
			{499_999, "take", 1, bucket(5, 2, 1000), 0, [4]int64{0, 0, 1, 2001}, 5000},
			{750_000, "take", 1, bucket(5, 2, 1000), 0, [4]int64{1, 0, 0, 2250}, 5000},
			{1_000_000, "take", 1, bucket(5, 2, 1000), 0, [4]int64{1, 0, 0, 2500}, 5000},
			{3_500_000, "peek", 5, bucket(5, 2, 1000), 0, [4]int64{1, 5, 0, 0}, 5000},
		},
		"bucket: a debt of one capacity at most": {
			{0, "settle", 100, bucket(5, 5, 1000), 0, [4]int64{1, 0, 0, 2000}, 2000},
			{0, "settle", 1, bucket(5, 5, 1000), 0, [4]int64{1, 0, 0, 2000}, 2000},
			{0, "take", 1, bucket(5, 5, 1000), 0, [4]int64{0, 0, 1200, 2000}, 2000},
			{0, "peek", 1, bucket(2, 5, 1000), 0, [4]int64{0, 0, 1800, 2000}, 2000},
			{0, "settle", -10, bucket(5, 5, 1000), 0, [4]int64{1, 5, 0, 0}, 0},
		},
	}
	for name, table := range tables {
		t.Run(name, func(t *testing.T) {
			s, zero := New(), int64(start)
			for i, c := range table {
				receipt := c.receipt
				if receipt != 0 {
					receipt += zero
				}
				r := s.Call(zero+c.us, c.op, c.cost, c.policy, receipt)
				want := append(c.want[:], zero+c.us)
				if got := r.Numbers(); !slices.Equal(got, want) {
					t.Fatalf("call %d: got %v, want %v", i, got, want)
				}
				until := c.until
				if until != 0 {
					until += zero / 1000
				}
				if s.Until() != until {
					t.Fatalf("call %d: until is %d after the start, want %d", i, s.Until()-zero/1000, c.until)
				}
			}
		})
	}
}

func TestDebtsSaturate(t *testing.T) {
	for _, kind := range []Kind{Log, Counter} {
		s, p := New(), Policy{Kind: kind, Limit: MaxUnits, WindowMS: MaxWindowMS}
		for range 1002 {
			s.Call(start, "settle", MaxUnits, p, 0)
		}
		if got := s.view(start, p).used(); got != MaxUsage {
			t.Errorf("%s: used %d, want %d", kind, got, int64(MaxUsage))
		}
		until := s.Until()
		if s.Call(start+second, "settle", 1, p, 0); s.Until() != until {
			t.Errorf("%s: a charge beyond the bound wrote", kind)
		}
	}
}

func TestRefundAfterACrawlIsBounded(t *testing.T) {
	s := New()
	s.Call(start, "take", MaxUnits, Policy{Bucket, MaxUnits, MaxUnits, 1000}, 0)
	crawl := Policy{Bucket, 1, 1, MaxWindowMS}
	s.Call(start, "settle", -1, crawl, 0)
	if got, want := s.Until(), int64(start/1000+2*MaxWindowMS); got != want {
		t.Errorf("until %d, want %d", got, want)
	}
	if got := (bucketUsage{1, start, big.NewRat(2*MaxUnits, 1)}).needMS(crawl); got != math.MaxInt64 {
		t.Errorf("need %d, want the largest", got)
	}
}

func TestDomain(t *testing.T) {
	for _, c := range []struct {
		p    Policy
		want bool
	}{
		{Policy{Log, 1, 0, 1}, true},
		{Policy{Log, MaxUnits, 0, MaxWindowMS}, true},
		{Policy{Log, 0, 0, 1}, false},
		{Policy{Counter, MaxUnits + 1, 0, 1}, false},
		{Policy{Counter, 1, 0, MaxWindowMS + 1}, false},
		{Policy{Counter, 1, 0, 0}, false},
		{Policy{Bucket, 1, 1, MaxWindowMS}, true},
		{Policy{Bucket, MaxUnits, MaxUnits, MaxWindowMS}, true},
		{Policy{Bucket, MaxUnits, MaxUnits - 1, MaxWindowMS}, false},
		{Policy{Bucket, 2, 1, MaxWindowMS / 2}, true},
		{Policy{Bucket, 3, 1, MaxWindowMS / 2}, false},
		{Policy{Bucket, 1, 0, 1}, false},
	} {
		if got := c.p.Valid(); got != c.want {
			t.Errorf("%+v: valid %v, want %v", c.p, got, c.want)
		}
	}
}
