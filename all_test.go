package sluice

import (
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/rueidis"
)

var (
	burst  = TokenBucket(20, 5, time.Second).Named("burst")
	minute = SlidingCounter(100, time.Minute)
	daily  = SlidingLog(1000, 24*time.Hour)
)

func TestAllowAllSendsOneCall(t *testing.T) {
	client, forget := forgetful(fiveReply(1, 0, 1, 19, 0, 50, 1000, 1, 98, 0, 60_000, 1000, 1, 997, 0, 86_400_000, 1000))
	l := newLimiter(t, client, Config{PlainKeys: true})
	reqs := []Request{{Key: "a", Policy: burst, Cost: 1}, {Key: "a", Policy: minute, Cost: 2}, {Key: "b", Tag: "a", Policy: daily, Cost: 3}}
	if _, err := l.AllowAll(t.Context(), reqs...); err != nil {
		t.Fatal(err)
	}
	forget()
	reqs[0].Cost = 0
	if _, err := l.PeekAll(t.Context(), reqs...); err != nil {
		t.Fatal(err)
	}
	keys := " 3 sluice:{a}:burst sluice:{a}:counter/60000 sluice:{a}:b:log/86400000 "
	take := keys + "take token_bucket 1 20 5 1000 sliding_counter 2 100 60000 sliding_log 3 1000 86400000"
	peek := keys + "peek token_bucket 0 20 5 1000 sliding_counter 2 100 60000 sliding_log 3 1000 86400000"
	want := []string{
		"EVALSHA " + multiSHA1 + take, "EVAL " + multiText + take,
		"EVALSHA " + multiSHA1 + peek, "EVAL " + multiText + peek,
	}
	for i, words := range client.sent {
		if got := strings.Join(words, " "); i >= len(want) || got != want[i] {
			t.Errorf("command %d: sent %.200s", i, got)
		}
	}
	if len(client.sent) != len(want) {
		t.Errorf("%d commands, want %d", len(client.sent), len(want))
	}
}

func TestResultsOfAllowAll(t *testing.T) {
	client := replying(fiveReply(1, 0, 1, 19, 0, 50, 1000, 1, 98, 0, 60_000, 1000))
	l := newLimiter(t, client, Config{PlainKeys: true})
	at := time.UnixMicro(1000).UTC()
	reqs := []Request{{Key: "a", Policy: burst, Cost: 1}, {Key: "a", Policy: minute, Cost: 2}}
	each := []Result{
		{Allowed: true, Limit: 20, Remaining: 19, ResetAfter: 50 * time.Millisecond, ServerTime: at},
		{Allowed: true, Limit: 100, Remaining: 98, ResetAfter: time.Minute, ServerTime: at},
	}
	check := func(name string, got Results, err error, want Results) {
		t.Helper()
		if err != nil || got.Allowed != want.Allowed || got.RetryAfter != want.RetryAfter || !slices.Equal(got.Each, want.Each) {
			t.Errorf("%s: got %+v, %v, want %+v", name, got, err, want)
		}
	}

	got, err := l.PeekAll(t.Context(), reqs...)
	check("peek", got, err, Results{Allowed: true, Each: each})
	if denied := got.Denied(); len(denied) != 0 {
		t.Errorf("denied by %v, want none", denied)
	}
	charged := slices.Clone(each)
	charged[0].key, charged[0].policy, charged[0].charged, charged[0].receipt = "sluice:{a}:burst", burst, 1, 1000
	charged[1].key, charged[1].policy, charged[1].charged, charged[1].receipt = "sluice:{a}:counter/60000", minute, 2, 1000
	got, err = l.AllowAll(t.Context(), reqs...)
	check("take", got, err, Results{Allowed: true, Each: charged})

	// Each is settled by its own script.
	client.answer = replying(fiveReply(1, 99, 0, 60_000, 2000)).answer
	if _, err := l.Settle(t.Context(), got.Each[1], 1); err != nil {
		t.Fatal(err)
	}
	want := "EVALSHA " + slidingCounterSHA1 + " 1 sluice:{a}:counter/60000 settle -1 100 60000 1000"
	if sent := strings.Join(client.sent[len(client.sent)-1], " "); sent != want {
		t.Errorf("settled by %s, want %s", sent, want)
	}

	// One limit denies: nothing is charged, so nothing can be settled.
	client.answer = replying(fiveReply(0, 30_000, 1, 20, 0, 0, 1000, 0, 1, 30_000, 60_000, 1000)).answer
	got, err = l.AllowAll(t.Context(), reqs...)
	check("denied", got, err, Results{RetryAfter: 30 * time.Second, Each: []Result{
		{Allowed: true, Limit: 20, Remaining: 20, ServerTime: at},
		{Limit: 100, Remaining: 1, RetryAfter: 30 * time.Second, ResetAfter: time.Minute, ServerTime: at},
	}})
	if denied := got.Denied(); !slices.Equal(denied, []int{1}) {
		t.Errorf("denied by %v, want [1]", denied)
	}
	for _, res := range got.Each {
		if _, err := l.Settle(t.Context(), res, 1); !errors.Is(err, ErrNotCharged) {
			t.Errorf("settling %+v: %v, want ErrNotCharged", res, err)
		}
	}
	if (Results{}).Allowed {
		t.Error("the zero Results allows")
	}
}

func TestAllowAllRefused(t *testing.T) {
	client := replying(fiveReply(1, 0, 1, 5, 0, 50, 1))
	l := newLimiter(t, client, Config{})
	req := func(key, tag string, p Policy) Request { return Request{Key: key, Tag: tag, Policy: p, Cost: 1} }
	many := func(n int) []Request {
		var reqs []Request
		for i := range n {
			reqs = append(reqs, req("a", "", SlidingLog(10, time.Duration(i+1)*time.Minute)))
		}
		return reqs
	}
	tests := map[string]struct {
		reqs  []Request
		is    error
		field string
	}{
		"none":               {nil, ErrInvalidRequests, "the number of requests"},
		"seventeen":          {many(17), ErrInvalidRequests, "the number of requests"},
		"one limit twice":    {[]Request{req("a", "", burst), req("a", "", daily), req("a", "", burst)}, ErrInvalidRequests, "reqs[2]"},
		"by its own tag":     {[]Request{req("a", "", burst), req("a", "a", burst)}, ErrInvalidRequests, "reqs[1]"},
		"one name":           {[]Request{req("a", "", burst), req("a", "", minute.Named("burst"))}, ErrInvalidRequests, "reqs[1]"},
		"other numbers":      {[]Request{req("a", "", minute), req("a", "", SlidingCounter(5, time.Minute))}, ErrInvalidRequests, "reqs[1]"},
		"two subjects":       {[]Request{req("a", "", burst), req("b", "", burst)}, ErrCrossSlot, "reqs[1]"},
		"two tags":           {[]Request{req("a", "t", burst), req("b", "t", burst), req("a", "u", burst)}, ErrCrossSlot, "reqs[2]"},
		"a tag and none":     {[]Request{req("a", "t", burst), req("a", "", burst)}, ErrCrossSlot, "reqs[1]"},
		"a brace":            {[]Request{req("{a}", "", burst), req("a", "", burst)}, ErrCrossSlot, "reqs[1]"},
		"a NUL":              {[]Request{req("a\x00", "", burst), req("a", "", burst)}, ErrCrossSlot, "reqs[1]"},
		"a mebibyte":         {[]Request{req(strings.Repeat("x", 1<<20), "", burst), req(strings.Repeat("x", 1<<20-1), "", burst)}, ErrCrossSlot, "reqs[1]"},
		"an empty key":       {[]Request{req("a", "", burst), req("", "a", burst)}, ErrInvalidKey, "key of reqs[1]"},
		"no policy":          {[]Request{req("a", "", burst), req("a", "", Policy{})}, ErrInvalidPolicy, "policy of reqs[1]"},
		"a limit of 0":       {[]Request{req("a", "", burst), req("a", "", SlidingLog(0, time.Minute))}, ErrInvalidPolicy, "limit of reqs[1]"},
		"a cost above":       {[]Request{req("a", "", burst), {Key: "a", Policy: minute, Cost: 101}}, ErrInvalidCost, "cost of reqs[1]"},
		"the largest number": {[]Request{{Key: "a", Policy: minute, Cost: math.MaxInt64}}, ErrInvalidCost, "cost of reqs[0]"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := l.AllowAll(t.Context(), tt.reqs...)
			peeked, peekErr := l.PeekAll(t.Context(), tt.reqs...)
			if got.Allowed || peeked.Allowed {
				t.Errorf("got %+v, peeked %+v, want neither allowed", got, peeked)
			}
			for _, err := range []error{err, peekErr} {
				var input *InputError
				if !errors.Is(err, tt.is) || !errors.As(err, &input) || input.Field != tt.field || len(err.Error()) > 300 {
					t.Errorf("got %v, want an InputError for %s that is %v", err, tt.field, tt.is)
				}
			}
		})
	}
	if client.count() != 0 {
		t.Errorf("sent %d commands, want none", client.count())
	}

	reply := []int64{1, 0}
	for range 16 {
		reply = append(reply, 1, 9, 0, 1, 1)
	}
	client.answer = replying(fiveReply(reply...)).answer
	if got, err := l.AllowAll(t.Context(), many(16)...); err != nil || !got.Allowed || len(got.Each) != 16 {
		t.Errorf("sixteen: %+v, %v, want them allowed", got, err)
	}
}

func TestMalformedRepliesToAllowAll(t *testing.T) {
	tests := map[string][]byte{
		"no array":                    element(':', 1),
		"nil":                         element('_', 0),
		"one limit's reply":           integers(1, 5, 0, 1, 1),
		"no limits":                   integers(1, 0),
		"a number short":              integers(1, 0, 1, 5, 0, 1, 1, 1, 5, 0, 1),
		"a limit more":                integers(1, 0, 1, 5, 0, 1, 1, 1, 5, 0, 1, 1, 1, 5, 0, 1, 1),
		"a text for the verdict":      element('*', 12, slices.Concat(textElement('$', "1"), slices.Repeat(element(':', 1), 11))),
		"verdict 2":                   integers(2, 0, 1, 5, 0, 1, 1, 1, 5, 0, 1, 1),
		"allowed, but a limit is not": integers(1, 0, 1, 5, 0, 1, 1, 0, 5, 7, 7, 1),
		"denied, but no limit is":     integers(0, 7, 1, 5, 0, 1, 1, 1, 5, 0, 1, 1),
		"a wait that is none's":       integers(0, 8, 1, 5, 0, 1, 1, 0, 5, 7, 7, 1),
		"allowed with a wait":         integers(1, 7, 1, 5, 0, 1, 1, 1, 5, 0, 1, 1),
		"never":                       integers(0, -1, 1, 5, 0, 1, 1, 0, 5, -1, 7, 1),
		"remaining above its limit":   integers(1, 0, 1, 21, 0, 1, 1, 1, 5, 0, 1, 1),
	}
	for name, body := range tests {
		t.Run(name, func(t *testing.T) {
			l := newLimiter(t, replying(rueidis.NewResult(message(body), nil)), Config{})
			reqs := []Request{{Key: "a", Policy: burst, Cost: 1}, {Key: "a", Policy: minute, Cost: 1}}
			got, err := l.AllowAll(t.Context(), reqs...)
			var call *CallError
			if got.Allowed || got.Each != nil || !errors.Is(err, ErrReply) || !errors.Is(err, ErrBackend) || !errors.As(err, &call) || !call.Unknown {
				t.Errorf("got %+v, %v, want no Results and a CallError that is ErrReply and ErrBackend, outcome unknown", got, err)
			}
			if _, err := l.PeekAll(t.Context(), reqs...); !errors.As(err, &call) || call.Op != "peek" || call.Unknown {
				t.Errorf("peek: %v, want a CallError, and nothing to be unknown about", err)
			}
		})
	}
}

func TestForeignStateOfOneOfSeveral(t *testing.T) {
	reqs := []Request{{Key: "a", Policy: burst, Cost: 1}, {Key: "a", Policy: minute, Cost: 1}}
	for said, want := range map[string]string{
		"SLUICESTATE KEYS[1] holds something that is not a token bucket":    "sluice:{a}:burst",
		"SLUICESTATE KEYS[2] holds something that is not a sliding counter": "sluice:{a}:counter/60000",
		"SLUICESTATE KEYS[3] holds something":                               "",
		"SLUICESTATE KEYS[99999999999999999999] holds something":            "",
		"SLUICESTATE holds something":                                       "",
	} {
		l := newLimiter(t, replying(errorReply(said)), Config{PlainKeys: true})
		_, err := l.AllowAll(t.Context(), reqs...)
		var state *StateError
		if !errors.Is(err, ErrBackend) || !errors.As(err, &state) || state.Key != want {
			t.Errorf("%s: got %v, want a StateError for %q", said, err, want)
		}
	}
}

func TestAllowAllIsNeverRepeated(t *testing.T) {
	reqs := []Request{{Key: "a", Policy: burst, Cost: 1}, {Key: "a", Policy: minute, Cost: 1}}
	for _, err := range []error{io.EOF, fmt.Errorf("traced: %w", io.EOF)} {
		client := replying(rueidis.NewErrorResult(err))
		_, got := newLimiter(t, client, Config{}).AllowAll(t.Context(), reqs...)
		var call *CallError
		if !errors.Is(got, ErrBackend) || !errors.Is(got, io.EOF) || !errors.As(got, &call) || call.Op != "take" || !call.Unknown {
			t.Errorf("got %v, want a CallError that is ErrBackend, outcome unknown", got)
		}
		if client.verbs() != "EVALSHA" {
			t.Errorf("sent %s, want it sent once", client.verbs())
		}
	}
}
