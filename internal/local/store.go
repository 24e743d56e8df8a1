package local

import (
	"crypto/sha256"
	"sync"
)

const (
	maxEntries = 128 // of a log, 16 bytes each
	maxKey     = 256 // bytes of a key that are kept
)

// A Store is many states, bounded in number and in size, and safe for concurrent use. Of a log it keeps 128 entries, by
// [State.Coarsen], so its units may count for 1/63 of the window too long. When it is full, the state that was asked for
// least recently is forgotten, and with it what was used of one limit.
type Store struct {
	mu     sync.Mutex
	most   int
	states map[id]*node
	ring   node // of all states, the most recently used first
}

// id is a state's name. Algorithms never meet on one.
type id struct {
	key  string
	kind Kind
}

type node struct {
	State
	id         id
	prev, next *node
}

// NewStore makes a Store of at most so many states, at least 1.
func NewStore(most int) *Store {
	s := &Store{most: most, states: make(map[id]*node)}
	s.ring.prev, s.ring.next = &s.ring, &s.ring
	return s
}

// A Call is the arguments of one call.
type Call struct {
	Key     string
	Policy  Policy
	Op      Op
	Cost    int64
	Receipt int64 // us; settle only
}

// Call is [State.Call] on the state of a key.
func (s *Store) Call(nowUS int64, c Call) Reply {
	id := newID(c.Key, c.Policy.Kind)
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.call(nowUS, id, c)
}

// CallAll makes takes or peeks at one moment: the takes charge all or none.
func (s *Store) CallAll(nowUS int64, calls []Call) []Reply {
	ids := make([]id, len(calls))
	for i, c := range calls {
		ids[i] = newID(c.Key, c.Policy.Kind)
	}
	replies := make([]Reply, len(calls))
	all := true
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, c := range calls {
		c.Op = Peek
		replies[i] = s.call(nowUS, ids[i], c)
		all = all && replies[i].Allowed
	}
	if all {
		for i, c := range calls {
			replies[i] = s.call(nowUS, ids[i], c)
		}
	}
	return replies
}

func (s *Store) call(nowUS int64, id id, c Call) Reply {
	// What has run out goes, in passing, one at a time.
	if oldest := s.ring.prev; oldest != &s.ring && oldest.Void(nowUS) {
		s.drop(oldest)
	}
	n := s.states[id]
	if n == nil {
		n = &node{id: id}
	}
	reply := n.Call(nowUS, c.Op, c.Cost, c.Policy, c.Receipt)
	n.Coarsen(maxEntries, c.Policy)
	switch {
	case n.next != nil && n.Until() == 0:
		s.drop(n)
	case n.next != nil:
		n.unlink()
		s.front(n)
	case n.Until() != 0:
		if len(s.states) >= s.most {
			s.drop(s.ring.prev)
		}
		s.states[id] = n
		s.front(n)
	}
	return reply
}

// Reset forgets the states of a key.
func (s *Store) Reset(key string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for kind := SlidingLog; kind <= TokenBucket; kind++ {
		if n := s.states[newID(key, kind)]; n != nil {
			s.drop(n)
		}
	}
}

// Len is the number of states.
func (s *Store) Len() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.states)
}

// newID keeps long keys by their digest, so that no caller decides how much memory a state needs.
func newID(key string, kind Kind) id {
	if len(key) > maxKey {
		sum := sha256.Sum256([]byte(key))
		key = string(sum[:])
	}
	return id{key, kind}
}

func (s *Store) drop(n *node) {
	delete(s.states, n.id)
	n.unlink()
}

func (s *Store) front(n *node) {
	n.prev, n.next = &s.ring, s.ring.next
	n.prev.next, n.next.prev = n, n
}

func (n *node) unlink() { n.prev.next, n.next.prev = n.next, n.prev }
