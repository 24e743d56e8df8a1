package sluice

import (
	"errors"
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
// [ErrInvalidPolicy], [ErrInvalidKey] or [ErrInvalidCost].
type InputError struct {
	Field string // what was refused: "limit", "window", "cost", "key", "Prefix" ...
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
	Op string // what was asked for: "take" (Allow, AllowN, Wait, Batch), "peek", "settle", "reset" or "load"
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

// A LimitedError is Wait's: the limit did not admit the call while the context would have waited. It matches [ErrLimited].
type LimitedError struct {
	Result Result // the last denial
	// Err is nil if Wait gave up at once because the deadline is not after the wait, and the context's error if it ended
	// during the wait. A deadline still ahead has not been exceeded, so the first does not match context.DeadlineExceeded.
	Err error
}

func (e *LimitedError) Error() string {
	s := "sluice: limited, free in " + e.Result.RetryAfter.String()
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
	// ServerTime is the server's clock at the decision, in UTC, to the microsecond. Waits count from it.
	ServerTime time.Time

	// What Settle needs. The key is empty unless the call charged.
	key     string
	policy  Policy
	charged int64
	receipt int64
}

// An Outcome is what became of one request of a Batch.
type Outcome struct {
	Result Result // the decision; the zero Result, which denies, if there is an error
	Err    error  // as Allow would have returned it
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

// decode reads a reply, and takes nothing that the contract does not say: a number misread as 'allowed' would be a hole.
func decode(m rueidis.RedisMessage, limit int64) (reply, error) {
	elements, err := m.ToArray()
	if err != nil {
		return reply{}, &replyError{what: err.Error()}
	}
	if len(elements) != 5 {
		return reply{}, &replyError{what: strconv.Itoa(len(elements)) + " elements, want 5"}
	}
	var n [5]int64
	for i := range elements {
		if n[i], err = elements[i].ToInt64(); err != nil {
			return reply{}, &replyError{what: "element " + strconv.Itoa(i+1) + ": " + err.Error()}
		}
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
