package conformance_test

import (
	"context"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/rueidis"

	"github.com/sluicego/sluice"
	"github.com/sluicego/sluice/breaker"
	"github.com/sluicego/sluice/denycache"
)

// TestOutageThroughTheBreaker takes a server away and brings it back: calls are decided without it, at once when the
// breaker is open, and by it again after a probe. Callers who hang up all the while change nothing.
func TestOutageThroughTheBreaker(t *testing.T) {
	server := miniredis.RunT(t)
	client, err := rueidis.NewClient(rueidis.ClientOption{
		InitAddress: []string{server.Addr()}, ForceSingleClient: true, DisableCache: true, DisableRetry: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	b := breaker.New(breaker.Options{Open: 50 * time.Millisecond})
	l, err := sluice.New(client, sluice.Config{OnFailure: sluice.FailOpen, Timeout: 2 * time.Second, Breaker: b})
	if err != nil {
		t.Fatal(err)
	}
	p := sluice.SlidingLog(1000, time.Hour)
	hungUp, cancel := context.WithCancel(t.Context())
	cancel()
	// until makes calls until they are degraded, or no more, and returns how many that took.
	until := func(degraded bool) int {
		t.Helper()
		deadline := time.Now().Add(30 * time.Second)
		for n := 1; ; n++ {
			if res, err := l.Allow(hungUp, "a", p); err == nil || res.Allowed {
				t.Fatalf("who hung up got %+v, %v", res, err)
			}
			res, err := l.Allow(t.Context(), "a", p)
			if err != nil || !res.Allowed {
				t.Fatalf("got %+v, %v, want it allowed", res, err)
			}
			if res.Degraded == degraded {
				return n
			}
			if time.Now().After(deadline) {
				t.Fatalf("after 30 s, degraded is still %t", res.Degraded)
			}
			time.Sleep(time.Millisecond)
		}
	}
	until(false)
	for range 2 {
		server.Close()
		until(true)
		for n := 0; b.State() != breaker.Open; n++ {
			if n > 1000 {
				t.Fatalf("the breaker is %s after %d failures", b.State(), n)
			}
			if res, err := l.Allow(t.Context(), "a", p); err != nil || !res.Degraded {
				t.Fatalf("got %+v, %v, want it degraded", res, err)
			}
		}
		if err := server.Restart(); err != nil {
			t.Fatal(err)
		}
		until(false)
		if got := b.State(); got != breaker.Closed {
			t.Errorf("the breaker is %s after a probe was answered", got)
		}
	}
}

// TestFloodOnOneKey counts what reaches the server when a subject that is denied keeps asking.
func TestFloodOnOneKey(t *testing.T) {
	server := miniredis.RunT(t)
	client, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{server.Addr()}, ForceSingleClient: true, DisableCache: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	sent := 0
	l, err := sluice.New(client, sluice.Config{DenyCache: denycache.New(1000), Observe: func(_ context.Context, e sluice.Event) {
		if e.Sent {
			sent++
		}
	}})
	if err != nil {
		t.Fatal(err)
	}
	p := sluice.SlidingLog(5, time.Hour)
	allowed := 0
	for range 2000 {
		res, err := l.Allow(t.Context(), "a", p)
		if err != nil {
			t.Fatal(err)
		}
		if res.Allowed {
			allowed++
		}
	}
	// 5 that were allowed and a denial; more only if this took longer than Config.DenyFor.
	if allowed != 5 || sent > 8 {
		t.Errorf("%d of 2000 calls were allowed and %d reached the server, want 5 and 6", allowed, sent)
	}
}
