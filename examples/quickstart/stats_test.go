package main

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

func seconds(s ...int) []time.Time {
	times := make([]time.Time, len(s))
	for i, n := range s {
		times[i] = time.Unix(int64(n), 0)
	}
	return times
}

func TestWorstBurst(t *testing.T) {
	tests := []struct {
		name  string
		times []int
		want  int
	}{
		{"none", nil, 0},
		{"one", []int{5}, 1},
		{"a window apart", []int{0, 10, 20}, 1},
		{"just under a window apart", []int{0, 9, 18}, 2},
		{"all at once", []int{3, 3, 3, 3}, 4},
		{"in the middle", []int{0, 20, 21, 22, 40, 41}, 3},
		{"across the edge of an aligned window", []int{8, 9, 9, 11, 12, 30}, 5},
		{"at the end", []int{0, 1, 50, 51, 52}, 3},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := worstBurst(seconds(tt.times...), 10*time.Second); got != tt.want {
				t.Errorf("got %d, want %d", got, tt.want)
			}
		})
	}
}

// TestWorstBurstByCounting compares with the plain count over every window that ends at a request.
func TestWorstBurstByCounting(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for range 500 {
		at := make([]int, random.IntN(40))
		for i := range at {
			at[i] = random.IntN(60)
		}
		slices.Sort(at)
		window := 1 + random.IntN(20)
		want := 0
		for _, end := range at {
			n := 0
			for _, s := range at {
				if s > end-window && s <= end {
					n++
				}
			}
			want = max(want, n)
		}
		if got := worstBurst(seconds(at...), time.Duration(window)*time.Second); got != want {
			t.Fatalf("%v, window %d: got %d, want %d", at, window, got, want)
		}
	}
}

func TestSummarize(t *testing.T) {
	at := seconds(0, 1, 2, 3, 30, 31, 32)
	log := &accessLog{subjects: []string{"a", "b", "c"}}
	for i, who := range []int{0, 1, 1, 1, 2, 1, 2} {
		log.visits = append(log.visits, visit{who, at[i]})
	}

	before := summarize(log, unlimited(log), 10*time.Second)
	if want := (tally{admitted: 7, burst: 3}); before.tally != want || before.everDenied != 0 {
		t.Errorf("before: got %+v, %d ever denied; want %+v, 0", before.tally, before.everDenied, want)
	}
	if got, want := before.busiest(2), []int{1, 2}; !slices.Equal(got, want) {
		t.Errorf("busiest: got %v, want %v", got, want)
	}
	if got, want := before.busiest(9), []int{1, 2, 0}; !slices.Equal(got, want) {
		t.Errorf("all, busiest first: got %v, want %v", got, want)
	}

	decisions := unlimited(log)
	decisions[2].allowed = false
	decisions[3].allowed = false
	decisions[6].allowed = false
	after := summarize(log, decisions, 10*time.Second)
	if want := (tally{admitted: 4, denied: 3, burst: 1}); after.tally != want || after.everDenied != 2 {
		t.Errorf("after: got %+v, %d ever denied; want %+v, 2", after.tally, after.everDenied, want)
	}
	want := []tally{{1, 0, 1}, {2, 2, 1}, {1, 1, 1}}
	if !slices.Equal(after.subjects, want) {
		t.Errorf("by subject: got %+v, want %+v", after.subjects, want)
	}
}
