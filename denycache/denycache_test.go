package denycache_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/sluicego/sluice"
	"github.com/sluicego/sluice/denycache"
)

var _ sluice.DenyCache = (*denycache.Cache)(nil)

// server answers in the place of Redis.
type server struct {
	rueidis.Client
	builder rueidis.Builder
	calls   int
	allowed bool
}

func (s *server) B() rueidis.Builder { return s.builder }

func (s *server) Do(context.Context, rueidis.Completed) rueidis.RedisResult {
	s.calls++
	n := int64(0)
	if s.allowed {
		n = 1
	}
	var m rueidis.RedisMessage
	b := append(make([]byte, 7), '*', 0, 0, 0, 0, 0, 0, 0, 5)
	for _, n := range []int64{n, 0, (1 - n) * 60_000, 60_000, time.Now().UnixMicro()} {
		b = append(b, ':', byte(n>>56), byte(n>>48), byte(n>>40), byte(n>>32), byte(n>>24), byte(n>>16), byte(n>>8), byte(n))
	}
	if err := m.CacheUnmarshalView(b); err != nil {
		return rueidis.NewErrorResult(err)
	}
	return rueidis.NewResult(m, nil)
}

func (s *server) DoMulti(ctx context.Context, commands ...rueidis.Completed) []rueidis.RedisResult {
	results := make([]rueidis.RedisResult, len(commands))
	for n, command := range commands {
		results[n] = s.Do(ctx, command)
	}
	return results
}

func newLimiter(t testing.TB, most int) (*sluice.Limiter, *server, *denycache.Cache) {
	t.Helper()
	nobody, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{"127.0.0.1:1"}, ForceSingleClient: true})
	if nobody == nil { // it comes along with the error that nobody is there
		t.Fatal(err)
	}
	s := &server{builder: nobody.B()}
	cache := denycache.New(most)
	l, err := sluice.New(s, sluice.Config{DenyCache: cache, DenyFor: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	return l, s, cache
}

var login = sluice.SlidingLog(10, time.Minute).Named("login")

func TestFloodReachesRedisOnce(t *testing.T) {
	l, s, _ := newLimiter(t, 1000)
	for range 10_000 {
		if res, err := l.Allow(t.Context(), "203.0.113.7", login); err != nil || res.Allowed {
			t.Fatalf("got %+v, %v", res, err)
		}
	}
	if s.calls != 1 {
		t.Errorf("%d calls reached Redis, want 1", s.calls)
	}
	if err := l.Reset(t.Context(), "203.0.113.7", login); err != nil {
		t.Fatal(err)
	}
	if s.allowed = true; !allow(t, l, "203.0.113.7") {
		t.Error("denied after a reset")
	}
}

func TestBounded(t *testing.T) {
	l, s, cache := newLimiter(t, 100)
	for n := range 10_000 {
		allow(t, l, fmt.Sprint(n))
	}
	for deadline := time.Now().Add(10 * time.Second); cache.Len() > 100; time.Sleep(time.Millisecond) { // it makes room beside the calls
		if time.Now().After(deadline) {
			t.Fatalf("%d denials, want 100 at most", cache.Len())
		}
	}
	before := s.calls
	for range 3 {
		allow(t, l, strings.Repeat("x", 257))
	}
	if got := s.calls - before; got != 3 {
		t.Errorf("%d of 3 calls with a long key reached Redis: it was kept", got)
	}
}

func allow(t testing.TB, l *sluice.Limiter, key string) bool {
	t.Helper()
	res, err := l.Allow(t.Context(), key, login)
	if err != nil {
		t.Fatal(err)
	}
	return res.Allowed
}

func TestAllocatesNothing(t *testing.T) {
	l, _, _ := newLimiter(t, 1000)
	allow(t, l, "203.0.113.7")
	ctx := t.Context()
	if got := testing.AllocsPerRun(1000, func() {
		if res, err := l.Allow(ctx, "203.0.113.7", login); err != nil || !res.Cached {
			t.Fatalf("got %+v, %v", res, err)
		}
	}); got != 0 {
		t.Errorf("%v allocations for a cached denial", got)
	}
}

func BenchmarkCachedDenial(b *testing.B) {
	l, _, _ := newLimiter(b, 100_000)
	ctx := b.Context()
	b.ReportAllocs()
	for b.Loop() {
		if res, err := l.Allow(ctx, "203.0.113.7", login); err != nil || res.Allowed {
			b.Fatal(res, err)
		}
	}
}
