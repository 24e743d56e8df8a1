package integration

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/sluicego/sluice"
	"github.com/sluicego/sluice/integration/containers"
	"github.com/sluicego/sluice/integration/images"
)

// cluster is three primaries, each with a replica: nodes 0 to 2 and 3 to 5.
type cluster struct {
	nodes []*containers.Server
	ids   []string
}

func startCluster(t *testing.T, image images.Image) *cluster {
	t.Helper()
	const primaries = 3
	pod := containers.NewPod(t, image, 2*primaries)
	c := &cluster{nodes: make([]*containers.Server, 2*primaries), ids: make([]string, 2*primaries)}
	for i, port := range pod.Ports {
		c.nodes[i] = containers.Start(t, containers.Spec{Image: image, Pod: pod, Port: port, Args: []string{
			"--cluster-enabled", "yes", "--cluster-config-file", fmt.Sprintf("nodes-%d.conf", port),
			"--cluster-node-timeout", "2000", "--cluster-announce-ip", "127.0.0.1",
			"--repl-diskless-sync", "yes", "--repl-diskless-sync-delay", "0",
		}})
		id, err := c.nodes[i].Do("CLUSTER", "MYID").ToString()
		if err != nil {
			t.Fatal(err)
		}
		c.ids[i] = id
	}
	for i := range primaries {
		slots := []string{"CLUSTER", "ADDSLOTS"}
		for slot := i * 16384 / primaries; slot < (i+1)*16384/primaries; slot++ {
			slots = append(slots, strconv.Itoa(slot))
		}
		c.nodes[i].Do(slots...)
		c.nodes[i].Do("CLUSTER", "SET-CONFIG-EPOCH", strconv.Itoa(i+1))
	}
	for _, n := range c.nodes[1:] {
		n.Do("CLUSTER", "MEET", "127.0.0.1", strconv.Itoa(pod.Ports[0]))
	}
	for i := range primaries {
		eventually(t, func() error {
			r := c.nodes[primaries+i].Client.Do(t.Context(), c.nodes[i].Client.B().Arbitrary("CLUSTER", "REPLICATE", c.ids[i]).Build())
			return r.Error() // until it has heard of its primary
		})
	}
	c.settled(t, primaries)
	return c
}

// settled waits until every node knows all slots served and so many replicas, which are in step.
func (c *cluster) settled(t *testing.T, replicas int) {
	t.Helper()
	eventually(t, func() error {
		online := 0
		for i, n := range c.nodes {
			info, err := n.Client.Do(t.Context(), n.Client.B().ClusterInfo().Build()).ToString()
			if err != nil {
				return err
			}
			if !strings.Contains(info, "cluster_state:ok") {
				return fmt.Errorf("%s: %s", n.Addr, info)
			}
			known := map[string]bool{}
			for _, row := range c.slots(i) {
				for _, id := range row.ids[1:] {
					known[id] = true
				}
			}
			if len(known) != replicas {
				return fmt.Errorf("%s knows %d replicas, want %d", n.Addr, len(known), replicas)
			}
			repl, err := n.Client.Do(t.Context(), n.Client.B().Info().Section("replication").Build()).ToString()
			if err != nil {
				return err
			}
			online += strings.Count(repl, "state=online")
		}
		if online != replicas {
			return fmt.Errorf("%d replicas in step, want %d", online, replicas)
		}
		return nil
	})
}

// slotRange is a row of CLUSTER SLOTS: the primary's id comes first.
type slotRange struct {
	from, to int64
	ids      []string
}

// slots is how a node sees the cluster; nothing if it is dead.
func (c *cluster) slots(node int) []slotRange {
	client := c.nodes[node].Client
	rows, err := client.Do(context.Background(), client.B().ClusterSlots().Build()).ToArray()
	if err != nil {
		return nil
	}
	var all []slotRange
	for _, row := range rows {
		cells, _ := row.ToArray() // a cell that is not what it should be leaves the range empty
		if len(cells) < 3 {
			continue
		}
		var r slotRange
		r.from, _ = cells[0].AsInt64()
		r.to, _ = cells[1].AsInt64()
		for _, cell := range cells[2:] {
			if member, err := cell.ToArray(); err == nil && len(member) > 2 {
				id, _ := member[2].ToString()
				r.ids = append(r.ids, id)
			}
		}
		all = append(all, r)
	}
	return all
}

// dial connects a client of the whole cluster, as a user with the published rights and those to functions.
func (c *cluster) dial(t *testing.T) rueidis.Client {
	t.Helper()
	return dial(t, c.nodes[0].Addr, asUser)
}

// asUser makes a client log in as the user of the published rights.
func asUser(o *rueidis.ClientOption) { o.Username, o.Password = "sluice", "secret" }

// slotOf is the slot of a key.
func (c *cluster) slotOf(key string) int64 {
	n, _ := c.nodes[0].Do("CLUSTER", "KEYSLOT", key).AsInt64() // Do has looked at the error
	return n
}

// primaryOf is the node that serves a slot, as all nodes see it; -1 while they don't agree.
func (c *cluster) primaryOf(slot int64) int {
	var primaries []string
	for i := range c.nodes {
		for _, row := range c.slots(i) {
			if row.from <= slot && slot <= row.to {
				primaries = append(primaries, row.ids[0])
			}
		}
	}
	if len(primaries) != len(c.nodes) || len(slices.Compact(primaries)) != 1 {
		return -1
	}
	return slices.Index(c.ids, primaries[0])
}

// TestCluster shows what holds on a cluster: at rest, while a primary fails over, while a slot moves, when a primary dies.
func TestCluster(t *testing.T) {
	c := startCluster(t, containers.Usual())
	of, load := functionRights(t)
	rights := rightsOnAnyKey(t, slices.Concat(clientRights(t, "On a cluster"), of[slices.Index(of, "-@all")+1:], []string{load})...)
	for _, n := range c.nodes {
		n.Do(rights...)
	}
	client := c.dial(t)
	l := newLimiter(t, client, sluice.Config{Timeout: 5 * time.Second})

	t.Run("load on every node", func(t *testing.T) {
		if err := l.Load(t.Context()); err != nil {
			t.Fatal(err)
		}
		if nodes := slices.Sorted(maps.Keys(client.Nodes())); len(nodes) != len(c.nodes) {
			t.Errorf("the client knows %v, want %d nodes", nodes, len(c.nodes))
		}
		for _, n := range c.nodes {
			for file, sum := range sums(t) {
				if file == "functions.lua" { // a library, which is no script to load
					continue
				}
				known, err := n.Do("SCRIPT", "EXISTS", sum).AsIntSlice()
				if err != nil || known[0] != 1 {
					t.Errorf("%s does not know %s: %v", n.Addr, file, err)
				}
			}
		}
	})
	t.Run("any subject", func(t *testing.T) { anySubject(t, l) })
	t.Run("batch over all slots", func(t *testing.T) { batchOverAllSlots(t, c, l) })
	t.Run("several limits in one slot", func(t *testing.T) { severalInOneSlot(t, l) })
	t.Run("a limit over shards", func(t *testing.T) { overShards(t, c, l) })
	byFunction := newLimiter(t, client, sluice.Config{Prefix: "functions", Timeout: 5 * time.Second, Functions: true})
	t.Run("functions", func(t *testing.T) {
		var missing *sluice.LibraryError
		if _, err := byFunction.Allow(t.Context(), "a", hourly[0]); !errors.As(err, &missing) || missing.Version != 0 {
			t.Errorf("before it is loaded: %v, want no library", err)
		}
		if err := byFunction.Load(t.Context()); err != nil {
			t.Fatal(err)
		}
		anySubject(t, byFunction)
		severalInOneSlot(t, byFunction)
	})
	t.Run("failover by hand", func(t *testing.T) { failoverByHand(t, c) })
	t.Run("resharding of the slot in use", func(t *testing.T) { reshard(t, c) })
	t.Run("a primary dies", func(t *testing.T) { primaryDies(t, c) })
	t.Run("functions after all that", func(t *testing.T) {
		for i := range 300 { // on every primary there is now, some of which were replicas
			eventually(t, func() error { // the client may still have to learn who is a primary
				_, err := byFunction.Allow(t.Context(), fmt.Sprint("after", i), hourly[0])
				if missing := (*sluice.LibraryError)(nil); errors.As(err, &missing) {
					t.Fatal(err)
				}
				return err
			})
		}
	})
}

// overShards: the shards of a limit lie on several nodes, all of them together admit exactly the limit, and the verbs find them.
func overShards(t *testing.T, c *cluster, l *sluice.Limiter) {
	t.Helper()
	const subject, shards, limit = "sharded", 16, 64
	p := sluice.SlidingLog(limit, time.Hour).Named("sharded").Sharded(shards)
	var charged []sluice.Result
	for range 100 * limit {
		res, err := l.Allow(t.Context(), subject, p)
		if err != nil {
			t.Fatal(err)
		}
		if res.Allowed {
			charged = append(charged, res)
		}
	}
	if len(charged) != limit {
		t.Errorf("%d of %d were admitted, want the limit", len(charged), limit)
	}
	nodes := 0
	for _, n := range c.nodes[:3] {
		if here, err := n.Do("KEYS", `*}:sharded\*16`).AsStrSlice(); err != nil {
			t.Fatal(err)
		} else if len(here) > 0 {
			nodes++
		}
	}
	if nodes < 2 {
		t.Errorf("the shards are on %d nodes, want several", nodes)
	}
	for _, res := range charged[:10] {
		if _, err := l.Settle(t.Context(), res, 0); err != nil {
			t.Fatal(err)
		}
	}
	if res, err := l.Peek(t.Context(), subject, p, 0); err != nil || res.Remaining != 10 {
		t.Errorf("after ten were given back: %+v, %v, want 10 free", res, err)
	}
	if err := l.Reset(t.Context(), subject, p); err != nil {
		t.Fatal(err)
	}
	if res, err := l.Peek(t.Context(), subject, p, 0); err != nil || res.Remaining != limit {
		t.Errorf("after the reset: %+v, %v, want all free", res, err)
	}
}

// anySubject: no subject leads to CROSSSLOT or to a panic.
func anySubject(t *testing.T, l *sluice.Limiter) {
	t.Helper()
	for _, key := range []string{"a", "{", "}", "{}", "{a}{b}", "}{", "\x00", "\xff\r\n", strings.Repeat("x", 1<<20), "*?[]", sluice.Key("a:b", "c")} {
		for _, p := range hourly {
			charge(t, l, key, p, 4)
			charge(t, l, key, p, 6)
			if res, err := l.Allow(t.Context(), key, p); err != nil || res.Allowed {
				t.Errorf("%.20q, %s: %+v, %v", key, p, res, err)
			}
			if err := l.Reset(t.Context(), key, p); err != nil {
				t.Errorf("%.20q, %s: %v", key, p, err)
			}
		}
	}
}

// batchOverAllSlots: one batch reaches every node, and each of its requests is decided as if it were alone.
func batchOverAllSlots(t *testing.T, c *cluster, l *sluice.Limiter) {
	t.Helper()
	const subjects, limit = 1000, 3
	for _, p := range []sluice.Policy{sluice.SlidingLog(limit, time.Hour), sluice.SlidingCounter(limit, 300*24*time.Hour), sluice.TokenBucket(limit, 1, 24*time.Hour)} {
		var requests []sluice.Request
		for i := range subjects {
			requests = append(requests, sluice.Request{Key: fmt.Sprint("batch", i), Policy: p, Cost: 1})
		}
		for round := range limit + 1 {
			for i, o := range l.Batch(t.Context(), requests...) {
				if o.Err != nil || o.Result.Allowed != (round < limit) || o.Result.Remaining != int64(max(0, limit-1-round)) {
					t.Fatalf("%s: subject %d in round %d: %+v, %v", p, i, round, o.Result, o.Err)
				}
			}
		}
	}
	for _, n := range c.nodes[:3] {
		if size, err := n.Do("DBSIZE").AsInt64(); err != nil || size < subjects/2 {
			t.Errorf("%s has %d keys, %v: the subjects don't spread", n.Addr, size, err)
		}
	}
}

// severalInOneSlot: the limits of one subject, or of several under one tag, are charged together; others are refused
// before anything is sent.
func severalInOneSlot(t *testing.T, l *sluice.Limiter) {
	t.Helper()
	for i := range 100 { // over many slots
		var requests []sluice.Request
		for _, p := range hourly {
			requests = append(requests, sluice.Request{Key: fmt.Sprint("all", i), Policy: p, Cost: 6},
				sluice.Request{Key: fmt.Sprint("team", i), Tag: fmt.Sprint("all", i), Policy: p, Cost: 3})
		}
		for round := range 2 {
			all, err := l.AllowAll(t.Context(), requests...)
			if err != nil || all.Allowed != (round == 0) {
				t.Fatalf("round %d: %+v, %v", round, all, err)
			}
		}
		for _, p := range hourly {
			if got := used(t, l, fmt.Sprint("all", i), p); got != 6 {
				t.Errorf("%s: %d units are used, want 6", p, got)
			}
		}
		requests[1].Tag = ""
		if _, err := l.AllowAll(t.Context(), requests...); !errors.Is(err, sluice.ErrCrossSlot) {
			t.Errorf("keys in two slots: %v", err)
		}
	}
}

// traffic is what 50 workers saw of one subject while the cluster changed under them.
type traffic struct {
	allowed, denied, unknown, failed atomic.Int64
	stop                             chan struct{}
	wg                               sync.WaitGroup

	mu       sync.Mutex
	messages map[string]int
	receipts []int64 // the server's times of what was allowed, us
}

// workers go on while servers change.
const workers = 50

// newTraffic starts the workers, each with a call of cost 1 at a time.
func newTraffic(t *testing.T, l *sluice.Limiter, key string, p sluice.Policy) *traffic {
	t.Helper()
	tr := &traffic{stop: make(chan struct{}), messages: map[string]int{}}
	for range workers {
		tr.wg.Go(func() {
			for {
				select {
				case <-tr.stop:
					return
				case <-time.After(5 * time.Millisecond):
				}
				res, err := l.Allow(context.Background(), key, p)
				tr.count(t, res, err)
			}
		})
	}
	return tr
}

var ports = regexp.MustCompile(`:[0-9]+`)

// count sorts an outcome. Any error must be the documented one: of the backend, known or unknown.
func (tr *traffic) count(t *testing.T, res sluice.Result, err error) {
	t.Helper()
	var call *sluice.CallError
	switch {
	case err == nil && res.Allowed:
		tr.allowed.Add(1)
		tr.mu.Lock()
		tr.receipts = append(tr.receipts, res.ServerTime.UnixMicro())
		tr.mu.Unlock()
	case err == nil:
		tr.denied.Add(1)
	case !errors.Is(err, sluice.ErrBackend) || !errors.As(err, &call) || errors.Is(err, sluice.ErrReply):
		t.Errorf("not a documented error: %v", err)
	default:
		if call.Unknown {
			tr.unknown.Add(1)
		} else {
			tr.failed.Add(1)
		}
		tr.mu.Lock()
		tr.messages[ports.ReplaceAllString(err.Error(), ":N")]++
		tr.mu.Unlock()
	}
}

// end stops the workers.
func (tr *traffic) end(t *testing.T) {
	t.Helper()
	close(tr.stop)
	tr.wg.Wait()
	t.Logf("%d allowed, %d denied, %d unknown, %d failed; errors: %v",
		tr.allowed.Load(), tr.denied.Load(), tr.unknown.Load(), tr.failed.Load(), tr.messages)
}

// lively waits until so many more calls were allowed.
func (tr *traffic) lively(t *testing.T, more int64) {
	t.Helper()
	want := tr.allowed.Load() + more
	eventually(t, func() error {
		if got := tr.allowed.Load(); got < want {
			return fmt.Errorf("%d calls allowed, want %d", got, want)
		}
		return nil
	})
}

// once checks that what the server has counted is what was allowed, plus at most what is unknown, minus at most lost.
func (tr *traffic) once(t *testing.T, l *sluice.Limiter, key string, p sluice.Policy, lost int64) {
	t.Helper()
	got := used(t, l, key, p)
	least, most := tr.allowed.Load()-lost, tr.allowed.Load()+tr.unknown.Load()
	if got < least || got > most {
		t.Errorf("%d units are used, want %d to %d", got, least, most)
	}
}

// bounded checks a log that has been used up while a primary was killed, entry by entry: admitted <= limit + lost. A replica
// hears of a charge in the moment that it is answered, so what it can miss of a killed primary is what was under way, one
// call of each worker; and what is counted without a receipt is at most that much, too. At the kill some units must have
// been free, and afterwards some calls allowed, or nothing is shown.
func (tr *traffic) bounded(t *testing.T, s *containers.Server, key string, limit, atKill int64) {
	t.Helper()
	if admitted := tr.allowed.Load(); atKill >= limit || admitted <= atKill {
		t.Errorf("%d of %d were admitted at the kill and %d at the end: it was not under way", atKill, limit, admitted)
	}
	entries, err := s.Do("LRANGE", key, "1", "-1").AsStrSlice()
	if err != nil {
		t.Fatal(err)
	}
	counted := map[int64]int64{} // units, by time
	var sum int64
	for _, e := range entries {
		us, err1 := strconv.ParseInt(e[:14], 16, 64)
		units, err2 := strconv.ParseInt(e[26:], 16, 64)
		if err := errors.Join(err1, err2); err != nil {
			t.Fatalf("entry %q: %v", e, err)
		}
		counted[us] += units
		sum += units
	}
	if sum != limit {
		t.Errorf("the log has %d units, want %d", sum, limit)
	}
	lost := 0
	for _, us := range tr.receipts {
		if counted[us] == 0 {
			lost++
			continue
		}
		counted[us]--
		sum--
	}
	t.Logf("%d charges were lost with the primary, %d are counted that nobody has a receipt of", lost, sum)
	if lost > workers || sum > workers {
		t.Errorf("%d charges were lost and %d have no receipt, want at most %d each", lost, sum, workers)
	}
}

var open = sluice.SlidingCounter(1_000_000_000, 300*24*time.Hour)

// failoverByHand: CLUSTER FAILOVER hands over in step, so nothing is lost and nothing is charged twice.
func failoverByHand(t *testing.T, c *cluster) {
	t.Helper()
	l := newLimiter(t, c.dial(t), sluice.Config{Timeout: 5 * time.Second, Prefix: "failover", PlainKeys: true})
	slot := c.slotOf("{k}")
	old := c.primaryOf(slot)
	tr := newTraffic(t, l, "k", open)
	tr.lively(t, 200)
	c.nodes[(old+3)%6].Do("CLUSTER", "FAILOVER")
	eventually(t, func() error {
		if now := c.primaryOf(slot); now != (old+3)%6 {
			return fmt.Errorf("node %d serves the slot", now)
		}
		return nil
	})
	tr.lively(t, 200)
	tr.end(t)
	tr.once(t, l, "k", open, 0)
	c.settled(t, 3)
}

// reshard: the slot of the subject moves to another primary and back, by the way that redis-cli goes.
func reshard(t *testing.T, c *cluster) {
	t.Helper()
	l := newLimiter(t, c.dial(t), sluice.Config{Timeout: 5 * time.Second, Prefix: "reshard", PlainKeys: true})
	slot := c.slotOf("{k}")
	from := c.primaryOf(slot)
	to := c.primaryOf((slot + 6000) % 16384)
	tr := newTraffic(t, l, "k", open)
	for _, way := range [][2]int{{from, to}, {to, from}} {
		tr.lively(t, 200)
		moveSlot(t, c, slot, way[0], way[1])
		eventually(t, func() error {
			if now := c.primaryOf(slot); now != way[1] {
				return fmt.Errorf("node %d serves the slot", now)
			}
			return nil
		})
	}
	tr.lively(t, 200)
	tr.end(t)
	tr.once(t, l, "k", open, 0)
}

func moveSlot(t *testing.T, c *cluster, slot int64, from, to int) {
	t.Helper()
	text := strconv.FormatInt(slot, 10)
	_, port, _ := strings.Cut(c.nodes[to].Addr, ":")
	c.nodes[to].Do("CLUSTER", "SETSLOT", text, "IMPORTING", c.ids[from])
	c.nodes[from].Do("CLUSTER", "SETSLOT", text, "MIGRATING", c.ids[to])
	time.Sleep(50 * time.Millisecond) // traffic in the middle of it, when the key is here and the slot half there
	for {
		keys, err := c.nodes[from].Do("CLUSTER", "GETKEYSINSLOT", text, "100").AsStrSlice()
		if err != nil {
			t.Fatal(err)
		}
		if len(keys) == 0 {
			break
		}
		c.nodes[from].Do(append([]string{"MIGRATE", "127.0.0.1", port, "", "0", "5000", "KEYS"}, keys...)...)
	}
	time.Sleep(50 * time.Millisecond) // and when the key is there
	c.nodes[to].Do("CLUSTER", "SETSLOT", text, "NODE", c.ids[to])
	for _, n := range c.nodes {
		// Replicas learn it from their primaries, and refuse.
		n.Client.Do(t.Context(), n.Client.B().Arbitrary("CLUSTER", "SETSLOT", text, "NODE", c.ids[to]).Build())
	}
}

// primaryDies: what was not replicated when a primary is killed is lost, and that is all: admitted <= limit + lost.
func primaryDies(t *testing.T, c *cluster) {
	t.Helper()
	const limit = 10_000 // more than the workers take before the primary is dead
	p := sluice.SlidingLog(limit, time.Hour)
	l := newLimiter(t, c.dial(t), sluice.Config{Timeout: time.Second, Prefix: "dies", PlainKeys: true})
	slot := c.slotOf("{k}")
	old := c.primaryOf(slot)
	tr := newTraffic(t, l, "k", p)
	tr.lively(t, 200)
	c.nodes[old].Kill()
	atKill := tr.allowed.Load()
	eventually(t, func() error {
		res, err := l.Peek(t.Context(), "k", p, 1)
		if err == nil && res.Allowed {
			return errors.New("the limit is not used up")
		}
		return err
	})
	tr.end(t)
	tr.bounded(t, c.nodes[(old+3)%6], "dies:{k}:log/3600000", limit, atKill)
}
