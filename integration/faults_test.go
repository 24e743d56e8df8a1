package integration

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/sluicego/sluice"
	"github.com/sluicego/sluice/integration/containers"
)

// The policies of these tests: nothing comes free while a test runs.
var (
	hourly = []sluice.Policy{
		sluice.SlidingLog(10, time.Hour),
		sluice.SlidingCounter(10, 300*24*time.Hour),
		sluice.TokenBucket(10, 1, 24*time.Hour),
	}
)

// start starts the usual server.
func start(t *testing.T, args ...string) *containers.Server {
	t.Helper()
	return containers.Start(t, containers.Spec{Image: containers.Usual(), Args: args})
}

// used is how much of a policy's 10 units a subject has used.
func used(t *testing.T, l *sluice.Limiter, key string, p sluice.Policy) int64 {
	t.Helper()
	res, err := l.Peek(t.Context(), key, p, 0)
	if err != nil {
		t.Fatalf("%s: %v", p, err)
	}
	return res.Limit - res.Remaining
}

// charge uses units, which must be free.
func charge(t *testing.T, l *sluice.Limiter, key string, p sluice.Policy, units int64) sluice.Result {
	t.Helper()
	res, err := l.AllowN(t.Context(), key, p, units)
	if err != nil || !res.Allowed {
		t.Fatalf("%s: %+v, %v", p, res, err)
	}
	return res
}

// eventually waits until f returns nil.
func eventually(t *testing.T, f func() error) {
	t.Helper()
	var err error
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		if err = f(); err == nil {
			return
		}
	}
	t.Fatalf("it stays so: %v", err)
}

// backend checks an error that is Redis' fault.
func backend(t *testing.T, err error, unknown bool, text string) {
	t.Helper()
	var call *sluice.CallError
	if !errors.Is(err, sluice.ErrBackend) || !errors.As(err, &call) {
		t.Errorf("the error is %v, want one of the backend", err)
		return
	}
	if call.Unknown != unknown || !strings.Contains(err.Error(), text) {
		t.Errorf("unknown is %v in %q, want %v and %q", call.Unknown, err, unknown, text)
	}
}

// TestKilledAndRestarted: without persistence a restart is one fresh window; with an append-only file that is synced
// always, all that was answered is remembered. The limiter recovers by itself, scripts and all.
func TestKilledAndRestarted(t *testing.T) {
	for name, c := range map[string]struct {
		args       []string
		remembered int64
	}{
		"nothing persists":         {nil, 0},
		"append-only file, synced": {[]string{"--appendonly", "yes", "--appendfsync", "always"}, 7},
	} {
		t.Run(name, func(t *testing.T) {
			s := start(t, c.args...)
			l := newLimiter(t, s.Client, sluice.Config{})
			for _, p := range hourly {
				charge(t, l, "k", p, 7)
			}
			s.Kill()
			_, err := l.Allow(t.Context(), "k", hourly[0])
			if err == nil {
				t.Error("a dead server allowed")
			}
			s.Restart()
			for _, p := range hourly {
				eventually(t, func() error {
					_, err := l.Peek(t.Context(), "k", p, 0)
					return err
				})
				if got := used(t, l, "k", p); got != c.remembered {
					t.Errorf("%s: %d units are remembered, want %d", p, got, c.remembered)
				}
				charge(t, l, "k", p, 10-c.remembered)
				if res, err := l.Allow(t.Context(), "k", p); err != nil || res.Allowed {
					t.Errorf("%s: one above the limit: %+v, %v", p, res, err)
				}
			}
			for _, key := range keys(t, s.Client) {
				if ttl, err := s.Client.Do(t.Context(), s.Client.B().Pttl().Key(key).Build()).AsInt64(); err != nil || ttl <= 0 {
					t.Errorf("PTTL of %s = %d, %v", key, ttl, err)
				}
			}
		})
	}
}

// TestBlackHole: what swallows every packet costs a call Config.Timeout and at most a tenth more, whatever the call. On a busy machine
// any one of them may wait for a processor, so there are a few tries; were the limiter late itself, it would be so in each.
func TestBlackHole(t *testing.T) {
	s := start(t)
	p := newProxy(t, s.Addr)
	const timeout, callers, tries = time.Second, 5, 5
	l := newLimiter(t, dial(t, p.addr, nil), sluice.Config{Timeout: timeout})
	request := sluice.Request{Key: "k", Policy: hourly[1], Cost: 1}
	calls := map[string]func(charged sluice.Result) error{
		"Allow": func(sluice.Result) error { _, err := l.Allow(t.Context(), "k", hourly[1]); return err },
		"Peek":  func(sluice.Result) error { _, err := l.Peek(t.Context(), "k", hourly[1], 1); return err },
		"Settle": func(charged sluice.Result) error {
			_, err := l.Settle(t.Context(), charged, 2)
			return err
		},
		"AllowAll": func(sluice.Result) error { _, err := l.AllowAll(t.Context(), request); return err },
		"Batch":    func(sluice.Result) error { return l.Batch(t.Context(), request, request)[1].Err },
	}
	var charged []sluice.Result
	for i := range callers {
		charged = append(charged, charge(t, l, fmt.Sprint("settled", i), hourly[0], 1))
	}

	p.requests.Store(true)
	late := func() time.Duration { // how late the last one is
		var mu sync.Mutex
		var latest time.Duration
		var wg sync.WaitGroup
		for name, call := range calls {
			for i := range callers {
				wg.Go(func() {
					before := time.Now()
					err := call(charged[i])
					took := time.Since(before)
					if !errors.Is(err, sluice.ErrBackend) || !errors.Is(err, context.DeadlineExceeded) {
						t.Errorf("%s: the error is %v, want the backend's deadline", name, err)
					}
					const apart = time.Millisecond // how far the clocks of a virtual machine's processors may be
					if took < timeout-apart {
						t.Errorf("%s took %v, want no less than %v", name, took, timeout)
					}
					mu.Lock()
					defer mu.Unlock()
					latest = max(latest, took-timeout)
				})
			}
		}
		wg.Wait()
		return latest
	}
	least := time.Duration(math.MaxInt64)
	for try := 0; try < tries && least > timeout/10; try++ {
		least = min(least, late())
	}
	if least > timeout/10 {
		t.Errorf("calls took %v longer than %v in the best of %d tries, want at most a tenth", least, timeout, tries)
	}

	p.requests.Store(false)
	p.cut()
	eventually(t, func() error {
		_, err := l.Peek(t.Context(), "k", hourly[1], 0)
		return err
	})
	if got := used(t, l, "k", hourly[1]); got != 0 {
		t.Errorf("%d units are used, want 0: nothing arrived", got)
	}
}

// TestLostReply: a charge or a settlement whose answer is lost counts once, and is reported as unknown. So it is when the
// answer is late, and when the connection breaks before it.
func TestLostReply(t *testing.T) {
	s := start(t)
	direct := newLimiter(t, s.Client, sluice.Config{})
	for name, cut := range map[string]bool{"late": false, "broken connection": true} {
		for i, policy := range hourly {
			for op, call := range map[string]func(*sluice.Limiter, string, sluice.Result) error{
				"take": func(l *sluice.Limiter, key string, _ sluice.Result) error {
					_, err := l.AllowN(t.Context(), key, policy, 2)
					return err
				},
				"settle": func(l *sluice.Limiter, _ string, res sluice.Result) error {
					_, err := l.Settle(t.Context(), res, 3)
					return err
				},
			} {
				t.Run(fmt.Sprintf("%s/%s/%d", name, op, i), func(t *testing.T) {
					p := newProxy(t, s.Addr)
					timeout := 300 * time.Millisecond
					if cut {
						timeout = patience
					}
					client := dial(t, p.addr, func(o *rueidis.ClientOption) {
						o.PipelineMultiplex = -1 // one connection, since another would not get beyond its handshake
					})
					l := newLimiter(t, client, sluice.Config{Timeout: timeout})
					res := charge(t, l, t.Name(), policy, 1)
					p.replies.Store(true)
					failed := make(chan error, 1)
					go func() { failed <- call(l, t.Name(), res) }()
					eventually(t, func() error {
						if got := used(t, direct, t.Name(), policy); got != 3 {
							return fmt.Errorf("%d units are used, want 1 + 2", got)
						}
						return nil
					})
					if cut {
						p.cut()
					}
					backend(t, <-failed, true, "unknown")

					p.replies.Store(false)
					p.cut()
					eventually(t, func() error {
						_, err := l.Peek(t.Context(), t.Name(), policy, 0)
						return err
					})
					if got := used(t, direct, t.Name(), policy); got != 3 {
						t.Errorf("%d units are used in the end, want 1 + 2", got)
					}
				})
			}
		}
	}
}

// TestOutOfMemory: a full server that evicts nothing refuses charges and charges nothing; it still answers a peek.
func TestOutOfMemory(t *testing.T) {
	s := start(t, "--maxmemory-policy", "noeviction")
	l := newLimiter(t, s.Client, sluice.Config{})
	for _, p := range hourly {
		charge(t, l, "k", p, 3)
	}
	s.Do("CONFIG", "SET", "maxmemory", "1")
	for _, p := range hourly {
		for _, key := range []string{"k", "fresh"} {
			_, err := l.Allow(t.Context(), key, p)
			backend(t, err, false, "OOM")
		}
		if got := used(t, l, "k", p); got != 3 {
			t.Errorf("%s: %d units are used, want 3", p, got)
		}
	}
	s.Do("CONFIG", "SET", "maxmemory", "0")
	for _, p := range hourly {
		charge(t, l, "k", p, 7)
		charge(t, l, "fresh", p, 10)
	}
}

// TestBusyServer: while somebody's script holds the server, calls fail as BUSY and charge nothing.
func TestBusyServer(t *testing.T) {
	s := start(t, "--lua-time-limit", "50")
	l := newLimiter(t, s.Client, sluice.Config{})
	charge(t, l, "k", hourly[0], 3)

	other := s.NewClient(t, nil)
	ended := make(chan error, 1)
	go func() {
		ended <- other.Do(context.Background(), other.B().Eval().Script("while true do end").Numkeys(0).Build()).Error()
	}()
	eventually(t, func() error {
		err := s.Client.Do(t.Context(), s.Client.B().Ping().Build()).Error()
		if err == nil || !strings.HasPrefix(err.Error(), "BUSY") {
			return fmt.Errorf("not busy yet: %w", err)
		}
		return nil
	})
	_, err := l.Allow(t.Context(), "k", hourly[0])
	backend(t, err, false, "BUSY")
	s.Do("SCRIPT", "KILL")
	if err := <-ended; err == nil {
		t.Error("the script that never ends has ended by itself")
	}
	if got := used(t, l, "k", hourly[0]); got != 3 {
		t.Errorf("%d units are used, want 3", got)
	}
}

// TestLoadingServer: while a server reads its data set calls fail as LOADING, and when it is done it knows what was used.
func TestLoadingServer(t *testing.T) {
	// Both are settings of the server's own tests: a second and a half for 1500 keys, and a look at clients after each KiB.
	s := start(t, "--key-load-delay", "1000", "--loading-process-events-interval-bytes", "1024")
	l := newLimiter(t, s.Client, sluice.Config{})
	for _, p := range hourly {
		charge(t, l, "k", p, 3)
	}
	s.Do("EVAL", "for i = 1, 1500 do redis.call('SET', 'key' .. i, string.rep('x', 100)) end", "0")
	s.Do("SAVE")
	s.Kill()
	s.StartAgain()
	eventually(t, func() error {
		_, err := l.Allow(t.Context(), "k", hourly[0])
		if err == nil {
			t.Fatal("the server was not seen loading")
		}
		if !strings.Contains(err.Error(), "LOADING") {
			return err
		}
		backend(t, err, false, "LOADING")
		return nil
	})
	eventually(t, func() error {
		_, err := l.Peek(t.Context(), "k", hourly[0], 0)
		return err
	})
	for _, p := range hourly {
		if got := used(t, l, "k", p); got != 3 {
			t.Errorf("%s: %d units are used, want 3", p, got)
		}
	}
}

// TestSomethingElseUnderOurKey: it is a StateError, nothing is overwritten, and Reset cures it.
func TestSomethingElseUnderOurKey(t *testing.T) {
	s := start(t)
	l := newLimiter(t, s.Client, sluice.Config{})
	for _, p := range hourly {
		charge(t, l, "k", p, 1)
		key := keys(t, s.Client)[0]
		for _, make := range [][]string{
			{"SET", key, "text"}, {"SET", key, ""}, {"RPUSH", key, "a"}, {"SADD", key, "a"}, {"HSET", key, "a", "1"},
			{"ZADD", key, "1", "a"}, {"XADD", key, "*", "a", "1"}, {"PFADD", key, "a"},
		} {
			s.Do("DEL", key)
			s.Do(make...)
			before, err := s.Do("DUMP", key).ToString()
			if err != nil {
				t.Fatal(err)
			}
			_, err = l.Allow(t.Context(), "k", p)
			var state *sluice.StateError
			if !errors.As(err, &state) || state.Key != key {
				t.Errorf("%s over %v: %v, want a StateError", p, make[:1], err)
			}
			backend(t, err, false, "")
			if after, err := s.Do("DUMP", key).ToString(); err != nil || after != before {
				t.Errorf("%s over %v: the key has changed, %v", p, make[:1], err)
			}
			if err := l.Reset(t.Context(), "k", p); err != nil {
				t.Error(err)
			}
			charge(t, l, "k", p, 10)
		}
		s.Do("DEL", key)
	}
}

// TestClientKilledInAPipeline: what was answered as allowed is charged, what failed is unknown or not charged, and
// nothing is charged twice.
func TestClientKilledInAPipeline(t *testing.T) {
	s := start(t)
	const size = 2000
	policy := sluice.SlidingCounter(1_000_000, 300*24*time.Hour)
	client := dial(t, s.Addr, nil)
	l := newLimiter(t, client, sluice.Config{})
	direct := newLimiter(t, s.Client, sluice.Config{})
	var allowed, unknown int64
	cut := false
	for round := 0; round < 50 && !cut; round++ {
		requests := slices.Repeat([]sluice.Request{{Key: "k", Policy: policy, Cost: 1}}, size)
		done := make(chan []sluice.Outcome, 1)
		go func() { done <- l.Batch(t.Context(), requests...) }()
		time.Sleep(time.Duration(round) * time.Millisecond / 4) // into the midst of it, at one round or the other
		s.Do("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
		for _, o := range <-done {
			var call *sluice.CallError
			switch {
			case o.Err == nil && o.Result.Allowed:
				allowed++
			case errors.As(o.Err, &call) && call.Unknown:
				unknown++
				cut = cut || allowed%size != 0
			case o.Err == nil:
				t.Fatal("denied, below the limit")
			}
		}
		eventually(t, func() error {
			_, err := l.Peek(t.Context(), "k", policy, 0)
			return err
		})
	}
	t.Logf("%d allowed, %d unknown", allowed, unknown)
	if !cut {
		t.Error("no pipeline was cut")
	}
	if got := used(t, direct, "k", policy); got < allowed || got > allowed+unknown {
		t.Errorf("%d units are used, want %d to %d", got, allowed, allowed+unknown)
	}
}
