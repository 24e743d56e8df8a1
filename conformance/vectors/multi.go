package vectors

import (
	"fmt"
	"slices"
	"strings"

	"github.com/sluicego/sluice/conformance/model"
)

// together are the situations of several limits at once.
func (m *multiMaker) together() {
	m.decided()
	m.mixed()
	m.clocks()
	m.changed()
	m.uses()
}

// decided are the verdict and what is charged.
func (m *multiMaker) decided() {
	m.vector("one limit", "a call with one limit answers as its single script does", func(d *multiDraft) {
		a := d.log(10, 1000)
		d.take(a.of(3)).is(1, 0, row{1, 7, 0, 1000})
		d.peek(a.of(8)).is(0, 1000, row{0, 7, 1000, 1000})
		a.peek(8).is(0, 7, 1000, 1000)
		d.take(a.of(7)).is(1, 0, row{1, 0, 0, 1000})
	})
	m.vector("three algorithms", "each limit is charged its own cost, and the wait is the longest", func(d *multiDraft) {
		a, b, c := d.log(10, 1000), d.counter(10, 1000), d.bucket(10, 10, 1000)
		d.take(a.of(1), b.of(2), c.of(3)).is(1, 0, row{1, 9, 0, 1000}, row{1, 8, 0, 1501}, row{1, 7, 0, 300})
		d.take(a.of(9), b.of(8), c.of(7)).is(1, 0, row{1, 0, 0, 1000}, row{1, 0, 0, 1901}, row{1, 0, 0, 1000})
		d.take(a.of(1), b.of(1), c.of(1)).is(0, 1001, row{0, 0, 1000, 1000}, row{0, 0, 1001, 1901}, row{0, 0, 100, 1000})
		d.exact(a.of(1), b.of(1), c.of(1))
	})
	m.vector("fresh peek", "a peek of missing keys tells their whole limits and makes none", func(d *multiDraft) {
		a, b, c := d.log(10, 1000), d.counter(20, 1000), d.bucket(30, 1, 1000)
		d.peek(a.of(1), b.of(0), c.of(30)).is(1, 0, row{1, 10, 0, 0}, row{1, 20, 0, 0}, row{1, 30, 0, 0})
		d.peek(a.of(1), b.of(21), c.of(31)).is(0, -1, row{1, 10, 0, 0}, row{0, 20, -1, 0}, row{0, 30, -1, 0})
	})
	m.vector("sixteen limits", "the most there may be, and the last of them denies", func(d *multiDraft) {
		for i := range int64(15) {
			switch i % 3 {
			case 0:
				d.log(10+i, 1000)
			case 1:
				d.counter(10+i, 1000)
			case 2:
				d.bucket(10+i, 10, 1000)
			}
		}
		d.log(1, 5000)
		d.take(d.each(1)...).ok()
		for range 3 {
			d.after(1 * ms).take(d.each(1)...).denied()
		}
		d.peek(d.each(1)[:15]...).ok()
		d.exact(d.each(1)...)
	})
	for i, name := range []string{"first", "second", "last"} {
		m.vector("the "+name+" one denies", "all or nothing: the others stay as they are, and the reply tells which one denies", func(d *multiDraft) {
			b, c, a := d.counter(10, 1000), d.bucket(10, 10, 1000), d.log(1, 1000)
			charges := slices.Insert([]charge{b.of(2), c.of(3)}, i, a.of(1))
			rows := slices.Insert([]row{{1, 10, 0, 0}, {1, 10, 0, 0}}, i, row{0, 0, 1000, 1000})
			a.take(1).is(1, 0, 0, 1000)
			d.take(charges...).is(0, 1000, rows...)
			d.peek(charges...).is(0, 1000, rows...)
			d.exact(charges...)
			d.peek(b.of(8), c.of(7)).ok()
		})
	}
	m.vector("one exhausted, one free", "ten denied tries leave the free one as it is", func(d *multiDraft) {
		a, b := d.log(2, 1000), d.log(10, 1000)
		d.take(a.of(2), b.of(2)).is(1, 0, row{1, 0, 0, 1000}, row{1, 8, 0, 1000})
		for range 10 {
			d.take(a.of(1), b.of(1)).is(0, 1000, row{0, 0, 1000, 1000}, row{1, 8, 0, 1000})
		}
		for range 10 {
			d.take(b.of(1), a.of(1)).is(0, 1000, row{1, 8, 0, 1000}, row{0, 0, 1000, 1000})
		}
		d.take(b.of(8)).is(1, 0, row{1, 0, 0, 1000})
	})
	m.vector("one exhausted, one free, of each algorithm", "a denied call leaves a used state of any algorithm as it is", func(d *multiDraft) {
		a := d.bucket(1, 1, 60_000)
		b, c, e := d.log(10, 1000), d.counter(10, 1000), d.bucket(10, 10, 1000)
		d.take(a.of(1), b.of(4), c.of(4), e.of(4)).ok()
		for range 10 {
			d.take(b.of(1), c.of(1), a.of(1), e.of(1)).is(0, 60_000,
				row{1, 6, 0, 1000}, row{1, 6, 0, 1751}, row{0, 0, 60_000, 60_000}, row{1, 6, 0, 400})
		}
	})
	m.vector("two of three deny", "each that denies is told, with its own wait", func(d *multiDraft) {
		a, b, c := d.log(1, 1000), d.log(5, 1000), d.log(1, 3000)
		d.take(a.of(1), b.of(1), c.of(1)).ok()
		d.take(a.of(1), b.of(1), c.of(1)).is(0, 3000, row{0, 0, 1000, 1000}, row{1, 4, 0, 1000}, row{0, 0, 3000, 3000})
		d.take(c.of(1), b.of(1), a.of(1)).is(0, 3000, row{0, 0, 3000, 3000}, row{1, 4, 0, 1000}, row{0, 0, 1000, 1000})
		d.at(1000*ms).take(a.of(1), b.of(1), c.of(1)).is(0, 2000, row{1, 1, 0, 0}, row{1, 5, 0, 0}, row{0, 0, 2000, 2000})
		d.exact(a.of(1), b.of(1), c.of(1))
	})
	m.vector("cost above a limit", "never is never, whatever the others' waits are, in every order", func(d *multiDraft) {
		a, b, c := d.log(10, 1000), d.log(1, 1000), d.bucket(10, 10, 1000)
		d.take(a.of(11), c.of(1)).is(0, -1, row{0, 10, -1, 0}, row{1, 10, 0, 0})
		d.take(c.of(1), a.of(11)).is(0, -1, row{1, 10, 0, 0}, row{0, 10, -1, 0})
		b.take(1).ok()
		never, wait := row{0, 10, -1, 0}, row{0, 0, 1000, 1000}
		d.take(a.of(11), b.of(1)).is(0, -1, never, wait)
		d.take(b.of(1), a.of(11)).is(0, -1, wait, never)
		d.take(b.of(1), a.of(11), c.of(1)).is(0, -1, wait, never, row{1, 10, 0, 0})
		d.take(a.of(11), b.of(1), c.of(11)).is(0, -1, never, wait, never)
		d.peek(a.of(1_000_000_000), b.of(1)).is(0, -1, never, wait)
		d.at(1000*ms).take(a.of(11), b.of(1)).is(0, -1, never, row{1, 1, 0, 0})
	})
	m.vector("costs of zero", "a call that costs nothing is allowed and makes no key", func(d *multiDraft) {
		d.log(10, 1000)
		d.counter(10, 1000)
		d.bucket(10, 10, 1000)
		d.take(d.each(0)...).is(1, 0, row{1, 10, 0, 0}, row{1, 10, 0, 0}, row{1, 10, 0, 0})
		d.take(d.each(10)...).ok()
		d.take(d.each(0)...).is(1, 0, row{1, 0, 0, 1000}, row{1, 0, 0, 1901}, row{1, 0, 0, 1000})
	})
	m.vector("a cost of zero among others", "a limit that is asked for nothing neither denies nor is charged", func(d *multiDraft) {
		a, b, c := d.log(1, 1000), d.log(10, 1000), d.bucket(1, 1, 1000)
		d.take(a.of(1), b.of(0), c.of(1)).is(1, 0, row{1, 0, 0, 1000}, row{1, 10, 0, 0}, row{1, 0, 0, 1000})
		d.take(a.of(0), b.of(4), c.of(0)).is(1, 0, row{1, 0, 0, 1000}, row{1, 6, 0, 1000}, row{1, 0, 0, 1000})
		d.take(a.of(0), b.of(7), c.of(0)).is(0, 1000, row{1, 0, 0, 1000}, row{0, 6, 1000, 1000}, row{1, 0, 0, 1000})
		d.peek(a.of(0), b.of(6), c.of(1)).is(0, 1000, row{1, 0, 0, 1000}, row{1, 6, 0, 1000}, row{0, 0, 1000, 1000})
	})
	m.vector("peek tells what take would", "verdict and waits of a peek are those of the take; what remains is uncharged", func(d *multiDraft) {
		a, b := d.log(10, 1000), d.bucket(10, 10, 1000)
		d.take(a.of(4), b.of(4)).ok()
		d.peek(a.of(6), b.of(6)).is(1, 0, row{1, 6, 0, 1000}, row{1, 6, 0, 400})
		d.peek(a.of(7), b.of(8)).is(0, 1000, row{0, 6, 1000, 1000}, row{0, 6, 200, 400})
		d.take(a.of(7), b.of(8)).is(0, 1000, row{0, 6, 1000, 1000}, row{0, 6, 200, 400})
		d.peek(a.of(6), b.of(8)).is(0, 200, row{1, 6, 0, 1000}, row{0, 6, 200, 400})
		d.take(a.of(6), b.of(8)).is(0, 200, row{1, 6, 0, 1000}, row{0, 6, 200, 400})
		d.take(a.of(6), b.of(6)).is(1, 0, row{1, 0, 0, 1000}, row{1, 0, 0, 1000})
	})
	m.vector("hammering a closed door", "denied calls lengthen no wait and no expiry", func(d *multiDraft) {
		a, b := d.log(1, 1000), d.counter(10, 1000)
		d.take(a.of(1), b.of(1)).ok()
		d.times(900, 1*ms, "take", a.of(1), b.of(1)).is(0, 100, row{0, 0, 100, 100}, row{1, 9, 0, 101})
		d.exact(a.of(1), b.of(1))
	})
	m.vector("hundred calls in one microsecond", "a stopped clock admits the limit and no more", func(d *multiDraft) {
		a, b, c := d.log(100, 1000), d.counter(150, 1000), d.bucket(101, 101, 1000)
		d.times(100, 0, "take", a.of(1), b.of(1), c.of(1)).is(1, 0, row{1, 0, 0, 1000}, row{1, 50, 0, some}, row{1, 1, 0, some})
		d.times(100, 0, "take", a.of(1), b.of(1), c.of(1)).is(0, 1000, row{0, 0, 1000, 1000}, row{1, 50, 0, some}, row{1, 1, 0, some})
	})
	m.vector("largest arguments", "each range includes its ends", func(d *multiDraft) {
		const units, window = model.MaxUnits, model.MaxWindowMS
		a, b, c := d.log(units, window), d.counter(units, window), d.bucket(units, units, window)
		d.take(d.each(units)...).is(1, 0, row{1, 0, 0, window}, row{1, 0, 0, some}, row{1, 0, 0, window})
		d.peek(a.of(1), b.of(1), c.of(1)).denied()
		d.take(a.of(units), b.of(units), c.of(units)).denied()
	})
	m.vector("smallest arguments", "each range includes its ends", func(d *multiDraft) {
		d.log(1, 1)
		d.counter(1, 1)
		d.bucket(1, 1, 1)
		d.take(d.each(0)...).is(1, 0, row{1, 1, 0, 0}, row{1, 1, 0, 0}, row{1, 1, 0, 0})
		d.take(d.each(1)...).is(1, 0, row{1, 0, 0, 1}, row{1, 0, 0, 2}, row{1, 0, 0, 1})
		d.exact(d.each(1)...)
	})
	m.vector("between two milliseconds", "waits are whole milliseconds from a clock of microseconds", func(d *multiDraft) {
		a, b := d.log(10, 1000), d.bucket(10, 7, 13)
		d.after(1*us).take(a.of(10), b.of(10)).ok()
		d.after(998*us).take(a.of(0), b.of(3)).denied()
		d.exact(a.of(0), b.of(3))
		d.exact(a.of(3), b.of(3))
	})
	m.vector("long and odd", "many takes at an odd pace under odd policies", func(d *multiDraft) {
		a, b, c := d.log(7, 1013), d.counter(11, 1511), d.bucket(5, 3, 911)
		d.times(300, 97_003*us, "take", a.of(1), b.of(1), c.of(1))
		d.exact(a.of(7), b.of(2), c.of(3))
		d.exact(a.of(7), b.of(11), c.of(5))
	})
}

// mixed are calls of several limits and of single ones on the same keys.
func (m *multiMaker) mixed() {
	m.vector("single calls in between", "the single scripts share the states", func(d *multiDraft) {
		a, b, c := d.log(10, 1000), d.bucket(10, 10, 1000), d.counter(10, 1000)
		a.take(3).is(1, 7, 0, 1000)
		d.take(a.of(2), b.of(2), c.of(2)).is(1, 0, row{1, 5, 0, 1000}, row{1, 8, 0, 200}, row{1, 8, 0, 1501})
		b.take(3).is(1, 5, 0, 500)
		c.take(3).is(1, 5, 0, 1801)
		a.peek(6).is(0, 5, 1000, 1000)
		d.take(a.of(5), b.of(5), c.of(5)).is(1, 0, row{1, 0, 0, 1000}, row{1, 0, 0, 1000}, row{1, 0, 0, 1901})
		a.take(1).denied()
		b.take(1).is(0, 0, 100, 1000)
		c.take(1).is(0, 0, 1001, 1901)
	})
	m.vector("settle one up", "the debt of one limit denies all until it is waited out", func(d *multiDraft) {
		a, b := d.log(10, 1000), d.bucket(10, 10, 1000)
		r := d.take(a.of(4), b.of(4)).is(1, 0, row{1, 6, 0, 1000}, row{1, 6, 0, 400})
		a.settle(10, r.step).is(1, 0, 0, 1000)
		d.take(a.of(1), b.of(1)).is(0, 1000, row{0, 0, 1000, 1000}, row{1, 6, 0, 400})
		b.settle(12, r.step).is(1, 0, 0, 1600)
		d.take(a.of(1), b.of(1)).is(0, 1000, row{0, 0, 1000, 1000}, row{0, 0, 700, 1600})
		d.take(a.of(0), b.of(1)).is(0, 700, row{1, 0, 0, 1000}, row{0, 0, 700, 1600})
		d.take(a.of(0), b.of(0)).is(1, 0, row{1, 0, 0, 1000}, row{1, 0, 0, 1600})
		d.exact(a.of(1), b.of(1))
		d.exact(a.of(10), b.of(10))
	})
	m.vector("a debt of every algorithm", "waits out of debts of three kinds at once are exact", func(d *multiDraft) {
		a, b, c := d.log(10, 1000), d.counter(10, 1000), d.bucket(10, 10, 1000)
		r := d.take(a.of(2), b.of(2), c.of(2)).ok()
		for _, k := range d.keys {
			k.settle(13, r.step).is(1, 0, 0, some)
		}
		d.peek(a.of(1), b.of(1), c.of(1)).is(0, 1334, row{0, 0, 1000, 1000}, row{0, 0, 1334, 1934}, row{0, 0, 600, 1500})
		d.exact(a.of(1), b.of(1), c.of(1))
		d.exact(a.of(10), b.of(10), c.of(10))
	})
	m.vector("settle one down", "what one limit is given back lets all in when no other denies", func(d *multiDraft) {
		a, b := d.log(10, 1000), d.bucket(10, 10, 1000)
		r := d.take(a.of(10), b.of(10)).ok()
		d.take(a.of(5), b.of(5)).is(0, 1000, row{0, 0, 1000, 1000}, row{0, 0, 500, 1000})
		a.settle(-5, r.step).is(1, 5, 0, 1000)
		d.take(a.of(5), b.of(5)).is(0, 500, row{1, 5, 0, 1000}, row{0, 0, 500, 1000})
		b.settle(-5, r.step).is(1, 5, 0, 500)
		d.take(a.of(5), b.of(5)).is(1, 0, row{1, 0, 0, 1000}, row{1, 0, 0, 1000})
	})
	m.vector("settle down after the window", "the last number of a reply is the receipt of all its charges, and worth nothing once they have left", func(d *multiDraft) {
		a, b, c := d.log(10, 1000), d.counter(10, 1000), d.bucket(10, 10, 1000)
		r := d.take(a.of(5), b.of(5), c.of(5)).ok()
		d.at(2000*ms).take(a.of(10), b.of(10), c.of(10)).ok()
		a.settle(-5, r.step).is(1, 0, 0, 1000)
		b.settle(-5, r.step).is(1, 0, 0, 1901)
		c.settle(-5, r.step).is(1, 0, 0, 1000)
	})
	m.vector("settle down all of one", "a limit that is given everything back has no key, and the other keeps its own", func(d *multiDraft) {
		a, b := d.counter(10, 1000), d.log(10, 1000)
		r := d.take(a.of(6), b.of(6)).ok()
		a.settle(-6, r.step).is(1, 10, 0, 0)
		d.take(a.of(5), b.of(5)).is(0, 1000, row{1, 10, 0, 0}, row{0, 4, 1000, 1000})
		d.take(a.of(4), b.of(4)).is(1, 0, row{1, 6, 0, 1751}, row{1, 0, 0, 1000})
	})
	m.vector("settle without a receipt", "the oldest units go first, whichever call charged them", func(d *multiDraft) {
		a, b := d.log(10, 1000), d.log(10, 1000)
		d.take(a.of(3), b.of(3)).ok()
		d.at(300*ms).take(a.of(3), b.of(3)).ok()
		a.settleAny(-4).is(1, 8, 0, 1000)
		d.peek(a.of(9), b.of(5)).is(0, 1000, row{0, 8, 1000, 1000}, row{0, 4, 700, 1000})
	})
	m.vector("the deepest debt", "a bucket's debt ends at one capacity, and the others do not change that", func(d *multiDraft) {
		a, b := d.bucket(10, 10, 1000), d.log(10, 1000)
		a.settleAny(1_000_000_000).is(1, 0, 0, 2000)
		d.take(a.of(10), b.of(1)).is(0, 2000, row{0, 0, 2000, 2000}, row{1, 10, 0, 0})
		d.exact(a.of(10), b.of(1))
	})
}

// clocks are steps of the clock, and states whose time has come.
func (m *multiMaker) clocks() {
	m.vector("clock back by a microsecond", "time stands still for all: nothing is admitted twice", func(d *multiDraft) {
		a, b, c := d.log(10, 1000), d.counter(10, 1000), d.bucket(10, 10, 1000)
		d.after(1 * us).take(d.each(10)...).ok()
		d.after(-1 * us).take(d.each(1)...).denied()
		d.exact(a.of(10), b.of(10), c.of(10))
	})
	m.vector("one in the future", "time stands still for the limit whose state is from the future, and runs for the other", func(d *multiDraft) {
		a, b := d.log(10, 1000), d.log(10, 1000)
		d.at(500 * ms)
		a.take(4).is(1, 6, 0, 1000)
		d.at(200*ms).take(a.of(6), b.of(6)).is(1, 0, row{1, 0, 0, 1300}, row{1, 4, 0, 1000})
		d.take(a.of(1), b.of(1)).is(0, 1300, row{0, 0, 1300, 1300}, row{1, 4, 0, 1000})
		d.exact(a.of(1), b.of(1))
	})
	m.vector("one bucket in the future", "the fill time of a bucket counts from where it stands", func(d *multiDraft) {
		a, b := d.bucket(10, 10, 1000), d.bucket(10, 10, 1000)
		d.at(500 * ms)
		a.take(10).is(1, 0, 0, 1000)
		d.at(200*ms).take(a.of(1), b.of(1)).is(0, 400, row{0, 0, 400, 1300}, row{1, 10, 0, 0})
		d.exact(a.of(1), b.of(1))
	})
	m.vector("one counter in the future", "a counter stands still in its own window", func(d *multiDraft) {
		a, b := d.counter(10, 1000), d.counter(10, 1000)
		d.at(1300 * ms)
		a.take(4).is(1, 6, 0, some)
		d.at(900*ms).take(a.of(6), b.of(6)).is(1, 0, row{1, 0, 0, some}, row{1, 4, 0, some})
		d.exact(a.of(5), b.of(5))
	})
	m.vector("one stands still, the other is discarded", "how far time may stand still is each policy's own window", func(d *multiDraft) {
		a, b := d.log(10, 100), d.log(10, 1000)
		d.at(500*ms).take(a.of(10), b.of(10)).ok()
		d.at(200*ms).take(a.of(1), b.of(1)).is(0, 1300, row{1, 10, 0, 0}, row{0, 0, 1300, 1300})
		d.take(a.of(10), b.of(0)).is(1, 0, row{1, 0, 0, 100}, row{1, 0, 0, 1300})
		d.exact(a.of(1), b.of(1))
	})
	m.vector("clock back by a year", "states from the far future are discarded", func(d *multiDraft) {
		d.log(10, 1000)
		d.counter(10, 1000)
		d.bucket(10, 10, 1000)
		d.take(d.each(10)...).ok()
		d.after(-365*day).peek(d.each(10)...).is(1, 0, row{1, 10, 0, 0}, row{1, 10, 0, 0}, row{1, 10, 0, 0})
		d.take(d.each(10)...).ok()
		d.take(d.each(1)...).denied()
	})
	m.vector("discarded only while it is in the future", "the wait is that of the limits that deny now; a state that is discarded now counts again once its time has come", func(d *multiDraft) {
		a, b := d.log(10, 1000), d.log(1, 4500)
		b.take(1).ok()
		d.at(5000 * ms)
		a.take(10).ok()
		d.at(100*ms).take(a.of(10), b.of(1)).is(0, 4400, row{1, 10, 0, 0}, row{0, 0, 4400, 4400})
		d.at(4500*ms).take(a.of(10), b.of(1)).is(0, 1500, row{0, 0, 1500, 1500}, row{1, 1, 0, 0})
		d.exact(a.of(10), b.of(1))
	})
	m.vector("states whose time has come", "a state that has run out reads as nothing used though its key is still there", func(d *multiDraft) {
		a, b, c := d.log(10, 1000), d.counter(10, 1000), d.bucket(10, 10, 1000)
		d.take(d.each(10)...).ok()
		a.outside("PERSIST")
		b.outside("PERSIST")
		d.at(1999*ms).peek(a.of(10), b.of(10), c.of(10)).ok()
		d.at(2000*ms).peek(d.each(10)...).is(1, 0, row{1, 10, 0, 0}, row{1, 10, 0, 0}, row{1, 10, 0, 0})
		d.take(d.each(10)...).is(1, 0, row{1, 0, 0, 1000}, row{1, 0, 0, 1901}, row{1, 0, 0, 1000})
		d.take(d.each(1)...).denied()
	})
	m.vector("one key is lost", "a lost key is one fresh window of its own limit, and no more", func(d *multiDraft) {
		a, b := d.log(10, 1000), d.bucket(20, 20, 1000)
		d.take(a.of(10), b.of(10)).ok()
		a.outside("DEL")
		d.take(a.of(10), b.of(11)).is(0, 50, row{1, 10, 0, 0}, row{0, 10, 50, 500})
		d.take(a.of(10), b.of(10)).is(1, 0, row{1, 0, 0, 1000}, row{1, 0, 0, 1000})
	})
	m.vector("a gap in the middle", "each limit recovers at its own pace", func(d *multiDraft) {
		a, b, c := d.log(10, 1000), d.counter(10, 1000), d.bucket(10, 5, 1000)
		d.take(d.each(10)...).ok()
		d.at(1000*ms).peek(a.of(10), b.of(1), c.of(6)).is(0, 200, row{1, 10, 0, 0}, row{0, 0, 1, 901}, row{0, 5, 200, 1000})
		d.exact(a.of(10), b.of(1), c.of(6))
		d.after(365 * day).take(d.each(10)...).ok()
	})
}

// changed are changes of policies on live keys.
func (m *multiMaker) changed() {
	m.vector("one limit raised", "a higher limit of one frees the difference there, and the other still denies", func(d *multiDraft) {
		a, b := d.log(10, 1000), d.counter(10, 1000)
		d.take(a.of(10), b.of(10)).ok()
		a.policy(20, 1000)
		d.take(a.of(10), b.of(10)).is(0, 1901, row{1, 10, 0, 1000}, row{0, 0, 1901, 1901})
		b.policy(20, 1000)
		d.take(a.of(10), b.of(10)).is(1, 0, row{1, 0, 0, 1000}, row{1, 0, 0, 1951})
	})
	m.vector("one limit lowered", "a lower limit of one denies all until its usage is below it", func(d *multiDraft) {
		a, b := d.log(10, 1000), d.bucket(20, 20, 1000)
		d.take(a.of(6), b.of(6)).ok()
		a.policy(5, 1000)
		d.take(a.of(1), b.of(1)).is(0, 1000, row{0, 0, 1000, 1000}, row{1, 14, 0, 300})
		d.take(a.of(6), b.of(1)).is(0, -1, row{0, 0, -1, 1000}, row{1, 14, 0, 300})
		d.exact(a.of(5), b.of(20))
	})
	m.vector("one window changed", "usage is carried over by the algorithm of each", func(d *multiDraft) {
		a, b, c := d.log(10, 1000), d.counter(10, 1000), d.bucket(10, 10, 1000)
		d.take(d.each(10)...).ok()
		b.policy(10, 60_000)
		d.at(500*ms).take(a.of(1), b.of(1), c.of(1)).denied()
		c.tokens(10, 10, 3000)
		d.take(a.of(0), b.of(0), c.of(9)).denied()
		a.policy(10, 100)
		d.peek(a.of(10), b.of(0), c.of(1)).is(1, 0, row{1, 10, 0, 0}, row{1, 0, 0, 1500}, row{1, 1, 0, 1500})
		d.exact(a.of(10), b.of(1), c.of(5))
	})
}

// uses are the arrangements that people make.
func (m *multiMaker) uses() {
	m.vector("twenty at once, a hundred a minute", "a bucket in front of a log: it limits bursts, the log their sum", func(d *multiDraft) {
		burst, sum := d.bucket(20, 20, 1000), d.log(100, 60_000)
		one := []charge{burst.of(1), sum.of(1)}
		for i := range int64(4) {
			d.at(i * sec).take(one...).ok()
			d.times(19, 0, "take", one...).is(1, 0, row{1, 0, 0, 1000}, row{1, 80 - 20*i, 0, 60_000})
			d.take(one...).is(0, 50, row{0, 0, 50, 1000}, row{1, 80 - 20*i, 0, 60_000})
		}
		d.at(4 * sec).take(one...).ok()
		d.times(19, 0, "take", one...).ok()
		d.take(one...).is(0, 56_000, row{0, 0, 50, 1000}, row{0, 0, 56_000, 60_000})
		d.at(5*sec).take(one...).is(0, 55_000, row{1, 20, 0, 0}, row{0, 0, 55_000, 59_000})
		d.exact(one...)
	})
	m.vector("a small bucket at the log's rate", "a bucket that refills at the rate of the window behind it", func(d *multiDraft) {
		burst, sum := d.bucket(20, 100, 60_000), d.log(100, 60_000)
		one := []charge{burst.of(1), sum.of(1)}
		d.times(20, 0, "take", one...).is(1, 0, row{1, 0, 0, 12_000}, row{1, 80, 0, 60_000})
		d.take(one...).is(0, 600, row{0, 0, 600, 12_000}, row{1, 80, 0, 60_000})
		d.times(80, 600*ms, "take", one...).is(1, 0, row{1, 0, 0, 12_000}, row{1, 0, 0, 60_000})
		d.after(600*ms).take(one...).is(0, 11_400, row{1, 1, 0, 11_400}, row{0, 0, 11_400, 59_400})
		d.exact(one...)
	})
	m.vector("per user and per route", "one limit in calls with different others", func(d *multiDraft) {
		user, read, write := d.log(3, 1000), d.bucket(10, 10, 1000), d.counter(1, 1000)
		d.take(user.of(1), read.of(1)).is(1, 0, row{1, 2, 0, 1000}, row{1, 9, 0, 100})
		d.take(user.of(1), write.of(1)).is(1, 0, row{1, 1, 0, 1000}, row{1, 0, 0, 1001})
		d.take(user.of(1), write.of(1)).is(0, 1001, row{1, 1, 0, 1000}, row{0, 0, 1001, 1001})
		d.take(user.of(1), read.of(1)).is(1, 0, row{1, 0, 0, 1000}, row{1, 8, 0, 200})
		d.take(user.of(1), read.of(1)).is(0, 1000, row{0, 0, 1000, 1000}, row{1, 8, 0, 200})
		d.exact(write.of(1), user.of(1))
	})
	m.vector("the same in another order", "the numbers are in the order of the keys", func(d *multiDraft) {
		a, b := d.log(10, 1000), d.bucket(20, 20, 1000)
		d.take(a.of(1), b.of(2)).is(1, 0, row{1, 9, 0, 1000}, row{1, 18, 0, 100})
		d.take(b.of(2), a.of(1)).is(1, 0, row{1, 16, 0, 200}, row{1, 8, 0, 1000})
		d.peek(b.of(17), a.of(1)).is(0, 50, row{0, 16, 50, 200}, row{1, 8, 0, 1000})
	})
	m.vector("two logs", "the same algorithm twice, under different windows", func(d *multiDraft) {
		a, b := d.log(5, 1000), d.log(8, 60_000)
		d.take(a.of(5), b.of(5)).is(1, 0, row{1, 0, 0, 1000}, row{1, 3, 0, 60_000})
		d.at(1*sec).take(a.of(5), b.of(5)).is(0, 59_000, row{1, 5, 0, 0}, row{0, 3, 59_000, 59_000})
		d.take(a.of(3), b.of(3)).is(1, 0, row{1, 2, 0, 1000}, row{1, 0, 0, 60_000})
		d.exact(a.of(5), b.of(5))
	})
	m.vector("two counters", "the same algorithm twice, under different windows", func(d *multiDraft) {
		a, b := d.counter(5, 1000), d.counter(8, 60_000)
		d.take(a.of(5), b.of(5)).is(1, 0, row{1, 0, 0, 1801}, row{1, 3, 0, 108_001})
		d.at(1500*ms).take(a.of(3), b.of(3)).is(1, 0, row{1, 0, 0, some}, row{1, 0, 0, some})
		d.exact(a.of(1), b.of(1))
	})
	m.vector("two buckets", "the same algorithm twice, at different rates", func(d *multiDraft) {
		a, b := d.bucket(5, 5, 1000), d.bucket(8, 8, 60_000)
		d.take(a.of(5), b.of(5)).is(1, 0, row{1, 0, 0, 1000}, row{1, 3, 0, 37_500})
		d.at(1*sec).take(a.of(5), b.of(5)).is(0, 14_000, row{1, 5, 0, 0}, row{0, 3, 14_000, 36_500})
		d.take(a.of(3), b.of(3)).is(1, 0, row{1, 2, 0, 600}, row{1, 0, 0, 59_000})
		d.exact(a.of(5), b.of(5))
	})
	m.vector("a fraction is kept over denied calls", "calls that another limit denies neither lose nor gain a part of a token", func(d *multiDraft) {
		a, b := d.bucket(10, 1, 1000), d.log(10, 700)
		d.take(a.of(10), b.of(10)).ok()
		d.times(999, 1*ms, "take", a.of(1), b.of(1)).is(0, 1, row{0, 0, 1, 9001}, row{1, 10, 0, 0})
		d.after(1*ms).take(a.of(1), b.of(1)).is(1, 0, row{1, 0, 0, 10_000}, row{1, 9, 0, 700})
	})
}

// refused are the calls that are refused for their arguments: on used keys, which stay as they are, and most of them
// on missing ones too, which stay missing.
func (m *multiMaker) refused() {
	on := func(missing bool) func(name, pins string, refused func(d *multiDraft)) {
		return func(name, pins string, refused func(d *multiDraft)) {
			m.vector("refused: "+name, pins, func(d *multiDraft) {
				d.log(10, 1000)
				d.counter(10, 1000)
				d.bucket(10, 10, 1000)
				if missing {
					refused(d)
				}
				d.take(d.each(4)...).ok()
				d.after(1 * ms)
				refused(d)
				d.peek(d.each(10)...).denied()
			})
		}
	}
	onUsed, onBoth := on(false), on(true)
	// refuse changes an argument of the second limit, which is of each algorithm in turn.
	refuse := func(d *multiDraft, texts []string, applies func(name string) bool) {
		for i, k := range d.keys {
			other := d.keys[(i+1)%len(d.keys)]
			names := argumentNames(k.kind)
			for n, name := range names[1 : len(names)-1] {
				for _, text := range texts {
					if !applies(name) {
						continue
					}
					step := multiStep("take", []charge{other.of(1), k.of(1)})
					step.Args[len(step.Args)-len(k.of(1).multiArgs())+1+n] = text
					d.fails(argCode+" "+name+" of limit 2", step.Keys, step.Args)
				}
			}
		}
	}
	every := func(string) bool { return true }
	duration := func(name string) bool { return strings.HasSuffix(name, "_ms") }
	units := func(name string) bool { return !duration(name) }
	for _, s := range shapes {
		onUsed(s.name, fmt.Sprintf("%q and the like in every place of a number", s.texts[0]), func(d *multiDraft) {
			refuse(d, s.texts, every)
		})
	}
	onUsed("minus sign", "no number may be negative", func(d *multiDraft) {
		refuse(d, []string{"-1", "-0", "-1000000000"}, every)
	})
	onBoth("zero", "a limit, refill or window of 0", func(d *multiDraft) {
		refuse(d, []string{"0"}, func(name string) bool { return name != "cost" })
	})
	onBoth("one above the range", "each range ends where it says", func(d *multiDraft) {
		refuse(d, []string{"1000000001"}, units)
		refuse(d, []string{"31622400001"}, duration)
	})
	onUsed("2^31", "no wrapping at 32 bits", func(d *multiDraft) {
		refuse(d, []string{"2147483648", "4294967297"}, units)
	})
	onUsed("2^53 and 2^64", "no wrapping, and no rounding into something else", func(d *multiDraft) {
		refuse(d, []string{"100000000000", "9007199254740993", "18446744073709551617", strings.Repeat("9", 400)}, every)
	})
	onBoth("an argument of another limit", "an error names the limit that it is about, the first one of several", func(d *multiDraft) {
		a, b, c := d.keys[0], d.keys[1], d.keys[2]
		call := multiStep("peek", []charge{a.of(1), b.of(1), c.of(1)})
		for _, bad := range []struct {
			places []int
			words  string
		}{
			{[]int{2}, "cost of limit 1"},
			{[]int{3}, "limit of limit 1"},
			{[]int{4}, "window_ms of limit 1"},
			{[]int{8}, "window_ms of limit 2"},
			{[]int{11}, "capacity of limit 3"},
			{[]int{13}, "period_ms of limit 3"},
			{[]int{6, 10}, "cost of limit 2"},
			{[]int{4, 5}, "window_ms of limit 1"},
			{[]int{5, 6}, "algorithm of limit 2"},
		} {
			args := slices.Clone(call.Args)
			for _, place := range bad.places {
				args[place] = "x"
			}
			d.fails(argCode+" "+bad.words, call.Keys, args)
		}
	})
	onBoth("unknown algorithm", "the scripts' names, to the letter", func(d *multiDraft) {
		for _, text := range []string{"", "log", "bucket", "SLIDING_LOG", "sliding_log ", " token_bucket", "sliding_counter\x00", "multi", "take", "1"} {
			for i, place := range []int{1, 5, 9} {
				call := multiStep("take", d.each(1))
				call.Args[place] = text
				d.fails(fmt.Sprintf("%s algorithm of limit %d", argCode, i+1), call.Keys, call.Args)
			}
		}
	})
	onBoth("unknown operation", "take and peek, to the letter; a charge is settled with its single script", func(d *multiDraft) {
		for _, text := range []string{"settle", "", "TAKE", "Peek", " take", "take ", "take\n", "peek\x00", "taken", "1"} {
			call := multiStep(text, d.each(1))
			d.fails(argCode+" operation", call.Keys, call.Args)
		}
	})
	onBoth("no key", "one key at least", func(d *multiDraft) {
		call := multiStep("take", d.each(1))
		d.fails(argCode+" KEYS", []string{NoKey}, call.Args)
		d.fails(argCode+" KEYS", []string{NoKey}, []string{"peek"})
	})
	onBoth("a key twice", "one state can't be decided twice in one call", func(d *multiDraft) {
		a, b, c := d.keys[0], d.keys[1], d.keys[2]
		for _, charges := range [][]charge{
			{a.of(1), a.of(1)}, {a.of(1), b.of(1), a.of(1)}, {a.of(1), b.of(1), c.of(1), c.of(1)}, {c.of(0), c.of(0), b.of(1)},
		} {
			for _, op := range []string{"take", "peek"} {
				call := multiStep(op, charges)
				d.fails(argCode+" KEYS", call.Keys, call.Args)
			}
		}
	})
	m.vector("refused: seventeen keys", "sixteen keys at most", func(d *multiDraft) {
		for range 17 {
			d.log(10, 1000)
		}
		for _, op := range []string{"take", "peek"} {
			call := multiStep(op, d.each(1))
			d.fails(argCode+" KEYS", call.Keys, call.Args)
		}
		d.take(d.each(1)[1:]...).ok()
		call := multiStep("take", d.each(1))
		d.fails(argCode+" KEYS", call.Keys, call.Args)
	})
	onBoth("too few arguments", "every argument of every limit is required", func(d *multiDraft) {
		call := multiStep("take", d.each(1))
		for n := 1; n < len(call.Args); n++ {
			d.fails(argCode+" ARGV", call.Keys, call.Args[:n])
		}
		d.fails(argCode+" operation", call.Keys, []string{})
	})
	onBoth("too many arguments", "one more is as wrong as one less", func(d *multiDraft) {
		call := multiStep("take", d.each(1))
		for _, more := range [][]string{{"0"}, {""}, {"sliding_log"}, {"sliding_log", "1", "10", "1000"}} {
			d.fails(argCode+" ARGV", call.Keys, slices.Concat(call.Args, more))
		}
		d.fails(argCode+" ARGV", call.Keys[:2], call.Args)
	})
	onBoth("a bucket that takes too long to fill", "the error names the limit, and the others stay as they are", func(d *multiDraft) {
		a, b := d.keys[0], d.keys[1]
		for _, op := range []string{"take", "peek"} {
			for _, cost := range []string{"0", "1", "3"} {
				call := multiStep(op, []charge{a.of(1), b.of(1)})
				args := slices.Concat(call.Args[:5], []string{"token_bucket", cost, "2", "1", "31622400000"})
				d.fails(argCode+" period_ms of limit 2", []string{a.name, d.keys[2].name}, args)
				args = slices.Concat(args[:1], args[5:], args[1:5])
				d.fails(argCode+" period_ms of limit 1", []string{d.keys[2].name, a.name}, args)
			}
		}
	})
}

// foreign are states that are not ours among others that are: an error that names the key, and nothing is touched.
func (m *multiMaker) foreign() {
	for _, s := range foreignStates(Key + ":2") {
		m.vector("foreign: "+s.name, "a state that is not ours is an error, and the other limits are not charged", func(d *multiDraft) {
			d.vector.Setup = s.setup
			a, x, c := d.log(10, 1000), d.counter(10, 1000), d.bucket(10, 10, 1000)
			x.foreign = true
			refused := func() {
				for _, kind := range []model.Kind{model.Log, model.Counter, model.Bucket} {
					x.kind = kind
					x.policy(10, 1000)
					for i, charges := range [][]charge{{x.of(1), c.of(1), a.of(1)}, {a.of(1), x.of(1), c.of(1)}, {a.of(11), c.of(1), x.of(1)}} {
						call := multiStep("take", charges)
						d.fails(fmt.Sprintf("%s KEYS[%d]", stateCode, i+1), call.Keys, call.Args)
					}
					for _, cost := range []int64{0, 11} {
						call := multiStep("peek", []charge{a.of(1), x.of(cost), c.of(1)})
						d.fails(stateCode+" KEYS[2]", call.Keys, call.Args)
					}
				}
			}
			refused()
			d.take(a.of(4), c.of(4)).ok()
			refused()
			d.take(a.of(6), c.of(6)).ok()
		})
	}
	m.vector("foreign: another algorithm's", "a state is read by the algorithm that wrote it alone", func(d *multiDraft) {
		keys := []*key{d.log(10, 1000), d.counter(10, 1000), d.bucket(10, 10, 1000)} // 0 + 1 + 2 = 3
		d.take(d.each(4)...).ok()
		for i, state := range keys {
			for j, reader := range keys {
				if i != j {
					call := multiStep("take", []charge{keys[3-i-j].of(1), reader.of(1)})
					call.Keys[1] = state.name
					d.fails(stateCode+" KEYS[2]", call.Keys, call.Args)
				}
			}
		}
		d.take(d.each(6)...).ok()
	})
}
