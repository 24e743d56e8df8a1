package sluice

import (
	"context"
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

// shadowed are the subjects, of n, who are shadowed.
func shadowed(t *testing.T, cfg Config, n int) []int {
	t.Helper()
	l := newLimiter(t, replying(fiveReply(0, 2, 1000, 2000, 1)), cfg)
	var who []int
	for i := range n {
		res, err := l.Allow(t.Context(), Key("subject", fmt.Sprint(i)), SlidingLog(10, time.Minute))
		if err != nil || res.Allowed != res.Shadowed {
			t.Fatalf("got %+v, %v, want a denial that is enforced or shadowed", res, err)
		}
		if res.Shadowed {
			who = append(who, i)
		}
	}
	return who
}

func TestShadowsAShareOfSubjects(t *testing.T) {
	const subjects = 2000
	for name, cfg := range map[string]Config{
		"digests": {}, "keyed": {Secret: []byte("0123456789abcdef")}, "plain": {PlainKeys: true},
	} {
		var last []int
		for _, percent := range []int{0, 1, 2, 10, 25, 50, 75, 90, 99, 100} {
			cfg.ShadowPercent = percent
			who := shadowed(t, cfg, subjects)
			share := float64(percent) / 100
			if want, off := share*subjects, 5*math.Sqrt(subjects*share*(1-share)); math.Abs(float64(len(who))-want) > off {
				t.Errorf("%s, %d %%: %d of %d shadowed", name, percent, len(who), subjects)
			}
			if !slices.Equal(who, shadowed(t, cfg, subjects)) {
				t.Errorf("%s, %d %%: not the same subjects again", name, percent)
			}
			for _, i := range last {
				if _, ok := slices.BinarySearch(who, i); !ok {
					t.Fatalf("%s: subject %d is shadowed, but no more at %d %%", name, i, percent)
				}
			}
			last = who
		}
	}
}

func TestShadowedDenialsAreSeen(t *testing.T) {
	client := &fake{answer: func(_ context.Context, words []string) rueidis.RedisResult {
		if words[2] == "2" {
			return fiveReply(0, 5000, 0, 2, 5000, 9000, 1, 1, 6, 0, 1000, 1)
		}
		return fiveReply(0, 2, 5000, 9000, 1)
	}}
	var seen recorder
	l := newLimiter(t, client, Config{ShadowPercent: 100, Observe: seen.observe})
	p := SlidingLog(10, time.Minute)
	for verb, call := range asking(l) {
		if strings.HasSuffix(verb, "All") {
			continue
		}
		res, err := call(t.Context(), "a", p, 3)
		if err != nil || !res.Allowed || !res.Shadowed || res.RetryAfter != 5*time.Second || res.Remaining != 2 || res.Limit != 10 {
			t.Errorf("%s: got %+v, %v, want the denial let through", verb, res, err)
		}
		if e := seen.take(); len(e) != 1 || !e[0].Allowed || !e[0].Shadowed || e[0].Wait != 5*time.Second {
			t.Errorf("%s: told %+v", verb, e)
		}
	}
	res, err := l.Wait(t.Context(), "a", p, 3)
	if err != nil || !res.Shadowed {
		t.Errorf("Wait: got %+v, %v, want it let through", res, err)
	}
	all, err := l.AllowAll(t.Context(), Request{Key: "a", Policy: p, Cost: 3}, Request{Key: "a", Policy: p.Named("other"), Cost: 1})
	if err != nil || !all.Allowed || !all.Shadowed || !all.Each[0].Shadowed || all.Each[1].Shadowed || all.RetryAfter != 5*time.Second {
		t.Errorf("AllowAll: got %+v, %v, want it let through", all, err)
	}

	sent := client.count()
	for _, res := range append(all.Each, res) { // of what was not charged there is nothing to settle
		if got, err := l.Settle(t.Context(), res, 1); err != nil || !got.Allowed || got.Shadowed != res.Shadowed {
			t.Errorf("Settle: got %+v, %v", got, err)
		}
	}
	if got := client.count(); got != sent {
		t.Errorf("%d commands were sent to settle what was not charged", got-sent)
	}
	peeked, _ := l.Peek(t.Context(), "a", p, 3)
	if _, err := l.Settle(t.Context(), peeked, 1); !errors.Is(err, ErrNotCharged) {
		t.Errorf("settled a peek: %v", err)
	}
}

// Several limits at once are let through only if everybody who was denied is shadowed.
func TestShadowOfSeveralSubjects(t *testing.T) {
	var in, out string
	l := newLimiter(t, replying(fiveReply(0, 1000, 0, 2, 1000, 2000, 1, 0, 2, 1000, 2000, 1)), Config{ShadowPercent: 50})
	for i := 0; in == "" || out == ""; i++ {
		if key := fmt.Sprint(i); l.shadows(key) {
			in = key
		} else {
			out = key
		}
	}
	p := SlidingLog(10, time.Minute)
	for _, tt := range []struct {
		a, b string
		want bool
	}{{in, in, true}, {in, out, false}, {out, in, false}, {out, out, false}} {
		res, err := l.AllowAll(t.Context(), Request{Key: tt.a, Policy: p, Cost: 1, Tag: "t"}, Request{Key: tt.b, Policy: p.Named("b"), Cost: 1, Tag: "t"})
		if err != nil || res.Allowed != tt.want || res.Shadowed != tt.want || res.Each[0].Shadowed != tt.want {
			t.Errorf("%+v: got %+v, %v", tt, res, err)
		}
	}
}

func TestShadowAndFailClosed(t *testing.T) {
	l := newLimiter(t, replying(rueidis.NewErrorResult(io.EOF)), Config{ShadowPercent: 100, OnFailure: FailClosed})
	for verb, call := range asking(l) {
		if res, err := call(t.Context(), "a", SlidingLog(10, time.Minute), 1); err != nil || !res.Allowed || !res.Shadowed || !res.Degraded {
			t.Errorf("%s: got %+v, %v, want it let through", verb, res, err)
		}
	}
}

// candidates is a limiter with a candidate, and a client by whose words the two are told apart.
func candidates(t *testing.T, answer func(op, limit string) rueidis.RedisResult) (*Limiter, *fake, *recorder) {
	t.Helper()
	client := &fake{answer: func(_ context.Context, words []string) rueidis.RedisResult { return answer(words[4], words[6]) }}
	seen := &recorder{}
	return newLimiter(t, client, Config{
		Candidates: map[Policy]Policy{SlidingLog(10, time.Minute): SlidingCounter(3, time.Minute).Named("new")}, Observe: seen.observe,
	}), client, seen
}

func TestCandidateBesideThePolicy(t *testing.T) {
	l, client, seen := candidates(t, func(_, limit string) rueidis.RedisResult {
		if limit == "3" {
			return fiveReply(0, 1, 7000, 8000, 2)
		}
		return fiveReply(1, 7, 0, 9000, 1)
	})
	p := SlidingLog(10, time.Minute)
	calls := asking(l)
	calls["Wait"] = l.Wait
	for verb, call := range calls {
		if strings.HasSuffix(verb, "All") {
			continue
		}
		client.pipelines = nil
		res, err := call(t.Context(), "a", p, 2)
		if err != nil || !res.Allowed || res.Remaining != 7 || res.Candidate == nil {
			t.Fatalf("%s: got %+v, %v, want the policy's decision and a candidate", verb, res, err)
		}
		if c := res.Candidate; c.Allowed || c.Limit != 3 || c.Remaining != 1 || c.RetryAfter != 7*time.Second {
			t.Errorf("%s: the candidate said %+v", verb, c)
		}
		if !slices.Equal(client.pipelines, []int{2}) {
			t.Errorf("%s: pipelines of %v commands, want one of 2", verb, client.pipelines)
		}
		e := seen.take()
		if len(e) != 2 || e[0].Candidate || !e[0].Allowed || !e[1].Candidate || e[1].Allowed || e[1].Policy.Name() != "new" || e[1].Of != 1 || e[1].Index != 0 {
			t.Errorf("%s: told %+v", verb, e)
		}
	}
	if res, err := l.AllowN(t.Context(), "a", p.Named("other"), 2); err != nil || res.Candidate != nil {
		t.Errorf("another policy: got %+v, %v, want no candidate", res, err)
	}
}

func TestCandidateThatFailsDecidesNothing(t *testing.T) {
	for name, tt := range map[string]struct {
		cost  int64
		said  rueidis.RedisResult
		class ErrorClass
	}{
		"state":            {2, errorReply("SLUICESTATE KEYS[1] holds something else"), ClassState},
		"fault":            {2, rueidis.NewErrorResult(io.EOF), ClassConnection},
		"cost above limit": {4, fiveReply(1, 1, 0, 0, 1), ClassInput},
	} {
		l, _, seen := candidates(t, func(_, limit string) rueidis.RedisResult {
			if limit == "3" {
				return tt.said
			}
			return fiveReply(1, 7, 0, 9000, 1)
		})
		for _, verb := range []string{"AllowN", "Batch"} {
			res, err := asking(l)[verb](t.Context(), "a", SlidingLog(10, time.Minute), tt.cost)
			if err != nil || !res.Allowed || res.Degraded || res.Candidate != nil {
				t.Errorf("%s, %s: got %+v, %v, want the policy's decision alone", name, verb, res, err)
			}
			told := seen.take()
			i := slices.IndexFunc(told, func(e Event) bool { return e.Candidate })
			if len(told) != 2 || i < 0 || told[i].Class != tt.class || told[i].Allowed || told[i].Degraded {
				t.Errorf("%s, %s: told %+v", name, verb, told)
			}
		}
	}
}

func TestCandidatesAreSettled(t *testing.T) {
	for _, allowed := range []int64{0, 1} {
		l, client, _ := candidates(t, func(op, limit string) rueidis.RedisResult {
			if limit == "3" && op == opTake {
				return fiveReply(allowed, 1, 1000*(1-allowed), 8000, 22)
			}
			return fiveReply(1, 3, 0, 9000, 11)
		})
		res, err := l.AllowN(t.Context(), "a", SlidingLog(10, time.Minute), 2)
		if err != nil {
			t.Fatal(err)
		}
		client.sent = nil
		if settled, err := l.Settle(t.Context(), res, 5); err != nil || !settled.Allowed {
			t.Fatalf("got %+v, %v", settled, err)
		}
		if got := len(client.sent); got != 1+int(allowed) {
			t.Fatalf("%d commands to settle, want %d: the candidate's if it was charged", got, 1+allowed)
		}
		for n, want := range [][]string{{"settle", "3", "10", "60000", "11"}, {"settle", "3", "3", "60000", "22"}}[:1+allowed] {
			if got := client.sent[n][4:]; !slices.Equal(got, want) {
				t.Errorf("settled by %q, want %q", got, want)
			}
		}
	}
}

// TestCandidateIsSettledByItself, where its policy denied, failed or was not charged in Redis.
func TestCandidateIsSettledByItself(t *testing.T) {
	denial := fiveReply(0, 3, 1000, 9000, 11)
	for name, tt := range map[string]struct {
		cfg      Config
		said     rueidis.RedisResult
		fails    bool
		degraded bool
	}{
		"denied":     {Config{}, denial, false, false},
		"shadowed":   {Config{ShadowPercent: 100}, denial, false, false},
		"failed":     {Config{}, errorReply("LOADING"), true, false},
		"FailOpen":   {Config{OnFailure: FailOpen}, errorReply("LOADING"), false, true},
		"FailClosed": {Config{OnFailure: FailClosed}, errorReply("LOADING"), false, true},
		"FailLocal":  {Config{OnFailure: FailLocal, Processes: 1}, errorReply("LOADING"), false, true},
	} {
		t.Run(name, func(t *testing.T) {
			client, seen := &fake{}, &recorder{}
			client.answer = func(_ context.Context, words []string) rueidis.RedisResult {
				if words[6] == "3" {
					return fiveReply(1, 1, 0, 8000, 22)
				}
				return tt.said
			}
			p := SlidingLog(10, time.Minute)
			tt.cfg.Candidates, tt.cfg.Observe = map[Policy]Policy{p: SlidingCounter(3, time.Minute).Named("new")}, seen.observe
			l := newLimiter(t, client, tt.cfg)
			res, err := l.AllowN(t.Context(), "a", p, 2)
			if (err != nil) != tt.fails || res.Degraded != tt.degraded || res.Candidate == nil {
				t.Fatalf("got %+v, %v", res, err)
			}
			if out := l.Batch(t.Context(), Request{Key: "a", Policy: p, Cost: 2})[0]; out.Result.Candidate == nil {
				t.Errorf("Batch: got %+v, want a candidate", out)
			}
			sent := client.count()
			seen.take()
			settled, err := l.Settle(t.Context(), res, 1)
			if err != nil || !settled.Allowed || settled.Degraded != tt.degraded || settled.Shadowed != res.Shadowed {
				t.Errorf("got %+v, %v, want it allowed", settled, err)
			}
			if settled.Candidate == nil || settled.Candidate.Remaining != 1 {
				t.Errorf("the candidate said %+v", settled.Candidate)
			}
			if got := client.sent[sent:]; len(got) != 1 || !slices.Equal(got[0][4:], []string{"settle", "-1", "3", "60000", "22"}) {
				t.Errorf("sent %q, want the settle of the candidate", got)
			}
			if e := seen.take(); len(e) != 2 || e[0].Candidate || e[0].Sent || !e[1].Candidate || !e[1].Sent {
				t.Errorf("told %+v", e)
			}
			if _, err := l.Settle(t.Context(), res, -1); !errors.Is(err, ErrInvalidCost) || client.count() != sent+1 {
				t.Errorf("settled to -1: %v", err)
			}
			if _, err := l.Settle(t.Context(), settled, 1); !errors.Is(err, ErrNotCharged) {
				t.Errorf("settled a settle: %v", err)
			}
		})
	}
}

// TestWaitAsksTheCandidateOnce: a call that waits is one call, however often it tries.
func TestWaitAsksTheCandidateOnce(t *testing.T) {
	tries := 0
	l, client, _ := candidates(t, func(_, limit string) rueidis.RedisResult {
		if limit == "3" {
			return fiveReply(1, 1, 0, 8000, 2)
		}
		if tries++; tries == 1 {
			return fiveReply(0, 0, 1, 9000, 1)
		}
		return fiveReply(1, 7, 0, 9000, 1)
	})
	res, err := l.Wait(t.Context(), "a", SlidingLog(10, time.Minute), 2)
	if err != nil || !res.Allowed || tries != 2 {
		t.Fatalf("got %+v, %v after %d tries, want it allowed after 2", res, err, tries)
	}
	if c := res.Candidate; c == nil || !c.Allowed || c.Remaining != 1 {
		t.Errorf("the candidate said %+v", c)
	}
	if got := client.count(); got != 3 {
		t.Errorf("sent %d commands, want 3: two tries and one for the candidate", got)
	}
}
