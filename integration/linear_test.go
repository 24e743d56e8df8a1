package integration

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/sluicego/sluice"
	"github.com/sluicego/sluice/conformance/model"
	"github.com/sluicego/sluice/integration/containers"
)

// asked is a call in a history.
type asked struct {
	op      string
	cost    int64
	receipt int64
}

// linear is the model of one limit for porcupine: the exact model, at the time that the answer carries.
func linear(p model.Policy) porcupine.Model {
	return porcupine.Model{
		Init: func() any { return *model.New() },
		Step: func(state, input, output any) (bool, any) {
			s, in, out := state.(model.State), input.(asked), output.(sluice.Result)
			want := s.Call(out.ServerTime.UnixMicro(), in.op, in.cost, p, in.receipt)
			return compare(out, want) == nil, s
		},
		Equal: reflect.DeepEqual,
		DescribeOperation: func(input, output any) string {
			return fmt.Sprintf("%+v -> %+v", input, output)
		},
	}
}

// TestHistoriesAreLinearizable: there is an order of concurrent takes, peeks and settles, which agrees with when each began
// and ended, in which the exact model gives the very same answers. So it is while the clock stands still, where the times
// tell nothing of the order, and while it runs.
func TestHistoriesAreLinearizable(t *testing.T) {
	const clients, calls = 8, 25
	clocked := containers.StartClocked(t, containers.Spec{Image: containers.Usual()})
	running := containers.Start(t, containers.Spec{Image: containers.Usual()})
	limits := []limit{logOf(30, 100*time.Millisecond), counterOf(30, 100*time.Millisecond), bucketOf(30, 7, 20*time.Millisecond)}
	for name, addr := range map[string]string{"clock stands still": clocked.Addr, "clock runs": running.Addr} {
		for _, lim := range limits {
			t.Run(fmt.Sprintf("%s/%s", name, lim.policy), func(t *testing.T) {
				l := newLimiter(t, dial(t, addr, nil), sluice.Config{})
				for round := range 10 {
					key := fmt.Sprint("linear", round)
					history := record(t, l, key, lim, clients, calls)
					switch porcupine.CheckOperationsTimeout(linear(lim.exact), history, 30*time.Second) {
					case porcupine.Illegal:
						t.Fatalf("round %d: no order explains the answers: %+v", round, history)
					case porcupine.Unknown:
						t.Fatalf("round %d: no order was found in time", round)
					case porcupine.Ok:
					}
				}
			})
		}
	}
}

// TestAForgedHistoryIsFound: one answer that differs in one thing is not explained away. The calls come one after the other; of two
// at a time, either could have been the first.
func TestAForgedHistoryIsFound(t *testing.T) {
	s := containers.Start(t, containers.Spec{Image: containers.Usual()})
	forgeries := map[string]func(*sluice.Result){
		"allowed":   func(r *sluice.Result) { r.Allowed = !r.Allowed },
		"remaining": func(r *sluice.Result) { r.Remaining++ },
		"retry":     func(r *sluice.Result) { r.RetryAfter += time.Millisecond },
		"reset":     func(r *sluice.Result) { r.ResetAfter += time.Millisecond },
	}
	for _, lim := range []limit{logOf(30, 100*time.Millisecond), counterOf(30, 100*time.Millisecond), bucketOf(30, 7, 20*time.Millisecond)} {
		history := record(t, newLimiter(t, s.Client, sluice.Config{}), "forged", lim, 1, 30)
		for what, forge := range forgeries {
			for i := range history {
				forged := slices.Clone(history)
				answer := forged[i].Output.(sluice.Result)
				forge(&answer)
				forged[i].Output = answer
				if got := porcupine.CheckOperationsTimeout(linear(lim.exact), forged, 30*time.Second); got != porcupine.Illegal {
					t.Fatalf("%s: %s of answer %d was changed to %+v: %s", lim.policy, what, i, answer, got)
				}
			}
		}
	}
}

// record has clients call at the same time, and notes when each call began and ended.
func record(t *testing.T, l *sluice.Limiter, key string, lim limit, clients, calls int) []porcupine.Operation {
	t.Helper()
	start := time.Now()
	var mu sync.Mutex
	var history []porcupine.Operation
	var wg sync.WaitGroup
	for client := range clients {
		wg.Go(func() {
			type charge struct {
				res  sluice.Result
				cost int64
			}
			var charges []charge
			for range calls {
				in := asked{op: "take", cost: rand.Int64N(6)}
				var res sluice.Result
				var err error
				began := time.Since(start)
				switch n := rand.IntN(6); {
				case n < 3:
					res, err = l.AllowN(t.Context(), key, lim.policy, in.cost)
				case n < 4 || len(charges) == 0:
					in.op = "peek"
					res, err = l.Peek(t.Context(), key, lim.policy, in.cost)
				default:
					last := charges[len(charges)-1]
					charges = charges[:len(charges)-1]
					actual := rand.Int64N(8)
					in = asked{"settle", actual - last.cost, last.res.ServerTime.UnixMicro()}
					res, err = l.Settle(t.Context(), last.res, actual)
				}
				ended := time.Since(start)
				if err != nil {
					t.Error(err)
					return
				}
				if in.op == "take" && res.Allowed {
					charges = append(charges, charge{res, in.cost})
				}
				mu.Lock()
				history = append(history, porcupine.Operation{ClientId: client, Input: in, Call: int64(began), Output: res, Return: int64(ended)})
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	return history
}
