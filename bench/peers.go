package main

import (
	"context"
	"fmt"
	"net"
	"time"

	"github.com/go-redis/redis_rate/v10"
	redigo "github.com/gomodule/redigo/redis"
	"github.com/redis/go-redis/v9"
	"github.com/redis/rueidis"
	"github.com/redis/rueidis/rueidislimiter"
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
	peer  bool // a limiter of others
	slow  bool // many callers of one key take turns, with most of their calls in vain
}

// morePeers are those that take too long to build for a smoke test.
var morePeers []func(*redis.Client) contender

// subject is the n-th that contender i limits: the peers put their keys beside each other, as they come.
func subject(i, n int) string { return fmt.Sprintf("%d-%08d", i, n) }

const (
	floorName    = "TGS through rueidis"
	bareName     = "token bucket, bare EVALSHA through rueidis"
	bucketName   = "Sluice token bucket"
	counterName  = "Sluice sliding counter"
	logName      = "Sluice sliding log"
	functionName = "Sluice token bucket, as a function"
	batchName    = "Sluice sliding counter, Batch of 16"
	rateName     = "go-redis/redis_rate"
	windowName   = "redis/rueidis/rueidislimiter"
)

// contenders are Sluice's algorithms, the floor called through the same client, and the peers. All of them admit every call: the limits are never
// reached.
func contenders(s *server, dir string) ([]contender, func(), error) {
	byScript, err := sluice.New(s.client, sluice.Config{})
	if err != nil {
		return nil, nil, err
	}
	byFunction, err := sluice.New(s.client, sluice.Config{Functions: true})
	if err != nil {
		return nil, nil, err
	}
	for _, l := range []*sluice.Limiter{byScript, byFunction} {
		if err := l.Load(context.Background()); err != nil {
			return nil, nil, err
		}
	}
	through := func(l *sluice.Limiter, p sluice.Policy) func(context.Context, string) error {
		return func(ctx context.Context, key string) error {
			_, err := l.Allow(ctx, key, p)
			return err
		}
	}
	bare, err := loadScript(dir, "token_bucket")
	if err != nil {
		return nil, nil, err
	}
	floor := digest(tgs)
	goredis := redis.NewClient(&redis.Options{Addr: s.addr, PoolSize: 64, Dialer: dial})
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
		Dial: func() (redigo.Conn, error) {
			return redigo.Dial("tcp", s.addr, redigo.DialNetDial(func(network, addr string) (net.Conn, error) {
				return dial(context.Background(), network, addr)
			}))
		},
	})
	if err != nil {
		return nil, nil, err
	}
	window, err := rueidislimiter.NewRateLimiter(rueidislimiter.RateLimiterOption{
		ClientBuilder: func(rueidis.ClientOption) (rueidis.Client, error) { return s.client, nil },
		Limit:         100_000_000,
		Window:        time.Hour,
	})
	if err != nil {
		return nil, nil, err
	}
	bucket, counter := sluice.TokenBucket(100_000_000, 100_000_000, time.Hour), sluice.SlidingCounter(100_000_000, time.Hour)
	all := []contender{
		{name: floorName, allow: func(ctx context.Context, key string) error {
			return s.client.Do(ctx, s.client.B().Evalsha().Sha1(floor.sha).Numkeys(1).Key(key).Arg("take", "1", "100000000", "3600000").Build()).Error()
		}},
		{name: bareName, allow: func(ctx context.Context, key string) error {
			_, err := s.client.Do(ctx, s.client.B().Evalsha().Sha1(bare.sha).Numkeys(1).Key(key).Arg("take", "1", "100000000", "100000000", "3600000").Build()).ToArray()
			return err
		}},
		{name: bucketName, allow: through(byScript, bucket)},
		{name: functionName, allow: through(byFunction, bucket.Named("function"))},
		{name: counterName, allow: through(byScript, counter)},
		{name: logName, allow: through(byScript, sluice.SlidingLog(100_000_000, time.Second))},
		{name: batchName, batch: 16, allow: func(ctx context.Context, key string) error {
			requests := make([]sluice.Request, 16)
			for i := range requests {
				requests[i] = sluice.Request{Key: key, Policy: counter, Cost: 1}
			}
			for _, outcome := range byScript.Batch(ctx, requests...) {
				if outcome.Err != nil {
					return outcome.Err
				}
			}
			return nil
		}},
		{name: rateName, peer: true, allow: func(ctx context.Context, key string) error {
			_, err := rate.Allow(ctx, key, perHour)
			return err
		}},
		{name: windowName, peer: true, allow: func(ctx context.Context, key string) error {
			_, err := window.Allow(ctx, key)
			return err
		}},
		{name: "ulule/limiter", peer: true, allow: func(ctx context.Context, key string) error {
			_, err := ululeLimiter.Get(ctx, key)
			return err
		}},
		{name: "throttled with goredisstore", peer: true, slow: true, allow: func(ctx context.Context, key string) error {
			_, _, err := throttledLimiter.RateLimitCtx(ctx, key, 1)
			return err
		}},
		{name: "sethvargo/go-redisstore", peer: true, allow: func(ctx context.Context, key string) error {
			_, _, _, _, err := sethStore.Take(ctx, key)
			return err
		}},
	}
	for _, more := range morePeers {
		all = append(all, more(goredis))
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
