package sluice

import (
	"context"
	"strconv"
	"time"

	"github.com/redis/rueidis"
)

// Config is the settings of a [Limiter]. The zero Config is a good one to start with, but see Secret.
type Config struct {
	// Prefix is the start of every key, "sluice" if empty: with "shop", a key is shop:{3f9c…}:log/60000. Limiters share
	// their limits if they have the same prefix, secret and PlainKeys; give programs that share a server, but not their
	// limits, a prefix each. Printable ASCII without space, { and }; at most 64 bytes.
	Prefix string

	// Secret keys the digest of subjects (HMAC-SHA-256), at least 16 random bytes. Without one the digest is a plain
	// SHA-256: who can read the keys finds an IPv4 address among all 2^32 within minutes. All processes that share a
	// limit need the same secret; another secret makes other keys, so each limit starts afresh. Nil is none; an empty
	// or short one is refused, as it may be one that failed to load.
	Secret []byte

	// PlainKeys writes the subject itself into the key, escaped, where otherwise its digest is:
	// sluice:{203.0.113.7}:log/60000. For debugging by eye: keys then hold what may be personal data, and are as long
	// as the subjects.
	PlainKeys bool

	// Timeout bounds every call to Redis, on top of the caller's context: with 50 ms, a call whose answer is not there
	// after 50 ms fails with an error that matches ErrBackend, however dead the server is. A charge whose answer is
	// late is unknown (see CallError). In Wait and Load it bounds each call to the server, not the whole.
	//
	// 0, the default, leaves calls to their context and to the timeouts of the client (rueidis: 5 s to dial, 10 s for
	// an answer). A lost connection is dialled anew within the time of the call that needs it, so a timeout must leave
	// room for that: shorter than a TLS handshake with the server and the connection stays lost. It costs a goroutine
	// per call.
	Timeout time.Duration
}

// A Limiter decides by policies. It holds no state but its settings and is safe for concurrent use; one per client is enough
// for any number of policies and subjects.
//
// In all its methods key is the subject: any bytes, but not empty (see [Key] for one of several parts). Arguments are
// checked before anything is sent: errors that match [ErrInvalidKey], [ErrInvalidPolicy] or [ErrInvalidCost] are
// *[InputError] with field and range. Failures of Redis match [ErrBackend] and are *[CallError]. With every error comes
// a Result that denies.
type Limiter struct {
	keys   keyspace
	loader loader
}

// New makes a Limiter that calls Redis through client: standalone, sentinel or cluster. It borrows the client and never
// closes it, and sends nothing. The error matches [ErrInvalidConfig].
//
// Charges are writes, so they go to primaries; a ClientOption.SendToReplicas must not send them elsewhere. Leave
// ClientOption.ConnLifetime unset where a charge must never count twice: when a connection reaches that age, rueidis sends
// again what it had not seen answered, and it waits a second at most for answers.
func New(client rueidis.Client, cfg Config) (*Limiter, error) {
	if client == nil {
		return nil, &InputError{Field: "client", Value: "nil", Want: "a rueidis.Client", fault: ErrInvalidConfig}
	}
	if cfg.Timeout < 0 {
		return nil, &InputError{Field: "Timeout", Value: cfg.Timeout.String(), Want: "0 for none, or more", fault: ErrInvalidConfig}
	}
	keys, err := newKeyspace(cfg)
	if err != nil {
		return nil, err
	}
	return &Limiter{keys: keys, loader: loader{client: client, timeout: cfg.Timeout}}, nil
}

// A Request is one decision asked for in a [Limiter.Batch].
type Request struct {
	// Key is the subject, not empty.
	Key string
	// Policy is the limit.
	Policy Policy
	// Cost is in units, 0 to the policy's limit. It has no default: a cost of 0 is always allowed and charges nothing.
	Cost int64
	// Tag puts the limit's key into the cluster slot of another subject, to have both in one slot. Empty is the key
	// itself. A key under a tag is another limit than the same key under none, or under another.
	Tag string
}

// Allow asks for one unit and charges it if it is free. A denial is a Result and not an error. It is shorthand for
// AllowN with a cost of 1.
func (l *Limiter) Allow(ctx context.Context, key string, p Policy) (Result, error) {
	return l.AllowN(ctx, key, p, 1)
}

// AllowN asks for cost units, 0 to the policy's limit, and charges all of them or none. Denied calls change nothing, so
// they do not make the wait longer. A cost of 0 is always allowed and charges nothing.
//
// A cost above the limit could never be admitted and is an error that matches [ErrInvalidCost]. After an error, nobody
// may know whether the units were charged: see [CallError].
func (l *Limiter) AllowN(ctx context.Context, key string, p Policy, cost int64) (Result, error) {
	return l.decide(ctx, opTake, Request{Key: key, Policy: p, Cost: cost})
}

// Peek tells whether AllowN would admit the cost, and the wait if not; it charges and writes nothing. Remaining and
// ResetAfter are as they are now, without the cost. To see only what is free, peek with a cost of 0.
func (l *Limiter) Peek(ctx context.Context, key string, p Policy, cost int64) (Result, error) {
	return l.decide(ctx, opPeek, Request{Key: key, Policy: p, Cost: cost})
}

// Wait asks as AllowN does and, while the limit denies, sleeps for as long as the denial says and asks again. It returns when
// the units are charged.
//
// It fails at once, with a *[LimitedError] that matches [ErrLimited] and carries the denial, if the context's deadline
// is not after the wait. If the context ends during a wait the error matches both ErrLimited and the context's error,
// and nothing was charged.
func (l *Limiter) Wait(ctx context.Context, key string, p Policy, cost int64) (Result, error) {
	for {
		res, err := l.AllowN(ctx, key, p, cost)
		if err != nil || res.Allowed {
			return res, err
		}
		if deadline, ok := ctx.Deadline(); ok && time.Until(deadline) <= res.RetryAfter {
			return res, &LimitedError{Result: res}
		}
		timer := time.NewTimer(res.RetryAfter)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return res, &LimitedError{Result: res, Err: ctx.Err()}
		}
	}
}

// Settle corrects a charge once the true cost is known: actual is what the call should have charged, 0 to 10^9 units.
// Charged 10 and worth 14: 4 more are charged, even past the limit, which later calls then wait out. Charged 10 and
// worth 3: 7 are given back, unless the charge has left the window since, when they are free anyway.
//
// res is the Result of an Allow, AllowN, Wait or Batch that was allowed, at whatever cost; any other (the zero Result, a
// denial, that of a Peek or a Settle) is the error [ErrNotCharged]. Settle a result once: the correction is a difference, and
// settling twice counts it twice.
//
// The Result tells the limit as it is now and is always allowed. Even a correction of nothing asks the server, for numbers that
// are true; it writes nothing then.
func (l *Limiter) Settle(ctx context.Context, res Result, actual int64) (Result, error) {
	if res.key == "" {
		return Result{}, ErrNotCharged
	}
	if actual < 0 || actual > maxUnits {
		return Result{}, &InputError{Field: "actual", Value: strconv.FormatInt(actual, 10), Want: "0 to 1000000000", fault: ErrInvalidCost}
	}
	return l.call(ctx, &question{op: opSettle, key: res.key, policy: res.policy, cost: actual, charged: res.charged, receipt: res.receipt})
}

// Batch asks for several decisions in one pipeline, each independent of the others: some may be allowed and some
// denied, and a request that is refused or fails leaves the rest alone. The outcomes are in the order of the requests.
// Requests for one key are decided in their order, unless the server learned their script in between. Config.Timeout
// bounds the batch.
func (l *Limiter) Batch(ctx context.Context, reqs ...Request) []Outcome {
	outcomes := make([]Outcome, len(reqs))
	var sent []int // indices of the requests that were fit to send
	var questions []*question
	var invocations []*invocation
	for n, req := range reqs {
		q, err := l.ask(opTake, req)
		if err != nil {
			outcomes[n].Err = err
			continue
		}
		sent = append(sent, n)
		questions = append(questions, q)
		invocations = append(invocations, q.invocation())
	}
	if len(sent) == 0 {
		return outcomes
	}
	results, err := l.loader.runAll(ctx, invocations)
	for n, q := range questions {
		out := &outcomes[sent[n]]
		if err != nil {
			out.Err = failure(ctx, q.op, q.key, err)
		} else {
			out.Result, out.Err = q.answer(ctx, results[n])
		}
	}
	return outcomes
}

// Reset forgets what the subject has used of the policy: its whole limit is free. Other policies and other subjects are
// left alone, and so are keys under a Request.Tag. If the answer is lost, resetting again is safe.
func (l *Limiter) Reset(ctx context.Context, key string, p Policy) error {
	if err := validate(key, p); err != nil {
		return err
	}
	redisKey := l.keys.key(key, "", p)
	if err := l.loader.remove(ctx, redisKey); err != nil {
		return failure(ctx, opReset, redisKey, err)
	}
	return nil
}

// Load sends the scripts to every node that the client knows, primaries and replicas. It is optional: a node that lacks
// a script gets it with the first call that needs it. It saves that call the second round trip, and shows at start-up
// what can't be reached. The error joins one *[CallError] per node that failed; the other nodes have been loaded.
func (l *Limiter) Load(ctx context.Context) error { return l.loader.load(ctx) }

// decide is the way of every verb from a request to its Result.
func (l *Limiter) decide(ctx context.Context, op string, req Request) (Result, error) {
	q, err := l.ask(op, req)
	if err != nil {
		return Result{}, err
	}
	return l.call(ctx, q)
}

// call asks one question.
func (l *Limiter) call(ctx context.Context, q *question) (Result, error) {
	res, err := l.loader.run(ctx, q.invocation())
	if err != nil {
		return Result{}, failure(ctx, q.op, q.key, err)
	}
	return q.answer(ctx, res)
}

// question is a checked request with its key.
type question struct {
	op      string
	key     string // the Redis key
	policy  Policy
	cost    int64 // settle: what the cost should have been
	charged int64 // settle: what it was
	receipt int64 // settle: of the charge
}

// ask checks a request. No argument that fails here has reached Redis.
func (l *Limiter) ask(op string, req Request) (*question, error) {
	if err := validate(req.Key, req.Policy); err != nil {
		return nil, err
	}
	if req.Cost < 0 || req.Cost > req.Policy.limit {
		want := "0 to " + strconv.FormatInt(req.Policy.limit, 10) + ", the limit"
		return nil, &InputError{Field: "cost", Value: strconv.FormatInt(req.Cost, 10), Want: want, fault: ErrInvalidCost}
	}
	return &question{op: op, key: l.keys.key(req.Key, req.Tag, req.Policy), policy: req.Policy, cost: req.Cost}, nil
}

// validate checks what every request has.
func validate(key string, p Policy) error {
	if key == "" {
		return &InputError{Field: "key", Value: `""`, Want: "at least one byte", fault: ErrInvalidKey}
	}
	return p.validate()
}

// invocation is the question as its script takes it: operation, cost, the policy and, to settle, the receipt.
func (q *question) invocation() *invocation {
	args := make([]string, 0, 6)
	args = append(args, q.op, strconv.FormatInt(q.cost-q.charged, 10))
	args = q.policy.appendArgs(args)
	if q.op == opSettle {
		args = append(args, strconv.FormatInt(q.receipt, 10))
	}
	return &invocation{script: &scripts[q.policy.kind], key: q.key, args: args}
}

// answer reads what the script said.
func (q *question) answer(ctx context.Context, res rueidis.RedisResult) (Result, error) {
	m, err := res.ToMessage()
	var r reply
	if err == nil {
		r, err = decode(m, q.policy.limit)
	}
	if err == nil && q.op == opSettle && !r.allowed {
		err = outOfReply("allowed", 0)
	}
	if err != nil {
		return Result{}, failure(ctx, q.op, q.key, err)
	}
	result := Result{
		Allowed:    r.allowed,
		Limit:      q.policy.limit,
		Remaining:  r.remaining,
		RetryAfter: r.retry,
		ResetAfter: r.reset,
		ServerTime: time.UnixMicro(r.serverTime).UTC(),
	}
	if r.allowed && q.op == opTake {
		result.key, result.policy, result.charged, result.receipt = q.key, q.policy, q.cost, r.serverTime
	}
	return result, nil
}
