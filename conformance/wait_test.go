package conformance_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/rueidis"

	"github.com/sluicego/sluice"
)

// counting counts the commands.
type counting struct {
	rueidis.Client
	calls atomic.Int64
}

func (c *counting) Do(ctx context.Context, cmd rueidis.Completed) rueidis.RedisResult {
	c.calls.Add(1)
	return c.Client.Do(ctx, cmd)
}

// In real time, since what matters is that nobody sleeps longer than the limit makes them.
func TestWaitersGetThroughAtTheRefillRate(t *testing.T) {
	client, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{miniredis.RunT(t).Addr()}, DisableCache: true})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	counted := &counting{Client: client}
	limiter, err := sluice.New(counted, sluice.Config{})
	if err != nil {
		t.Fatal(err)
	}
	const waiters, capacity, every = 50, 5, 10 * time.Millisecond // the capacity makes up for a slow machine
	p := sluice.TokenBucket(capacity, int64(time.Second/every), time.Second)
	var mu sync.Mutex
	var first, last time.Time // by the server's clock
	var wg sync.WaitGroup
	for range waiters {
		wg.Go(func() {
			res, err := limiter.Wait(t.Context(), "a", p, 1)
			if err != nil || !res.Allowed {
				t.Errorf("got %+v, %v, want it allowed", res, err)
			}
			mu.Lock()
			defer mu.Unlock()
			if first.IsZero() || res.ServerTime.Before(first) {
				first = res.ServerTime
			}
			if res.ServerTime.After(last) {
				last = res.ServerTime
			}
		})
	}
	wg.Wait()
	took, calls := last.Sub(first), float64(counted.calls.Load())/waiters
	t.Logf("%d waiters got through in %v with %.2f calls each", waiters, took, calls)
	if least := (waiters - capacity) * every; took < least-every || took > 4*least {
		t.Errorf("took %v, want %v and not much more", took, least)
	}
	if calls > 2.5 {
		t.Errorf("%.2f calls for each, want about 2", calls)
	}
}
