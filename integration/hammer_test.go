package integration

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/sluicego/sluice"
	"github.com/sluicego/sluice/conformance/servers"
	"github.com/sluicego/sluice/integration/containers"
)

// The hammer: so many processes with so many workers each.
const (
	hammerProcesses = 3
	hammerWorkers   = 500
	hammerOrder     = "SLUICE_HAMMER" // the order of a process, as JSON
)

// order is what a process of the hammer has to do.
type order struct {
	Addr   string
	Prefix string
	Policy sluice.Policy
	Keys   int
	Calls  int           // of each worker
	Pause  time.Duration // between a worker's calls, at most
}

// account is what a process saw.
type account struct {
	Calls    int64
	Admitted [][]int64 // of each key: the server's times of the admitted calls, us
}

// hammerProcess is the main program of a process.
func hammerProcess(text string) int {
	var o order
	if err := json.Unmarshal([]byte(text), &o); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	client, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{o.Addr}, DisableCache: true})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer client.Close()
	l, err := sluice.New(client, sluice.Config{Prefix: o.Prefix, Timeout: patience})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	a := account{Admitted: make([][]int64, o.Keys)}
	var mu sync.Mutex
	var failed error
	var wg sync.WaitGroup
	for worker := range hammerWorkers {
		wg.Go(func() {
			for i := range o.Calls {
				key := (worker*o.Calls + i) % o.Keys // each as often as the others
				res, err := l.Allow(context.Background(), fmt.Sprint(key), o.Policy)
				mu.Lock()
				a.Calls++
				if err != nil {
					failed = err
				}
				if res.Allowed {
					a.Admitted[key] = append(a.Admitted[key], res.ServerTime.UnixMicro())
				}
				mu.Unlock()
				if o.Pause > 0 {
					time.Sleep(rand.N(o.Pause))
				}
			}
		})
	}
	wg.Wait()
	if failed == nil {
		failed = json.NewEncoder(os.Stdout).Encode(a)
	}
	if failed != nil {
		fmt.Fprintln(os.Stderr, failed)
		return 1
	}
	return 0
}

// hammer runs the processes and returns, for each key, the sorted times of what was admitted.
func hammer(t *testing.T, o order) [][]int64 {
	t.Helper()
	text, err := json.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	accounts := make([]account, hammerProcesses)
	errs := make([]error, hammerProcesses)
	var wg sync.WaitGroup
	for i := range accounts {
		wg.Go(func() {
			cmd := exec.CommandContext(t.Context(), os.Args[0])
			cmd.Env = append(os.Environ(), hammerOrder+"="+string(text))
			cmd.Stderr = os.Stderr
			out, err := cmd.Output()
			if err == nil {
				err = json.Unmarshal(out, &accounts[i])
			}
			errs[i] = err
		})
	}
	wg.Wait()
	admitted := make([][]int64, o.Keys)
	var calls int64
	for i, a := range accounts {
		if errs[i] != nil {
			t.Fatal(errs[i])
		}
		calls += a.Calls
		for key, times := range a.Admitted {
			admitted[key] = append(admitted[key], times...)
		}
	}
	if want := int64(hammerProcesses * hammerWorkers * o.Calls); calls != want {
		t.Errorf("%d calls were made, want %d", calls, want)
	}
	for _, times := range admitted {
		slices.Sort(times)
	}
	return admitted
}

// TestHammerOnAStoppedClock: exactly the limit is admitted, on one key and on each of a thousand.
func TestHammerOnAStoppedClock(t *testing.T) {
	c := containers.StartClocked(t, containers.Spec{Image: containers.Usual()})
	for _, load := range []struct {
		keys, calls int
		limit       int64
	}{{1, 10, 5000}, {1000, 20, 7}} {
		for _, p := range []sluice.Policy{
			sluice.SlidingLog(load.limit, time.Minute), sluice.SlidingCounter(load.limit, time.Minute),
			sluice.TokenBucket(load.limit, 1000, time.Second),
		} {
			t.Run(fmt.Sprintf("%d keys/%s", load.keys, p), func(t *testing.T) {
				c.Flush(t)
				c.SetTime(servers.Epoch)
				for key, times := range hammer(t, order{Addr: c.Addr, Prefix: "hammer", Policy: p, Keys: load.keys, Calls: load.calls}) {
					if int64(len(times)) != load.limit {
						t.Errorf("key %d: %d admitted, want %d", key, len(times), load.limit)
					}
				}
			})
		}
	}
}

// TestHammerOnARunningClock: what was admitted, by the server's own times, keeps to each algorithm's promise in any
// stretch of time, and is not much less.
func TestHammerOnARunningClock(t *testing.T) {
	s := containers.Start(t, containers.Spec{Image: containers.Usual()})
	const window = 250 * time.Millisecond
	us := window.Microseconds()
	for _, load := range []struct {
		keys  int
		limit int64
	}{{1, 200}, {1000, 3}} {
		limit := load.limit
		for _, promise := range []struct {
			policy sluice.Policy
			most   func(from, to int64) int64 // units admitted in [from, to]
		}{
			{sluice.SlidingLog(limit, window), func(from, to int64) int64 {
				return limit * ((to-from)/us + 1) // to - from < window: the limit
			}},
			{sluice.SlidingCounter(limit, window), func(from, to int64) int64 {
				return limit * (to/us - from/us + 1) // the limit in each window that is touched
			}},
			{sluice.TokenBucket(limit, limit, window), func(from, to int64) int64 {
				return limit + limit*(to-from)/us
			}},
		} {
			t.Run(fmt.Sprintf("%d keys/%s", load.keys, promise.policy), func(t *testing.T) {
				s.Do("FLUSHALL")
				o := order{Addr: s.Addr, Prefix: "hammer", Policy: promise.policy, Keys: load.keys, Calls: 20, Pause: 200 * time.Millisecond}
				sum := 0
				for key, times := range hammer(t, o) {
					sum += len(times)
					for i, from := range times {
						for j := i; j < len(times); j++ {
							if n := int64(j - i + 1); n > promise.most(from, times[j]) {
								t.Fatalf("key %d: %d admitted from %d to %d, want at most %d", key, n, from, times[j], promise.most(from, times[j]))
							}
						}
					}
				}
				if sum <= int(limit)*load.keys {
					t.Errorf("%d admitted: nothing came free", sum)
				}
				t.Logf("%d admitted", sum)
			})
		}
	}
}
