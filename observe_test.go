package sluice

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync/atomic"
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

		event := Event{
			Policy: p, Cost: 3, Of: 1, Sent: true, Command: "EVALSHA", Commands: 1, Procedure: "sliding_log", First: true, Elapsed: 2 * time.Millisecond,
		}
		denied := event
		denied.Op, denied.Remaining, denied.Wait = opTake, 2, 1500*time.Millisecond
		denied.ServerTime, denied.Skew = epoch.Add(ahead).UTC(), ahead-time.Millisecond
		first := denied
		first.Of, first.Commands, first.Elapsed = 3, 2, 4*time.Millisecond
		first.Skew -= time.Millisecond
		refused := Event{Op: opTake, Policy: p, Index: 1, Of: 3, Class: ClassInput}
		third := first
		third.Index, third.Policy, third.First = 2, q, false
		third.Procedure = "sliding_counter"
		third.ServerTime, third.Skew = third.ServerTime.Add(2*time.Millisecond), ahead
		all := denied
		all.Of, all.Allowed, all.Remaining, all.Wait = 2, true, 7, 0
		all.Procedure = "multi"
		all2 := all
		all2.Index, all2.Policy, all2.Remaining, all2.First = 1, q, 6, false
		peek := denied
		peek.Op = opPeek
		reset := Event{Op: opReset, Policy: p, Of: 1, Allowed: true, Sent: true, Command: "UNLINK", Commands: 1, First: true, Elapsed: 2 * time.Millisecond}
		load := Event{Op: opLoad, Of: 1, Sent: true, Command: "SCRIPT LOAD", Commands: 1, First: true, Elapsed: 8 * time.Millisecond, Class: ClassReply}
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

// TestCommandsAreTold: what was sent, how often and to run what.
func TestCommandsAreTold(t *testing.T) {
	log, sharded := SlidingLog(10, time.Minute), TokenBucket(30, 10, time.Second).Sharded(3)
	type sent struct {
		command, procedure string
		commands           int
	}
	for _, functions := range []bool{false, true} {
		client := &fake{answer: func(_ context.Context, words []string) rueidis.RedisResult {
			if words[0] == "UNLINK" {
				return textReply("OK")
			}
			return fiveReply(1, 5, 0, 60_000, 1)
		}}
		seen := &recorder{}
		l := newLimiter(t, client, Config{Functions: functions, Observe: seen.observe, Candidates: map[Policy]Policy{log.Named("old"): log.Named("new")}})
		ctx := t.Context()
		for _, tt := range []struct {
			call    func()
			script  sent
			byNames sent
		}{
			{func() { _, _ = l.Allow(ctx, "a", log) }, sent{"EVALSHA", "sliding_log", 1}, sent{"FCALL", "sluice_v1_sliding_log", 1}},
			{func() { _, _ = l.Peek(ctx, "a", log, 1) }, sent{"EVALSHA", "sliding_log", 1}, sent{"FCALL_RO", "sluice_v1_sliding_log_peek", 1}},
			{func() { _, _ = l.Peek(ctx, "a", sharded, 1) }, sent{"EVALSHA", "token_bucket", 3}, sent{"FCALL_RO", "sluice_v1_token_bucket_peek", 3}},
			{func() { _, _ = l.Allow(ctx, "a", log.Named("old")) }, sent{"EVALSHA", "sliding_log", 2}, sent{"FCALL", "sluice_v1_sliding_log", 2}},
			{func() { _, _ = l.PeekAll(ctx, Request{Key: "a", Policy: log}) }, sent{"EVALSHA", "multi", 1}, sent{"FCALL_RO", "sluice_v1_multi_peek", 1}},
			{func() { _ = l.Reset(ctx, "a", sharded) }, sent{"UNLINK", "", 3}, sent{"UNLINK", "", 3}},
			{func() { _ = l.Load(ctx) }, sent{"SCRIPT LOAD", "", 1}, sent{"FUNCTION LOAD", "", 1}},
			{func() { _, _ = l.AllowN(ctx, "a", log, 11) }, sent{}, sent{}},
		} {
			tt.call()
			want := tt.script
			if functions {
				want = tt.byNames
			}
			e := seen.take()[0]
			if got := (sent{e.Command, e.Procedure, e.Commands}); got != want {
				t.Errorf("functions %t, %s: told %+v, want %+v", functions, e.Op, got, want)
			}
		}
	}
}

// TestStatusOfAnErrorReply is its code, as the server said it.
func TestStatusOfAnErrorReply(t *testing.T) {
	for reply, want := range map[string]string{
		"OOM command not allowed when used memory > 'maxmemory'.":            "OOM",
		"LOADING Redis is loading the dataset in memory":                     "LOADING",
		"ERR unknown command 'EVALSHA'":                                      "ERR",
		"ERR Error running script (call to f_1): @user_script: 9: -OOM full": "OOM",
		"SLUICESTATE KEYS[1] holds something else":                           "SLUICESTATE",
		"SLUICEARG cost must be less":                                        "SLUICEARG",
		"user_script:1: attempt to index a nil value":                        "ERR",
		"": "ERR",
	} {
		seen := &recorder{}
		l := newLimiter(t, replying(errorReply(reply)), Config{Observe: seen.observe, OnFailure: FailOpen})
		_, _ = l.Allow(t.Context(), "a", SlidingLog(10, time.Minute))
		if e := seen.take(); len(e) != 1 || e[0].Status != want {
			t.Errorf("%q: told %+v, want the status %q", reply, e, want)
		}
	}
	for name, res := range map[string]rueidis.RedisResult{
		"broken": rueidis.NewErrorResult(io.EOF), "no such reply": fiveReply(1), "allowed": fiveReply(1, 7, 0, 0, 1), "denied": fiveReply(0, 7, 1, 1, 1),
	} {
		seen := &recorder{}
		l := newLimiter(t, replying(res), Config{Observe: seen.observe})
		_, _ = l.Allow(t.Context(), "a", SlidingLog(10, time.Minute))
		if e := seen.take(); len(e) != 1 || e[0].Status != "" {
			t.Errorf("%s: told %+v, want no status", name, e)
		}
	}
}

// TestCallOfAnEndedContextIsNotSent, and so it is no call to Redis.
func TestCallOfAnEndedContextIsNotSent(t *testing.T) {
	for name, cfg := range map[string]Config{"": {}, "timeout": {Timeout: time.Second}, "breaker": {Timeout: time.Second, Breaker: &countingBreaker{}}} {
		seen, client := &recorder{}, replying(fiveReply(1, 7, 0, 0, 1))
		cfg.Observe = seen.observe
		l := newLimiter(t, client, cfg)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		calls := asking(l)
		calls["Wait"] = l.Wait
		for verb, call := range calls {
			if _, err := call(ctx, "a", SlidingLog(10, time.Minute), 1); !errors.Is(err, context.Canceled) {
				t.Errorf("%s, %s: %v, want context.Canceled", name, verb, err)
			}
			if e := seen.take(); len(e) != 1 || e[0].Sent || e[0].First || e[0].Command != "" || e[0].Class != ClassCanceled {
				t.Errorf("%s, %s: told %+v, want that nothing was sent", name, verb, e)
			}
		}
		if client.count() != 0 {
			t.Errorf("%s: sent %q", name, client.sent)
		}
	}
}

// TestWaitThatNeverAskedIsTold once, however it ended.
func TestWaitThatNeverAskedIsTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server, seen := newBucketServer(1, time.Second), &recorder{}
		var gone atomic.Bool
		answer := server.answer
		server.answer = func(ctx context.Context, words []string) rueidis.RedisResult {
			if gone.Load() {
				return rueidis.NewErrorResult(io.EOF)
			}
			return answer(ctx, words)
		}
		l := newLimiter(t, server, Config{Observe: seen.observe})
		p := server.policy()
		if _, err := l.Allow(t.Context(), "a", p); err != nil {
			t.Fatal(err)
		}
		front, leave := context.WithCancel(t.Context())
		first := waiting(front, l, p, 1)
		time.Sleep(10 * time.Millisecond)
		seen.take()

		late, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		_, err := l.Wait(late, "a", p, 1)
		if e := seen.take(); !errors.Is(err, ErrLimited) || len(e) != 1 || e[0].Op != opTake || e[0].Policy != p || e[0].Sent || e[0].Allowed ||
			e[0].Class != ClassLimited || e[0].Wait <= 0 || e[0].Class.fault() || !errors.Is(e[0].Err, ErrLimited) {
			t.Errorf("%v, told %+v, want one denial that was not sent", err, e)
		}

		ended, cancel := context.WithCancel(t.Context())
		second := waiting(ended, l, p, 1)
		cancel()
		<-second.closed
		if e := seen.take(); !errors.Is(second.err, context.Canceled) || len(e) != 1 || e[0].Sent || e[0].Class != ClassCanceled {
			t.Errorf("%v, told %+v, want that the context ended", second.err, e)
		}

		third := waiting(t.Context(), l, p, 1)
		gone.Store(true)
		<-first.closed
		<-third.closed
		leave()
		e := seen.take()
		if len(e) != 2 || !e[0].Sent && !e[1].Sent || e[0].Sent && e[1].Sent || e[0].Class != ClassConnection || e[1].Class != ClassConnection {
			t.Errorf("told %+v, want one that was sent and one that failed with it", e)
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

// TestReloadOfOneInAPipeline is told by the first event, which is the one that is counted.
func TestReloadOfOneInAPipeline(t *testing.T) {
	client, _ := forgetful(fiveReply(1, 7, 0, 0, 1))
	var seen recorder
	l := newLimiter(t, client, Config{Observe: seen.observe})
	log, bucket := SlidingLog(10, time.Minute), TokenBucket(10, 1, time.Second)
	if _, err := l.Allow(t.Context(), "a", log); err != nil {
		t.Fatal(err)
	}
	seen.take()
	for _, want := range []bool{true, false} {
		l.Batch(t.Context(), Request{Key: "a", Policy: log, Cost: 1}, Request{Key: "a", Policy: bucket, Cost: 1})
		if e := seen.take(); len(e) != 2 || !e[0].First || e[0].Reloaded != want {
			t.Errorf("told %+v, want reloaded %t", e, want)
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
