package conformance_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/redis/rueidis"

	"github.com/sluicego/sluice/conformance/model"
	"github.com/sluicego/sluice/conformance/servers"
)

// Faults that rate limiters have had in public, as far as they show at a script. Some are vectors, by these names:
//
//	expiry cut to whole seconds            "window of 1 ms" and its like
//	retry finite though cost > limit       "cost above limit", "cost above limit on a used key"
//	a denied call charges                  "denied take charges nothing", "hammering a closed door"
//	peek differs from take                 "peek tells what take would"
//	limit 1 always denies                  "limit one", "limit one in a millisecond"
//	doubling at the edge                   "boundary burst"
//	the previous bucket is lost            "the previous window counts"
//	overflow admits                        "refused: 2^31" to "refused: four hundred digits", "largest arguments"
//	zero or negative rate crashes          "refused: zero", "refused: minus sign"
//	refund lost or unbounded               "settle down ...", "over-refund", "refund on a fresh key"
//	members collide under one timestamp    "hundred calls in one microsecond", "entries of one microsecond"
//	a changed limit is ignored             "limit raised", "limit lowered", "window longer", "window shorter"
//	one of several limits is charged       multi: "one exhausted, one free", "the first one denies" and its like

// policyOf is a policy of a limit in a window; a bucket refills wholly in that time.
func policyOf(k model.Kind, limit, windowMS int64) model.Policy {
	p := model.Policy{Kind: k, Limit: limit, WindowMS: windowMS}
	if k == model.Bucket {
		p.Refill = limit
	}
	return p
}

func TestFaultKeysWithoutExpiry(t *testing.T) {
	for s := range subjects(t) {
		t.Run(s.name, func(t *testing.T) {
			random := rand.New(rand.NewPCG(1, 2))
			p := policyOf(s.kind, 5, 700)
			key := s.key
			for range 400 {
				s.key = fmt.Sprintf("%s:%d", key, random.IntN(10))
				s.at(s.now + random.Int64N(100_000))
				op := []string{"take", "peek", "settle"}[random.IntN(3)]
				cost := random.Int64N(7)
				if op == "settle" {
					cost -= 3
				}
				s.call(t, op, cost, p, 0)
				// A bucket in full debt, charged between two milliseconds, needs one more.
				if ttl := s.pttl(t); ttl != -2 && (ttl < 0 || ttl > 2*700+1) {
					t.Fatalf("after %s of %d: PTTL is %d", op, cost, ttl)
				}
			}
			for i := range 10 {
				s.key = fmt.Sprintf("%s:%d", key, i)
				if ttl := s.pttl(t); ttl != -2 && (ttl < 0 || ttl > 2*700+1) {
					t.Errorf("PTTL of %s is %d in the end", s.key, ttl)
				}
			}
		})
	}
}

func TestFaultResetRounded(t *testing.T) {
	for s := range subjects(t) {
		t.Run(s.name, func(t *testing.T) {
			key := s.key
			for _, p := range []model.Policy{policyOf(s.kind, 7, 1013), policyOf(s.kind, 13, 999), policyOf(s.kind, 3, 7)} {
				for cost := int64(1); cost <= p.Limit; cost++ {
					s.key = fmt.Sprintf("%s:%d:%d", key, p.Limit, cost)
					s.at(epoch + cost*333)
					for range p.Limit {
						s.call(t, "take", 1, p, 0)
						s.at(s.now + 77_777)
					}
					s.call(t, "settle", p.Limit, p, 0)
					denied := s.call(t, "take", cost, p, 0)
					if denied[0] != 0 || denied[2] <= 0 {
						t.Fatalf("cost %d of %d: %v, want it denied for a while", cost, p.Limit, denied)
					}
					s.at(denied[4] + (denied[2]-1)*1000)
					if sooner := s.call(t, "take", cost, p, 0); sooner[0] != 0 || sooner[2] != 1 {
						t.Fatalf("cost %d of %d: %v 1 ms sooner", cost, p.Limit, sooner)
					}
					s.at(denied[4] + denied[2]*1000)
					if then := s.call(t, "take", cost, p, 0); then[0] != 1 {
						t.Fatalf("cost %d of %d: %v after the wait", cost, p.Limit, then)
					}
				}
			}
		})
	}
}

func TestFaultRemainingOffByOne(t *testing.T) {
	servers.Parallel(t)
	for s := range subjects(t) {
		t.Run(s.name, func(t *testing.T) {
			windows := []int64{1, 3, 7, 997, 86_399_999, 31_622_399_999}
			const most = 5000
			script, err := servers.Script(s.kind.Script())
			if err != nil {
				t.Fatal(err)
			}
			var calls []rueidis.LuaExec
			var tidy rueidis.Commands
			for limit := int64(1); limit <= most; limit++ {
				p := policyOf(s.kind, limit, windows[limit%int64(len(windows))])
				key := fmt.Sprintf("%s:%d", s.key, limit)
				calls = append(calls, rueidis.LuaExec{Keys: []string{key}, Args: arguments("take", 1, p, 0)})
				tidy = append(tidy, s.server.Client.B().Del().Key(key).Build())
			}
			for i, result := range script.ExecMulti(t.Context(), s.server.Caller, calls...) {
				got, err := result.AsIntSlice()
				if err != nil {
					t.Fatal(err)
				}
				if limit := int64(i + 1); got[0] != 1 || got[1] != limit-1 {
					t.Fatalf("limit %d: %v, want remaining %d", limit, got, limit-1)
				}
			}
			s.server.Client.DoMulti(t.Context(), tidy...) // miniredis moves every key's expiry with the clock
		})
	}
}

func TestFaultHugeCost(t *testing.T) {
	for s := range subjects(t) {
		t.Run(s.name, func(t *testing.T) {
			p := policyOf(s.kind, 1_000_000, 60_000)
			got := s.call(t, "take", 100_000, p, 0)
			if got[0] != 1 || got[1] != 900_000 {
				t.Fatalf("%v, want it admitted", got)
			}
			if content := s.content(t); len(content) > 500 {
				t.Errorf("a cost of 10^5 takes room: %d bytes of %s ...", len(content), content[:500])
			}
		})
	}
}

// Rules of different algorithms that share a key by mistake must not read each other's states.
func TestFaultTwoRulesShareAKey(t *testing.T) {
	for s := range subjects(t) {
		t.Run(s.name, func(t *testing.T) {
			s.call(t, "take", 3, policyOf(s.kind, 10, 1000), 0)
			s.at(s.now + 1000)
			before := s.content(t)
			for _, other := range kinds {
				if other == s.kind {
					continue
				}
				o := s.on(other, s.key)
				for _, op := range []string{"take", "peek", "settle"} {
					got, err := o.eval(t, []string{s.key}, arguments(op, 1, policyOf(other, 10, 1000), 0)...)
					if err == nil || !strings.HasPrefix(err.Error(), "SLUICESTATE ") {
						t.Errorf("%s by %s of a state of %s: %v, %v", op, other, s.kind, got, err)
					}
				}
			}
			if after := s.content(t); after != before {
				t.Errorf("the state was\n%s\nand is\n%s", before, after)
			}
		})
	}
}

// An error must say what would have been right.
func TestErrorsNameTheRange(t *testing.T) {
	ranges := map[string][]string{
		"operation":  {"take", "peek", "settle"},
		"cost":       {"0", "1000000000"},
		"limit":      {"1", "1000000000"},
		"capacity":   {"1", "1000000000"},
		"refill":     {"1", "1000000000"},
		"window_ms":  {"1", "31622400000"},
		"period_ms":  {"1", "31622400000"},
		"receipt":    {"0", "9007199254740991"},
		"settleCost": {"-1000000000", "1000000000"},
	}
	names := map[model.Kind][]string{
		model.Log:     {"operation", "cost", "limit", "window_ms", "receipt"},
		model.Counter: {"operation", "cost", "limit", "window_ms", "receipt"},
		model.Bucket:  {"operation", "cost", "capacity", "refill", "period_ms", "receipt"},
	}
	for s := range subjects(t) {
		t.Run(s.name, func(t *testing.T) {
			check := func(name string, words []string, args ...string) {
				_, err := s.eval(t, []string{s.key}, args...)
				if err == nil {
					t.Fatalf("%q is taken", args)
				}
				for _, word := range append([]string{"SLUICEARG", name}, words...) {
					if !strings.Contains(err.Error(), word) {
						t.Errorf("%q: %q does not name %s", args, err, word)
					}
				}
			}
			p := policyOf(s.kind, 10, 1000)
			for i, name := range names[s.kind] {
				args := arguments("take", 1, p, 0)
				if name == "receipt" {
					args = arguments("settle", 1, p, 0)
				}
				args[i] = "x"
				check(name, ranges[name], args...)
			}
			settle := arguments("settle", 1, p, 0)
			settle[1] = "x"
			check("cost", ranges["settleCost"], settle...)
		})
	}
}
