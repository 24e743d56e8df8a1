package model

import "fmt"

// Request is one limit of a call of several: a key, its policy, and the cost there.
type Request struct {
	State  *State
	Policy Policy
	Cost   int64
}

// MultiReply is what multi.lua answers.
type MultiReply struct {
	Allowed      bool
	RetryAfterMS int64   // the longest of the limits that deny; -1: never
	Limits       []Reply // in the order of the requests; those that deny are not Allowed
}

// Numbers returns the reply as the script sends it.
func (r MultiReply) Numbers() []int64 {
	numbers := []int64{0, r.RetryAfterMS}
	if r.Allowed {
		numbers[0] = 1
	}
	for _, l := range r.Limits {
		numbers = append(numbers, l.Numbers()...)
	}
	return numbers
}

// CallAll does what multi.lua does: op is take or peek. Each state may be there once. A take charges all limits if
// every one of them admits its cost, and otherwise is a peek.
func CallAll(nowUS int64, op string, requests ...Request) MultiReply {
	if op != "take" && op != "peek" {
		panic(fmt.Sprintf("model: unknown operation %q", op))
	}
	whole := MultiReply{Allowed: true}
	for _, r := range requests {
		reply := r.State.Call(nowUS, "peek", r.Cost, r.Policy, 0)
		whole.Limits = append(whole.Limits, reply)
		if reply.Allowed {
			continue
		}
		whole.Allowed = false
		if reply.RetryAfterMS == -1 || whole.RetryAfterMS == -1 {
			whole.RetryAfterMS = -1
		} else {
			whole.RetryAfterMS = max(whole.RetryAfterMS, reply.RetryAfterMS)
		}
	}
	if op == "take" && whole.Allowed {
		for i, r := range requests {
			whole.Limits[i] = r.State.Call(nowUS, op, r.Cost, r.Policy, 0)
		}
	}
	return whole
}
