package main

import (
	"context"
	"fmt"
	"time"

	"github.com/go-redis/redis_rate/v10"
	redigo "github.com/gomodule/redigo/redis"
	"github.com/redis/go-redis/v9"
	"github.com/sethvargo/go-redisstore"
	"github.com/sluicego/sluice"
	"github.com/throttled/throttled/v2"
	"github.com/throttled/throttled/v2/store/goredisstore.v9"
	"github.com/ulule/limiter/v3"
	ulule "github.com/ulule/limiter/v3/drivers/store/redis"
)

// contender is a limiter as an application calls it, through its own client with that client's defaults.
type contender struct {
	name  string
	batch int // decisions per call, if not one
	allow func(ctx context.Context, key string) error
	bar   float64 // decisions per second at least, as a multiple of `than`; 0 is no bar
	than  string
}

// subject is the n-th that contender i limits: the peers put their keys beside each other, as they come.
func subject(i, n int) string { return fmt.Sprintf("%d-%08d", i, n) }

const (
	floorName = "TGS through rueidis"
	rateName  = "go-redis/redis_rate"
)

// contenders are Sluice's algorithms, the floor called through the same client, and the peers. All of them admit every call: the limits are never
// reached.
func contenders(s *server) ([]contender, func(), error) {
	limiter1, err := sluice.New(s.client, sluice.Config{})
	if err != nil {
		return nil, nil, err
	}
	ours := func(p sluice.Policy) func(context.Context, string) error {
		return func(ctx context.Context, key string) error {
			_, err := limiter1.Allow(ctx, key, p)
			return err
		}
	}
	floor := digest(tgs)
	goredis := redis.NewClient(&redis.Options{Addr: s.addr, PoolSize: 64})
	rate := redis_rate.NewLimiter(goredis)
	perHour := redis_rate.Limit{Rate: 100_000_000, Burst: 100_000_000, Period: time.Hour}
	ululeStore, err := ulule.NewStore(goredis)
	if err != nil {
		return nil, nil, err
	}
	ululeLimiter := limiter.New(ululeStore, limiter.Rate{Period: time.Hour, Limit: 100_000_000})
	throttledStore, err := goredisstore.NewCtx(goredis, "throttled:")
	if err != nil {
		return nil, nil, err
	}
	throttledLimiter, err := throttled.NewGCRARateLimiterCtx(throttledStore, throttled.RateQuota{MaxRate: throttled.PerHour(100_000_000), MaxBurst: 100_000_000})
	if err != nil {
		return nil, nil, err
	}
	throttledLimiter.SetMaxCASAttemptsLimit(10_000) // 10 by default, which 64 callers of one key exceed: their calls then fail
	sethStore, err := redisstore.NewWithPool(&redisstore.Config{Tokens: 100_000_000, Interval: time.Hour}, &redigo.Pool{
		MaxIdle: 64, MaxActive: 64, Wait: true,
		Dial: func() (redigo.Conn, error) { return redigo.Dial("tcp", s.addr) },
	})
	if err != nil {
		return nil, nil, err
	}
	counter := sluice.SlidingCounter(100_000_000, time.Hour)
	all := []contender{
		{name: floorName, allow: func(ctx context.Context, key string) error {
			return s.client.Do(ctx, s.client.B().Evalsha().Sha1(floor.sha).Numkeys(1).Key(key).Arg("take", "1", "100000000", "3600000").Build()).Error()
		}},
		{name: "Sluice token bucket", bar: 0.9, than: floorName, allow: ours(sluice.TokenBucket(100_000_000, 100_000_000, time.Hour))},
		{name: "Sluice sliding counter", bar: 0.9, than: floorName, allow: ours(counter)},
		{name: "Sluice sliding log", bar: 1.6, than: rateName, allow: ours(sluice.SlidingLog(100_000_000, time.Second))},
		{name: "Sluice sliding counter, Batch of 16", batch: 16, bar: 1.7, than: "Sluice sliding counter", allow: func(ctx context.Context, key string) error {
			requests := make([]sluice.Request, 16)
			for i := range requests {
				requests[i] = sluice.Request{Key: key, Policy: counter, Cost: 1}
			}
			for _, outcome := range limiter1.Batch(ctx, requests...) {
				if outcome.Err != nil {
					return outcome.Err
				}
			}
			return nil
		}},
		{name: rateName, allow: func(ctx context.Context, key string) error {
			_, err := rate.Allow(ctx, key, perHour)
			return err
		}},
		{name: "ulule/limiter", allow: func(ctx context.Context, key string) error {
			_, err := ululeLimiter.Get(ctx, key)
			return err
		}},
		{name: "throttled with goredisstore", allow: func(ctx context.Context, key string) error {
			_, _, err := throttledLimiter.RateLimitCtx(ctx, key, 1)
			return err
		}},
		{name: "sethvargo/go-redisstore", allow: func(ctx context.Context, key string) error {
			_, _, _, _, err := sethStore.Take(ctx, key)
			return err
		}},
	}
	if err := s.client.Do(context.Background(), s.client.B().ScriptLoad().Script(tgs).Build()).Error(); err != nil {
		return nil, nil, err
	}
	for i, c := range all {
		if err := c.allow(context.Background(), subject(i, 0)); err != nil {
			return nil, nil, fmt.Errorf("%s: %w", c.name, err)
		}
	}
	return all, func() {
		_ = goredis.Close()
		_ = sethStore.Close(context.Background())
	}, nil
}
