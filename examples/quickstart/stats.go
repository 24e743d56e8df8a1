package main

import (
	"cmp"
	"slices"
	"time"
)

// A decision is what became of one visit.
type decision struct {
	allowed bool
	at      time.Time // by the clock that decided it
}

// unlimited returns the decisions of a server that limits nothing, by the log's clock.
func unlimited(log *accessLog) []decision {
	all := make([]decision, len(log.visits))
	for i, v := range log.visits {
		all[i] = decision{allowed: true, at: v.at}
	}
	return all
}

// A tally counts decisions, for one subject or for all.
type tally struct {
	admitted, denied int
	burst            int // the most admitted for one subject in any window
}

func (t tally) requests() int { return t.admitted + t.denied }

// A summary is the tally of one algorithm.
type summary struct {
	tally
	everDenied int     // subjects that were denied at least once
	subjects   []tally // by index into accessLog.subjects
}

// summarize tallies one decision for each visit of the log.
func summarize(log *accessLog, decisions []decision, window time.Duration) summary {
	s := summary{subjects: make([]tally, len(log.subjects))}
	admitted := make([][]time.Time, len(log.subjects))
	for i, d := range decisions {
		who := log.visits[i].subject
		if !d.allowed {
			s.subjects[who].denied++
			continue
		}
		s.subjects[who].admitted++
		admitted[who] = append(admitted[who], d.at)
	}
	for who := range s.subjects {
		t := &s.subjects[who]
		t.burst = worstBurst(admitted[who], window)
		s.admitted += t.admitted
		s.denied += t.denied
		s.burst = max(s.burst, t.burst)
		if t.denied > 0 {
			s.everDenied++
		}
	}
	return s
}

// worstBurst returns the most of the times, which are in order, that lie in any one window: later than its end
// less the window, and not later than its end. So two times exactly one window apart are never in the same one.
func worstBurst(times []time.Time, window time.Duration) int {
	worst, oldest := 0, 0
	for i, t := range times {
		for !times[oldest].After(t.Add(-window)) {
			oldest++
		}
		worst = max(worst, i-oldest+1)
	}
	return worst
}

// busiest returns up to n subjects, those with the most requests first, as indices into accessLog.subjects.
func (s *summary) busiest(n int) []int {
	order := make([]int, len(s.subjects))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int {
		return cmp.Compare(s.subjects[b].requests(), s.subjects[a].requests())
	})
	return order[:min(n, len(order))]
}
