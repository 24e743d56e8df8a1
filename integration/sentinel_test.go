package integration

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/sluicego/sluice"
	"github.com/sluicego/sluice/integration/containers"
)

// TestSentinel: 50 workers go on while sentinels hand over to a replica; the limiter follows by itself.
func TestSentinel(t *testing.T) {
	image := containers.Usual()
	pod := containers.NewPod(t, image, 5)
	data, watch := pod.Ports[:2], pod.Ports[2:]
	primary := strconv.Itoa(data[0])
	nodes := map[int]*containers.Server{}
	for i, port := range data {
		args := []string{"--replica-announce-ip", "127.0.0.1", "--repl-diskless-sync", "yes", "--repl-diskless-sync-delay", "0"}
		if i > 0 {
			args = append(args, "--replicaof", "127.0.0.1", primary)
		}
		nodes[port] = containers.Start(t, containers.Spec{Image: image, Pod: pod, Port: port, Args: args})
	}
	var sentinels []string
	for _, port := range watch {
		dir := t.TempDir()
		config := fmt.Sprintf("port %d\nbind 0.0.0.0\nprotected-mode no\ndir /tmp\n"+
			"sentinel announce-ip 127.0.0.1\nsentinel monitor limits 127.0.0.1 %s 2\n"+
			"sentinel down-after-milliseconds limits 1000\nsentinel failover-timeout limits 6000\n", port, primary)
		if err := os.WriteFile(filepath.Join(dir, "sentinel.conf"), []byte(config), 0o644); err != nil {
			t.Fatal(err)
		}
		s := containers.Start(t, containers.Spec{Image: image, Pod: pod, Port: port, Binds: []string{dir + ":/sentinel"},
			Command: []string{image.Binary(), "/sentinel/sentinel.conf", "--sentinel"}})
		sentinels = append(sentinels, s.Addr)
		nodes[port] = s
	}
	eventually(t, func() error { // each sentinel knows the others and the replica
		for _, port := range watch {
			m, err := nodes[port].Do("SENTINEL", "MASTER", "limits").AsStrMap()
			if err != nil || m["num-slaves"] != "1" || m["num-other-sentinels"] != "2" {
				return fmt.Errorf("%v, %w", m, err)
			}
		}
		return nil
	})

	for _, port := range data {
		nodes[port].Do(rightsOnAnyKey(t, clientRights(t, "With sentinels")...)...)
	}
	client, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: sentinels, DisableCache: true, Username: "sluice", Password: "secret",
		Sentinel: rueidis.SentinelOption{MasterSet: "limits"}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	const limit = 10_000 // more than the workers take before the primary is dead
	p := sluice.SlidingLog(limit, time.Hour)
	l := newLimiter(t, client, sluice.Config{Timeout: time.Second, PlainKeys: true})
	tr := newTraffic(t, l, "k", p)
	tr.lively(t, 200)
	nodes[data[0]].Kill()
	atKill := tr.allowed.Load()
	eventually(t, func() error {
		addr, err := nodes[watch[0]].Do("SENTINEL", "GET-MASTER-ADDR-BY-NAME", "limits").AsStrSlice()
		if err != nil || net.JoinHostPort(addr[0], addr[1]) != nodes[data[1]].Addr {
			return fmt.Errorf("the primary is %v, %w", addr, err)
		}
		return nil
	})
	tr.lively(t, 200)
	eventually(t, func() error {
		res, err := l.Peek(t.Context(), "k", p, 1)
		if err == nil && res.Allowed {
			return fmt.Errorf("%d are free", res.Remaining)
		}
		return err
	})
	tr.end(t)
	tr.bounded(t, nodes[data[1]], "sluice:{k}:log/3600000", limit, atKill)
}

// TestReadOnly: a primary that became a replica refuses, which charges nothing; when it is a primary again, the same
// limiter goes on.
func TestReadOnly(t *testing.T) {
	pod := containers.NewPod(t, containers.Usual(), 2)
	var nodes []*containers.Server
	for _, port := range pod.Ports {
		nodes = append(nodes, containers.Start(t, containers.Spec{Image: containers.Usual(), Pod: pod, Port: port}))
	}
	l := newLimiter(t, nodes[0].Client, sluice.Config{})
	direct := newLimiter(t, nodes[1].Client, sluice.Config{})
	for _, p := range hourly {
		charge(t, direct, "k", p, 3)
	}
	nodes[0].Do("REPLICAOF", "127.0.0.1", strconv.Itoa(pod.Ports[1]))
	eventually(t, func() error {
		if size, err := nodes[0].Do("DBSIZE").AsInt64(); err != nil || size != int64(len(hourly)) {
			return fmt.Errorf("%d keys, %w", size, err)
		}
		return nil
	})
	for _, p := range hourly {
		_, err := l.Allow(t.Context(), "k", p)
		backend(t, err, false, "READONLY")
		if got := used(t, l, "k", p); got != 3 {
			t.Errorf("%s: a peek at the replica tells %d used, want 3", p, got)
		}
	}
	nodes[0].Do("REPLICAOF", "NO", "ONE")
	for _, p := range hourly {
		charge(t, l, "k", p, 7)
		if res, err := l.Allow(context.Background(), "k", p); err != nil || res.Allowed {
			t.Errorf("%s: one above the limit: %+v, %v", p, res, err)
		}
	}
}
