package local

import (
	"fmt"
	"strings"
	"sync"
	"testing"
)

const now = 1_700_000_000_000_000 // us

var five = Policy{Kind: SlidingLog, Limit: 5, WindowMS: 1000}

func (s *Store) free(key string, at int64) int64 { return s.Call(key, at, Peek, 0, five, 0).Remaining }

func TestStoreForgetsTheLeastRecentlyAsked(t *testing.T) {
	s := NewStore(3)
	for _, key := range []string{"a", "b", "c"} {
		s.Call(key, now, Take, 5, five, 0)
	}
	s.Call("a", now, Take, 1, five, 0) // denied, and still asked for: to hammer a door does not open it
	s.Call("d", now, Take, 1, five, 0)
	for key, want := range map[string]int64{"a": 0, "b": 5, "c": 0, "d": 4} {
		if got := s.free(key, now); got != want {
			t.Errorf("%s has %d free, want %d", key, got, want)
		}
	}
	if got := s.Len(); got != 3 {
		t.Errorf("%d states, want 3", got)
	}
}

func TestStoreKeepsNothingThatIsNotInUse(t *testing.T) {
	s := NewStore(10)
	s.Call("peeked", now, Peek, 1, five, 0)
	s.Call("nothing", now, Take, 0, five, 0)
	if got := s.Len(); got != 0 {
		t.Errorf("%d states after a peek and a take of nothing, want none", got)
	}
	s.Call("refunded", now, Take, 3, five, 0)
	s.Call("refunded", now, Settle, -3, five, now)
	if got := s.Len(); got != 0 {
		t.Errorf("%d states after a refund of everything, want none", got)
	}
	s.Call("reset", now, Take, 3, five, 0)
	s.Reset("reset")
	if got := s.Len(); got != 0 {
		t.Errorf("%d states after a reset, want none", got)
	}
	for i := range 4 {
		s.Call(fmt.Sprint("old", i), now, Take, 1, five, 0)
	}
	for i := range int64(5) {
		s.Call("young", now+2_000_000+i, Take, 1, five, 0) // two windows later
	}
	if got := s.Len(); got != 1 {
		t.Errorf("%d states when all but one have run out, want 1", got)
	}
}

func TestStoreBoundsKeysAndLogs(t *testing.T) {
	s := NewStore(10)
	long := strings.Repeat("x", 1000)
	big := Policy{Kind: SlidingLog, Limit: 1_000_000_000, WindowMS: 1_000_000}
	for i := range int64(10_000) {
		s.Call(long, now+i*1000, Take, 1, big, 0)
	}
	for id, n := range s.states {
		if len(id.key) > maxKey {
			t.Errorf("a key of %d bytes is kept", len(id.key))
		}
		if len(n.entries) > maxEntries {
			t.Errorf("%d entries are kept", len(n.entries))
		}
	}
	if got, want := s.Call(long, now+10_000_000, Peek, 0, big, 0).Remaining, big.Limit-10_000; got != want {
		t.Errorf("%d remaining, want %d: coarse logs count every unit", got, want)
	}
	if got := s.Call(long+"y", now, Peek, 0, big, 0).Remaining; got != big.Limit {
		t.Errorf("another long key has %d free, want all", got)
	}
}

func TestAlgorithmsDoNotMeetOnAKey(t *testing.T) {
	s := NewStore(10)
	for kind := SlidingLog; kind <= TokenBucket; kind++ {
		p := Policy{Kind: kind, Limit: 5, Refill: 1, WindowMS: 1000}
		if got := s.Call("key", now, Take, 2, p, 0); !got.Allowed || got.Remaining != 3 {
			t.Errorf("algorithm %d: %+v, want 3 remaining", kind, got)
		}
	}
	s.Reset("key")
	if got := s.Len(); got != 0 {
		t.Errorf("%d states after a reset, want none", got)
	}
}

// A bucket's share has a longer period, up to 10^4 times, and nothing overflows.
func TestLongPeriods(t *testing.T) {
	p := Policy{Kind: TokenBucket, Limit: 2, Refill: 1_000_000_000, WindowMS: 31_622_400_000 * 10_000}
	var s State
	want := Reply{Allowed: true, Remaining: 0, ResetAfterMS: 632_448, ServerTimeUS: now}
	if got := s.Call(now, Take, 2, p, 0); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	want = Reply{Remaining: 0, RetryAfterMS: 316_224, ResetAfterMS: 632_448, ServerTimeUS: now}
	if got := s.Call(now, Take, 1, p, 0); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if got := s.Call(now+316_224_000, Take, 1, p, 0); !got.Allowed {
		t.Errorf("after the wait: %+v", got)
	}
}

func TestStoreAdmitsTheLimitToManyCallers(t *testing.T) {
	s := NewStore(10)
	var admitted sync.Map
	var wg sync.WaitGroup
	for caller := range 50 {
		wg.Go(func() {
			for i := range 5 {
				if s.Call("key", now, Take, 1, Policy{Kind: SlidingCounter, Limit: 100, WindowMS: 1000}, 0).Allowed {
					admitted.Store([2]int{caller, i}, true)
				}
			}
		})
	}
	wg.Wait()
	count := 0
	admitted.Range(func(any, any) bool { count++; return true })
	if count != 100 {
		t.Errorf("%d admitted, want 100", count)
	}
}
