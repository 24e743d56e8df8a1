package sluice

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/sluicego/sluice/internal/local"
)

func TestShardsAddUpToTheLimit(t *testing.T) {
	for _, limit := range []int64{2, 3, 7, 100, 999, 1_000_000_000} {
		for _, n := range []int{2, 3, 7, 100, 255, 256} {
			for _, p := range []Policy{SlidingLog(limit, time.Minute), SlidingCounter(limit, time.Hour), TokenBucket(limit, 17, 3*time.Second)} {
				p = p.Sharded(n)
				if (p.validate() == nil) != (int64(n) <= limit && (p.kind != tokenBucket || limit < 1_000_000_000)) {
					t.Errorf("%s: %v", p, p.validate())
				}
				if p.validate() != nil {
					continue
				}
				sum, least, most := int64(0), limit, int64(0)
				for shard := range p.shards {
					p.shard = shard + 1
					units, window := p.numbers()
					sum, least, most = sum+units, min(least, units), max(most, units)
					if want := p.window * time.Duration(n); p.kind == tokenBucket && window != want || p.kind != tokenBucket && window != p.window {
						t.Errorf("%s: a window of %v", p, window)
					}
				}
				if p.shard = 0; sum != limit || most-least > 1 || least != p.most() {
					t.Errorf("%s: shards of %d to %d units, %d in all, the cost at most %d", p, least, most, sum, p.most())
				}
			}
		}
	}
	for n := -1; n < 2; n++ {
		if p := SlidingLog(5, time.Minute); p.Sharded(n) != p || p.Sharded(n).Shards() != 1 || p.Sharded(4).Sharded(n) != p {
			t.Errorf("Sharded(%d) is %s", n, p.Sharded(n))
		}
	}
}

// sharding is a limiter on a server that decides exactly.
func sharding(t *testing.T, cfg Config) (*Limiter, *fake) {
	t.Helper()
	client := exact(local.NewStore(1000), func() time.Duration { return 0 })
	return newLimiter(t, client, cfg), client
}

func TestShardsAdmitExactlyTheLimit(t *testing.T) {
	l, client := sharding(t, Config{})
	for _, p := range []Policy{SlidingLog(100, time.Hour), SlidingCounter(103, 24*time.Hour), TokenBucket(107, 1, time.Hour)} {
		p = p.Sharded(8)
		admitted := int64(0)
		for range 40 * p.limit {
			res, err := l.Allow(t.Context(), "a", p)
			if err != nil || res.Limit != p.limit || res.Remaining > p.most() {
				t.Fatalf("%s: got %+v, %v", p, res, err)
			}
			if res.Allowed {
				admitted++
			}
		}
		if admitted != p.limit {
			t.Errorf("%s: %d admitted, want %d", p, admitted, p.limit)
		}
		if res, err := l.Peek(t.Context(), "a", p, 1); err != nil || res.Allowed || res.Remaining != 0 || res.RetryAfter <= 0 || res.Limit != p.limit {
			t.Errorf("%s: peeked %+v, %v, want nothing free", p, res, err)
		}
	}
	tags := map[string]bool{}
	for _, words := range client.sent {
		tags[hashTag(words[3])] = true
	}
	if len(tags) != 8 {
		t.Errorf("%d hash tags, want one for each of 8 shards", len(tags))
	}
}

func TestShardsAreChosenEvenly(t *testing.T) {
	p := SlidingLog(1000, time.Minute).Sharded(10)
	var counts [10]int
	for range 10_000 {
		p.choose()
		counts[p.shard-1]++
	}
	for shard, n := range counts {
		if n < 850 || n > 1150 { // five standard deviations
			t.Errorf("shard %d was chosen %d times of 10000", shard, n)
		}
	}
}

func TestPeekSumsOverShards(t *testing.T) {
	l, client := sharding(t, Config{})
	p := SlidingLog(100, time.Hour).Sharded(4)
	used := int64(0)
	for cost := range int64(8) {
		if res, err := l.AllowN(t.Context(), "a", p, cost); err != nil {
			t.Fatal(err)
		} else if res.Allowed {
			used += cost
		}
	}
	client.pipelines = nil
	res, err := l.Peek(t.Context(), "a", p, 1)
	if err != nil || !res.Allowed || res.Remaining != 100-used || res.RetryAfter != 0 || res.ResetAfter > time.Hour || res.ResetAfter < time.Hour-time.Minute || res.Limit != 100 || res.ServerTime.IsZero() {
		t.Errorf("got %+v, %v, want %d remaining", res, err, 100-used)
	}
	if !slices.Equal(client.pipelines, []int{4}) {
		t.Errorf("pipelines of %v commands, want one of 4", client.pipelines)
	}
	if _, err := l.Settle(t.Context(), res, 1); !errors.Is(err, ErrNotCharged) {
		t.Errorf("settled a peek: %v", err)
	}
}

func TestPeekOfShardsThatFail(t *testing.T) {
	calls := 0
	client := &fake{answer: func(context.Context, []string) rueidis.RedisResult {
		if calls++; calls == 3 {
			return errorReply("CLUSTERDOWN")
		}
		return fiveReply(1, 7, 0, 0, 1)
	}}
	p := SlidingLog(100, time.Hour).Sharded(4)
	if res, err := newLimiter(t, client, Config{}).Peek(t.Context(), "a", p, 1); !errors.Is(err, ErrBackend) || res != (Result{}) {
		t.Errorf("got %+v, %v, want ErrBackend", res, err)
	}
	calls = 0
	if res, err := newLimiter(t, client, Config{OnFailure: FailLocal, Processes: 2}).Peek(t.Context(), "a", p, 1); err != nil || !res.Degraded || res.Remaining != 50 {
		t.Errorf("got %+v, %v, want this process' half of the whole", res, err)
	}
}

func TestSettleGoesToTheShardThatWasCharged(t *testing.T) {
	l, client := sharding(t, Config{})
	p := SlidingCounter(80, 24*time.Hour).Sharded(8)
	for range 30 {
		res, err := l.AllowN(t.Context(), "a", p, 2)
		if err != nil {
			t.Fatal(err)
		}
		if !res.Allowed {
			continue
		}
		charged := client.sent[len(client.sent)-1]
		settled, err := l.Settle(t.Context(), res, 1)
		if err != nil || settled.Remaining != res.Remaining+1 || settled.Limit != 80 {
			t.Fatalf("charged %+v, settled %+v, %v", res, settled, err)
		}
		if last := client.sent[len(client.sent)-1]; last[3] != charged[3] || last[6] != "10" {
			t.Fatalf("charged by %q, settled by %q", charged[3:], last[3:])
		}
	}
}

func TestResetForgetsAllShards(t *testing.T) {
	l, _ := sharding(t, Config{DenyCache: newDenyMap()})
	p := SlidingLog(16, time.Hour).Sharded(8)
	for range 2 {
		admitted := 0
		for range 300 {
			if res, err := l.Allow(t.Context(), "a", p); err != nil {
				t.Fatal(err)
			} else if res.Allowed {
				admitted++
			}
		}
		if admitted != 16 {
			t.Errorf("%d admitted, want 16", admitted)
		}
		if err := l.Reset(t.Context(), "a", p); err != nil {
			t.Fatal(err)
		}
	}
}

// One shard's denial is not another's.
func TestDenyCacheKnowsShardsApart(t *testing.T) {
	l, client := sharding(t, Config{DenyCache: newDenyMap()})
	p := SlidingLog(16, time.Hour).Sharded(8)
	admitted, cached := 0, 0
	for range 400 {
		res, err := l.Allow(t.Context(), "a", p)
		if err != nil {
			t.Fatal(err)
		}
		if res.Allowed {
			admitted++
		}
		if res.Cached {
			cached++
		}
	}
	if admitted != 16 || cached != 400-len(client.sent) || len(client.sent) != 16+8 {
		t.Errorf("%d admitted, %d from the cache, %d calls; want 16, and one denial by each shard", admitted, cached, len(client.sent))
	}
}

func TestShardsFailLocalAsOne(t *testing.T) {
	var seen recorder
	l := newLimiter(t, replying(errorReply("LOADING")), Config{OnFailure: FailLocal, Processes: 4, Observe: seen.observe})
	p := SlidingLog(40, time.Hour).Sharded(8)
	admitted := 0
	for range 100 {
		res, err := l.Allow(t.Context(), "a", p)
		if err != nil || !res.Degraded {
			t.Fatalf("got %+v, %v", res, err)
		}
		if res.Allowed {
			if admitted++; admitted == 1 {
				if settled, err := l.Settle(t.Context(), res, 0); err != nil || settled.Remaining != 10 {
					t.Fatalf("settled %+v, %v", settled, err)
				}
			}
		}
	}
	if admitted != 11 { // one was given back
		t.Errorf("%d admitted, want 11", admitted)
	}
	for _, e := range seen.take() {
		if e.Policy != p {
			t.Errorf("told of %s, want the policy as it was asked", e.Policy)
		}
	}
}

func TestWaitStandsInTheLineOfAShard(t *testing.T) {
	l, client := sharding(t, Config{})
	p := TokenBucket(8, 1000, time.Second).Sharded(8)
	for range 40 {
		if res, err := l.Wait(t.Context(), "a", p, 1); err != nil || !res.Allowed {
			t.Fatalf("got %+v, %v", res, err)
		}
	}
	if len(client.sent) < 41 {
		t.Errorf("%d calls: nobody waited", len(client.sent))
	}
}

func TestShardsRefused(t *testing.T) {
	l, client := sharding(t, Config{})
	p := SlidingLog(15, time.Hour).Sharded(8)
	for verb, call := range asking(l) {
		var refused *InputError
		want := "0 to 1, the limit of a shard"
		cost := int64(2)
		switch verb {
		case "Batch":
			want = "1 to 1, the limit of a shard"
		case "AllowAll", "PeekAll":
			want, cost = "one that is not sharded", 1
		}
		if _, err := call(t.Context(), "a", p, cost); !errors.As(err, &refused) || refused.Want != want {
			t.Errorf("%s: %v, want it refused: %s", verb, err, want)
		}
	}
	if len(client.sent) != 0 {
		t.Errorf("%d commands were sent", len(client.sent))
	}
	if _, err := New(client, Config{Candidates: map[Policy]Policy{p: p.Named("new")}}); !errors.Is(err, ErrInvalidConfig) {
		t.Errorf("a candidate of a sharded policy: %v", err)
	}
}

// The keys of shards are those of no other limit.
func TestKeysOfShards(t *testing.T) {
	seen := map[string]string{}
	for _, plain := range []bool{false, true} {
		l := newLimiter(t, anyone(), Config{PlainKeys: plain, Prefix: fmt.Sprint("p", plain)})
		for _, subject := range []string{"a", "a*1", "a*1*1", "a*0", "a*"} {
			for _, tag := range []string{"", "a", "a*1", "t"} {
				if tag == subject {
					continue
				}
				for _, p := range []Policy{SlidingLog(4, time.Second), SlidingLog(4, time.Second).Named("n")} {
					for _, p := range []Policy{p, p.Sharded(2), p.Sharded(3)} {
						for _, key := range append(l.shardKeys(subject, tag, p), l.keys.key(subject, tag, p)) {
							limit := fmt.Sprint(subject, "|", tag, "|", p)
							if other, ok := seen[key]; ok && (other != limit || p.shards > 0) {
								t.Errorf("%s is the key of %s and of %s", key, limit, other)
							}
							seen[key] = limit
						}
					}
				}
			}
		}
	}
}

func anyone() *fake { return replying(fiveReply(1, 0, 0, 0, 0)) }
