//go:build mennanov

package main

import (
	"context"
	"time"

	"github.com/mennanov/limiters"
	"github.com/redis/go-redis/v9"
)

// Its package has clients for seven kinds of servers, which take minutes to build: hence the build tag, which make bench sets. Newer
// versions than v1.11 require a module (armon/go-metrics v0.5) that has another name since, so they can't be required.
func init() {
	clock, logger := limiters.NewSystemClock(), limiters.NewStdLogger()
	morePeers = append(morePeers, func(client *redis.Client) contender {
		// Without a lock and without the check for races, which several callers of one key need for an exact limit: so it is at its cheapest.
		return contender{name: "mennanov/limiters (token bucket, no lock)", peer: true, allow: func(ctx context.Context, key string) error {
			state := limiters.NewTokenBucketRedis(client, key, 2*time.Hour, false)
			_, err := limiters.NewTokenBucket(100_000_000, 36*time.Microsecond, limiters.NewLockNoop(), state, clock, logger).Limit(ctx)
			return err
		}}
	})
}
