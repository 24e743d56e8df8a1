package model

import "math/big"

// counterUsage is the sliding counter: two counts, and the window they were made under.
type counterUsage struct {
	windowMS          int64
	lastMS            int64
	previous, current int64
}

func (c counterUsage) lastUS() int64 { return c.lastMS * 1000 }

// startMS is the start of the window that the counts belong to.
func (c counterUsage) startMS() int64 { return c.lastMS - c.lastMS%c.windowMS }

// carried is the part of the previous count that still weighs, exactly.
func (c counterUsage) carried() *big.Rat {
	left := big.NewRat(c.windowMS-(c.lastMS-c.startMS()), c.windowMS)
	return left.Mul(left, new(big.Rat).SetInt64(c.previous))
}

func (c counterUsage) at(us int64, p Policy) usage {
	if c.windowMS != p.WindowMS {
		estimate := ceil(c.carried()).Int64() + c.current
		c = counterUsage{windowMS: p.WindowMS, lastMS: c.lastMS, current: min(estimate, MaxUsage)}
	}
	out := counterUsage{windowMS: p.WindowMS, lastMS: us / 1000}
	switch (out.startMS() - c.startMS()) / p.WindowMS {
	case 0:
		out.previous, out.current = c.previous, c.current
	case 1:
		out.previous = c.current
	}
	return out
}

func (c counterUsage) used() int64 { return floor(c.carried()).Int64() + c.current }

func (c counterUsage) charge(units int64, _ Policy) (usage, bool) {
	units = min(units, MaxUsage-c.current)
	c.current += units
	return c, units > 0
}

func (c counterUsage) refund(units int64, receiptUS, _ int64, p Policy) (usage, bool) {
	fromPrevious, fromCurrent := int64(0), int64(0)
	receiptMS := receiptUS / 1000
	switch {
	case receiptUS == 0:
		fromPrevious = min(units, c.previous)
		fromCurrent = min(units-fromPrevious, c.current)
	case receiptMS-receiptMS%p.WindowMS == c.startMS():
		fromCurrent = min(units, c.current)
	case receiptMS-receiptMS%p.WindowMS == c.startMS()-p.WindowMS:
		fromPrevious = min(units, c.previous)
	}
	c.previous -= fromPrevious
	c.current -= fromCurrent
	return c, fromPrevious+fromCurrent > 0
}

func (c counterUsage) none() bool { return c.previous == 0 && c.current == 0 }

func (c counterUsage) needMS(p Policy) int64 { return c.startMS() + 2*p.WindowMS }
