package vectors

import "github.com/sluicego/sluice/conformance/model"

// log are the situations of the sliding log alone.
func (m *maker) log() {
	m.vector("boundary burst", "the limit just before an aligned edge and again just after it: the limit in all", func(d *draft) {
		d.at(999*ms).take(10).is(1, 0, 0, 1000)
		d.at(1001*ms).take(1).is(0, 0, 998, 998)
		d.times(9, 0, "take", 1).is(0, 0, 998, 998)
		d.at(1999*ms-1*us).take(10).is(0, 0, 1, 1)
		d.at(1999*ms).take(10).is(1, 0, 0, 1000)
	})
	m.vector("recovery as the window slides", "each entry frees its units exactly one window after it", func(d *draft) {
		for i := range int64(10) {
			d.at(i*100*ms).take(1).is(1, 9-i, 0, 1000)
		}
		d.at(999*ms).take(1).is(0, 0, 1, 901)
		for i := range int64(10) {
			d.at(1000*ms+i*100*ms).take(1).is(1, 0, 0, 1000)
			d.take(1).is(0, 0, 100, 1000)
		}
	})
	m.vector("what was forgotten stays forgotten", "more entries than one call clears away, and then a longer window", func(d *draft) {
		d.policy(1000, 1000)
		d.at(0).take(1).ok()
		for i := range int64(250) {
			d.at(900*ms + i*us).take(1).ok()
		}
		d.at(1100*ms).take(1).is(1, 749, 0, 1000)
		d.at(1950*ms).take(1).is(1, 998, 0, 1000)
		d.policy(1000, 60_000)
		d.peek(1).is(1, 998, 0, some)
	})
	m.vector("an entry leaves after exactly one window", "an entry at t counts in (now - window, now]", func(d *draft) {
		d.after(7*us).take(10).is(1, 0, 0, 1000)
		d.after(1*sec-1*us).peek(10).is(0, 0, 1, 1)
		d.after(1*us).peek(10).is(1, 10, 0, 0)
	})
	m.vector("several entries must leave", "a cost of 6 waits for the entry whose leaving frees enough", func(d *draft) {
		d.at(0).take(2).is(1, 8, 0, 1000)
		d.at(100*ms).take(3).is(1, 5, 0, 1000)
		d.at(250*ms).take(1).is(1, 4, 0, 1000)
		d.at(400*ms).take(4).is(1, 0, 0, 1000)
		d.peek(1).is(0, 0, 600, 1000)
		d.peek(2).is(0, 0, 600, 1000)
		d.peek(3).is(0, 0, 700, 1000)
		d.peek(5).is(0, 0, 700, 1000)
		d.peek(6).is(0, 0, 850, 1000)
		d.peek(7).is(0, 0, 1000, 1000)
		d.peek(10).is(0, 0, 1000, 1000)
		d.exact(6)
	})
	m.vector("entries of one microsecond", "charges at one time stay apart and add up", func(d *draft) {
		d.take(1).ok()
		d.take(2).ok()
		d.take(1).ok()
		d.take(2).is(1, 4, 0, 1000)
		d.after(1*us).take(4).is(1, 0, 0, 1000)
		d.after(1*sec-1*us).take(6).is(1, 0, 0, 1000)
	})
	m.vector("many entries of one microsecond", "three hundred charges at one time, given back one by one", func(d *draft) {
		d.policy(300, 1000)
		d.times(300, 0, "take", 1).is(1, 0, 0, 1000)
		d.take(1).is(0, 0, 1000, 1000)
		d.times(299, 0, "settle", -1).is(1, 299, 0, 1000)
		d.settleAny(-1, 0).is(1, 300, 0, 0)
	})
	m.vector("refund of the oldest", "units are given back from the oldest entry on", func(d *draft) {
		d.at(0).take(3).ok()
		d.at(300 * ms).take(3).ok()
		a := d.at(600*ms).take(4).is(1, 0, 0, 1000)
		d.settle(-4, a).is(1, 4, 0, 1000)
		d.peek(5).is(0, 4, 700, 1000)
		d.peek(6).is(0, 4, 700, 1000)
		d.peek(7).is(0, 4, 1000, 1000)
		d.at(1000*ms).peek(5).is(0, 4, 300, 600)
		d.at(1300*ms).peek(6).is(1, 6, 0, 300)
	})
	m.vector("refund of part of an entry", "an entry that is given back in part leaves with the rest", func(d *draft) {
		d.at(0).take(5).ok()
		d.at(500 * ms).take(5).ok()
		d.settleAny(-2, 0).is(1, 2, 0, 1000)
		d.settleAny(-1, 0).is(1, 3, 0, 1000)
		d.take(3).is(1, 0, 0, 1000)
		d.peek(3).is(0, 0, 1000-500+500, 1000)
		d.at(1000*ms).peek(2).is(1, 2, 0, 500)
		d.peek(3).is(0, 2, 500, 500)
	})
	m.vector("refund across several entries", "a refund may take whole entries and a part of the next", func(d *draft) {
		for i := range int64(5) {
			d.at(i * 100 * ms).take(2).ok()
		}
		d.settleAny(-7, 0).is(1, 7, 0, 1000)
		d.peek(8).is(0, 7, 900, 1000)
		d.peek(9).is(0, 7, 1000, 1000)
		d.settleAny(-3, 0).is(1, 10, 0, 0)
	})
	m.vector("refund only of what counts", "expired units can't be given back", func(d *draft) {
		d.at(0).take(6).ok()
		d.at(700 * ms).take(4).ok()
		d.at(1100*ms).settleAny(-2, 0).is(1, 8, 0, 600)
		d.settleAny(-9, 0).is(1, 10, 0, 0)
	})
	m.vector("refund within, across and after", "the receipt's own window decides, to the microsecond", func(d *draft) {
		a := d.take(4).ok()
		b := d.at(600 * ms).take(4).ok()
		d.at(999*ms+999*us).settle(-1, a).is(1, 3, 0, 601)
		d.at(1000*ms).settle(-1, a).is(1, 6, 0, 600)
		d.settle(-1, b).is(1, 7, 0, 600)
		d.at(1600*ms).settle(-1, b).is(1, 10, 0, 0)
	})
	m.vector("debt of many entries", "a debt is waited out entry by entry", func(d *draft) {
		for i := range int64(5) {
			d.at(i*100*ms).settleAny(4, 0).ok()
		}
		d.peek(1).is(0, 0, 800, 1000)
		d.peek(3).is(0, 0, 900, 1000)
		d.peek(10).is(0, 0, 1000, 1000)
		d.exact(2)
		d.exact(1)
	})
	m.vector("a shorter window forgets", "what a shorter window does not count is gone once that window wrote", func(d *draft) {
		d.at(0).take(4).ok()
		d.at(500 * ms).take(3).ok()
		d.policy(10, 300)
		d.peek(7).is(1, 7, 0, 300)
		d.policy(10, 1000)
		d.peek(7).is(0, 3, 500, 1000)
		d.policy(10, 300)
		d.take(1).is(1, 6, 0, 300)
		d.policy(10, 1000)
		d.peek(7).is(0, 6, 600, 600)
	})
	m.vector("a longer window sees what is kept", "entries that were kept count again under a longer window", func(d *draft) {
		d.take(8).ok()
		d.at(1500*ms).peek(10).is(1, 10, 0, 0)
		d.policy(10, 3000)
		d.peek(3).is(0, 2, 500, 500)
		d.take(2).is(1, 0, 0, 3000)
		d.at(2999*ms).take(9).is(0, 0, 1501, 1501)
		d.at(3000*ms).take(8).is(1, 0, 0, 3000)
	})
	m.vector("thousands of entries expire at once", "what expired stays forgotten, however slowly it is swept away", func(d *draft) {
		d.policy(10_000, 1000)
		d.times(2500, 1*us, "take", 1).is(1, 7500, 0, 1000)
		d.at(900*ms).take(10).is(1, 7490, 0, 1000)
		d.at(1500*ms).peek(10_000).is(0, 9990, 400, 400)
		d.take(3).is(1, 9987, 0, 1000)
		d.policy(10_000, 100_000)
		d.peek(9988).is(0, 9987, 0+d.state.Until()-d.now/1000, d.state.Until()-d.now/1000)
		d.policy(10_000, 1000)
		for range 6 {
			d.take(1).ok()
		}
		d.settleAny(-11, 0).is(1, 9992, 0, 1000)
		d.peek(9993).is(0, 9992, 1000, 1000)
		d.policy(10_000, 100_000)
		d.peek(9993).denied()
	})
	m.vector("a wholly expired log is refilled", "entries of windows ago weigh nothing", func(d *draft) {
		d.policy(3000, 1000)
		d.times(1100, 500*us, "take", 1).is(1, 1900, 0, 1000)
		d.at(1900*ms).peek(3000).is(1, 3000, 0, 0)
		d.take(2999).is(1, 1, 0, 1000)
		d.settleAny(-2990, 0).is(1, 2991, 0, 1000)
		d.exact(3000)
	})
	m.vector("expiry kept to the edge", "an expiry that is just late enough is kept, and moved 1 us later", func(d *draft) {
		d.take(1).ok()
		d.at(1000 * ms).take(1).ok()
		d.after(1 * us).take(1).ok()
	})
	m.vector("expiry after a refund", "what a refund leaves sets the need for the expiry", func(d *draft) {
		d.policy(10, 60_000)
		d.take(5).ok()
		d.policy(10, 1000)
		d.at(200*ms).settleAny(-1, 0).is(1, 6, 0, 800)
	})
	m.vector("clock back between entries", "time stands still at the newest entry", func(d *draft) {
		d.at(0).take(3).ok()
		d.at(400 * ms).take(3).ok()
		d.at(100*ms).take(3).is(1, 1, 0, 1300)
		d.peek(2).is(0, 1, 900, 1300)
		d.at(1000*ms).peek(4).is(1, 4, 0, 400)
		d.at(1399*ms+999*us).peek(10).is(0, 4, 1, 1)
	})
	m.vector("clock back behind expired entries", "standing still, what had expired at the newest entry stays expired", func(d *draft) {
		d.at(0).take(3).ok()
		d.at(1100 * ms).take(2).ok()
		d.at(900*ms).peek(10).is(0, 8, 1200, 1200)
	})
	m.vector("usage up to a thousand limits", "10^12 units are counted exactly", func(d *draft) {
		d.policy(model.MaxUnits, 1000)
		d.times(999, 0, "settle", 1_000_000_000).is(1, 0, 0, 1000)
		d.after(1*ms).settleAny(999_999_999, 0).is(1, 0, 0, 1000)
		d.after(1*ms).settleAny(2, 0).is(1, 0, 0, 1000)
		d.settleAny(1, 0).is(1, 0, 0, 1000)
		d.at(1001*ms).peek(999_999_999).is(1, 999_999_999, 0, 1)
		d.settleAny(1_000_000_000, 0).is(1, 0, 0, 1000)
		d.at(1002*ms).peek(1).is(0, 0, 999, 999)
	})
}
