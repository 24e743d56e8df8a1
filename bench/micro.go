package main

import (
	"context"
	"fmt"
	"runtime"
	"strconv"
	"time"

	"github.com/sluicego/sluice"
	"github.com/sluicego/sluice/denycache"
)

// cachedDenials is what a denial costs that the deny cache knows: nanoseconds in each round, and allocations.
func cachedDenials(s *server, rounds, calls int) (took sample, allocs float64, err error) {
	l, err := sluice.New(s.client, sluice.Config{DenyCache: denycache.New(100_000)})
	if err != nil {
		return nil, 0, err
	}
	ctx, policy := context.Background(), sluice.SlidingLog(1, 24*time.Hour)
	for range 2 { // the charge, and the denial to be remembered
		if _, err := l.Allow(ctx, "203.0.113.7", policy); err != nil {
			return nil, 0, err
		}
	}
	var before, after runtime.MemStats
	for range rounds {
		runtime.GC()
		runtime.ReadMemStats(&before)
		began := time.Now()
		for range calls {
			res, err := l.Allow(ctx, "203.0.113.7", policy)
			if err != nil || !res.Cached {
				return nil, 0, fmt.Errorf("a denial that is not cached: %+v, %w", res, err)
			}
		}
		took = append(took, float64(time.Since(began).Nanoseconds())/float64(calls))
		runtime.ReadMemStats(&after)
		allocs = max(allocs, float64(after.Mallocs-before.Mallocs)/float64(calls))
	}
	return took, float64(int(allocs*100)) / 100, nil // a round has a handful of the runtime's own
}

// memory is what the server's MEMORY USAGE says, in bytes.
type memory struct {
	bucket, counter, redisRate float64         // of a key of one length
	perEntry                   map[int]float64 // of a log, by how many entries it has
	members                    int             // of a log's list after ten calls of a cost of 1000
}

// entries are the logs that are weighed, by how many entries they have.
var entries = []int{127, 1000, 10_000, 100_000}

func weigh(s *server, p *pipe, dir string, all []contender) (m memory, err error) {
	scripts := map[string]script{}
	for _, name := range []string{"token_bucket", "sliding_counter", "sliding_log"} {
		if scripts[name], err = loadScript(dir, name); err != nil {
			return m, err
		}
	}
	ctx := context.Background()
	usage := func(key string) (float64, error) {
		bytes, err := s.client.Do(ctx, s.client.B().MemoryUsage().Key(key).Samples(0).Build()).AsInt64()
		return float64(bytes), err
	}
	for _, c := range all {
		if c.name == rateName {
			if err := c.allow(ctx, "weighed1"); err != nil {
				return m, err
			}
		}
	}
	if m.redisRate, err = usage("rate:weighed1"); err != nil {
		return m, err
	}
	bucket := scripts["token_bucket"].call("abcd:weighed1", "take", "1", "100000000", "100000000", "3600000")
	counter := scripts["sliding_counter"].call("efgh:weighed1", "take", "1", "100000000", "3600000")
	if err := p.send([][]byte{command(bucket...), command(counter...)}); err != nil {
		return m, err
	}
	if m.bucket, err = usage("abcd:weighed1"); err != nil {
		return m, err
	}
	if m.counter, err = usage("efgh:weighed1"); err != nil {
		return m, err
	}
	m.perEntry = map[int]float64{}
	for _, n := range entries {
		key := "log:" + strconv.Itoa(n)
		fill := make([][]byte, n)
		for i := range fill {
			fill[i] = command(scripts["sliding_log"].call(key, "take", "1", "100000000", long)...)
		}
		if err := p.send(fill); err != nil {
			return m, err
		}
		bytes, err := usage(key)
		if err != nil {
			return m, err
		}
		m.perEntry[n] = bytes / float64(n)
	}
	dear := command(scripts["sliding_log"].call("log:dear", "take", "1000", "100000000", long)...)
	if err := p.send([][]byte{dear, dear, dear, dear, dear, dear, dear, dear, dear, dear}); err != nil {
		return m, err
	}
	members, err := s.client.Do(ctx, s.client.B().Llen().Key("log:dear").Build()).AsInt64()
	m.members = int(members)
	return m, err
}
