package sluice

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/rueidis"
)

func TestEventOfEachVerb(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ahead := 3 * time.Second
		decide := func(_ context.Context, words []string) rueidis.RedisResult {
			now := time.Now().Add(ahead).UnixMicro() // read half way
			time.Sleep(2 * time.Millisecond)
			switch {
			case words[0] == "UNLINK" || words[0] == "SCRIPT":
				return textReply("OK")
			case words[2] == "2": // multi
				return fiveReply(1, 0, 1, 7, 0, 1000, now, 1, 6, 0, 1000, now)
			}
			return fiveReply(0, 2, 1500, 2000, now)
		}
		client := &fake{answer: decide}
		client.nodes = map[string]rueidis.Client{"a:1": client}
		var seen recorder
		l := newLimiter(t, client, Config{Observe: seen.observe})
		p, q := SlidingLog(10, time.Minute), SlidingCounter(20, time.Minute)
		epoch := time.Now()

		event := Event{Policy: p, Cost: 3, Of: 1, Sent: true, First: true, Elapsed: 2 * time.Millisecond}
		denied := event
		denied.Op, denied.Remaining, denied.Wait = opTake, 2, 1500*time.Millisecond
		denied.ServerTime, denied.Skew = epoch.Add(ahead).UTC(), ahead-time.Millisecond
		first := denied
		first.Of, first.Elapsed = 3, 4*time.Millisecond
		first.Skew -= time.Millisecond
		refused := Event{Op: opTake, Policy: p, Index: 1, Of: 3, Class: ClassInput}
		third := first
		third.Index, third.Policy, third.First = 2, q, false
		third.ServerTime, third.Skew = third.ServerTime.Add(2*time.Millisecond), ahead
		all := denied
		all.Of, all.Allowed, all.Remaining, all.Wait = 2, true, 7, 0
		all2 := all
		all2.Index, all2.Policy, all2.Remaining, all2.First = 1, q, 6, false
		peek := denied
		peek.Op = opPeek
		reset := Event{Op: opReset, Policy: p, Of: 1, Allowed: true, Sent: true, First: true, Elapsed: 2 * time.Millisecond}
		load := Event{Op: opLoad, Of: 1, Sent: true, First: true, Elapsed: 8 * time.Millisecond, Class: ClassReply}
		tests := []struct {
			name string
			call func()
			want []Event
		}{
			{"AllowN", func() { _, _ = l.AllowN(t.Context(), "a", p, 3) }, []Event{denied}},
			{"Peek", func() { _, _ = l.Peek(t.Context(), "a", p, 3) }, []Event{peek}},
			{"Batch", func() {
				l.Batch(t.Context(), Request{Key: "a", Policy: p, Cost: 3}, Request{Key: "a", Policy: p}, Request{Key: "a", Policy: q, Cost: 3})
			}, []Event{refused, first, third}},
			{"AllowAll", func() {
				_, _ = l.AllowAll(t.Context(), Request{Key: "a", Policy: p, Cost: 3}, Request{Key: "a", Policy: q, Cost: 3})
			}, []Event{all, all2}},
			{"Reset", func() { _ = l.Reset(t.Context(), "a", p) }, []Event{reset}},
			{"Load", func() { _ = l.Load(t.Context()) }, []Event{load}}, // the replies are no digests
		}
		for _, tt := range tests {
			ahead = time.Until(epoch.Add(3 * time.Second)) // so that each starts at the same time of the server's
			tt.call()
			got := seen.take()
			for n := range got {
				if (got[n].Err != nil) != (got[n].Class != ClassNone) {
					t.Errorf("%s: error %v of class %q", tt.name, got[n].Err, got[n].Class)
				}
				got[n].Err = nil
			}
			for n := range tt.want {
				if tt.want[n].Skew != 0 {
					tt.want[n].Skew += ahead - 3*time.Second
				}
			}
			if fmt.Sprintf("%+v", got) != fmt.Sprintf("%+v", tt.want) {
				t.Errorf("%s: told\n%+v, want\n%+v", tt.name, got, tt.want)
			}
		}
	})
}

func TestReloadedIsTold(t *testing.T) {
	client, forget := forgetful(fiveReply(1, 7, 0, 0, 1))
	var seen recorder
	l := newLimiter(t, client, Config{Observe: seen.observe})
	calls := map[string]func(){
		"Allow": func() { _, _ = l.Allow(t.Context(), "a", SlidingLog(10, time.Minute)) },
		"Batch": func() { l.Batch(t.Context(), Request{Key: "a", Policy: SlidingLog(10, time.Minute), Cost: 1}) },
	}
	for name, call := range calls {
		forget()
		for _, want := range []bool{true, false} {
			call()
			if got := seen.take(); len(got) != 1 || got[0].Reloaded != want || got[0].Err != nil {
				t.Errorf("%s: told %+v, want reloaded %t", name, got, want)
			}
		}
	}
}

// Neither a subject nor a key gets into an event, but for the text of an error.
func TestEventsHoldNoKey(t *testing.T) {
	const subject = "secret-subject"
	p := SlidingLog(10, time.Minute)
	for name, res := range map[string]rueidis.RedisResult{
		"allowed": fiveReply(1, 7, 0, 0, 1), "denied": fiveReply(0, 7, 1, 1, 1), "state": errorReply("SLUICESTATE KEYS[1]"), "fault": errorReply("LOADING"),
	} {
		var seen recorder
		l := newLimiter(t, replying(res), Config{PlainKeys: true, Observe: seen.observe, OnFailure: FailLocal, Processes: 1})
		for _, call := range asking(l) {
			for _, cost := range []int64{1, 11} {
				call(t.Context(), subject, p, cost) //nolint:errcheck // some are errors
			}
		}
		l.Reset(t.Context(), subject, p) //nolint:errcheck // the same
		events := seen.take()
		if len(events) != 11 {
			t.Errorf("%s: %d events, want 11", name, len(events))
		}
		for _, e := range events {
			e.Err = nil
			if text := fmt.Sprintf("%+v", e); strings.Contains(text, subject) {
				t.Errorf("%s: told %s", name, text)
			}
		}
	}
}

func TestSettlesAreTold(t *testing.T) {
	var seen recorder
	l := newLimiter(t, replying(fiveReply(1, 7, 0, 1000, 1)), Config{Observe: seen.observe})
	p := SlidingLog(10, time.Minute)
	res, err := l.AllowN(t.Context(), "a", p, 3)
	if err != nil {
		t.Fatal(err)
	}
	l.Settle(t.Context(), res, 5)      //nolint:errcheck // the events are looked at
	l.Settle(t.Context(), res, -1)     //nolint:errcheck // the same
	l.Settle(t.Context(), Result{}, 1) //nolint:errcheck // the same
	events := seen.take()[1:]
	if len(events) != 3 {
		t.Fatalf("%d events, want 3", len(events))
	}
	if e := events[0]; e.Op != opSettle || e.Policy != p || e.Cost != 5 || !e.Allowed || !e.Sent || e.Remaining != 7 {
		t.Errorf("told %+v", e)
	}
	for _, e := range events[1:] {
		if e.Op != opSettle || e.Class != ClassInput || e.Sent || e.Allowed {
			t.Errorf("told %+v, want that it was refused", e)
		}
	}
	if !errors.Is(events[2].Err, ErrNotCharged) {
		t.Errorf("told %v, want ErrNotCharged", events[2].Err)
	}
}
