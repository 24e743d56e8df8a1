package vectors

import (
	"fmt"

	"github.com/sluicego/sluice/conformance/model"
)

// shared are the situations that mean the same to every algorithm. Without another policy it is 10 in a second.
func (m *maker) shared() {
	keepsMoments := m.kind != model.Counter

	m.vector("fresh take", "a missing key reads as nothing used", func(d *draft) {
		d.take(1).is(1, 9, 0, some)
	})
	m.vector("fresh peek", "a peek of a missing key tells the whole limit and makes no key", func(d *draft) {
		d.peek(1).is(1, 10, 0, 0)
		d.peek(10).is(1, 10, 0, 0)
	})
	m.vector("cost zero", "cost 0 is allowed always, charges nothing and makes no key", func(d *draft) {
		d.take(0).is(1, 10, 0, 0)
		d.take(10).is(1, 0, 0, some)
		d.take(0).is(1, 0, 0, some)
		d.peek(0).is(1, 0, 0, some)
		d.settleAny(5, 0).is(1, 0, 0, some)
		d.take(0).is(1, 0, 0, some)
	})
	m.vector("one by one", "each take of 1 lowers remaining by 1, and the one after the limit is denied", func(d *draft) {
		for left := int64(9); left >= 0; left-- {
			d.take(1).is(1, left, 0, some)
		}
		d.take(1).denied()
	})
	m.vector("cost equals limit", "the whole limit can be taken at once", func(d *draft) {
		d.take(10).is(1, 0, 0, some)
		d.exact(10)
	})
	m.vector("cost above limit", "cost = limit + 1 can never be admitted, and leaves no key", func(d *draft) {
		d.take(11).is(0, 10, -1, 0)
		d.peek(11).is(0, 10, -1, 0)
		d.take(1_000_000_000).is(0, 10, -1, 0)
	})
	m.vector("cost above limit on a used key", "never stays never, whatever is used, and changes nothing", func(d *draft) {
		d.take(4).is(1, 6, 0, some)
		d.take(11).is(0, 6, -1, some)
		d.take(6).is(1, 0, 0, some)
		d.take(11).is(0, 0, -1, some)
		d.peek(11).is(0, 0, -1, some)
	})
	m.vector("limit one", "a limit of 1 admits its first call and no second", func(d *draft) {
		d.policy(1, 1000)
		d.take(1).is(1, 0, 0, some)
		d.exact(1)
		d.take(1).denied()
	})
	m.vector("limit one in a millisecond", "the smallest policy there is", func(d *draft) {
		d.policy(1, 1)
		d.take(1).is(1, 0, 0, some)
		d.take(1).denied()
		d.after(1 * ms).take(1) // the counter carries all of it over: denied
		d.after(2 * ms).take(1).ok()
		d.after(999 * us).take(1).denied()
	})
	m.vector("denied take charges nothing", "9 of 10 used, 5 denied, 1 is still admitted", func(d *draft) {
		d.take(9).is(1, 1, 0, some)
		d.take(5).is(0, 1, some, some)
		d.take(1).is(1, 0, 0, some)
	})
	m.vector("hammering a closed door", "1000 denied calls do not lengthen the wait by a millisecond, nor the expiry", func(d *draft) {
		d.take(10).is(1, 0, 0, some)
		wait := d.take(10).denied().RetryAfterMS
		d.times(1000, 100*us, "take", 10).is(0, some, wait-100, some)
		d.exact(10)
	})
	m.vector("peek tells what take would", "the wait of a peek is that of the denied take", func(d *draft) {
		d.take(10).is(1, 0, 0, some)
		for cost := int64(1); cost <= 11; cost++ {
			wait := d.peek(cost).denied().RetryAfterMS
			d.take(cost).is(0, 0, wait, some)
		}
	})
	m.vector("peeks write nothing", "a thousand peeks leave state and expiry", func(d *draft) {
		d.take(3).is(1, 7, 0, some)
		d.times(1000, 100*us, "peek", 10).denied()
		d.peek(7).ok()
	})
	m.vector("reset is exact", "the whole limit is free at reset_after, not 1 ms sooner", func(d *draft) {
		d.whole(d.after(123_456 * us).take(10))
		d.whole(d.after(5 * sec).take(1))
	})
	m.vector("hundred calls in one microsecond", "a stopped clock: 10 of 100 are admitted", func(d *draft) {
		d.times(10, 0, "take", 1).is(1, 0, 0, some)
		d.times(90, 0, "take", 1).denied()
	})
	for _, cost := range []int64{1, 2, 3, 5, 7, 10} {
		m.vector(fmt.Sprintf("exact wait for %d", cost), "charges at odd moments; admitted at retry_after, denied 1 ms sooner", func(d *draft) {
			d.at(17_001 * us).take(2).ok()
			d.at(133_337 * us).take(3).ok()
			d.at(250_999 * us).take(1).ok()
			d.at(250_999 * us).take(3).ok()
			d.at(251_000 * us).take(1).ok()
			d.settleAny(3, 0)
			d.exact(cost)
		})
	}
	for _, window := range []int64{1, 2, 10, 500, 999} {
		m.vector(fmt.Sprintf("window of %d ms", window), "a window below a second is not rounded: 2 of 20 calls at once, then 2 again", func(d *draft) {
			d.policy(2, window)
			d.times(2, 0, "take", 1).is(1, 0, 0, some)
			d.times(18, 0, "take", 1).denied()
			d.whole(d.peek(2))
			d.take(2).is(1, 0, 0, some)
			d.take(1).denied()
		})
	}
	m.vector("cost of a hundred thousand", "cost 10^5 of 10^6 is one charge like any other", func(d *draft) {
		d.policy(1_000_000, 60_000)
		d.take(100_000).is(1, 900_000, 0, some)
		d.times(9, 1*ms, "take", 100_000).ok()
		d.exact(100_000)
	})
	m.vector("ten to the ninth over 31 days", "limit x window is above 2^53, and every reply stays exact", func(d *draft) {
		d.policy(1_000_000_000, 31*day/ms)
		d.take(999_999_999).is(1, 1, 0, some)
		d.after(1_234_567_891 * us).take(1).ok()
		d.exact(999_999_999)
	})
	m.vector("ten to the ninth over 366 days", "the largest policy there is", func(d *draft) {
		d.policy(model.MaxUnits, model.MaxWindowMS)
		d.take(1_000_000_000).is(1, 0, 0, some)
		d.after(77 * day).take(1)
		d.whole(d.peek(1_000_000_000))
		d.take(1).ok()
	})
	m.vector("one in 366 days", "the slowest policy there is", func(d *draft) {
		d.policy(1, model.MaxWindowMS)
		d.take(1).is(1, 0, 0, some)
		d.exact(1)
	})
	m.vector("expiry is written once per window", "a later charge keeps the expiry while that is late enough", func(d *draft) {
		d.take(1).ok()
		d.at(300 * ms).take(1).ok()
		d.at(999 * ms).take(1).ok()
		d.at(1000 * ms).take(1).ok()
		d.at(1001 * ms).take(1).ok()
		d.at(1700 * ms).take(1).ok()
		d.at(2001 * ms).take(1).ok()
	})
	m.vector("idle until the key is gone", "after its expiry a key reads as nothing used", func(d *draft) {
		d.take(10).is(1, 0, 0, some)
		d.at(2001*ms).take(10).is(1, 0, 0, some)
		d.after(day).peek(10).is(1, 10, 0, 0)
	})
	m.vector("at the very end", "in the millisecond in which its key expires a state is void", func(d *draft) {
		d.settleAny(19, 0).is(1, 0, 0, some)
		d.at(1999_999 * us).peek(10)
		d.at(2000*ms).peek(10).is(1, 10, 0, 0)
		d.take(10).is(1, 0, 0, some)
	})
	m.vector("lost expiry", "a state whose key lost its expiry is void at its end all the same, and the next charge repairs it", func(d *draft) {
		d.take(10).is(1, 0, 0, some)
		d.outside("PERSIST", Key)
		d.at(500 * ms).peek(10).denied()
		d.at(2000*ms).peek(10).is(1, 10, 0, 0)
		d.take(10).is(1, 0, 0, some)
		d.take(1).denied()
	})
	m.vector("lost expiry is repaired in use", "a busy key has an expiry again within a window or two", func(d *draft) {
		d.take(1).ok()
		d.outside("PERSIST", Key)
		d.times(5, 500*ms, "take", 1).ok()
	})
	m.vector("deleted key", "a key that is deleted is one fresh window", func(d *draft) {
		d.take(10).is(1, 0, 0, some)
		d.outside("DEL", Key)
		d.take(10).is(1, 0, 0, some)
		d.take(1).denied()
	})

	m.vector("clock back by a microsecond", "time stands still: nothing is admitted twice", func(d *draft) {
		d.after(1*us).take(10).is(1, 0, 0, some)
		d.after(-1 * us).take(1).denied()
		d.exact(10)
	})
	m.vector("clock back by a millisecond", "time stands still, and waits count from the clock as it is", func(d *draft) {
		d.take(10).is(1, 0, 0, some)
		wait := d.take(10).denied().RetryAfterMS
		d.after(-1*ms).take(10).is(0, 0, wait+1, some)
		d.exact(10)
	})
	m.vector("clock back by half a window", "charges made while time stands still count from where it stands", func(d *draft) {
		d.take(6).is(1, 4, 0, some)
		d.after(-500*ms).take(4).is(1, 0, 0, some)
		d.after(499 * ms).take(1).denied()
		d.exact(10)
	})
	m.vector("clock back by one window", "by one window, time still stands", func(d *draft) {
		d.take(10).is(1, 0, 0, some)
		d.after(-1 * sec).take(1).denied()
		d.exact(10)
	})
	m.vector("clock back by one window and more", "further back the state is discarded: nobody is shut out for longer", func(d *draft) {
		d.take(10).is(1, 0, 0, some)
		d.after(-1*sec-1*us).peek(10).is(1, 10, 0, 0)
		d.take(10).is(1, 0, 0, some)
		d.take(1).denied()
		d.exact(10)
	})
	m.vector("clock back by two windows", "one fresh window, and its own expiry", func(d *draft) {
		d.take(10).is(1, 0, 0, some)
		d.after(-2*sec).take(3).is(1, 7, 0, some)
		d.whole(d.take(7).ok())
	})
	m.vector("clock back by a year", "a state from the far future is discarded", func(d *draft) {
		d.take(10).is(1, 0, 0, some)
		d.after(-365*day).peek(1).is(1, 10, 0, 0)
		d.settleAny(-3, 0).is(1, 10, 0, 0)
		d.take(10).is(1, 0, 0, some)
	})
	m.vector("discarded only while it is in the future", "a discarded state that nobody wrote over counts again once its time has come", func(d *draft) {
		d.take(10).is(1, 0, 0, some)
		d.after(-3*sec).peek(10).is(1, 10, 0, 0)
		d.after(3 * sec).take(1).denied()
	})
	m.vector("clock back and a shorter window", "how far time may stand still is the window of the call", func(d *draft) {
		d.take(10).is(1, 0, 0, some)
		d.after(-500 * ms).peek(1).denied()
		d.policy(10, 499)
		d.peek(10).is(1, 10, 0, 0)
		d.policy(10, 500)
		d.peek(1).denied()
	})
	m.vector("clock forward by a year", "a jump forward leaves nothing used", func(d *draft) {
		d.take(10).is(1, 0, 0, some)
		d.after(365*day).take(10).is(1, 0, 0, some)
	})

	m.vector("limit raised", "a higher limit frees the difference at once", func(d *draft) {
		d.take(10).is(1, 0, 0, some)
		d.take(1).denied()
		d.policy(20, 1000)
		d.take(10).is(1, 0, 0, some)
		d.take(1).denied()
	})
	m.vector("limit lowered", "a lower limit denies until usage is below it", func(d *draft) {
		d.take(10).is(1, 0, 0, some)
		d.policy(5, 1000)
		d.take(1).is(0, 0, some, some)
		d.exact(1)
	})
	m.vector("limit lowered and raised again", "what was used is kept, not clamped", func(d *draft) {
		d.take(8).is(1, 2, 0, some)
		d.policy(3, 1000)
		d.take(1).denied()
		d.take(4).is(0, 0, -1, some)
		d.policy(10, 1000)
		d.take(2).is(1, 0, 0, some)
		d.take(1).denied()
	})
	m.vector("window longer", "usage is carried over into a longer window", func(d *draft) {
		d.take(10).is(1, 0, 0, some)
		d.policy(10, 60_000)
		d.take(1).denied()
		d.after(999 * ms).take(1).denied()
		d.exact(1)
	})
	m.vector("window shorter", "usage is carried over into a shorter window", func(d *draft) {
		d.take(10).is(1, 0, 0, some)
		d.policy(10, 100)
		d.take(1).denied()
		d.exact(10)
	})
	m.vector("window there and back", "a peek under another window changes nothing", func(d *draft) {
		d.take(10).is(1, 0, 0, some)
		wait := d.peek(10).denied().RetryAfterMS
		d.policy(10, 60_000)
		d.peek(10).denied()
		d.take(10).denied()
		d.policy(10, 10)
		d.peek(10).denied()
		d.policy(10, 1000)
		d.peek(10).is(0, 0, wait, some)
	})
	m.vector("a longer policy ends with the key", "waits are never longer than the time left to the key's expiry", func(d *draft) {
		d.take(10).is(1, 0, 0, some)
		d.policy(10, 1000_000)
		d.take(10).is(0, 0, 2000, 2000)
		d.at(1999_999 * us).take(10).denied()
		d.at(2000 * ms).take(10).ok()
	})
	m.vector("a shorter policy brings the expiry forward", "a write sets an expiry that is too late for the policy of the call", func(d *draft) {
		d.policy(10, 60_000)
		d.take(1).ok()
		d.policy(10, 1000)
		d.take(1).ok()
		d.at(500 * ms).take(1).ok()
	})

	m.vector("settle up", "the rest of a cost is charged", func(d *draft) {
		a := d.take(2).is(1, 8, 0, some)
		d.after(10*ms).settle(5, a).ok()
		d.peek(4)
		d.exact(8)
	})
	m.vector("settle up on a fresh key", "a charge is a charge, even if the key is lost", func(d *draft) {
		d.settleAny(4, 0).is(1, 6, 0, some)
		d.take(7).denied()
		d.take(6).ok()
	})
	m.vector("settle into debt and out of it", "a settle may pass the limit: remaining is 0, and calls wait the debt out exactly", func(d *draft) {
		a := d.take(8).is(1, 2, 0, some)
		d.settle(7, a).is(1, 0, 0, some)
		d.peek(1).is(0, 0, some, some)
		d.exact(1)
		d.exact(10)
	})
	m.vector("settle up after the window", "a charge counts from its settling, whatever the receipt", func(d *draft) {
		a := d.take(2).is(1, 8, 0, some)
		d.after(5*sec).settle(6, a).is(1, 4, 0, some)
		d.take(5).denied()
	})
	m.vector("settle deep into debt", "a debt is bounded", func(d *draft) {
		d.times(1002, 0, "settle", 1_000_000_000).is(1, 0, 0, some)
		a := d.peek(1).denied()
		d.settleAny(1, 0).is(1, 0, 0, a.ResetAfterMS)
		d.settleAny(-1, 0).ok()
		d.settleAny(-1_000_000_000, 0)
		d.whole(d.peek(1))
	})
	m.vector("settle by nothing", "a difference of 0 changes nothing and makes no key", func(d *draft) {
		d.settleAny(0, 0).is(1, 10, 0, 0)
		a := d.take(3).ok()
		d.after(100*ms).settle(0, a).is(1, some, 0, some)
	})
	m.vector("settle down within the window", "what was not needed is given back", func(d *draft) {
		a := d.take(8).is(1, 2, 0, some)
		d.settle(-5, a).is(1, 7, 0, some)
		d.take(7).is(1, 0, 0, some)
		d.take(1).denied()
	})
	m.vector("settle down after the window", "a refund is worth nothing once its charge has left", func(d *draft) {
		a := d.take(5).is(1, 5, 0, some)
		d.at(2000 * ms).take(5).ok()
		d.settle(-5, a).is(1, 5, 0, some)
	})
	m.vector("settle down all of it", "take k, give back k: as before, and no key", func(d *draft) {
		a := d.take(6).is(1, 4, 0, some)
		d.settle(-6, a).is(1, 10, 0, 0)
		d.take(10).ok()
	})
	m.vector("settle down part of another's", "take k, give back k on a used key: as before", func(d *draft) {
		d.take(3).is(1, 7, 0, some)
		a := d.take(6).is(1, 1, 0, some)
		d.settle(-6, a).is(1, 7, 0, some)
	})
	m.vector("over-refund", "more back than was taken never gives more than the limit", func(d *draft) {
		a := d.take(2).is(1, 8, 0, some)
		d.settle(-1_000_000_000, a).is(1, 10, 0, 0)
		d.take(11).is(0, 10, -1, 0)
		d.take(10).is(1, 0, 0, some)
	})
	m.vector("refund on a fresh key", "nothing to give back: no key, no credit", func(d *draft) {
		d.settleAny(-5, 0).is(1, 10, 0, 0)
		d.settleAny(-5, d.now).is(1, 10, 0, 0)
		d.take(10).is(1, 0, 0, some)
		d.take(1).denied()
	})
	m.vector("refund without a receipt", "receipt 0 always counts", func(d *draft) {
		d.take(10).is(1, 0, 0, some)
		d.settleAny(-4, 0).is(1, 4, 0, some)
		d.take(4).is(1, 0, 0, some)
	})
	m.vector("refund frees a waiting call", "the wait after a refund is exact", func(d *draft) {
		d.take(4).ok()
		d.at(200 * ms).take(4).ok()
		a := d.at(200 * ms).take(2).ok()
		d.at(250*ms).settle(-3, a)
		d.exact(10)
	})
	m.vector("receipt from the future", "a receipt that is later than now by more than a window is worth nothing", func(d *draft) {
		d.take(5).is(1, 5, 0, some)
		d.settleAny(-1, d.now+2*sec).is(1, 5, 0, some)
		d.settleAny(-1, model.MaxReceipt).is(1, 5, 0, some)
	})
	m.vector("receipt of long ago", "receipt 1 is no wildcard", func(d *draft) {
		d.take(5).is(1, 5, 0, some)
		d.settleAny(-1, 1).is(1, 5, 0, some)
	})
	if keepsMoments { // the counter knows only windows
		m.vector("a refund that changes nothing writes nothing", "a refund of units that have gone leaves state and expiry alone", func(d *draft) {
			a := d.take(5).is(1, 5, 0, some)
			d.at(1999*ms).settle(-1, a)
			d.at(1999 * ms).peek(10)
		})
		m.vector("receipt at the edges", "a receipt counts in (now - window, now + window]", func(d *draft) {
			d.after(77 * us).take(9)
			d.settleAny(-1, d.now-1*sec).is(1, 1, 0, some)
			d.settleAny(-1, d.now-1*sec+1*us).is(1, 2, 0, some)
			d.settleAny(-1, d.now+1*sec).is(1, 3, 0, some)
			d.settleAny(-1, d.now+1*sec+1*us).is(1, 3, 0, some)
		})
		m.vector("refund after the clock stepped back", "a receipt from just ahead of now is still good", func(d *draft) {
			a := d.take(9).is(1, 1, 0, some)
			d.after(-1*sec).settle(-4, a).is(1, 5, 0, some)
			d.after(-1*us).settle(-4, a).is(1, 10, 0, 0)
			d.after(1 * us).take(6).denied()
		})
	}
	m.vector("between two milliseconds", "waits are whole milliseconds from a clock of microseconds", func(d *draft) {
		d.after(1*us).take(10).is(1, 0, 0, some)
		d.after(998 * us).take(3).denied()
		d.exact(3)
	})
	m.vector("the end of the clock", "a clock near 2^53 us is still exact", func(d *draft) {
		d.now, d.vector.StartUS = 9_007_000_000_000_001, 9_007_000_000_000_001
		a := d.take(10).is(1, 0, 0, some)
		d.after(1*us).settle(-1, a).ok()
		d.exact(10)
	})
	m.vector("long and odd", "a thousand takes of 1 at an odd pace under an odd policy", func(d *draft) {
		d.policy(7, 1013)
		d.times(1000, 97_003*us, "take", 1)
		d.peek(7)
		d.exact(7)
	})
}
