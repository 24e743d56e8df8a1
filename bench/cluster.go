package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/rueidis"

	"github.com/sluicego/sluice"
)

// scale is how a load spreads over the shards of a cluster.
type scale struct {
	shards  int
	perCall sample // the server's CPU time per decision, us, over all shards
	busiest sample // the busiest shard's part of the decisions
}

// scales are the cost of a decision and its spread on clusters of one, two and three shards, by calls of the token bucket over
// 10 000 subjects. The load grows with the cluster, and is one that this machine carries in all its processes: otherwise they wait for each
// other, and the measure is of its cores.
func scales(commandLine string, rounds, calls int) (all []scale, err error) {
	for shards := 1; shards <= 3; shards++ {
		s, err := scaleOf(commandLine, shards, rounds, calls)
		if err != nil {
			return nil, fmt.Errorf("a cluster of %d: %w", shards, err)
		}
		all = append(all, s)
	}
	return all, nil
}

func scaleOf(commandLine string, shards, rounds, calls int) (out scale, err error) {
	out.shards = shards
	nodes, client, err := startCluster(commandLine, shards)
	defer func() {
		for _, n := range nodes {
			n.stop()
		}
	}()
	if err != nil {
		return out, err
	}
	defer client.Close()
	l, err := sluice.New(client, sluice.Config{})
	if err != nil {
		return out, err
	}
	if err := l.Load(context.Background()); err != nil {
		return out, err
	}
	policy := sluice.TokenBucket(100_000_000, 100_000_000, time.Hour)
	c := contender{name: bucketName, allow: func(ctx context.Context, key string) error {
		_, err := l.Allow(ctx, key, policy)
		return err
	}}
	if _, err := c.drive(nodes[0], 0, 64, 10_000, 10_000); err != nil { // all keys are there before the first round
		return out, err
	}
	for range rounds {
		var before []int64
		cpu := time.Duration(0)
		for _, n := range nodes {
			used, err := n.cpu()
			if err != nil {
				return out, err
			}
			cpu -= used
			count, err := n.evalshas()
			if err != nil {
				return out, err
			}
			before = append(before, count)
		}
		if err := steadily(c, shards, calls); err != nil {
			return out, err
		}
		var most, sum int64
		for i, n := range nodes {
			count, err := n.evalshas()
			if err != nil {
				return out, err
			}
			most, sum = max(most, count-before[i]), sum+count-before[i]
			used, err := n.cpu()
			if err != nil {
				return out, err
			}
			cpu += used
		}
		out.perCall = append(out.perCall, float64(cpu.Nanoseconds())/1000/float64(sum))
		out.busiest = append(out.busiest, float64(most)/float64(sum))
	}
	return out, nil
}

// perShard is the load for each shard, in calls per second.
const perShard = 2000

// steadily makes so many calls for each shard, from 64 callers for each.
func steadily(c contender, shards, calls int) error {
	callers := 64 * shards
	each := max(1, calls/64)
	failed := make([]error, callers)
	var wg sync.WaitGroup
	for n := range callers {
		wg.Go(func() {
			const every = 64 * time.Second / perShard
			time.Sleep(every * time.Duration(n) / time.Duration(callers)) // not all at once
			tick := time.NewTicker(every)
			defer tick.Stop()
			for i := range each {
				if failed[n] = c.allow(context.Background(), subject(0, (n*each+i)*7919%10_000)); failed[n] != nil {
					return
				}
				<-tick.C
			}
		})
	}
	wg.Wait()
	return errors.Join(failed...)
}

// evalshas is how many EVALSHA the server has run.
func (s *server) evalshas() (int64, error) {
	info, err := s.info("commandstats")
	if err != nil {
		return 0, err
	}
	text, _, _ := strings.Cut(strings.TrimPrefix(info["cmdstat_evalsha"], "calls="), ",")
	if text == "" {
		return 0, nil
	}
	return strconv.ParseInt(text, 10, 64)
}

// startCluster starts primaries with the slots divided among them, and a client of theirs.
func startCluster(commandLine string, shards int) (nodes []*server, client rueidis.Client, err error) {
	ctx := context.Background()
	var addrs []string
	var firstBus string
	for n := range shards {
		bus, err := freePort()
		if err != nil {
			return nodes, nil, err
		}
		node, err := start(commandLine, "--cluster-enabled", "yes", "--cluster-port", bus, "--cluster-config-file", "nodes-"+bus+".conf")
		if err != nil {
			return nodes, nil, err
		}
		nodes, addrs = append(nodes, node), append(addrs, node.addr)
		from, to := int64(16384*n/shards), int64(16384*(n+1)/shards-1)
		if err := node.client.Do(ctx, node.client.B().ClusterAddslotsrange().StartSlotEndSlot().StartSlotEndSlot(from, to).Build()).Error(); err != nil {
			return nodes, nil, err
		}
		if n == 0 {
			firstBus = bus
			continue
		}
		host, port, err := net.SplitHostPort(nodes[0].addr)
		if err != nil {
			return nodes, nil, err
		}
		if err := node.client.Do(ctx, node.client.B().Arbitrary("CLUSTER", "MEET", host, port, firstBus).Build()).Error(); err != nil {
			return nodes, nil, err
		}
	}
	err = errors.New("not one cluster in time")
	for range 200 {
		if agreed(ctx, nodes) {
			client, err = rueidis.NewClient(rueidis.ClientOption{InitAddress: addrs, DisableCache: true, DialCtxFn: dialRueidis})
			break
		}
		time.Sleep(50 * time.Millisecond)
	}
	return nodes, client, err
}

// agreed says whether every node knows of all, and of an owner of every slot.
func agreed(ctx context.Context, nodes []*server) bool {
	for _, n := range nodes {
		text, err := n.client.Do(ctx, n.client.B().ClusterInfo().Build()).ToString()
		if err != nil || !strings.Contains(text, "cluster_state:ok") || !strings.Contains(text, fmt.Sprintf("cluster_known_nodes:%d", len(nodes))) {
			return false
		}
	}
	return true
}

// freePort is a port of the loopback that nobody listens on. It is below those that systems give to outgoing connections, which
// come and go too fast here: one could take the port before the server does.
func freePort() (string, error) {
	for range 100 {
		port := strconv.Itoa(10_000 + rand.IntN(20_000))
		listener, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", port))
		if err == nil {
			return port, listener.Close()
		}
	}
	return "", errors.New("no free port among 100 tried")
}
