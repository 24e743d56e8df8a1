package integration

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/sluicego/sluice"
	"github.com/sluicego/sluice/integration/containers"
)

// watched are two servers under three sentinels.
type watched struct {
	primary, replica *containers.Server
	sentinels        []*containers.Server
	client           rueidis.Client // of a user with the published rights
}

// startWatched starts them, the two with more arguments.
func startWatched(t *testing.T, args ...string) *watched {
	t.Helper()
	image := containers.Usual()
	pod := containers.NewPod(t, image, 5)
	primary := strconv.Itoa(pod.Ports[0])
	args = append(args, "--replica-announce-ip", "127.0.0.1", "--repl-diskless-sync", "yes", "--repl-diskless-sync-delay", "0")
	w := &watched{
		primary: containers.Start(t, containers.Spec{Image: image, Pod: pod, Port: pod.Ports[0], Args: args}),
		replica: containers.Start(t, containers.Spec{Image: image, Pod: pod, Port: pod.Ports[1],
			Args: append(slices.Clone(args), "--replicaof", "127.0.0.1", primary)}),
	}
	var addrs []string
	for _, port := range pod.Ports[2:] {
		dir := t.TempDir()
		config := fmt.Sprintf("port %d\nbind 0.0.0.0\nprotected-mode no\ndir /tmp\n"+
			"sentinel announce-ip 127.0.0.1\nsentinel monitor limits 127.0.0.1 %s 2\n"+
			"sentinel down-after-milliseconds limits 1000\nsentinel failover-timeout limits 6000\n", port, primary)
		if err := os.WriteFile(filepath.Join(dir, "sentinel.conf"), []byte(config), 0o644); err != nil {
			t.Fatal(err)
		}
		s := containers.Start(t, containers.Spec{Image: image, Pod: pod, Port: port, Binds: []string{dir + ":/sentinel"},
			Command: []string{image.Binary(), "/sentinel/sentinel.conf", "--sentinel"}})
		addrs = append(addrs, s.Addr)
		w.sentinels = append(w.sentinels, s)
	}
	eventually(t, func() error { // each sentinel knows the others and the replica
		for _, s := range w.sentinels {
			m, err := s.Do("SENTINEL", "MASTER", "limits").AsStrMap()
			if err != nil || m["num-slaves"] != "1" || m["num-other-sentinels"] != "2" {
				return fmt.Errorf("%v, %w", m, err)
			}
		}
		return nil
	})
	for _, s := range []*containers.Server{w.primary, w.replica} {
		s.Do(rightsOnAnyKey(t, clientRights(t, "With sentinels")...)...)
	}
	w.client = dial(t, "", func(o *rueidis.ClientOption) {
		asUser(o)
		o.InitAddress = addrs
		o.Sentinel = rueidis.SentinelOption{MasterSet: "limits"}
	})
	return w
}

// promoted waits until the sentinels name the other one as the primary.
func (w *watched) promoted(t *testing.T) {
	t.Helper()
	eventually(t, func() error {
		addr, err := w.sentinels[0].Do("SENTINEL", "GET-MASTER-ADDR-BY-NAME", "limits").AsStrSlice()
		if err != nil || net.JoinHostPort(addr[0], addr[1]) != w.replica.Addr {
			return fmt.Errorf("the primary is %v, %w", addr, err)
		}
		return nil
	})
}

// TestSentinel: 50 workers go on while sentinels hand over to a replica; the limiter follows by itself.
func TestSentinel(t *testing.T) {
	w := startWatched(t)
	const limit = 10_000 // more than the workers take before the primary is dead
	p := sluice.SlidingLog(limit, time.Hour)
	l := newLimiter(t, w.client, sluice.Config{Timeout: time.Second, PlainKeys: true})
	tr := newTraffic(t, l, "k", p)
	tr.lively(t, 200)
	w.primary.Kill()
	atKill := tr.allowed.Load()
	w.promoted(t)
	tr.lively(t, 200)
	eventually(t, func() error {
		res, err := l.Peek(t.Context(), "k", p, 1)
		if err == nil && res.Allowed {
			return fmt.Errorf("%d are free", res.Remaining)
		}
		return err
	})
	tr.end(t)
	tr.bounded(t, w.replica, "sluice:{k}:log/3600000", limit, atKill)
}

// TestDemotedPrimary: with min-replicas-to-write a primary that lives on while another is promoted loses at most what was
// under way, one call of each worker.
func TestDemotedPrimary(t *testing.T) {
	w := startWatched(t, "--min-replicas-to-write", "1")
	l := newLimiter(t, w.client, sluice.Config{Timeout: time.Second})
	tr := newTraffic(t, l, "k", open)
	tr.lively(t, 200)
	w.sentinels[0].Do("SENTINEL", "FAILOVER", "limits")
	w.promoted(t)
	eventually(t, func() error {
		role, err := w.primary.Client.Do(t.Context(), w.primary.Client.B().Role().Build()).ToArray()
		if err != nil {
			return err // its connections are broken when it is demoted
		}
		if name, err := role[0].ToString(); err != nil || name != "slave" {
			return fmt.Errorf("the old primary is a %s, %w", name, err)
		}
		return nil
	})
	tr.lively(t, 200)
	tr.end(t)
	tr.once(t, l, "k", open, workers)
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
