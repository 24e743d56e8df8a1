package conformance_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/sluicego/sluice"
	"github.com/sluicego/sluice/plan"
)

// A plan that is changed, and a tenant that changes plans, keep what was used: by every algorithm.
func TestPlansAreSwappedOnLiveKeys(t *testing.T) {
	forms := map[string]string{"log": "log:%d/%s", "counter": "counter:%d/%s", "bucket": "bucket:%d+10/%s"}
	onServers(t, sluice.Config{}, func(c *caller) {
		t := c.t
		for algorithm, form := range forms {
			c.Flush(t)
			var store plan.Store
			// swap puts in force the plan with this limit for the one that is used, beside a wide one.
			swap := func(limit int, window string) {
				t.Helper()
				text := fmt.Sprintf("free:\n  used: "+form+"\n  wide: counter:1000/1h\npro:\n  used: "+form+"\n", limit, window, 10*limit, window)
				plans, err := plan.Parse([]byte(text))
				if err != nil {
					t.Fatal(err)
				}
				if err := store.Swap(plans); err != nil {
					t.Fatal(err)
				}
			}
			take := func(name string, cost int64) sluice.Results {
				t.Helper()
				p, ok := store.Plan(name)
				if !ok {
					t.Fatalf("no plan %s", name)
				}
				return c.takeAll(t, p.Requests("tenant", cost)...)
			}
			denied := func(what, name string, cost int64) {
				t.Helper()
				if res := take(name, cost); res.Allowed || !slices.Equal(res.Denied(), []int{0}) || res.RetryAfter <= 0 {
					t.Errorf("%s, %s: %+v, want it denied by the first policy", algorithm, what, res)
				}
			}
			allowed := func(what, name string, cost, remaining int64) {
				t.Helper()
				if res := take(name, cost); !res.Allowed || res.Each[0].Remaining != remaining {
					t.Errorf("%s, %s: %+v, want it allowed with %d left", algorithm, what, res, remaining)
				}
			}

			swap(10, "1m")
			allowed("all of it", "free", 10, 0)
			denied("exhausted", "free", 1)
			swap(15, "1m")
			allowed("raised", "free", 5, 0)
			denied("15 used of 15", "free", 1)
			swap(12, "1m")
			denied("lowered", "free", 1)
			allowed("another plan", "pro", 100, 5)
			swap(1000, "1m")
			allowed("raised above all that was used", "free", 1, 884)
			swap(100, "1h")
			denied("another window", "free", 1)
			allowed("another window, raised", "pro", 1, 883)
			wide := sluice.Request{Key: "tenant", Policy: sluice.SlidingCounter(1000, tenAMinute["log"].Window()*60).Named("wide")}
			if res := c.peekAll(t, wide); res.Each[0].Remaining != 1000-10-5-1 {
				t.Errorf("%s: %+v of the wide limit, want 984 left: denied calls charged nothing", algorithm, res)
			}
		}
	})
}

// Not even when the name was away in between: its keys are not.
func TestPlanOfAnotherAlgorithmIsNotSwappedIn(t *testing.T) {
	onServers(t, sluice.Config{}, func(c *caller) {
		t := c.t
		var store plan.Store
		for _, step := range []struct {
			text      string
			refused   bool
			remaining int64
		}{
			{"free: {used: log:10/1m}\n", false, 9},
			{"free: {used: counter:10/1m}\n", true, 8},
			{"free: {other: log:10/1m}\n", false, 9},
			{"free: {used: counter:10/1m}\n", true, 8},
			{"free: {used: log:10/1m}\n", false, 7},
		} {
			plans, err := plan.Parse([]byte(step.text))
			if err != nil {
				t.Fatal(err)
			}
			if err := store.Swap(plans); (err != nil) != step.refused {
				t.Errorf("%s: %v", step.text, err)
			}
			p, _ := store.Plan("free")
			if res := c.takeAll(t, p.Requests("tenant", 1)...); !res.Allowed || res.Each[0].Remaining != step.remaining {
				t.Errorf("%s: %+v, want the log in force, with %d left", step.text, res, step.remaining)
			}
		}
	})
}
