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
		for p, holds := range map[sluice.Policy]promise{
			sluice.SlidingLog(limit, window):         logPromise(limit, us),
			sluice.SlidingCounter(limit, window):     counterPromise(limit, us),
			sluice.TokenBucket(limit, limit, window): bucketPromise(limit, us),
		} {
			t.Run(fmt.Sprintf("%d keys/%s", load.keys, p), func(t *testing.T) {
				s.Do("FLUSHALL")
				o := order{Addr: s.Addr, Prefix: "hammer", Policy: p, Keys: load.keys, Calls: 20, Pause: 200 * time.Millisecond}
				sum := 0
				for key, times := range hammer(t, o) {
					sum += len(times)
					if err := holds(times); err != nil {
						t.Fatalf("key %d: %v", key, err)
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

// promise holds the sorted times, in us, at which one unit each was admitted to what an algorithm promises.
type promise func(times []int64) error

// logPromise: in no window more than the limit.
func logPromise(limit, window int64) promise {
	return func(times []int64) error {
		for i := int(limit); i < len(times); i++ {
			if from := times[i-int(limit)]; times[i]-from < window {
				return fmt.Errorf("%d admitted from %d to %d, which is less than a window: want at most %d", limit+1, from, times[i], limit)
			}
		}
		return nil
	}
}

// counterPromise: whenever one is admitted, those of its aligned window, and of the one before by the part of it that a window back
// from now still covers, are within the limit.
func counterPromise(limit, window int64) promise {
	return func(times []int64) error {
		admitted := map[int64]int64{}
		for _, now := range times {
			n, elapsed := now/window, now%window
			admitted[n]++
			if used := admitted[n-1]*(window-elapsed)/window + admitted[n]; used > limit {
				return fmt.Errorf("at %d %d were admitted in its window and %d in the one before: %d are used, want at most %d",
					now, admitted[n], admitted[n-1], used, limit)
			}
		}
		return nil
	}
}

// bucketPromise: in no stretch of time more than the capacity, here the limit, and what is refilled meanwhile, the limit in a window.
func bucketPromise(limit, window int64) promise {
	return func(times []int64) error {
		for i, from := range times {
			for j := i; j < len(times); j++ {
				if n, most := int64(j-i+1), limit+limit*(times[j]-from)/window; n > most {
					return fmt.Errorf("%d admitted from %d to %d, want at most %d", n, from, times[j], most)
				}
			}
		}
		return nil
	}
}

// TestABrokenPromiseIsFound: what each promise just allows passes, and one unit more or a moment earlier does not.
func TestABrokenPromiseIsFound(t *testing.T) {
	const limit, window = 4, 1000
	for name, c := range map[string]struct {
		holds      promise
		kept, lost []int64
	}{
		"log, a moment early":           {logPromise(limit, window), []int64{0, 1, 2, 3, 1000}, []int64{0, 1, 2, 3, 999}},
		"log, one more":                 {logPromise(limit, window), []int64{5, 5, 5, 5}, []int64{5, 5, 5, 5, 5}},
		"counter, one more":             {counterPromise(limit, window), []int64{5, 5, 5, 5}, []int64{5, 5, 5, 5, 5}},
		"counter, a moment early":       {counterPromise(limit, window), []int64{0, 0, 0, 0, 1001}, []int64{0, 0, 0, 0, 1000}},
		"counter, the window before":    {counterPromise(limit, window), []int64{0, 0, 0, 0, 1501, 1501, 1501}, []int64{0, 0, 0, 0, 1501, 1501, 1501, 1501}},
		"bucket, one more":              {bucketPromise(limit, window), []int64{5, 5, 5, 5}, []int64{5, 5, 5, 5, 5}},
		"bucket, a moment early":        {bucketPromise(limit, window), []int64{0, 0, 0, 0, 250, 500}, []int64{0, 0, 0, 0, 249}},
		"bucket, a moment early, later": {bucketPromise(limit, window), []int64{0, 9000, 9000, 9000, 9000, 9250}, []int64{0, 9000, 9000, 9000, 9000, 9249}},
	} {
		if err := c.holds(c.kept); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if c.holds(c.lost) == nil {
			t.Errorf("%s: %v passes", name, c.lost)
		}
	}
}
