package sluice

import (
	"context"
	"testing"
	"time"

	"github.com/redis/rueidis"
)

// canned is a client that costs next to nothing: what is measured is Sluice's own part of a call.
type canned struct {
	rueidis.Client
	res rueidis.RedisResult
}

func (c canned) B() rueidis.Builder { return builder }

func (c canned) Do(context.Context, rueidis.Completed) rueidis.RedisResult { return c.res }

func (c canned) DoMulti(_ context.Context, multi ...rueidis.Completed) []rueidis.RedisResult {
	results := make([]rueidis.RedisResult, len(multi))
	for i := range results {
		results[i] = c.res
	}
	return results
}

func BenchmarkAllow(b *testing.B) {
	client := canned{res: fiveReply(1, 5, 0, 60_000, 1_700_000_000_123_456)}
	secret := []byte("0123456789abcdef")
	for name, cfg := range map[string]Config{
		"hashed": {}, "keyed": {Secret: secret}, "plain": {PlainKeys: true}, "timeout": {Timeout: time.Second},
	} {
		b.Run(name, func(b *testing.B) {
			l := newLimiter(b, client, cfg)
			p := TokenBucket(50, 10, time.Second)
			b.ReportAllocs()
			for b.Loop() {
				if _, err := l.Allow(b.Context(), "203.0.113.7", p); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// bare is the command of an Allow with ready-made arguments: the floor for it.
func bare(ctx context.Context, client canned) error {
	cmd := client.B().Evalsha().Sha1(tokenBucketSHA1).Numkeys(1).Key("sluice:{fec52565aa0cf18f57d7cf5b3ac72850}:bucket/1000").Arg("take", "1", "50", "10", "1000").Build()
	_, err := client.Do(ctx, cmd).ToMessage()
	return err
}

func BenchmarkBareCommand(b *testing.B) {
	client := canned{res: fiveReply(1, 5, 0, 60_000, 1_700_000_000_123_456)}
	b.ReportAllocs()
	for b.Loop() {
		if err := bare(b.Context(), client); err != nil {
			b.Fatal(err)
		}
	}
}

func TestAllocations(t *testing.T) {
	client := canned{res: fiveReply(1, 5, 0, 60_000, 1_700_000_000_123_456)}
	ctx := t.Context()
	floor := testing.AllocsPerRun(100, func() {
		if err := bare(ctx, client); err != nil {
			t.Fatal(err)
		}
	})
	l := newLimiter(t, client, Config{})
	p := TokenBucket(50, 10, time.Second)
	got := testing.AllocsPerRun(100, func() {
		if _, err := l.Allow(ctx, "203.0.113.7", p); err != nil {
			t.Fatal(err)
		}
	})
	// The key, the arguments and the invocation that holds both.
	if got > floor+3 {
		t.Errorf("%v allocations, want at most 3 more than the %v of the bare command", got, floor)
	}
}

func BenchmarkBatchOf16(b *testing.B) {
	l := newLimiter(b, canned{res: fiveReply(1, 5, 0, 60_000, 1_700_000_000_123_456)}, Config{})
	reqs := make([]Request, 16)
	for i := range reqs {
		reqs[i] = Request{Key: Key("user", string(rune('a'+i))), Policy: TokenBucket(50, 10, time.Second), Cost: 1}
	}
	b.ReportAllocs()
	for b.Loop() {
		l.Batch(b.Context(), reqs...)
	}
}

func BenchmarkKey(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		Key("api", "tenant-17", "203.0.113.7")
	}
}

func BenchmarkCachedDenial(b *testing.B) {
	l := newLimiter(b, canned{res: fiveReply(0, 0, 60_000, 60_000, 1)}, Config{DenyCache: newDenyMap(), DenyFor: time.Hour})
	p := SlidingLog(10, time.Minute).Named("login")
	b.ReportAllocs()
	for b.Loop() {
		if res, err := l.Allow(b.Context(), "203.0.113.7", p); err != nil || res.Allowed {
			b.Fatal(res, err)
		}
	}
}
