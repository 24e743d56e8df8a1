package model

import "slices"

// entry is one admitted charge of the sliding log.
type entry struct {
	timeUS int64
	units  int64
}

// logUsage is the sliding log: entries, oldest first.
type logUsage struct {
	atUS    int64 // the moment it is looked at
	entries []entry
}

func (l logUsage) lastUS() int64 { return l.entries[len(l.entries)-1].timeUS }

func (l logUsage) at(us int64, p Policy) usage {
	gone := 0
	for gone < len(l.entries) && l.entries[gone].timeUS <= us-p.spanUS() {
		gone++
	}
	return logUsage{us, l.entries[gone:]}
}

func (l logUsage) used() int64 {
	sum := int64(0)
	for _, e := range l.entries {
		sum += e.units
	}
	return sum
}

func (l logUsage) charge(units int64, _ Policy) (usage, bool) {
	units = min(units, MaxUsage-l.used())
	if units == 0 {
		return l, false
	}
	return logUsage{l.atUS, append(slices.Clip(l.entries), entry{l.atUS, units})}, true
}

func (l logUsage) refund(units int64, receiptUS, nowUS int64, p Policy) (usage, bool) {
	units = min(units, l.used())
	if units == 0 || !receiptCounts(receiptUS, nowUS, p) {
		return l, false
	}
	out := logUsage{atUS: l.atUS}
	for _, e := range l.entries {
		back := min(units, e.units)
		units -= back
		if e.units > back {
			out.entries = append(out.entries, entry{e.timeUS, e.units - back})
		}
	}
	return out, true
}

func (l logUsage) none() bool { return len(l.entries) == 0 }

func (l logUsage) needMS(p Policy) int64 { return ceilDiv(l.lastUS()+p.spanUS(), 1000) }
