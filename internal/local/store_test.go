package local

import (
	"fmt"
	"strings"
	"sync"
	"testing"
)

const now = 1_700_000_000_000_000 // us

var five = Policy{Kind: SlidingLog, Limit: 5, WindowMS: 1000}

func (s *Store) free(key string, at int64) int64 {
	return s.Call(at, Call{key, five, Peek, 0, 0}).Remaining
}

func TestStoreForgetsTheLeastRecentlyAsked(t *testing.T) {
	s := NewStore(3)
	for _, key := range []string{"a", "b", "c"} {
		s.Call(now, Call{key, five, Take, 5, 0})
	}
	s.Call(now, Call{"a", five, Take, 1, 0}) // denied, and still asked for: to hammer a door does not open it
	s.Call(now, Call{"d", five, Take, 1, 0})
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
	s.Call(now, Call{"peeked", five, Peek, 1, 0})
	s.Call(now, Call{"nothing", five, Take, 0, 0})
	if got := s.Len(); got != 0 {
		t.Errorf("%d states after a peek and a take of nothing, want none", got)
	}
	s.Call(now, Call{"refunded", five, Take, 3, 0})
	s.Call(now, Call{"refunded", five, Settle, -3, now})
	if got := s.Len(); got != 0 {
		t.Errorf("%d states after a refund of everything, want none", got)
	}
	s.Call(now, Call{"reset", five, Take, 3, 0})
	s.Reset("reset")
	if got := s.Len(); got != 0 {
		t.Errorf("%d states after a reset, want none", got)
	}
	for i := range 4 {
		s.Call(now, Call{fmt.Sprint("old", i), five, Take, 1, 0})
	}
	for i := range int64(5) {
		s.Call(now+2_000_000+i, Call{"young", five, Take, 1, 0}) // two windows later
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
		s.Call(now+i*1000, Call{long, big, Take, 1, 0})
	}
	for id, n := range s.states {
		if len(id.key) > maxKey {
			t.Errorf("a key of %d bytes is kept", len(id.key))
		}
		if len(n.entries) > maxEntries {
			t.Errorf("%d entries are kept", len(n.entries))
		}
	}
	if got, want := s.Call(now+10_000_000, Call{long, big, Peek, 0, 0}).Remaining, big.Limit-10_000; got != want {
		t.Errorf("%d remaining, want %d: coarse logs count every unit", got, want)
	}
	if got := s.Call(now, Call{long + "y", big, Peek, 0, 0}).Remaining; got != big.Limit {
		t.Errorf("another long key has %d free, want all", got)
	}
}

func TestAlgorithmsDoNotMeetOnAKey(t *testing.T) {
	s := NewStore(10)
	for kind := SlidingLog; kind <= TokenBucket; kind++ {
		p := Policy{Kind: kind, Limit: 5, Refill: 1, WindowMS: 1000}
		if got := s.Call(now, Call{"key", p, Take, 2, 0}); !got.Allowed || got.Remaining != 3 {
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

func TestCallAllChargesAllOrNone(t *testing.T) {
	s := NewStore(10)
	s.Call(now, Call{"a", five, Take, 4, 0})
	both := func(op Op, cost int64) [2]Reply {
		return [2]Reply(s.CallAll(now, []Call{{"a", five, op, 1, 0}, {"b", five, op, cost, 0}}))
	}
	if got := both(Peek, 2); !got[0].Allowed || !got[1].Allowed || s.free("b", now) != 5 {
		t.Errorf("peek: %+v", got)
	}
	if got := both(Take, 2); !got[0].Allowed || !got[1].Allowed || got[0].Remaining != 0 || got[1].Remaining != 3 {
		t.Errorf("both free: %+v", got)
	}
	if got := both(Take, 2); got[0].Allowed || !got[1].Allowed || got[1].Remaining != 3 {
		t.Errorf("one denies: %+v", got)
	}
	if a, b := s.free("a", now), s.free("b", now); a != 0 || b != 3 {
		t.Errorf("%d and %d free after a denial, want 0 and 3", a, b)
	}
}

func TestStoreAdmitsTheLimitToManyCallers(t *testing.T) {
	s := NewStore(10)
	var admitted sync.Map
	var wg sync.WaitGroup
	for caller := range 50 {
		wg.Go(func() {
			for i := range 5 {
				if s.Call(now, Call{"key", Policy{Kind: SlidingCounter, Limit: 100, WindowMS: 1000}, Take, 1, 0}).Allowed {
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
