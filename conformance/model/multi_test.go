package model

import (
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// requests are random calls on up to four keys with a past, at the moment after it.
func requests(t *rapid.T) (now int64, all []Request) {
	for range rapid.IntRange(1, 4).Draw(t, "limits") {
		r := Request{State: New(), Policy: policies(Log, Counter, Bucket).Draw(t, "policy")}
		for us := range rapid.Int64Range(0, 8).Draw(t, "calls") {
			op := rapid.SampledFrom([]string{"take", "settle"}).Draw(t, "op")
			r.State.Call(start+us*1500, op, rapid.Int64Range(0, r.Policy.Limit).Draw(t, "units"), r.Policy, 0)
		}
		r.Cost = rapid.Int64Range(0, r.Policy.Limit+1).Draw(t, "cost")
		all = append(all, r)
	}
	return start + 12_000, all
}

// copies are the requests on states of their own.
func copies(all []Request) []Request {
	out := slices.Clone(all)
	for i, r := range all {
		state := *r.State
		out[i].State = &state
	}
	return out
}

func TestCallAllIsAllOrNothing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		now, all := requests(t)
		single, peeked := copies(all), copies(all)
		peek := CallAll(now, "peek", peeked...)
		take := CallAll(now, "take", all...)
		if peek.Allowed != take.Allowed || peek.RetryAfterMS != take.RetryAfterMS {
			t.Fatalf("peek %+v, take %+v", peek, take)
		}
		allowed := true
		for i, r := range single {
			one := r.State.Call(now, "take", r.Cost, r.Policy, 0)
			allowed = allowed && one.Allowed
			if one.Allowed != take.Limits[i].Allowed {
				t.Fatalf("limit %d: alone %+v, with others %+v", i, one, take.Limits[i])
			}
			if take.Allowed && one != take.Limits[i] {
				t.Fatalf("limit %d: alone %+v, with others %+v", i, one, take.Limits[i])
			}
			if !take.Allowed && (take.Limits[i] != peek.Limits[i] || all[i].State.Writes() != peeked[i].State.Writes()) {
				t.Fatalf("limit %d: denied %+v, peeked %+v", i, take.Limits[i], peek.Limits[i])
			}
		}
		if allowed != take.Allowed {
			t.Fatalf("each alone allowed: %v, together %+v", allowed, take)
		}
	})
}

func TestCallAllWaitsAreExact(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		now, all := requests(t)
		r := CallAll(now, "peek", all...)
		never := slices.ContainsFunc(all, func(r Request) bool { return r.Cost > r.Policy.Limit })
		if never != (r.RetryAfterMS == -1) || r.Allowed != (r.RetryAfterMS == 0) {
			t.Fatalf("got %+v, one can never be: %v", r, never)
		}
		for ms := range r.RetryAfterMS + 1 {
			if later := CallAll(now+1000*ms, "peek", all...); later.Allowed != (ms == r.RetryAfterMS) {
				t.Fatalf("retry after %d ms, but after %d ms: %+v", r.RetryAfterMS, ms, later)
			}
		}
	})
}

func TestCallAllByHand(t *testing.T) {
	log, bucket := Policy{Kind: Log, Limit: 10, WindowMS: 1000}, Policy{Bucket, 5, 5, 1000}
	a, b := New(), New()
	for i, c := range []struct {
		us   int64
		op   string
		a, b int64
		want []int64 // without the times
	}{
		{0, "peek", 4, 2, []int64{1, 0, 1, 10, 0, 0, 1, 5, 0, 0}},
		{0, "take", 4, 2, []int64{1, 0, 1, 6, 0, 1000, 1, 3, 0, 400}},
		{0, "take", 4, 4, []int64{0, 200, 1, 6, 0, 1000, 0, 3, 200, 400}},
		{0, "take", 7, 4, []int64{0, 1000, 0, 6, 1000, 1000, 0, 3, 200, 400}},
		{0, "take", 7, 6, []int64{0, -1, 0, 6, 1000, 1000, 0, 3, -1, 400}},
		{0, "take", 11, 4, []int64{0, -1, 0, 6, -1, 1000, 0, 3, 200, 400}},
		{100_000, "take", 0, 3, []int64{1, 0, 1, 6, 0, 900, 1, 0, 0, 900}},
	} {
		got := CallAll(start+c.us, c.op, Request{a, log, c.a}, Request{b, bucket, c.b}).Numbers()
		if got[6] != start+c.us || got[11] != start+c.us {
			t.Fatalf("call %d: the times are %d and %d", i, got[6], got[11])
		}
		if got = slices.Concat(got[:6], got[7:11]); !slices.Equal(got, c.want) {
			t.Fatalf("call %d: got %v, want %v", i, got, c.want)
		}
	}
}
