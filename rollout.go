package sluice

import (
	"cmp"
	"context"
	"encoding/binary"
	"maps"
	"math/bits"
	"slices"
	"strconv"
)

// rollout is what is tried out beside what is enforced.
type rollout struct {
	percent    uint64 // of the subjects, who are shadowed
	candidates map[Policy]Policy
}

func newRollout(cfg Config) (rollout, error) {
	invalid := func(field, value, want string) (rollout, error) {
		return rollout{}, &InputError{Field: field, Value: value, Want: want, fault: ErrInvalidConfig}
	}
	if cfg.ShadowPercent < 0 || cfg.ShadowPercent > 100 {
		return invalid("ShadowPercent", strconv.Itoa(cfg.ShadowPercent), "0 to 100")
	}
	keys := map[string]Policy{} // that are taken
	for p, candidate := range cfg.Candidates {
		for _, p := range []Policy{p, candidate} {
			if err := p.validate(); err != nil {
				return invalid("Candidates", strconv.Quote(p.String()), "valid policies: "+err.Error())
			}
		}
		if p.shards > 0 || candidate.shards > 0 {
			return invalid("Candidates", strconv.Quote(p.String()+" and "+candidate.String()), "policies that are not sharded")
		}
		keys[string(p.appendKey(nil))] = p
	}
	for _, candidate := range cfg.Candidates {
		key := string(candidate.appendKey(nil))
		if other, ok := keys[key]; ok { // they would charge each other
			return invalid("Candidates", strconv.Quote(candidate.String()), "a name (Policy.Named) that sets its key apart from that of "+other.String())
		}
		keys[key] = candidate
	}
	return rollout{uint64(cfg.ShadowPercent), maps.Clone(cfg.Candidates)}, nil
}

// shadows says whether the subject's denials are only reported. The digest spreads subjects evenly from 0 to 100; those
// below the percentage are shadowed, so a lower one only ever enforces for more.
func (l *Limiter) shadows(subject string) bool {
	if l.rollout.percent == 0 || l.rollout.percent == 100 {
		return l.rollout.percent == 100
	}
	digest := l.keys.digest(subject)
	place, _ := bits.Mul64(binary.BigEndian.Uint64(digest[:]), 100)
	return place < l.rollout.percent
}

// shadow lets through a denial that is not enforced. Nothing was charged, so there is nothing to settle.
func (q *question) shadow(res *Result) {
	res.Allowed, res.Shadowed = true, true
	if q.op == opTake {
		res.charge = nowhere
	}
}

// shadow lets through a denial, if it is not enforced for anybody who was denied.
func (l *Limiter) shadow(results *Results, questions []question) {
	for n, res := range results.Each {
		if !res.Allowed && !l.shadows(questions[n].subject) {
			return
		}
	}
	for n := range results.Each {
		q, res := &questions[n], &results.Each[n]
		if !res.Allowed {
			q.shadow(res)
		} else if q.op == opTake {
			res.charge = nowhere
		}
	}
	results.Allowed, results.Shadowed = true, true
}

// tried says whether the policy has a candidate.
func (r *rollout) tried(p *Policy) bool {
	if len(r.candidates) == 0 {
		return false
	}
	_, ok := r.candidates[*p]
	return ok
}

// beside is the question whether a candidate would allow the same, if the policy has one.
func (l *Limiter) beside(ctx context.Context, op string, req Request, index, of int) (question, bool) {
	if !l.rollout.tried(&req.Policy) {
		return question{}, false
	}
	candidate := l.rollout.candidates[req.Policy]
	req.Policy = candidate
	if err := check(0, &req); err != nil { // a cost above its limit
		l.tell(ctx, &question{op: op, policy: candidate, cost: req.Cost, beside: true}, index, &trip{of: of}, &Result{}, err)
		return question{}, false
	}
	q := l.question(op, &req)
	q.beside = true
	return q, true
}

// maxPipeline is the most questions that are sent together: a batch that somebody made large must not run into Config.Timeout, and so
// be decided by Config.OnFailure.
const maxPipeline = 1000

// pipeline asks independent questions in one round trip, or in as few as will do. They are part of a call for so many decisions; number
// n is for out[place[n]], where a candidate's answer stands beside that of its policy.
func (l *Limiter) pipeline(ctx context.Context, of int, questions []question, place []int, out []Outcome) {
	var failed error // what ended one; those after it are not sent
	for some := range slices.Chunk(questions, maxPipeline) {
		failed = l.roundTrip(ctx, of, some, place[:len(some)], out, failed)
		place = place[len(some):]
	}
}

func (l *Limiter) roundTrip(ctx context.Context, of int, questions []question, place []int, out []Outcome, failed error) error {
	invocations := make([]*invocation, len(questions))
	for n := range questions {
		invocations[n] = questions[n].invocation()
		l.denials.depart(&questions[n])
	}
	t, answers := trip{of: of}, saidAll(nil)
	if failed != nil {
		failed = notSentError{failed}
	} else {
		t = l.depart(of)
		t.commands = len(invocations)
		answers, failed = l.loader.runAll(ctx, invocations)
		l.arrive(&t, answers...)
	}
	for n := range questions {
		var answer said
		if failed == nil {
			answer = answers[n]
		}
		res, err := l.conclude(ctx, &questions[n], place[n], &t, invocations[n].keys, answer, failed)
		switch {
		case !questions[n].beside:
			out[place[n]] = Outcome{res, err}
		case err == nil:
			out[place[n]].Result.Candidate = &res
		}
	}
	return cmp.Or(failed, answers.unanswered())
}
