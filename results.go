package sluice

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"time"

	"github.com/redis/rueidis"
)

// Errors by whose fault they are, for errors.Is. The caller's first: nothing was sent.
var (
	// ErrInvalidConfig: New was given a Config it can't use. The error is an *InputError that names the field.
	ErrInvalidConfig = errors.New("sluice: invalid config")
	// ErrInvalidPolicy: a number, window or name of the policy is out of range. The error is an *InputError that names it.
	ErrInvalidPolicy = errors.New("sluice: invalid policy")
	// ErrInvalidKey: the subject is empty. The error is an *InputError.
	ErrInvalidKey = errors.New("sluice: invalid key")
	// ErrInvalidCost: the cost is negative, above 10^9, or above the policy's limit, so that it could never be admitted. The
	// error is an *InputError with the range.
	ErrInvalidCost = errors.New("sluice: invalid cost")
	// ErrInvalidRequests: AllowAll or PeekAll was given no request, more than 16, or two on one limit. The error is an
	// *InputError.
	ErrInvalidRequests = errors.New("sluice: invalid requests")
	// ErrCrossSlot: the requests of an AllowAll or a PeekAll are neither of one Key nor of one Tag, so that their keys may lie
	// on different nodes of a cluster. The error is an *InputError that names the first such request.
	ErrCrossSlot = errors.New("sluice: requests in different slots")
	// ErrNotCharged: Settle was given a Result that charged nothing: the zero Result, a denial, or the Result of a Peek or a
	// Settle.
	ErrNotCharged = errors.New("sluice: the result to settle charged nothing")

	// ErrLimited: Wait gave up because of the limit. The error is a *LimitedError that carries the denial.
	ErrLimited = errors.New("sluice: limited")

	// ErrBackend: Redis could not be reached, did not answer in time or answered with an error. The error is a *CallError.
	ErrBackend = errors.New("sluice: backend failed")
	// ErrReply: Redis answered with something that the scripts do not say. Such an error matches ErrBackend too.
	ErrReply = errors.New("sluice: unexpected reply")
)

// An InputError is an argument or a setting that was refused before anything was sent. It matches [ErrInvalidConfig],
// [ErrInvalidPolicy], [ErrInvalidKey], [ErrInvalidCost], [ErrInvalidRequests] or [ErrCrossSlot].
type InputError struct {
	Field string // what was refused: "limit", "window", "cost", "key", "Prefix" ...; of several requests "cost of reqs[2]"
	Value string // what was given: "0", "1.5ms", `""`; long text is cut
	Want  string // the range: "1 to 1000000000"
	fault error
}

func (e *InputError) Error() string {
	return "sluice: " + e.Field + " is " + e.Value + ", want " + e.Want
}

// Unwrap is the sentinel that the error matches.
func (e *InputError) Unwrap() error { return e.fault }

// A CallError is a call to Redis that failed. It matches [ErrBackend], and [ErrReply] if the server answered with
// something that it should not; or, if it was the caller's context that ended, only the context's error.
//
// The error of the client or the server can be had with errors.As: a *rueidis.RedisError is what the server said.
type CallError struct {
	Op string // what was asked for: "take" (Allow, AllowN, Wait, Batch, AllowAll), "peek", "settle", "reset" or "load"
	// Class is what kind of failure it was: ClassTimeout, ClassConnection ...
	Class ErrorClass
	// Unknown: the command may have reached the server, so nobody knows whether it charged (or settled, or reset). It is false
	// when nothing was sent, when the server answered that it did not do it, and for operations that change no limit.
	Unknown bool
	Err     error // what the client or the server said
	fault   error // ErrBackend, or nil where the caller's context ended
}

func (e *CallError) Error() string {
	s := "sluice: " + e.Op + ": " + e.Err.Error()
	if e.Unknown {
		s += " (outcome unknown)"
	}
	return s
}

// Unwrap is what the error matches: the sentinel, if any, and what the client or the server said.
func (e *CallError) Unwrap() []error {
	if e.fault == nil {
		return []error{e.Err}
	}
	return []error{e.fault, e.Err}
}

// A StateError says that a key holds something else than the state of the policy's algorithm: another program writes to it, or
// two policies of different algorithms have one name. It is found, by errors.As, in a [CallError] that matches [ErrBackend].
// Nothing was written; [Limiter.Reset] removes the key.
type StateError struct {
	Key     string // the Redis key
	Message string // what the script said
}

func (e *StateError) Error() string { return "key " + strconv.Quote(clip(e.Key)) + ": " + e.Message }

// A LibraryError says that the server's library of functions, which [Config.Functions] calls, is missing or older than this package
// needs. It is found, by errors.As, in a [CallError] that matches [ErrBackend]. Nothing ran.
type LibraryError struct {
	Version int64 // of the server's library; 0 if there is none, or if it did not tell
	Err     error // what the server said, if it was an error
}

func (e *LibraryError) Error() string {
	has, want := strconv.FormatInt(e.Version, 10), strconv.Itoa(libraryVersion)
	switch {
	case e.Version == 0 && e.Err != nil:
		return "the server has no library of functions of version " + want + " (Limiter.Load puts it there): " + e.Err.Error()
	case e.Version < libraryVersion:
		return "the server's library of functions has version " + has + " and not " + want + " (replace it: FUNCTION LOAD REPLACE)"
	}
	return "the server's library of functions has version " + has + ", and not the functions of version " + want
}

// Unwrap is what the server said, if it was an error.
func (e *LibraryError) Unwrap() error { return e.Err }

// A LimitedError is Wait's: the limit did not admit the call while the context would have waited. It matches [ErrLimited].
type LimitedError struct {
	// Result is the last denial. For a call that stood behind others in its process (see Limiter.Wait) it is that of the
	// call in front, with a RetryAfter that counts in the others; the zero Result if none had been denied yet.
	Result Result
	// Err is nil if Wait gave up at once because the deadline is not after the wait, and the context's error if it ended
	// during the wait. A deadline still ahead has not been exceeded, so the first does not match context.DeadlineExceeded.
	Err error
}

func (e *LimitedError) Error() string {
	s := "sluice: limited"
	if e.Result.RetryAfter > 0 {
		s += ", free in " + e.Result.RetryAfter.String()
	}
	if e.Err == nil {
		return s + ", which the deadline does not allow"
	}
	return s + ": " + e.Err.Error()
}

// Unwrap is ErrLimited, and the context's error if it ended.
func (e *LimitedError) Unwrap() []error {
	if e.Err == nil {
		return []error{ErrLimited}
	}
	return []error{ErrLimited, e.Err}
}

// A Result is one decision. The zero Result denies.
//
// The examples are of SlidingLog(10, time.Minute), of which 4 units were used 15 s ago and 3 more 5 s ago.
type Result struct {
	// Allowed: the call is admitted and, but for a Peek, charged. A cost of 2 is allowed, a cost of 5 is not.
	Allowed bool
	// Degraded: Redis failed, and Config.OnFailure decided. Then Remaining is a guess (0, or what is free of this process' share),
	// and RetryAfter is 1 s where nobody knows the wait.
	Degraded bool
	// Shadowed: the limit denied, but is only tried out for this subject (Config.ShadowPercent), so the call is Allowed and
	// nothing was charged. The other fields are those of the denial: RetryAfter is the wait that it would have told.
	Shadowed bool
	// Cached: the denial is Config.DenyCache's, without asking Redis. Remaining is as it was last told, and RetryAfter, the wait of
	// the least cost that is known to be denied, may be too short for a greater one.
	Cached bool
	// Limit is the policy's limit or capacity, in units: 10.
	Limit int64
	// Remaining is what is free after this call, in units, 0 to Limit: 1 after the cost of 2; still 3 after the cost of 5.
	Remaining int64
	// RetryAfter is the least wait after which the same call would be admitted, other traffic aside: 0 if it was
	// allowed, 45 s for the cost of 5, when the first 4 units leave the window. In whole milliseconds, and exact: 1 ms
	// sooner the call is denied.
	RetryAfter time.Duration
	// ResetAfter is the least wait until the whole limit is free, 0 if it is now: 1 min after the cost of 2 was charged, 55 s
	// after the cost of 5 was denied. In whole milliseconds.
	ResetAfter time.Duration
	// ServerTime is the server's clock at the decision, in UTC, to the microsecond. Waits count from it. It is this process'
	// clock in a result that is Degraded.
	ServerTime time.Time
	// Candidate is what Config.Candidates' policy beside this one said; nil if there is none, or if it could not be asked. It is there
	// also beside an error, in a Result that is zero otherwise: the candidate was charged all the same, which Settle can correct.
	Candidate *Result

	// What Settle needs. There is no key unless the call charged.
	charge  charge
	key     string
	policy  Policy
	charged int64
	receipt int64
}

// settle is the correction of the result's charge. It has no key if there is none in Redis or in this process.
func (r *Result) settle(actual int64) question {
	return question{op: opSettle, key: r.key, policy: r.policy, cost: actual, charged: r.charged, receipt: r.receipt}
}

// charge is where the units of a result were charged, and so where they are settled.
type charge uint8

const (
	inRedis   charge = iota // if there is a key
	inProcess               // by FailLocal
	nowhere                 // allowed without a charge, so that there is nothing to correct
)

// An Outcome is what became of one request of a Batch.
type Outcome struct {
	Result Result // the decision; the zero Result, which denies, if there is an error, but for its Candidate
	Err    error  // as Allow would have returned it
}

// Results is the decision of an AllowAll or a PeekAll. The zero Results denies.
type Results struct {
	// Allowed: every limit admits its cost and, but for a PeekAll, all of them are charged. If one denies, nothing is charged
	// on any.
	Allowed bool
	// Degraded: Redis failed, and Config.OnFailure decided.
	Degraded bool
	// Shadowed: a limit denied, but is only tried out for the subject (Config.ShadowPercent); so it is for every subject that was
	// denied. The call is Allowed, and nothing was charged on any limit.
	Shadowed bool
	// RetryAfter is the least wait after which every limit would admit its cost, other traffic aside: the longest of the
	// limits'. 0 if all did; a call that is Shadowed keeps the wait that it would have been told. In whole milliseconds, and exact.
	RetryAfter time.Duration
	// Each is the limits' own decisions, in the order of the requests. In a call that was denied, a limit that would have
	// admitted its cost says Allowed with what is free, uncharged; Settle refuses it.
	Each []Result
}

// sum works out the verdict and the wait.
func (r *Results) sum() {
	r.Allowed = true
	for n := range r.Each {
		r.Allowed = r.Allowed && r.Each[n].Allowed
		r.RetryAfter = max(r.RetryAfter, r.Each[n].RetryAfter)
	}
}

// Denied is the indices of the requests whose limits deny, in order; none if all admit.
func (r Results) Denied() []int {
	var denied []int
	for n, res := range r.Each {
		if !res.Allowed {
			denied = append(denied, n)
		}
	}
	return denied
}

// reply is the five numbers that every script answers.
type reply struct {
	allowed      bool
	remaining    int64
	retry, reset time.Duration
	serverTime   int64 // us since the epoch, and the receipt of a charge
}

const (
	maxReceipt = 1<<53 - 1
	maxWaitMS  = math.MaxInt64 / int64(time.Millisecond) // what fits a Duration; the scripts' waits end at some years
)

// replyError is an answer that the contract does not have.
type replyError struct {
	what string
	err  error // what the server said, if it was an error
}

func (e *replyError) Error() string        { return "unexpected reply: " + e.what }
func (e *replyError) Is(target error) bool { return target == ErrReply }
func (e *replyError) Unwrap() error        { return e.err }

// readArray reads an array.
func readArray(answer said) ([]rueidis.RedisMessage, error) {
	if answer.library != nil {
		return nil, answer.library
	}
	m, err := answer.res.ToMessage()
	if err != nil {
		return nil, err
	}
	elements, err := m.ToArray()
	if err != nil {
		return nil, &replyError{what: err.Error()}
	}
	return elements, nil
}

// readIntegers reads an array of so many integers.
func readIntegers(elements []rueidis.RedisMessage, into []int64) error {
	if len(elements) != len(into) {
		return &replyError{what: strconv.Itoa(len(elements)) + " elements, want " + strconv.Itoa(len(into))}
	}
	for i := range elements {
		var err error
		if into[i], err = elements[i].ToInt64(); err != nil {
			return &replyError{what: "element " + strconv.Itoa(i+1) + ": " + err.Error()}
		}
	}
	return nil
}

// decode reads a reply, and takes nothing that the contract does not say: a number misread as 'allowed' would be a hole.
func decode(elements []rueidis.RedisMessage, limit int64) (reply, error) {
	var n [5]int64
	err := readIntegers(elements, n[:])
	if err != nil {
		return reply{}, err
	}
	allowed, remaining, retry, reset, serverTime := n[0], n[1], n[2], n[3], n[4]
	switch {
	case allowed != 0 && allowed != 1:
		err = outOfReply("allowed", allowed)
	case remaining < 0 || remaining > limit:
		err = outOfReply("remaining", remaining)
	// -1, for a cost above the limit, is not among the answers: such a call is not sent.
	case allowed == 1 && retry != 0 || allowed == 0 && (retry < 1 || retry > maxWaitMS):
		err = outOfReply("retry_after_ms", retry)
	case reset < 0 || reset > maxWaitMS:
		err = outOfReply("reset_after_ms", reset)
	case serverTime < 0 || serverTime > maxReceipt:
		err = outOfReply("server_time_us", serverTime)
	}
	if err != nil {
		return reply{}, err
	}
	return reply{
		allowed:    allowed == 1,
		remaining:  remaining,
		retry:      time.Duration(retry) * time.Millisecond,
		reset:      time.Duration(reset) * time.Millisecond,
		serverTime: serverTime,
	}, nil
}

// result reads what the script said about the question's limit.
func (q *question) result(elements []rueidis.RedisMessage) (Result, error) {
	limit, _ := q.policy.numbers()
	r, err := decode(elements, limit)
	if err == nil && q.op == opSettle && !r.allowed {
		err = outOfReply("allowed", 0)
	}
	if err != nil {
		return Result{}, err
	}
	return Result{
		Allowed:    r.allowed,
		Limit:      q.policy.limit,
		Remaining:  r.remaining,
		RetryAfter: r.retry,
		ResetAfter: r.reset,
		ServerTime: microTime(r.serverTime),
	}, nil
}

// charge gives a result what Settle needs, if the call charged.
func (q *question) charge(res *Result) {
	if q.op == opTake && res.Allowed {
		res.key, res.policy, res.charged, res.receipt = q.key, q.policy, q.cost, res.ServerTime.UnixMicro()
	}
}

// decodeAll reads the reply of multi.lua: the verdict, the wait, and a reply for each limit that agrees with them.
func decodeAll(answer said, questions []question) (Results, error) {
	elements, err := readArray(answer)
	if err != nil {
		return Results{}, err
	}
	if want := 2 + 5*len(questions); len(elements) != want {
		return Results{}, &replyError{what: strconv.Itoa(len(elements)) + " elements, want " + strconv.Itoa(want)}
	}
	var verdict [2]int64
	if err := readIntegers(elements[:2], verdict[:]); err != nil {
		return Results{}, err
	}
	results := Results{Each: make([]Result, len(questions))}
	for n := range questions {
		if results.Each[n], err = questions[n].result(elements[2+5*n : 7+5*n]); err != nil {
			return Results{}, fmt.Errorf("limit %d: %w", n+1, err)
		}
	}
	results.sum()
	if verdict[0] != 0 && verdict[0] != 1 || (verdict[0] == 1) != results.Allowed {
		return Results{}, outOfReply("allowed", verdict[0])
	}
	if verdict[1] != results.RetryAfter.Milliseconds() {
		return Results{}, outOfReply("retry_after_ms", verdict[1])
	}
	if results.Allowed {
		for n := range questions {
			questions[n].charge(&results.Each[n])
		}
	}
	return results, nil
}

func outOfReply(name string, value int64) error {
	return &replyError{what: name + " is " + strconv.FormatInt(value, 10)}
}

// clip keeps hostile input from filling logs.
func clip(s string) string {
	const most = 64
	if len(s) <= most {
		return s
	}
	return s[:most] + "..."
}
