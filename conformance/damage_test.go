package conformance_test

import (
	"slices"
	"strconv"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/sluicego/sluice/conformance/model"
	"github.com/sluicego/sluice/conformance/servers"
)

// TestDamagedStates changes a state from outside, a byte or an entry of it, as no script does. A call then refuses it, and leaves it
// as it is, or replies numbers that a caller can use: no wait below what it says, none of a call that was admitted.
func TestDamagedStates(t *testing.T) {
	servers.Parallel(t)
	for s := range subjects(t) {
		t.Run(s.name, func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				s.at(epoch)
				w := newWalk(t, s)
				for range rapid.IntRange(1, 12).Draw(t, "calls") {
					w.at(w.next(t))
					w.step(t)
				}
				if !s.damage(t) {
					return
				}
				for range 3 {
					w.at(min(w.next(t), latest))
					op := rapid.SampledFrom([]string{"peek", "take", "settle"}).Draw(t, "op")
					cost := w.cost(t)
					if op == "settle" && rapid.Bool().Draw(t, "refund") {
						cost = -cost
					}
					before := s.content(t)
					got, err := s.eval(t, []string{s.key}, arguments(op, cost, w.p, 0)...)
					if err != nil {
						if !strings.HasPrefix(err.Error(), "SLUICESTATE KEYS[1] ") {
							t.Fatalf("%s %d of %v: %v", op, cost, w.p, err)
						}
						if after := s.content(t); after != before {
							t.Fatalf("%s %d of %v was refused, and the state was\n%s\nand is\n%s", op, cost, w.p, before, after)
						}
						continue
					}
					if problem := unusable(got, op, cost, w.p, s.now); problem != "" {
						t.Fatalf("%s %d of %v at %d replied %v: %s; the state was\n%s", op, cost, w.p, s.now, got, problem, before)
					}
				}
			})
		})
	}
}

// unusable says what is wrong with the numbers of a reply, whatever the state was.
func unusable(n []int64, op string, cost int64, p model.Policy, now int64) string {
	never := op != "settle" && cost > p.Limit
	switch allowed, remaining, retry, reset := n[0], n[1], n[2], n[3]; {
	case allowed != 0 && allowed != 1 || op == "settle" && allowed != 1 || never && allowed == 1:
		return "allowed"
	case remaining < 0 || remaining > p.Limit || allowed == 0 && !never && remaining >= cost:
		return "remaining"
	case allowed == 1 && retry != 0 || allowed == 0 && never != (retry == -1) || allowed == 0 && !never && retry < 1:
		return "retry_after_ms"
	case reset < 0 || allowed == 0 && !never && reset < 1 || retry > reset:
		return "reset_after_ms"
	case n[4] != now:
		return "server_time_us"
	}
	return ""
}

// damage changes one thing of the state, and says whether there is one.
func (s *subject) damage(t *rapid.T) bool {
	key, changed := s.key, false
	byteOf := func(text string) string {
		b := []byte(text)
		at := rapid.IntRange(0, len(b)-1).Draw(t, "at")
		other := rapid.SampledFrom([]byte("0123456789abcdef:-+ .x\x00\xff")).Draw(t, "byte")
		switch rapid.IntRange(0, 3).Draw(t, "damage") {
		case 0:
			b = slices.Insert(b, at, other)
		case 1:
			b = slices.Delete(b, at, at+1)
		default:
			b[at] = other
		}
		return string(b)
	}
	do := func(command ...string) {
		changed = true
		if err := s.do(t, command...).Error(); err != nil {
			t.Fatalf("%q: %v", command, err)
		}
	}
	if s.kind != model.Log {
		text, err := s.do(t, "GET", key).ToString()
		if err == nil && text != "" {
			do("SET", key, byteOf(text), "KEEPTTL")
		}
		return changed
	}
	entries, err := s.do(t, "LRANGE", key, "0", "-1").AsStrSlice()
	if err != nil {
		t.Fatalf("LRANGE: %v", err)
	}
	if len(entries) == 0 {
		return false
	}
	i := rapid.IntRange(0, len(entries)-1).Draw(t, "entry")
	switch rapid.IntRange(0, 3).Draw(t, "part") {
	case 0:
		j := rapid.IntRange(0, len(entries)-1).Draw(t, "other")
		do("LSET", key, strconv.Itoa(i), entries[j])
		do("LSET", key, strconv.Itoa(j), entries[i])
	case 1:
		if len(entries) > 1 {
			do("LREM", key, "1", entries[i])
		}
	default:
		do("LSET", key, strconv.Itoa(i), byteOf(entries[i]))
	}
	return changed
}
