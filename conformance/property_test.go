package conformance_test

import (
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/sluicego/sluice/conformance/model"
	"github.com/sluicego/sluice/conformance/servers"
)

// The clock stays between these, in microseconds, so that a few windows of 366 days fit in on both sides.
const (
	earliest = 1_000_000_000_000_000
	latest   = 1<<53 - 200_000_000_000_000
)

// TestScriptsAgreeWithTheModel makes random calls and holds every number of every reply, the key's expiry after
// every call, and that nothing was written where nothing had to be, against the exact model.
func TestScriptsAgreeWithTheModel(t *testing.T) {
	servers.Parallel(t)
	for s := range subjectsAndMulti(t) {
		t.Run(s.name, func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				s.at(epoch)
				if s.kind == model.Multi {
					walkTogether(t, s)
					return
				}
				w := newWalk(t, s)
				for range rapid.IntRange(1, 30).Draw(t, "calls") {
					w.at(w.next(t))
					w.step(t)
				}
			})
		})
	}
}

// walk is a key, its model, and what the next call may aim at.
type walk struct {
	*subject
	state    *model.State
	policies []model.Policy
	p        model.Policy
	last     model.Reply
	receipts []int64
}

// newWalk starts on a missing key.
func newWalk(t *rapid.T, s *subject) *walk {
	if err := s.do(t, "DEL", s.key).Error(); err != nil {
		t.Fatalf("DEL: %v", err)
	}
	w := &walk{subject: s, state: model.New(), policies: somePolicies(s.kind).Draw(t, "policies")}
	w.p = w.policies[0]
	return w
}

// next draws the moment of the next call, by the policy that it may change before.
func (w *walk) next(t *rapid.T) int64 {
	w.vary(t)
	return min(max(w.now+w.advance(t), earliest), latest)
}

// vary draws another policy now and then.
func (w *walk) vary(t *rapid.T) {
	if rapid.IntRange(0, 5).Draw(t, "another policy") == 5 {
		w.p = rapid.SampledFrom(w.policies).Draw(t, "policy")
	}
}

// step makes a call at this moment.
func (w *walk) step(t *rapid.T) {
	w.gone(t)
	op := rapid.SampledFrom([]string{"take", "take", "take", "peek", "settle", "settle"}).Draw(t, "op")
	cost, receipt := w.cost(t), int64(0)
	if op == "settle" {
		if rapid.Bool().Draw(t, "refund") {
			cost = -cost
		}
		receipt = w.receipt(t)
	}

	before, writes := w.content(t), w.state.Writes()
	want := w.state.Call(w.now, op, cost, w.p, receipt)
	got := w.call(t, op, cost, w.p, receipt)
	args := arguments(op, cost, w.p, receipt)
	if !slices.Equal(got, want.Numbers()) {
		t.Fatalf("%q at %d: got %v, want %v; the key was %s", args, w.now, got, want.Numbers(), before)
	}
	w.checkKey(t, args, before, writes)
	if w.last = want; op == "take" && want.Allowed {
		w.receipts = append(w.receipts, want.ServerTimeUS)
	}
}

// gone tells the model of a key that is gone at its time: a step back does not bring it back.
func (w *walk) gone(t *rapid.T) {
	if w.state.Void(w.now) && w.content(t) == "no key" {
		w.state.Lose()
	}
}

// checkKey holds the key after a call against the model, by what it was and how often it had been written before.
func (w *walk) checkKey(t *rapid.T, args []string, before string, writes int) {
	after := w.content(t)
	if w.state.Writes() == writes && !unchanged(before, after) {
		t.Fatalf("%q at %d: wrote\n%s\nover\n%s", args, w.now, after, before)
	}
	switch {
	case !w.state.Void(w.now):
		w.checkUntil(t, w.state.Until())
	case after == "no key":
		w.state.Lose()
	default:
		w.checkUntil(t, 0)
	}
}

// span is how far back a state matters, in microseconds.
func (w *walk) span() int64 {
	if w.p.Kind == model.Bucket {
		return w.p.TimeToFullUS()
	}
	return w.p.WindowMS * 1000
}

// advance draws how far the clock moves: anywhere, or to one of the moments at which something changes.
func (w *walk) advance(t *rapid.T) int64 {
	window := w.p.WindowMS * 1000
	edge := window - w.now%window
	switch rapid.SampledFrom([]string{
		"none", "some", "some", "a window", "retry", "retry", "reset", "edge", "until", "span", "back", "back by a span",
	}).Draw(t, "advance") {
	case "some":
		return rapid.Int64Range(0, max(1, w.span()/max(1, w.p.Limit)*2)).Draw(t, "us")
	case "a window":
		return rapid.Int64Range(0, 2*window).Draw(t, "us")
	case "retry":
		return max(0, w.last.RetryAfterMS-w.lessOne(t))*1000 + w.near(t)
	case "reset":
		return max(0, w.last.ResetAfterMS-w.lessOne(t))*1000 + w.near(t)
	case "edge":
		return edge + w.near(t)
	case "until":
		if w.state.Until() == 0 {
			return 0
		}
		return w.state.Until()*1000 - w.now + w.near(t)
	case "span":
		return w.span() + w.near(t)
	case "back":
		return -rapid.Int64Range(1, w.span()).Draw(t, "us")
	case "back by a span":
		return -w.span()*rapid.Int64Range(1, 2).Draw(t, "spans") + w.near(t)
	}
	return 0
}

func (w *walk) lessOne(t *rapid.T) int64 { return rapid.Int64Range(0, 1).Draw(t, "ms less") }

// near draws a step beside a moment, or none.
func (w *walk) near(t *rapid.T) int64 {
	return rapid.SampledFrom([]int64{0, 0, -1, 1, -1000, 1000}).Draw(t, "beside")
}

// cost draws units: a few, or as many as make a difference.
func (w *walk) cost(t *rapid.T) int64 {
	limit := w.p.Limit
	cost := rapid.OneOf(
		rapid.Int64Range(0, min(3, limit)),
		rapid.Int64Range(0, limit),
		rapid.SampledFrom([]int64{limit, limit + 1, w.last.Remaining, w.last.Remaining + 1, 2 * limit, model.MaxUnits}),
	).Draw(t, "cost")
	return min(cost, model.MaxUnits)
}

// receipt draws none, that of an earlier take, or one at the edge of what counts.
func (w *walk) receipt(t *rapid.T) int64 {
	some := []int64{0, w.now, w.now - w.span(), w.now - w.span() + 1, w.now + w.span(), w.now + w.span() + 1}
	return max(0, rapid.SampledFrom(append(some, w.receipts...)).Draw(t, "receipt"))
}

// somePolicies draws up to three that may meet on one key; small ones, so that calls are denied, or any of the domain.
func somePolicies(k model.Kind) *rapid.Generator[[]model.Policy] {
	return rapid.OneOf(
		rapid.SliceOfN(policy(k, 12, 40), 1, 3),
		rapid.SliceOfN(policy(k, 100, 100_000), 1, 3),
		rapid.SliceOfN(rapid.OneOf(policy(k, 20, 1000), policy(k, model.MaxUnits, model.MaxWindowMS)), 1, 3),
	)
}

// policy draws one up to a limit and a window, often one of the ends.
func policy(k model.Kind, limit, windowMS int64) *rapid.Generator[model.Policy] {
	upTo := func(most int64) *rapid.Generator[int64] {
		return rapid.OneOf(rapid.Int64Range(1, most), rapid.SampledFrom([]int64{1, 2, most - 1, most}))
	}
	return rapid.Custom(func(t *rapid.T) model.Policy {
		p := model.Policy{Kind: k, Limit: upTo(limit).Draw(t, "limit"), WindowMS: upTo(windowMS).Draw(t, "window")}
		if k == model.Bucket {
			p.Refill = upTo(limit).Draw(t, "refill")
			// A bucket that takes too long to fill is made a smaller one.
			for !p.Valid() {
				p.Limit = (p.Limit + 1) / 2
				p.WindowMS = (p.WindowMS + 1) / 2
			}
		}
		return p
	})
}
