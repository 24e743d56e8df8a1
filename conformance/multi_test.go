package conformance_test

import (
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/sluicego/sluice/conformance/model"
)

// walkTogether makes random calls of multi, and of the single scripts in between, on up to six keys, and holds replies
// and keys against the model.
func walkTogether(t *rapid.T, s *subject) {
	var all []*walk
	for i := range rapid.IntRange(1, 6).Draw(t, "keys") {
		k := rapid.SampledFrom(kinds).Draw(t, "kind")
		all = append(all, newWalk(t, s.on(k, fmt.Sprintf("%s:%d", s.key, i))))
	}
	for range rapid.IntRange(1, 12).Draw(t, "calls") {
		one := rapid.SampledFrom(all).Draw(t, "key")
		s.at(one.next(t))
		for _, w := range all {
			w.now = s.now
			w.gone(t)
		}
		if rapid.IntRange(0, 2).Draw(t, "single") == 0 {
			one.step(t)
		} else {
			stepTogether(t, s, rapid.Permutation(all).Draw(t, "order")[:rapid.IntRange(1, len(all)).Draw(t, "limits")], all)
		}
	}
}

// stepTogether makes a call of multi on some of the keys.
func stepTogether(t *rapid.T, s *subject, some, all []*walk) {
	op := rapid.SampledFrom([]string{"take", "take", "take", "peek"}).Draw(t, "op")
	small := rapid.Bool().Draw(t, "small") // with free costs, six limits hardly ever agree
	var keys []string
	var requests []model.Request
	args := []string{op}
	for _, w := range some {
		w.vary(t)
		cost := w.cost(t)
		if small {
			cost = min(cost, w.p.Limit, rapid.Int64Range(0, 2).Draw(t, "at most"))
		}
		keys = append(keys, w.key)
		requests = append(requests, model.Request{State: w.state, Policy: w.p, Cost: cost})
		args = append(args, w.kind.Script())
		args = append(args, arguments(op, cost, w.p, 0)[1:]...)
	}
	before, writes := map[*walk]string{}, map[*walk]int{}
	for _, w := range all {
		before[w], writes[w] = w.content(t), w.state.Writes()
	}

	want := model.CallAll(s.now, op, requests...)
	got, err := s.eval(t, keys, args...)
	if err != nil || !slices.Equal(got, want.Numbers()) {
		t.Fatalf("%q at %d: got %v, %v, want %v; the keys were %v", args, s.now, got, err, want.Numbers(), before)
	}
	for _, w := range all {
		w.checkKey(t, args, before[w], writes[w])
	}
	for i, w := range some {
		if w.last = want.Limits[i]; op == "take" && want.Allowed {
			w.receipts = append(w.receipts, s.now)
		}
	}
}

// An error must say which limit it is about and what would have been right.
func TestErrorsOfMultiNameLimitAndRange(t *testing.T) {
	one := []string{"sliding_log", "1", "10", "1000"}
	refused := []struct {
		keys int
		args []string
		want string
	}{
		{0, []string{"take"}, "KEYS must be 1 to 16 different keys"},
		{17, slices.Concat([]string{"take"}, slices.Repeat(one, 17)), "KEYS must be 1 to 16 different keys"},
		{1, slices.Concat([]string{"settle"}, one), "operation must be take or peek"},
		{2, slices.Concat([]string{"take"}, one), "ARGV must be an operation, then an algorithm, a cost and a policy for each key"},
		{2, slices.Concat([]string{"take"}, one, []string{"log", "1", "10", "1000"}),
			"algorithm of limit 2 must be sliding_log, sliding_counter or token_bucket"},
		{1, []string{"take", "sliding_log", "x", "10", "1000"}, "cost of limit 1 must be an integer from 0 to 1000000000"},
		{1, []string{"take", "sliding_log", "1", "0", "1000"}, "limit of limit 1 must be an integer from 1 to 1000000000"},
		{2, slices.Concat([]string{"take"}, one, []string{"sliding_counter", "1", "10", "0"}),
			"window_ms of limit 2 must be an integer from 1 to 31622400000"},
		{1, []string{"take", "token_bucket", "1", "0", "10", "1000"}, "capacity of limit 1 must be an integer from 1 to 1000000000"},
		{1, []string{"take", "token_bucket", "1", "10", "0", "1000"}, "refill of limit 1 must be an integer from 1 to 1000000000"},
		{1, []string{"take", "token_bucket", "1", "10", "10", "0"}, "period_ms of limit 1 must be an integer from 1 to 31622400000"},
		{2, slices.Concat([]string{"take"}, one, []string{"token_bucket", "1", "2", "1", "31622400000"}),
			"period_ms of limit 2 must be short enough to fill the bucket within 31622400000 ms"},
	}
	for s := range subjectsOf(t, model.Multi) {
		t.Run(s.name, func(t *testing.T) {
			for _, c := range refused {
				var keys []string
				for i := range c.keys {
					keys = append(keys, fmt.Sprintf("%s:%d", s.key, i))
				}
				if got, err := s.eval(t, keys, c.args...); err == nil || err.Error() != "SLUICEARG "+c.want {
					t.Errorf("%q: got %v, %v, want %s", c.args, got, err, c.want)
				}
			}
		})
	}
}
