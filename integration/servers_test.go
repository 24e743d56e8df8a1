package integration

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/sluicego/sluice"
	"github.com/sluicego/sluice/conformance/servers"
	"github.com/sluicego/sluice/integration/containers"
	"github.com/sluicego/sluice/integration/images"
)

// TestServers runs on each server version what the scripts and the API have to show on every one.
func TestServers(t *testing.T) {
	for _, image := range containers.Images() {
		t.Run(image.String(), func(t *testing.T) {
			t.Parallel() // each server is by itself, and most of the time one of the two sides waits for the other
			c := containers.StartClocked(t, containers.Spec{Image: image})
			t.Run("version", func(t *testing.T) { version(t, c.Client, image) })
			t.Run("digests", func(t *testing.T) { digests(t, c.Client) })
			t.Run("least rights", func(t *testing.T) { leastRights(t, c) })
			t.Run("only its key", func(t *testing.T) { onlyItsKey(t, c) })
			for name, resp2 := range map[string]bool{"RESP2": true, "RESP3": false} {
				t.Run(name, func(t *testing.T) {
					client := dialClocked(t, c, func(o *rueidis.ClientOption) { o.AlwaysRESP2 = resp2 })
					t.Run("API", func(t *testing.T) { api(t, c, newLimiter(t, client, sluice.Config{})) })
					t.Run("script flush", func(t *testing.T) { scriptFlush(t, c, client) })
				})
			}
			if image.HasFunctions() {
				t.Run("functions", func(t *testing.T) {
					l := newLimiter(t, dialClocked(t, c, nil), sluice.Config{Functions: true, Prefix: "functions"})
					if err := l.Load(t.Context()); err != nil {
						t.Fatal(err)
					}
					api(t, c, l)
					leastRightsForFunctions(t, c)
				})
			}
			t.Run("expiry", func(t *testing.T) { expiry(t, c) })
		})
	}
}

// TestVectorsOverRESP2 runs on one server: what the protocol changes lies in the client.
func TestVectorsOverRESP2(t *testing.T) {
	c := containers.StartClocked(t, containers.Spec{Image: containers.Usual()})
	conform(t, c, "", "?protocol=2")
}

// dial connects a client, closed when the test ends.
func dial(t testing.TB, addr string, change func(*rueidis.ClientOption)) rueidis.Client {
	t.Helper()
	option := rueidis.ClientOption{InitAddress: []string{addr}, DisableCache: true}
	if change != nil {
		change(&option)
	}
	client, err := rueidis.NewClient(option)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	return client
}

// dialClocked is the same over the server's socket.
func dialClocked(t testing.TB, c *containers.Clocked, change func(*rueidis.ClientOption)) rueidis.Client {
	t.Helper()
	return dial(t, c.Addr, func(o *rueidis.ClientOption) {
		c.OverSocket(o)
		if change != nil {
			change(o)
		}
	})
}

// sums is scripts/SHA1SUMS: the digest of each script file.
func sums(t *testing.T) map[string]string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(servers.Scripts(), "SHA1SUMS"))
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]string{}
	for line := range strings.Lines(string(text)) {
		sum, file, ok := strings.Cut(strings.TrimSpace(line), "  ")
		if !ok {
			t.Fatalf("SHA1SUMS: %q", line)
		}
		all[file] = sum
	}
	if len(all) == 0 {
		t.Fatal("SHA1SUMS is empty")
	}
	return all
}

// version: the server is the one that the image is named after.
func version(t *testing.T, client rueidis.Client, image images.Image) {
	t.Helper()
	found := versionOf(t, client, image)
	if !image.Is(found) {
		t.Errorf("the image of %s has another server: %s", image, found)
	}
	t.Logf("%s is %s", image, found)
}

// versionOf is the server's version, "7.0.15".
func versionOf(t *testing.T, client rueidis.Client, image images.Image) string {
	t.Helper()
	info, err := client.Do(t.Context(), client.B().Info().Section("server").Build()).ToString()
	if err != nil {
		t.Fatal(err)
	}
	m := regexp.MustCompile(`(?m)^` + image.Name + `_version:([0-9.]+)`).FindStringSubmatch(info)
	if m == nil {
		t.Fatalf("the image of %s has another server: %s", image, info)
	}
	return m[1]
}

// digests: the server computes the digests of scripts/SHA1SUMS.
func digests(t *testing.T, client rueidis.Client) {
	t.Helper()
	for file, want := range sums(t) {
		if file == "functions.lua" {
			continue // a library, which is no script
		}
		text, err := os.ReadFile(filepath.Join(servers.Scripts(), file))
		if err != nil {
			t.Fatal(err)
		}
		got, err := client.Do(t.Context(), client.B().ScriptLoad().Script(string(text)).Build()).ToString()
		if err != nil || got != want {
			t.Errorf("SCRIPT LOAD %s = %q, %v, want %s", file, got, err, want)
		}
	}
}

// api: every verb tells what the model does.
func api(t *testing.T, c *containers.Clocked, l *sluice.Limiter) {
	t.Helper()
	limits := []limit{
		logOf(7, 50*time.Millisecond), counterOf(9, 40*time.Millisecond), bucketOf(10, 3, 30*time.Millisecond),
		logOf(1_000_000_000, 31*24*time.Hour), counterOf(1_000_000_000, time.Hour), bucketOf(999_999_937, 12_345, time.Second),
	}
	if err := walk(t.Context(), l, 500, limits, forward(c, 20*time.Millisecond)); err != nil {
		t.Error(err)
	}
}

// forward moves a held clock by less than step, at random. One that runs is given a fifth of that: calls take their time as well.
func forward(c *containers.Clocked, step time.Duration) func(*rand.Rand) {
	if c.ClockFile == "" {
		return func(r *rand.Rand) { time.Sleep(time.Duration(r.Int64N(int64(step / 5)))) }
	}
	now := servers.Epoch
	c.SetTime(now)
	return func(r *rand.Rand) {
		now += r.Int64N(step.Microseconds())
		c.SetTime(now)
	}
}

// scriptFlush: callers never notice that the server forgets its scripts, and each charge counts once.
func scriptFlush(t *testing.T, c *containers.Clocked, client rueidis.Client) {
	t.Helper()
	const callers, calls, units = 20, 40, 500
	for _, lim := range []limit{logOf(units, time.Hour), counterOf(units, time.Hour), bucketOf(units, 1, 72*time.Hour/units)} {
		l := newLimiter(t, client, sluice.Config{Prefix: fmt.Sprintf("flush%d", rand.Uint64())})
		flush := func() {
			if err := c.Client.Do(context.Background(), c.Client.B().ScriptFlush().Build()).Error(); err != nil {
				t.Error(err)
			}
		}
		flush()
		var admitted atomic.Int64
		var wg sync.WaitGroup
		for caller := range callers {
			wg.Go(func() {
				for call := range calls {
					if (caller*calls+call)%10 == 0 {
						flush()
					}
					outcomes := l.Batch(t.Context(), sluice.Request{Key: "k", Policy: lim.policy, Cost: 1})
					if call%2 == 0 {
						res, err := l.Allow(t.Context(), "k", lim.policy)
						outcomes = append(outcomes, sluice.Outcome{Result: res, Err: err})
					}
					for _, o := range outcomes {
						if o.Err != nil {
							t.Errorf("%s: %v", lim.policy, o.Err)
						}
						if o.Result.Allowed {
							admitted.Add(1)
						}
					}
				}
			})
		}
		wg.Wait()
		if got := admitted.Load(); got != units {
			t.Errorf("%s: %d admitted under SCRIPT FLUSH, want %d", lim.policy, got, units)
		}
		res, err := l.Peek(t.Context(), "k", lim.policy, 1)
		if err != nil || res.Allowed || res.Remaining != 0 {
			t.Errorf("%s: afterwards %+v, %v", lim.policy, res, err)
		}
	}
}

// expiry: every key expires within its bound, and after two idle windows none is left.
func expiry(t *testing.T, c *containers.Clocked) {
	t.Helper()
	const window = 200 * time.Millisecond
	limits := []limit{logOf(20, window), counterOf(20, window), bucketOf(20, 20, window)}
	l := newLimiter(t, c.Client, sluice.Config{Prefix: "expiry"})
	c.Flush(t)
	advance := forward(c, 10*time.Millisecond)
	seen := 0
	for range 10 {
		if err := walk(t.Context(), l, 50, limits, advance); err != nil {
			t.Fatal(err)
		}
		for _, key := range keys(t, c.Client) {
			ttl, err := c.Client.Do(t.Context(), c.Client.B().Pttl().Key(key).Build()).AsInt64()
			if err != nil || ttl == -1 || ttl > 2*window.Milliseconds() {
				t.Errorf("PTTL of %s = %d, %v, want at most two windows", key, ttl, err)
			}
			if ttl >= 0 {
				seen++
			}
		}
	}
	if seen == 0 {
		t.Error("no key was seen alive")
	}
	if c.ClockFile != "" {
		now, err := c.Client.Do(t.Context(), c.Client.B().Time().Build()).AsIntSlice()
		if err != nil {
			t.Fatal(err)
		}
		c.SetTime(now[0]*1e6 + now[1] + (2*window + time.Millisecond).Microseconds())
	}
	// Keys that nobody touches are found by the server's own clock and pace.
	deadline := time.Now().Add(20 * time.Second)
	left := keys(t, c.Client)
	for len(left) > 0 && time.Now().Before(deadline) {
		for _, key := range left { // a look is enough to remove what has expired
			c.Client.Do(t.Context(), c.Client.B().Exists().Key(key).Build())
		}
		if c.ClockFile == "" {
			time.Sleep(window / 4)
		}
		left = keys(t, c.Client)
	}
	if len(left) > 0 {
		t.Errorf("still there after two idle windows: %q", left)
	}
}

// keys lists every key of a server that the test has started.
func keys(t *testing.T, client rueidis.Client) []string {
	t.Helper()
	var all []string
	for cursor := uint64(0); ; {
		page, err := client.Do(t.Context(), client.B().Scan().Cursor(cursor).Count(10_000).Build()).AsScanEntry()
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, page.Elements...)
		if cursor = page.Cursor; cursor == 0 {
			return all
		}
	}
}
