package sluice

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/redis/rueidis"
)

// An Event is what [Config.Observe] is told about one decision, or about one settle, reset or load.
//
// It holds no subject and no key, so that neither gets into a metric's labels. Whose decision it is belongs to whoever makes
// the call: hand it on in the context.
type Event struct {
	// Op is what was asked for: "take" (Allow, AllowN, Wait, Batch, AllowAll), "peek", "settle", "reset" or "load".
	Op string
	// Policy is the limit. It is the zero Policy for a load and for a settle where this limit charged nothing, and whatever was given
	// where Class is ClassInput.
	Policy Policy
	// Cost is in units; of a settle it is the actual cost.
	Cost int64
	// Index and Of: this is number Index, from 0, of Of decisions that were asked for in one call (Batch, AllowAll). All events of
	// one round trip tell of the same Elapsed. 0 and 1 for a single one.
	Index, Of int

	// Allowed, Remaining and Wait are the Result's: Wait is its RetryAfter.
	Allowed   bool
	Remaining int64
	Wait      time.Duration
	// Degraded: Redis failed, Err says how, and Config.OnFailure decided.
	Degraded bool
	// Shadowed: the limit denied, but is only tried out for this subject, so the call was Allowed.
	Shadowed bool
	// Candidate: this is of a policy that is tried out beside another (Config.Candidates), and decided nothing. The other's event
	// has the same Index.
	Candidate bool

	// Cached: the DenyCache knew that the limit is shut.
	Cached bool
	// Sent: the call went to Redis. It did not if an argument was refused, the context had ended before, the breaker was open or the
	// DenyCache answered.
	Sent bool
	// Command is what was sent, empty if nothing was: EVALSHA, FCALL, FCALL_RO, UNLINK, SCRIPT LOAD or FUNCTION LOAD. Commands is how
	// many of them went in one pipeline: 1 for most calls, at most 1000 for a Batch.
	Command  string
	Commands int
	// Procedure is the script (sliding_log) or function (sluice_v1_sliding_log) that was called, if one was.
	Procedure string
	// First: of the events of one round trip, this is the first. Whoever counts or times calls to Redis goes by these.
	First bool
	// Elapsed is the time that the call to Redis took, as its caller saw it; 0 if nothing was sent.
	Elapsed time.Duration
	// Reloaded: the server did not know the script, or one of those in a pipeline, and was sent it, which took a second round trip.
	// Now and then, after a restart or a failover, that is normal.
	Reloaded bool

	// Err is what went wrong, nil if nothing did. Its text may name a Redis key.
	Err error
	// Class is what kind of error that was, in a word.
	Class ErrorClass
	// Status is the code of the server's error reply, if that is what went wrong: OOM, READONLY, SLUICESTATE; ERR where it has none.
	Status string

	// ServerTime is the server's clock at the decision; zero if the server decided nothing.
	ServerTime time.Time
	// Skew is how far the server's clock is ahead of this process' clock, give or take half of Elapsed; 0 if the server decided
	// nothing. Limits do not depend on it.
	Skew time.Duration
}

// trip is a call to Redis as far as it concerns observers.
type trip struct {
	of       int // decisions
	commands int
	script   *script // nil: that of each question's policy
	began    time.Time
	elapsed  time.Duration
	reloaded bool
	told     bool
}

// depart starts a trip. Without an observer or a cache nobody looks at the clock.
func (l *Limiter) depart(of int) trip {
	t := trip{of: of, commands: 1}
	if l.observe != nil || l.denials.cache != nil {
		t.began = time.Now()
	}
	return t
}

func (l *Limiter) arrive(t *trip, answers ...said) {
	for _, answer := range answers {
		t.reloaded = t.reloaded || answer.reloaded
	}
	if l.observe != nil {
		t.elapsed = time.Since(t.began)
	}
}

// tell tells the observer about one question of a trip. err is what went wrong, also where the result is another's.
func (l *Limiter) tell(ctx context.Context, q *question, index int, t *trip, res *Result, err error) {
	if l.observe == nil {
		return
	}
	e := Event{
		Op:        q.op,
		Policy:    q.policy.whole(),
		Cost:      q.cost,
		Index:     index,
		Of:        t.of,
		Allowed:   res.Allowed,
		Remaining: res.Remaining,
		Wait:      res.RetryAfter,
		Degraded:  res.Degraded,
		Shadowed:  res.Shadowed,
		Candidate: q.beside,
		Cached:    res.Cached,
		Reloaded:  t.reloaded,
		Err:       err,
		Class:     errorClass(err),
		Status:    status(err),
	}
	if e.Sent = t.began != (time.Time{}) && e.Class != ClassInput && !notSentAtAll(err); e.Sent {
		e.First, t.told = !t.told, true
		e.Elapsed = t.elapsed
		e.Command, e.Procedure = l.loader.command(q.op, cmp.Or(t.script, &scripts[q.policy.kind]))
		e.Commands = t.commands
	}
	if err == nil && e.Sent && !res.ServerTime.IsZero() {
		e.ServerTime = res.ServerTime
		e.Skew = res.ServerTime.Sub(t.began.Add(t.elapsed / 2).Round(0)) // by the wall clocks
	}
	l.observe(ctx, e)
}

// tellRefused tells the observer about a request that was not fit to send.
func (l *Limiter) tellRefused(ctx context.Context, op string, req Request, index, of int, err error) {
	l.tell(ctx, &question{op: op, policy: req.Policy, cost: req.Cost}, index, &trip{of: of}, &Result{}, err)
}

// errorClass is the class of an error of this package's.
func errorClass(err error) ErrorClass {
	if err == nil {
		return ClassNone
	}
	var call *CallError
	var limited *LimitedError
	switch {
	case errors.As(err, &call):
		return call.Class
	case errors.As(err, &limited) && limited.Err == nil:
		return ClassLimited
	case limited != nil:
		return ClassCanceled
	}
	return ClassInput
}

// status is the code of the error reply that a call ended with.
func status(err error) string {
	if err == nil {
		return "" // without the allocations below
	}
	var state *StateError
	if errors.As(err, &state) {
		return "SLUICESTATE"
	}
	var said *rueidis.RedisError
	if errors.As(err, &said) && !said.IsNil() {
		return errorCode(said.Error())
	}
	return ""
}
