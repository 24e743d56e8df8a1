package conformance_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/sluicego/sluice/conformance/model"
)

// TestEdges goes where random calls hardly ever get: a fraction of just one part, a time to full of just 366 days,
// and other single values at which two ways to write a line of a script part. Each was found as a change to a script
// that no other test noticed.
func TestEdges(t *testing.T) {
	bucket := func(capacity, refill, periodMS int64) model.Policy {
		return model.Policy{Kind: model.Bucket, Limit: capacity, Refill: refill, WindowMS: periodMS}
	}
	type call struct {
		us   int64 // since the epoch
		op   string
		cost int64
		p    model.Policy
	}
	slow := bucket(4, 3, 23_716_650_001) // fills in 31 622 200 001 333 1/3 us, near 366 days
	cases := []struct {
		name  string
		calls []call
	}{
		{"the refill of a microsecond borrows from a whole token", []call{
			{0, "take", 1, bucket(5, 1, 1)},
			{1, "take", 1, bucket(5, 1, 1)}, // lacks 1.999
			{1, "peek", 3, bucket(5, 1, 1)},
		}},
		{"a thousandth of a token is lacking", []call{
			{0, "take", 1, bucket(5, 1, 1)},
			{999, "take", 1, bucket(5, 1, 1)}, // lacks 1.001
			{999, "take", 4, bucket(5, 1, 1)},
			{999, "peek", 4, bucket(5, 1, 2)}, // rounded up under another period
			{998, "peek", 4, bucket(5, 1, 2)}, // 2 tokens and 1 us from now
		}},
		{"one token too many is given back", []call{
			{0, "take", 3, bucket(5, 1, 1000)},
			{0, "settle", -4, bucket(5, 1, 1000)},
			{0, "peek", 5, bucket(5, 1, 1000)},
		}},
		{"a debt at its bound keeps its fraction", []call{
			{0, "settle", 13, bucket(10, 1, 1000)},
			{500_000, "settle", 1, bucket(6, 1, 1000)}, // lacks 12.5, the bound is 12
			{500_000, "peek", 1, bucket(6, 1, 1000)},
		}},
		{"a third of a microsecond more to full moves the expiry", []call{
			{0, "take", 1, bucket(4, 3, 1)}, // full after 1333 1/3 us
			{2667, "take", 1, bucket(4, 3, 1)},
			{2667, "peek", 1, bucket(4, 3, 1)},
		}},
		{"back by a long time to full", []call{
			{0, "take", 4, slow},
			{-slow.TimeToFullUS(), "take", 1, slow},
			{-slow.TimeToFullUS() - 1, "take", 1, slow},
		}},
		{"a product of 2^53 + 1", []call{ // which a double can't hold: of tokens, period and refill, as the second call leaves them
			{0, "take", 900_090_109, bucket(900_090_120, 321, 10_007)},
			{7_713_487, "take", 1, bucket(900_090_120, 321, 10_007)},
			{7_712_919, "peek", 1, bucket(900_090_120, 321, 10_007)}, // a microsecond decides on a millisecond
		}},
	}
	for s := range subjectsOf(t, model.Bucket) {
		t.Run(s.name, func(t *testing.T) {
			key := s.key
			for _, c := range cases {
				s.key = key + c.name
				state := model.New()
				for i, call := range c.calls {
					s.at(epoch + call.us)
					want := state.Call(s.now, call.op, call.cost, call.p, 0).Numbers()
					if got := s.call(t, call.op, call.cost, call.p, 0); !slices.Equal(got, want) {
						t.Fatalf("%s: call %d: got %v, want %v", c.name, i, got, want)
					}
					s.checkUntil(t, state.Until())
				}
			}
			s.key = key
			for _, args := range [][]string{
				{"take", "1", "1000223", "1000000", "31615349777"}, // full after 366 days and a part of a microsecond
				{"take", "1", "1", "999999999", "31622400001"},     // of eleven digits, full at once
			} {
				if got, err := s.eval(t, []string{s.key}, args...); err == nil || !strings.HasPrefix(err.Error(), "SLUICEARG period_ms ") {
					t.Errorf("%q: got %v, %v, want period_ms refused", args, got, err)
				}
			}
			// A state that claims to be known for 732 days and a microsecond.
			if err := s.do(t, "SET", s.key, "bucket:1000:1763244780000:1699999979999999:1:0").Error(); err != nil {
				t.Fatal(err)
			}
			if got, err := s.eval(t, []string{s.key}, "peek", "1", "5", "5", "1000"); err == nil || !strings.HasPrefix(err.Error(), "SLUICESTATE ") {
				t.Errorf("a state known for too long: got %v, %v, want it refused", got, err)
			}
		})
	}
}

// TestEdgesOfACounter reads two full counts, a thousand times the largest limit each, under another window: they count as
// one such count, and one unit more or less would be a wait that is one millisecond longer or shorter.
func TestEdgesOfACounter(t *testing.T) {
	const (
		full     = 1_000_000_000_000
		windowMS = 31_622_400_000
		lastMS   = 53 * windowMS
	)
	counter := func(limit, windowMS int64) model.Policy {
		return model.Policy{Kind: model.Counter, Limit: limit, WindowMS: windowMS}
	}
	state := model.New()
	for _, at := range []int64{lastMS - 1, lastMS} {
		for range full / model.MaxUnits {
			state.Call(at*1000, "settle", model.MaxUnits, counter(1, windowMS), 0)
		}
	}
	for s := range subjectsOf(t, model.Counter) {
		t.Run(s.name, func(t *testing.T) {
			s.at(lastMS * 1000)
			written := fmt.Sprintf("counter:%d:%d:%d:%d", windowMS, lastMS, full, full)
			if err := s.do(t, "SET", s.key, written).Error(); err != nil {
				t.Fatal(err)
			}
			for _, p := range []model.Policy{
				counter(100, 20_000_000_000), // limit * window is 2 * full
				counter(129, 15_503_875_969), // and here one more
			} {
				want := state.Call(s.now, "peek", 1, p, 0).Numbers()
				if got := s.call(t, "peek", 1, p, 0); !slices.Equal(got, want) {
					t.Errorf("%d in %d ms: got %v, want %v", p.Limit, p.WindowMS, got, want)
				}
			}
		})
	}
}
