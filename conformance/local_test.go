package conformance_test

import (
	"fmt"
	"slices"
	"strconv"
	"testing"

	"pgregory.net/rapid"

	"github.com/sluicego/sluice/conformance/model"
	"github.com/sluicego/sluice/conformance/vectors"
	"github.com/sluicego/sluice/internal/local"
)

// The limiter in memory, which stands in when Redis fails, is held to the same vectors and the same model as the
// scripts.

var (
	localKinds = map[model.Kind]local.Kind{model.Log: local.SlidingLog, model.Counter: local.SlidingCounter, model.Bucket: local.TokenBucket}
	localOps   = map[string]local.Op{"take": local.Take, "peek": local.Peek, "settle": local.Settle}
)

func localPolicy(p model.Policy) local.Policy {
	return local.Policy{Kind: localKinds[p.Kind], Limit: p.Limit, Refill: p.Refill, WindowMS: p.WindowMS}
}

func localNumbers(r local.Reply) []int64 { return model.Reply(r).Numbers() }

func TestLocalPassesTheVectors(t *testing.T) {
	for _, k := range kinds {
		t.Run(k.Script(), func(t *testing.T) {
			file, err := vectors.Read(k)
			if err != nil {
				t.Fatal(err)
			}
			decided := 0
			for _, v := range file.Vectors {
				if len(v.Setup) == 0 { // those with one are about keys that hold something else, which this memory can't
					decided += runLocalVector(t, k, v)
				}
			}
			if decided < 500 {
				t.Fatalf("%d steps decided something; the files have more", decided)
			}
		})
	}
}

// runLocalVector returns how many steps decided something. Refused arguments are texts, which this code does not read.
func runLocalVector(t *testing.T, k model.Kind, v vectors.Vector) (decided int) {
	t.Helper()
	state, now := new(local.State), v.StartUS
	receipts := make([]int64, len(v.Steps))
	for i, step := range v.Steps {
		var got local.Reply
		for range max(1, step.Repeat) {
			now += step.AdvanceUS
			switch {
			case len(step.Command) > 0 && step.Command[0] == "DEL":
				*state = local.State{}
			case len(step.Command) > 0 && step.Command[0] != "PERSIST": // which means nothing here
				t.Fatalf("%s: step %d: %v: no such command here", v.Name, i, step.Command)
			case len(step.Command) == 0 && len(step.Error) == 0:
				got = callLocal(state, now, k, receiptsIn(step.Args, receipts))
			}
		}
		if len(step.Reply) == 0 {
			continue
		}
		decided++
		if !slices.Equal(localNumbers(got), step.Reply) {
			t.Fatalf("%s: step %d: %q: got %v, want %v", v.Name, i, step.Args, localNumbers(got), step.Reply)
		}
		receipts[i] = got.ServerTimeUS
		if step.UntilMS == nil {
			continue
		}
		until := state.Until()
		if state.Void(now) {
			until = 0
		}
		if until != *step.UntilMS {
			t.Fatalf("%s: step %d: %q: void from %d, want %d", v.Name, i, step.Args, until, *step.UntilMS)
		}
	}
	return decided
}

// callLocal makes a call from a script's arguments.
func callLocal(s *local.State, now int64, k model.Kind, args []string) local.Reply {
	numbers := make([]int64, len(args)-1)
	for i, a := range args[1:] {
		n, err := strconv.ParseInt(a, 10, 64)
		if err != nil {
			panic(err) // refused arguments do not come here
		}
		numbers[i] = n
	}
	cost, receipt := numbers[0], int64(0)
	if args[0] == "settle" {
		numbers, receipt = numbers[:len(numbers)-1], numbers[len(numbers)-1]
	}
	p := local.Policy{Kind: localKinds[k], Limit: numbers[1], WindowMS: numbers[len(numbers)-1]}
	if k == model.Bucket {
		p.Refill = numbers[2]
	}
	return s.Call(now, localOps[args[0]], cost, p, receipt)
}

func TestLocalAgreesWithTheModel(t *testing.T) {
	for _, k := range kinds {
		t.Run(k.Script(), func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				w := &walk{subject: &subject{kind: k}, state: model.New(), policies: somePolicies(k).Draw(t, "policies")}
				w.p, w.now = w.policies[0], epoch
				state := new(local.State)
				for range rapid.IntRange(1, 60).Draw(t, "calls") {
					if rapid.IntRange(0, 5).Draw(t, "another policy") == 5 {
						w.p = rapid.SampledFrom(w.policies).Draw(t, "policy")
					}
					w.now = min(max(w.now+w.advance(t), earliest), latest)
					op := rapid.SampledFrom([]string{"take", "take", "take", "peek", "settle", "settle"}).Draw(t, "op")
					cost, receipt := w.cost(t), int64(0)
					if op == "settle" {
						if rapid.Bool().Draw(t, "refund") {
							cost = -cost
						}
						receipt = w.receipt(t)
					}
					w.last = w.state.Call(w.now, op, cost, w.p, receipt)
					got := state.Call(w.now, localOps[op], cost, localPolicy(w.p), receipt)
					if !slices.Equal(localNumbers(got), w.last.Numbers()) || state.Until() != w.state.Until() {
						t.Fatalf("%s %d of %+v, receipt %d, at %d: got %v until %d, want %v until %d", op, cost, w.p, receipt, w.now,
							localNumbers(got), state.Until(), w.last.Numbers(), w.state.Until())
					}
					if op == "take" && w.last.Allowed {
						w.receipts = append(w.receipts, w.last.ServerTimeUS)
					}
				}
			})
		})
	}
}

// TestCoarseLogsNeverAdmitMore: a log that was coarsened admits a call only if the exact one does, and at the latest the promised
// part of a window after it.
func TestCoarseLogsNeverAdmitMore(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := model.Policy{Kind: model.Log, Limit: rapid.Int64Range(1, 300).Draw(t, "limit"), WindowMS: rapid.Int64Range(1, 5000).Draw(t, "window")}
		most := rapid.IntRange(4, 40).Draw(t, "most")
		exact, coarse := new(local.State), new(local.State)
		lp, now := localPolicy(p), int64(epoch)
		late := p.WindowMS/int64(most/2-1) + 2 // ms; rounded up, and once more in the wait
		for range rapid.IntRange(1, 300).Draw(t, "calls") {
			now += rapid.Int64Range(0, max(1, 4000*p.WindowMS/p.Limit)).Draw(t, "step")
			cost := rapid.Int64Range(1, min(3, p.Limit)).Draw(t, "cost")
			got := coarse.Call(now, local.Take, cost, lp, 0)
			coarse.Coarsen(most, lp)
			want := exact.Call(now, local.Peek, cost, lp, 0)
			if got.Allowed && !want.Allowed || got.RetryAfterMS > want.RetryAfterMS+late {
				t.Fatalf("cost %d at %d: coarse %+v, exact %+v", cost, now, got, want)
			}
			if got.Allowed { // both have admitted the same
				exact.Call(now, local.Take, cost, lp, 0)
			}
		}
	})
}

func BenchmarkLocal(b *testing.B) {
	for _, k := range kinds {
		for _, denied := range []bool{false, true} {
			b.Run(fmt.Sprintf("%s/denied=%t", k, denied), func(b *testing.B) {
				p := local.Policy{Kind: localKinds[k], Limit: 1000, Refill: 1000, WindowMS: 1000}
				store, now := local.NewStore(1000), int64(epoch)
				if denied {
					store.Call(now, local.Call{Key: "key", Policy: p, Cost: p.Limit})
				}
				b.ReportAllocs()
				for b.Loop() {
					if !denied {
						now += 2000
					}
					if store.Call(now, local.Call{Key: "key", Policy: p, Cost: 1}).Allowed == denied {
						b.Fatal("not what was to be measured")
					}
				}
			})
		}
	}
}
