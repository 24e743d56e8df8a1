package sluice

import (
	"cmp"
	"context"
	"errors"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/redis/rueidis"

	"github.com/sluicego/sluice/internal/local"
)

// OnFailure is what decides when Redis fails: see [Config.OnFailure].
type OnFailure uint8

const (
	// ReturnError returns the error, with a Result that denies. What to do is the caller's decision.
	ReturnError OnFailure = iota
	// FailOpen allows every call: limits are off while Redis is away.
	FailOpen
	// FailClosed denies every call, with a RetryAfter of 1 s, since nobody knows the wait. A cost of 0 is allowed, as ever.
	FailClosed
	// FailLocal decides in this process, by its share of each limit: limit / Config.Processes, rounded down, so that the shares
	// never add up to more than the limit. Of SlidingLog(100, time.Minute) each of 8 processes gets 12 a minute. A bucket's
	// capacity is divided like that, and its refill exactly. A share of less than one unit denies, like FailClosed; so does a
	// cost above the share.
	//
	// Each outage starts with what this process remembers of the one before, and not with what Redis knows: in the first
	// window of an outage a subject may get up to the limit more. Config.LocalKeys bounds the memory.
	FailLocal
)

const (
	maxProcesses     = 10_000
	defaultLocalKeys = 1 << 16
	maxLocalKeys     = 1 << 30
	unknownWait      = time.Second // told where nobody knows the wait: the next call may find Redis back
)

// A Breaker is a circuit breaker: it keeps calls from a Redis that has failed for some, and tries now and then whether
// it is back. Package breaker has one; a gobreaker.TwoStepCircuitBreaker is one.
type Breaker interface {
	// Allow says whether a call may go to Redis. An error says no: the call is then decided by Config.OnFailure at once. If
	// it is nil, done is called exactly once, when the call is over: with nil if Redis answered, whatever it said about the
	// limit, and with the fault if Redis failed or Config.Timeout ran out. A caller whose context ends does not show here:
	// its call goes on without it, for at most the timeout.
	Allow() (done func(err error), err error)
}

// breakerError is a breaker's no.
type breakerError struct{ err error }

func (e *breakerError) Error() string { return "not sent: " + e.err.Error() }
func (e *breakerError) Unwrap() error { return e.err }

// An ErrorClass is what kind of error one is, in a word: fit for a metric's label.
type ErrorClass string

// The classes of errors. In those that are faults of Redis, Config.OnFailure decides; in no other, since whoever could
// bring it about by what they send could switch off limiting.
const (
	ClassNone ErrorClass = ""

	ClassTimeout     ErrorClass = "timeout"     // a fault: no answer in time
	ClassConnection  ErrorClass = "connection"  // a fault: no connection, or it broke
	ClassUnavailable ErrorClass = "unavailable" // a fault: the server says that it can't: LOADING, READONLY, OOM, CLUSTERDOWN, NOPERM, no library of functions ...
	ClassBreaker     ErrorClass = "breaker"     // a fault: the breaker is open, nothing was sent

	ClassCanceled ErrorClass = "canceled" // the caller's context ended
	ClassLimited  ErrorClass = "limited"  // Wait was turned away in line, as the deadline is not after the wait; nothing was sent
	ClassInput    ErrorClass = "input"    // an argument was refused, nothing was sent
	ClassState    ErrorClass = "state"    // a StateError: the key holds something else
	ClassReply    ErrorClass = "reply"    // an answer that the scripts do not give
	ClassRefused  ErrorClass = "refused"  // any other error reply of the server
)

func (c ErrorClass) fault() bool {
	return c == ClassTimeout || c == ClassConnection || c == ClassUnavailable || c == ClassBreaker
}

// redisFault is the error if it is a fault of Redis', else nil.
func redisFault(err error) error {
	if err != nil && classify(err).fault() {
		return err
	}
	return nil
}

// classify classifies an error of the client's or the server's.
func classify(err error) ErrorClass {
	var said *rueidis.RedisError
	var library *LibraryError
	var open *breakerError
	var network net.Error
	switch {
	case errors.As(err, &library):
		return ClassUnavailable
	case errors.Is(err, ErrReply):
		return ClassReply
	case errors.As(err, &said):
		switch text := said.Error(); {
		case said.IsNil(), strings.HasPrefix(text, "SLUICEARG"):
			return ClassReply
		case strings.HasPrefix(text, "SLUICESTATE"):
			return ClassState
		case unavailable(text):
			return ClassUnavailable
		}
		return ClassRefused
	case errors.As(err, &open):
		return ClassBreaker
	case errors.Is(err, context.Canceled):
		return ClassCanceled
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &network) && network.Timeout():
		return ClassTimeout
	}
	return ClassConnection
}

// unavailable says whether an error reply is about the server and not about the call. What is not known to be that, is
// not: a script that fails for some argument must not look like an outage.
func unavailable(text string) bool {
	switch errorCode(text) {
	case "LOADING", "BUSY", "OOM", "MISCONF", "READONLY", "NOREPLICAS", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN", "MOVED", "ASK",
		"REDIRECT", "NOAUTH", "WRONGPASS", "NOPERM", "DENIED":
		return true
	}
	return strings.HasPrefix(strings.TrimPrefix(text, "ERR "), "max number of clients") || deniedInScript(text)
}

// errorCode is the first word of an error reply, if it is a code, or that of the command that failed within a script; else ERR.
func errorCode(text string) string {
	text = strings.TrimPrefix(text, "ERR ")                                // which rueidis has cut off, as of today
	if inner, ok := strings.CutPrefix(text, "Error running script "); ok { // up to Redis 6.2: "...: @user_script: 9: -OOM ..."
		if i := strings.LastIndex(inner, ": -"); i >= 0 {
			text = inner[i+len(": -"):]
		}
	}
	code, _, _ := strings.Cut(text, " ")
	if code == "" || strings.Trim(code, "ABCDEFGHIJKLMNOPQRSTUVWXYZ") != "" { // it gets into labels
		return "ERR"
	}
	return code
}

// deniedInScript says whether a command within a script was denied for want of a right: the script ends there, and what it
// wrote before stays. Servers say so without a code: Redis and Valkey up to 7.0 the one, later the other.
func deniedInScript(text string) bool {
	return strings.Contains(text, "user executing the script can't") || strings.Contains(text, "ACL failure in script")
}

// standIn decides where Redis failed.
type standIn struct {
	mode      OnFailure
	processes int64
	store     *local.Store // FailLocal only
	began     time.Time
}

func newStandIn(cfg Config) (standIn, error) {
	invalid := func(field, value, want string) (standIn, error) {
		return standIn{}, &InputError{Field: field, Value: value, Want: want, fault: ErrInvalidConfig}
	}
	s := standIn{mode: cfg.OnFailure, began: time.Now()}
	switch {
	case cfg.OnFailure > FailLocal:
		return invalid("OnFailure", strconv.Itoa(int(cfg.OnFailure)), "ReturnError, FailOpen, FailClosed or FailLocal")
	case cfg.Breaker != nil && cfg.Timeout == 0:
		return invalid("Timeout", "0s", "more, where there is a Breaker")
	case cfg.OnFailure != FailLocal:
		return s, nil
	case cfg.Processes < 1 || cfg.Processes > maxProcesses:
		return invalid("Processes", strconv.Itoa(cfg.Processes), "1 to 10000, where OnFailure is FailLocal")
	case cfg.LocalKeys < 0 || cfg.LocalKeys > maxLocalKeys:
		return invalid("LocalKeys", strconv.Itoa(cfg.LocalKeys), "0 for 65536, or up to 2^30")
	}
	s.processes = int64(cfg.Processes)
	s.store = local.NewStore(cmp.Or(cfg.LocalKeys, defaultLocalKeys))
	return s, nil
}

// now is this process' clock in us. It never steps back.
func (s *standIn) now() int64 { return s.began.Add(time.Since(s.began)).UnixMicro() }

// covers says whether it decides in the place of a call that failed.
func (s *standIn) covers(op string, err error) bool {
	var call *CallError
	return s.mode != ReturnError && (op == opTake || op == opPeek) && errors.As(err, &call) && call.Class.fault()
}

// decide decides a take or a peek.
func (s *standIn) decide(q *question) Result {
	now := s.now()
	share := s.share(q.policy)
	if s.mode != FailLocal || share.Limit == 0 {
		return s.blindly(q, now)
	}
	return s.result(q, s.store.Call(now, s.call(q, share)))
}

// decideAll decides several at once, all or nothing.
func (s *standIn) decideAll(questions []question) Results {
	now := s.now()
	results := Results{Degraded: true, Each: make([]Result, len(questions))}
	calls := make([]local.Call, len(questions))
	blind := s.mode != FailLocal
	for n := range questions {
		share := s.share(questions[n].policy)
		calls[n] = s.call(&questions[n], share)
		blind = blind || share.Limit == 0
	}
	if blind {
		for n := range questions {
			results.Each[n] = s.blindly(&questions[n], now)
		}
	} else {
		for n, r := range s.store.CallAll(now, calls) {
			results.Each[n] = s.result(&questions[n], r)
		}
	}
	if results.sum(); !results.Allowed {
		for n := range results.Each {
			results.Each[n].charge, results.Each[n].key = inRedis, ""
		}
	}
	return results
}

// blindly decides without knowing anything.
func (s *standIn) blindly(q *question, now int64) Result {
	res := Result{Allowed: s.mode == FailOpen || q.cost == 0, Degraded: true, Limit: q.policy.limit, ServerTime: microTime(now)}
	if !res.Allowed {
		res.RetryAfter, res.ResetAfter = unknownWait, unknownWait
	} else if q.op == opTake {
		res.charge = nowhere
	}
	return res
}

// share is this process' part of a policy. A limit of 0 is none.
func (s *standIn) share(p Policy) local.Policy {
	share := local.Policy{Kind: localKinds[p.kind], Limit: p.limit, Refill: p.refill, WindowMS: p.window.Milliseconds()}
	if s.mode == FailLocal {
		share.Limit /= s.processes
	}
	if p.kind == tokenBucket {
		share.WindowMS *= max(s.processes, 1) // a part of the refill without a rest
	}
	return share
}

var localKinds = [...]local.Kind{slidingLog: local.SlidingLog, slidingCounter: local.SlidingCounter, tokenBucket: local.TokenBucket}

func (s *standIn) call(q *question, share local.Policy) local.Call {
	c := local.Call{Key: q.key, Policy: share, Cost: q.cost - q.charged, Receipt: q.receipt}
	switch q.op {
	case opPeek:
		c.Op = local.Peek
	case opSettle:
		c.Op = local.Settle
	}
	return c
}

func (s *standIn) result(q *question, r local.Reply) Result {
	res := Result{
		Allowed:    r.Allowed,
		Degraded:   true,
		Limit:      q.policy.limit,
		Remaining:  r.Remaining,
		RetryAfter: time.Duration(r.RetryAfterMS) * time.Millisecond,
		ResetAfter: time.Duration(r.ResetAfterMS) * time.Millisecond,
		ServerTime: microTime(r.ServerTimeUS),
	}
	if r.RetryAfterMS < 0 { // more than the share; the limit itself may admit it
		res.RetryAfter = unknownWait
	}
	if r.Allowed && q.op == opTake {
		res.charge = inProcess
		res.key, res.policy, res.charged, res.receipt = q.key, q.policy, q.cost, r.ServerTimeUS
	}
	return res
}

// settle corrects a charge of its own.
func (s *standIn) settle(q *question) Result {
	return s.result(q, s.store.Call(s.now(), s.call(q, s.share(q.policy))))
}

// reset forgets what this process has charged on a key.
func (s *standIn) reset(key string) {
	if s.store != nil {
		s.store.Reset(key)
	}
}

func microTime(us int64) time.Time { return time.UnixMicro(us).UTC() }
