package conformance_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/sluicego/sluice/conformance/model"
	"github.com/sluicego/sluice/conformance/servers"
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

// TestEdgesOfALog holds what a log keeps, besides what it answers: entries that count no more, or are given back, have
// to go, or a log would grow for ever.
func TestEdgesOfALog(t *testing.T) {
	type call struct {
		us      int64 // since the epoch
		op      string
		cost    int64
		window  int64 // ms
		times   int   // 0 is once
		entries int64 // in the log afterwards; 0 is no log at all
	}
	cases := []struct {
		name  string
		calls []call
	}{
		{"one entry counts no more", []call{
			{0, "take", 1, 1000, 1, 1},
			{1, "take", 1, 1000, 3, 4},
			{1_000_000, "take", 1, 1000, 1, 4},
		}},
		{"three entries count no more", []call{
			{0, "take", 1, 1000, 3, 3},
			{1, "take", 1, 1000, 2, 5},
			{1_000_000, "take", 1, 1000, 1, 3},
		}},
		{"a hundred entries at a time are cleared away", []call{
			{0, "take", 1, 1000, 250, 250},
			{1, "take", 1, 1000, 1, 251},
			{1_000_000, "take", 1, 1000, 1, 152},
			{1_000_000, "take", 1, 1000, 1, 53},
			{1_000_000, "take", 1, 1000, 1, 4},
		}},
		{"a refund clears away what it gives back", []call{
			{0, "take", 2, 1000, 3, 3},
			{0, "settle", -1, 1000, 1, 3},
			{0, "settle", -1, 1000, 1, 2},
			{0, "settle", -3, 1000, 1, 1},
			{0, "settle", -1, 1000, 1, 0},
		}},
		{"a refund clears away what has expired", []call{
			{0, "take", 1, 1000, 1, 1},
			{1, "take", 2, 1000, 1, 2},
			{1_000_000, "settle", -1, 1000, 1, 1},
		}},
		{"a refund of the first of two units", []call{
			{0, "take", 1, 1000, 2, 2},
			{0, "settle", -1, 1000, 1, 1},
		}},
		{"a microsecond more moves the expiry", []call{
			{0, "take", 1, 1000, 1, 1},
			{500_000, "take", 1, 1000, 1, 2},
			{1_000_001, "take", 1, 1000, 1, 2},
		}},
		{"forgotten, but still there", []call{
			{0, "take", 1, 1000, 150, 150},
			{1, "take", 1, 1000, 1, 151},
			{1_000_000, "take", 1, 1000, 1, 52},
			{1_000_000, "peek", 1, 5000, 1, 52},
		}},
		{"a window of one millisecond more", []call{
			{0, "take", 1, 1000, 1, 1},
			{999_500, "take", 1, 1000, 1, 2},
			{1_001_000, "take", 1, 1000, 1, 2}, // expires 2 s later
			{2_000_000, "take", 1, 1001, 1, 3}, // and keeps that
			{2_000_000, "peek", 1, 5000, 1, 3},
		}},
		{"a window of one millisecond less", []call{
			{0, "take", 1, 1000, 150, 150},
			{600, "take", 1, 1000, 1, 151},
			{999_500, "take", 1, 999, 1, 52},
			{999_500, "peek", 1, 5000, 1, 52},
		}},
	}
	for s := range subjectsOf(t, model.Log) {
		t.Run(s.name, func(t *testing.T) {
			key := s.key
			for _, c := range cases {
				s.key = key + c.name
				state := model.New()
				for i, call := range c.calls {
					s.at(epoch + call.us)
					p := policyOf(model.Log, 1000, call.window)
					for range max(1, call.times) {
						want := state.Call(s.now, call.op, call.cost, p, 0).Numbers()
						if got := s.call(t, call.op, call.cost, p, 0); !slices.Equal(got, want) {
							t.Fatalf("%s: call %d: got %v, want %v", c.name, i, got, want)
						}
					}
					s.checkUntil(t, state.Until())
					members, err := s.do(t, "LLEN", s.key).AsInt64()
					if err != nil {
						t.Fatal(err)
					}
					if members > 0 {
						members-- // the header
					}
					if members != call.entries {
						t.Fatalf("%s: call %d: %d entries, want %d", c.name, i, members, call.entries)
					}
				}
			}
		})
	}
}

// entry is an entry of a log.
func entry(us, total, cost int64) string { return fmt.Sprintf("%014x%012x%x", us, total, cost) }

// TestLogTotalsWrapAround starts from logs whose running total is about to pass 10^14, which would take a hundred thousand
// of the largest charges, and holds them to the model as they do.
func TestLogTotalsWrapAround(t *testing.T) {
	servers.Parallel(t)
	const wrap = 100_000_000_000_000
	p := policyOf(model.Log, 40, 1000)
	for s := range subjectsOf(t, model.Log) {
		t.Run(s.name, func(t *testing.T) {
			key := s.key
			for before := int64(1); before <= 80; before++ { // units up to the wrap
				s.key = fmt.Sprintf("%s:%d", key, before)
				s.at(epoch)
				state := model.New()
				state.Call(epoch, "take", 1, p, 0)
				push := []string{"RPUSH", s.key, fmt.Sprintf("log:1000:%d:%d", state.Until(), wrap-before-1), entry(epoch, wrap-before, 1)}
				for _, command := range [][]string{push, {"PEXPIREAT", s.key, text(state.Until())}} {
					if err := s.do(t, command...).Error(); err != nil {
						t.Fatal(err)
					}
				}
				for i := range int64(60) {
					s.at(s.now + []int64{100_000, 0, 1}[i%3])
					op, cost := "take", 1+i*7%5
					switch i % 5 {
					case 2:
						op, cost = "peek", 1+i*11%40
					case 4:
						op, cost = "settle", -1-i%3
					}
					want := state.Call(s.now, op, cost, p, 0).Numbers()
					if got := s.call(t, op, cost, p, 0); !slices.Equal(got, want) {
						t.Fatalf("%d before the wrap, call %d, %s %d: got %v, want %v", before, i, op, cost, got, want)
					}
				}
			}
		})
	}
}

// TestLogTotalsWrapAroundAmidALog: what has expired is told from what counts by totals on both sides of the wrap, in all their digits.
func TestLogTotalsWrapAroundAmidALog(t *testing.T) {
	const wrap = 100_000_000_000_000
	for s := range subjectsOf(t, model.Log) {
		t.Run(s.name, func(t *testing.T) {
			header := fmt.Sprintf("log:1000:%d:%d", epoch/1000+2000, wrap-20)
			push := []string{"RPUSH", s.key, header, entry(epoch, wrap-15, 5), entry(epoch+500_000, wrap-5, 10), entry(epoch+600_000, 5, 10)}
			if err := s.do(t, push...).Error(); err != nil {
				t.Fatal(err)
			}
			s.at(epoch + 1_000_000)
			for cost, want := range map[int64][]int64{
				1:  {1, 20, 0, 600, epoch + 1_000_000},
				21: {0, 20, 500, 600, epoch + 1_000_000},
				31: {0, 20, 600, 600, epoch + 1_000_000},
			} {
				if got := s.call(t, "peek", cost, policyOf(model.Log, 40, 1000), 0); !slices.Equal(got, want) {
					t.Errorf("a cost of %d: got %v, want %v", cost, got, want)
				}
			}
		})
	}
}

// TestLogFindsTheEntry holds the search for the entry that has to leave against the model, for every cost, in logs that
// hide it: costs that grow, that shrink, and one large among many small.
func TestLogFindsTheEntry(t *testing.T) {
	costs := map[string]func(i int64) int64{
		"growing":    func(i int64) int64 { return 1 + i*i/40 },
		"shrinking":  func(i int64) int64 { return 1 + (60-i)*(60-i)/40 },
		"one first":  func(i int64) int64 { return 1 + max(0, 1-i)*500 },
		"one last":   func(i int64) int64 { return 1 + max(0, i-58)*500 },
		"one inside": func(i int64) int64 { return 1 + max(0, 1-(i-30)*(i-30))*500 },
		"alike":      func(int64) int64 { return 3 },
	}
	for s := range subjectsOf(t, model.Log) {
		t.Run(s.name, func(t *testing.T) {
			key := s.key
			for name, cost := range costs {
				s.key = key + name
				s.at(epoch)
				var total int64
				for i := range int64(60) {
					total += cost(i)
				}
				p, state := policyOf(model.Log, total, 1000), model.New()
				hold := func(op string, cost int64) {
					t.Helper()
					want := state.Call(s.now, op, cost, p, 0).Numbers()
					if got := s.call(t, op, cost, p, 0); !slices.Equal(got, want) {
						t.Fatalf("%s: %s %d: got %v, want %v", name, op, cost, got, want)
					}
				}
				for i := range int64(60) {
					s.at(s.now + 1000)
					hold("take", cost(i))
				}
				for n := int64(1); n <= total; n += 1 + n/30 {
					hold("peek", n)
				}
				for n := range int64(20) {
					hold("settle", -1-n)
					hold("peek", total)
				}
			}
		})
	}
}

// TestForeignEntryAmidALog: an entry that is none, or whose time can't be, is found by the call that looks for one in the middle.
func TestForeignEntryAmidALog(t *testing.T) {
	for s := range subjectsOf(t, model.Log) {
		t.Run(s.name, func(t *testing.T) {
			key := s.key
			for name, third := range map[string]string{
				"none":                    "another",
				"older than the oldest":   entry(epoch-1, 3, 1),
				"younger than the newest": entry(epoch+6, 3, 1),
				"no total":                entry(epoch+2, 3, 1)[:20] + "another",
			} {
				s.key = key + name
				s.at(epoch + 5)
				header := fmt.Sprintf("log:1000:%d:0", epoch/1000+2000)
				push := []string{"RPUSH", s.key, header, entry(epoch, 1, 1), entry(epoch+1, 2, 1), third, entry(epoch+3, 4, 1), entry(epoch+4, 5, 1)}
				if err := s.do(t, push...).Error(); err != nil {
					t.Fatal(err)
				}
				// 8 of 10 are free when three of five have left; to give back two is to look for the third.
				for _, args := range [][]string{{"take", "8", "10", "1000"}, {"settle", "-2", "10", "1000", "0"}} {
					got, err := s.eval(t, []string{s.key}, args...)
					if err == nil || !strings.HasPrefix(err.Error(), "SLUICESTATE ") {
						t.Errorf("%s: %q: got %v, %v, want it refused", name, args, got, err)
					}
				}
			}
		})
	}
}

// TestForeignLogs are lists that begin as a log does, and are none.
func TestForeignLogs(t *testing.T) {
	header := fmt.Sprintf("log:1000:%d:0", epoch/1000+2000)
	good := func(us, total int64) string { return entry(epoch+us, total, 1) }
	withCost := func(us, total int64, cost string) string { return good(us, total)[:26] + cost }
	cases := map[string][]string{
		"the newest has no cost":              {good(0, 1), withCost(1, 2, "")},
		"the newest is none":                  {good(0, 1), "another"},
		"the newest is older than the oldest": {good(0, 1), good(-1, 2)},
		"the oldest is none":                  {"another", good(1, 1)},
		"the oldest has another cost":         {withCost(0, 1, "ten"), good(1, 2)},
		"the second is none":                  {good(-1_000_001, 1), "another", good(0, 2)},
		"the third is none":                   {good(-1_000_002, 1), good(-1_000_001, 2), "another", good(0, 3)},
		"the third has another cost":          {good(-1_000_002, 1), good(-1_000_001, 2), withCost(-999_999, 3, "ten"), good(0, 4)},
		"one amid those that expired is none": {good(-1_000_004, 1), good(-1_000_003, 2), good(-1_000_002, 3), "another", good(-1_000_001, 4), good(0, 5)},
		"all but the header is missing":       nil,
	}
	for s := range subjectsOf(t, model.Log) {
		t.Run(s.name, func(t *testing.T) {
			key := s.key
			for name, members := range cases {
				s.key = key + name
				if err := s.do(t, slices.Concat([]string{"RPUSH", s.key, header}, members)...).Error(); err != nil {
					t.Fatal(err)
				}
				before := s.content(t)
				for _, args := range [][]string{{"peek", "1", "10", "1000"}, {"take", "10", "10", "1000"}, {"settle", "-1", "10", "1000", "0"}} {
					got, err := s.eval(t, []string{s.key}, args...)
					if err == nil || !strings.HasPrefix(err.Error(), "SLUICESTATE ") {
						t.Errorf("%s: %q: got %v, %v, want it refused", name, args, got, err)
					}
				}
				if after := s.content(t); after != before {
					t.Errorf("%s: it was\n%s\nand is\n%s", name, before, after)
				}
			}
		})
	}
}
