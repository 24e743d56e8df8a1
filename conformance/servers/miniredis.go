package servers

import (
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/alicebob/miniredis/v2/server"
)

// Miniredis starts a miniredis that is closed when the test ends.
func Miniredis(t testing.TB) *Server {
	t.Helper()
	clock := &miniClock{redis: miniredis.RunT(t)}
	clock.redis.Server().SetPreHook(clock.time)
	addr := clock.redis.Addr()
	client := connect(t, "redis://"+addr)
	s := &Server{Name: "miniredis", Addr: addr, Client: client, Caller: client, t: t, setTime: clock.set}
	s.SetTime(Epoch)
	return s
}

// miniClock gives miniredis the clock of Redis. Miniredis stores what is left of a key's life and lets it
// shrink only by its FastForward, apart from TIME; Redis stores the moment at which the life ends, in
// milliseconds. So miniredis' own clock is kept at whole milliseconds, which makes PEXPIREAT and PTTL exact,
// the microseconds are added by answering TIME here, and every life is changed whenever the clock moves.
type miniClock struct {
	redis *miniredis.Miniredis
	us    atomic.Int64
}

// time answers TIME, inside scripts too, and leaves every other command to miniredis.
func (c *miniClock) time(peer *server.Peer, cmd string, _ ...string) bool {
	if cmd != "TIME" {
		return false
	}
	us := c.us.Load()
	peer.WriteStrings([]string{strconv.FormatInt(us/1e6, 10), strconv.FormatInt(us%1e6, 10)})
	return true
}

// lastBreath is the life of a key whose expiry is this very millisecond: Redis keeps it until the
// millisecond is over and its PTTL is 0. Miniredis takes a life of zero for no expiry at all.
const lastBreath = time.Nanosecond

func (c *miniClock) set(us int64) {
	now := time.UnixMilli(us / 1000)
	moved := now.Sub(time.UnixMilli(c.us.Swap(us) / 1000))
	c.redis.SetTime(now)
	if moved == 0 {
		return
	}
	for _, key := range c.redis.Keys() {
		ttl := c.redis.TTL(key)
		if ttl == 0 {
			continue // no expiry
		}
		switch ttl = ttl.Truncate(time.Millisecond) - moved; {
		case ttl > 0:
			c.redis.SetTTL(key, ttl)
		case ttl == 0:
			c.redis.SetTTL(key, lastBreath)
		default:
			c.redis.Del(key)
		}
	}
}
