package breaker

import (
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

var errDead = errors.New("dead")

// call makes calls with the outcome and returns how many were let through.
func call(b *Breaker, n int, outcome error) (through int) {
	for range n {
		if done, err := b.Allow(); err == nil {
			through++
			done(outcome)
		}
	}
	return through
}

func TestOpensAfterFailuresAndClosesAfterProbes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var changes []State
		b := New(Options{Probes: 2, OnChange: func(_, to State) { changes = append(changes, to) }})
		if got := call(b, 100, errDead); got != 5 {
			t.Errorf("%d calls failed before it opened, want 5", got)
		}
		time.Sleep(time.Second)
		if got := call(b, 1, nil); got != 0 {
			t.Error("a call was let through before the time for probes")
		}
		time.Sleep(time.Nanosecond)
		if got := call(b, 100, errDead); got != 1 {
			t.Errorf("%d probes failed before it opened again, want 1", got)
		}
		time.Sleep(time.Second + 1)
		first, err := b.Allow()
		second, err2 := b.Allow()
		if err != nil || err2 != nil {
			t.Fatalf("the two probes: %v, %v", err, err2)
		}
		if got := call(b, 10, nil); got != 0 {
			t.Errorf("%d calls went beside the two probes", got)
		}
		first(nil)
		if got := b.State(); got != HalfOpen {
			t.Errorf("%s after one of two probes, want half-open", got)
		}
		second(nil)
		if got := call(b, 10, nil); got != 10 {
			t.Errorf("%d of 10 calls after the probes were answered", got)
		}
		if want := []State{Open, HalfOpen, Open, HalfOpen, Closed}; !slices.Equal(changes, want) {
			t.Errorf("states %v, want %v", changes, want)
		}
	})
}

func TestAnswersKeepItClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := New(Options{})
		call(b, 6, nil)
		if got := call(b, 5, errDead); got != 5 || b.State() != Closed {
			t.Errorf("5 failures beside 6 answers: %s", b.State())
		}
		if call(b, 1, errDead); b.State() != Open {
			t.Errorf("6 failures beside 6 answers: %s", b.State())
		}
	})
}

func TestOldFailuresAreForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := New(Options{Window: 10 * time.Second})
		for range 20 {
			call(b, 1, errDead)
			time.Sleep(4 * time.Second)
		}
		if got := b.State(); got != Closed {
			t.Errorf("%s after 3 failures in any 10 s, want closed", got)
		}
	})
}

// A probe whose answer comes when the next probes are under way says nothing about them.
func TestLateAnswersDoNotCount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := New(Options{})
		late, err := b.Allow()
		if err != nil {
			t.Fatal(err)
		}
		call(b, 5, errDead)
		time.Sleep(time.Second + 1)
		probe, err := b.Allow()
		if err != nil {
			t.Fatal(err)
		}
		if late(nil); b.State() != HalfOpen {
			t.Errorf("%s after a late answer, want half-open", b.State())
		}
		if probe(nil); b.State() != Closed {
			t.Errorf("%s after the probe's answer, want closed", b.State())
		}
	})
}
