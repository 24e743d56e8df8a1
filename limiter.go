package sluice

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"time"

	"github.com/redis/rueidis"
)

// maxTogether is the most limits that are asked at once.
const maxTogether = 16

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
	// sluice:{203.0.113.7}:log/60000. For debugging by eye: keys then hold what may be personal data. Escaped is all but printable
	// ASCII without space, %, { and }, as a % and two hex digits. A subject that takes more than 256 bytes so is written as its
	// digest all the same, sluice:{%sha256-3f9c…}:log/60000, as nobody should be able to send megabytes along with each call.
	PlainKeys bool

	// Timeout bounds every call to Redis, on top of the caller's context: with 50 ms, a call whose answer is not there
	// after 50 ms fails with an error that matches ErrBackend, however dead the server is. A charge whose answer is
	// late is unknown (see CallError). In Wait, Load and a Batch of more than 1000 it bounds each call to the server, not the whole.
	//
	// 0, the default, leaves calls to their context and to the timeouts of the client (rueidis: 5 s to dial, 10 s for
	// an answer). A lost connection is dialled anew within the time of the call that needs it, so a timeout must leave
	// room for that: shorter than a TLS handshake with the server and the connection stays lost. It costs a goroutine
	// per call.
	Timeout time.Duration

	// Functions calls the scripts as Redis Functions (FCALL, and FCALL_RO to peek) in place of EVALSHA. The server needs Redis 7.0 or
	// Valkey, and the library sluice: Load puts it where there is none, and [FunctionLibrary] is its text. Unlike scripts a
	// library is kept and replicated with the data, so a restart or a failover costs no second round trip, and callers need
	// no right to send code. A server without the library, or with an older one, is a *[LibraryError], at every call.
	Functions bool

	// OnFailure is what decides when Redis fails or Timeout runs out: ReturnError (the default), FailOpen, FailClosed or
	// FailLocal. With any but the first, calls that ask (Allow, Wait, Peek, Batch ...) return no error then, but a Result that is
	// Degraded. Settle, Reset and Load return their errors always.
	//
	// It never decides because of what a caller did: not when a context ended, an argument was refused or a key holds
	// something else, and not for an error reply that may depend on the call. Those are errors, with a Result that denies.
	//
	// After a timeout, Redis may have charged all the same; a charge in FailLocal then is a second one.
	OnFailure OnFailure

	// Processes is how many processes share the limits, 1 to 10000: with FailLocal each gets 1/Processes of a limit, rounded
	// down. It has no default. Too low a number lets all processes together admit more than the limit while Redis is away.
	Processes int

	// LocalKeys is how many limits FailLocal remembers at once, 65536 if 0. One takes about 400 bytes, a sliding log up to 5 KB.
	// Beyond that, the one that was asked for least recently starts afresh.
	LocalKeys int

	// ShadowPercent is the share of subjects for whom limits are tried out and not enforced: they are decided, charged and
	// reported as ever, but a denial is let through, with Result.Shadowed. It is always the same subjects, by their digest, and so
	// others under another Secret; lowering it only ever adds enforced ones. 100 is shadow mode, 0 (the default) enforces for all. Errors stay errors, also
	// for them: those of Redis (if OnFailure is ReturnError), and a cost above the limit.
	ShadowPercent int

	// Candidates are policies to be tried out beside those that are enforced: with {old: new}, each Allow, Wait, Peek, Batch
	// and Settle on old makes the same call on new, in the same round trip (Wait: with its first try). What new said is in
	// Result.Candidate and in an Event of its own, and decides nothing. Each candidate must have a key that no other policy here
	// has, or they would charge each other: give new a name. AllowAll and PeekAll take no notice.
	Candidates map[Policy]Policy

	// DenyCache, if not nil, remembers denials in this process, and answers for a limit that is known to be shut until its
	// RetryAfter has nearly passed: a flood on one subject then costs Redis about a call per wait. Such a Result is Cached.
	// It answers Allow, AllowN and Batch, but not for a policy with a candidate, a Request with a Tag, or a subject of more
	// than 256 bytes.
	//
	// It never denies what Redis would have allowed, as long as nothing but time makes the limit freer. A settle or a reset by
	// this limiter, under whatever policy, is noticed as soon as its answer is there. What else makes a limit freer is noticed
	// after DenyFor: another's settle or reset, or one whose answer was lost; a call by another policy on the same key, with
	// another window or refill; a key that was lost; a server's clock that jumps ahead. Limiters may share a cache, but not what
	// it knows. See the module sluice/denycache.
	DenyCache DenyCache

	// DenyFor is the longest that the DenyCache answers for a limit without asking Redis, 10 s if 0.
	DenyFor time.Duration

	// Breaker, if not nil, keeps calls from a Redis that is dead, so that each does not cost its Timeout, which must be set. See
	// the module sluice/breaker.
	Breaker Breaker

	// Observe, if not nil, is called once for each decision, settle, reset and load, by the goroutine that made the call and
	// before it returns: for logs, metrics and traces. A Wait is a decision for each time that it asked, and one if it never came
	// to ask. It must be safe for concurrent use, and quick. See the module sluice/otelsluice.
	Observe func(ctx context.Context, e Event)
}

// A Limiter decides by policies. It holds no state but its settings and the calls of Wait that stand in line, and is safe
// for concurrent use; one per client is enough for any number of policies and subjects.
//
// In all its methods key is the subject: any bytes, but not empty (see [Key] for one of several parts). Arguments are
// checked before anything is sent: errors that match [ErrInvalidKey], [ErrInvalidPolicy], [ErrInvalidCost],
// [ErrInvalidRequests] or [ErrCrossSlot] are *[InputError] with field and range. Failures of Redis match [ErrBackend] and are *[CallError]. With every error comes
// a Result that denies.
type Limiter struct {
	keys    keyspace
	loader  loader
	lines   lines
	standIn standIn
	rollout rollout
	denials denials
	observe func(context.Context, Event)
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
	standIn, err := newStandIn(cfg)
	if err != nil {
		return nil, err
	}
	rollout, err := newRollout(cfg)
	if err != nil {
		return nil, err
	}
	denials, err := newDenials(cfg)
	if err != nil {
		return nil, err
	}
	return &Limiter{
		keys:    keys,
		loader:  loader{client: client, timeout: cfg.Timeout, breaker: cfg.Breaker, functions: cfg.Functions},
		standIn: standIn,
		rollout: rollout,
		denials: denials,
		observe: cfg.Observe,
	}, nil
}

// A Request is one limit that is asked in a [Limiter.Batch], [Limiter.AllowAll] or [Limiter.PeekAll].
type Request struct {
	// Key is the subject, not empty.
	Key string
	// Policy is the limit.
	Policy Policy
	// Cost is in units, 1 to the policy's limit; in PeekAll also 0. It has no default: a 0 that was merely forgotten would
	// charge nothing and be allowed for ever.
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

// Settle corrects a charge once the true cost is known: actual is what the call should have charged, 0 to 10^9 units.
// Charged 10 and worth 14: 4 more are charged, even past the limit, which later calls then wait out. Charged 10 and
// worth 3: 7 are given back, unless the charge has left the window since, when they are free anyway.
//
// res is the Result of an Allow, AllowN, Wait, Batch or AllowAll that was charged, at whatever cost, or whose candidate was; any
// other (the zero Result, a denial, that of a Peek or a Settle) is the error [ErrNotCharged]. Settle a result once: the correction is a difference, and
// settling twice counts it twice.
//
// The Result tells the limit as it is now and is always allowed. Even a correction of nothing asks the server, for numbers that
// are true; it writes nothing then.
//
// A Result that is Degraded never reaches Redis: what FailLocal charged is corrected in this process, and what FailOpen
// allowed was never charged, so nothing happens. If a timeout came before it, and Redis charged after all, the original
// charge stays. Nothing happens either to a Result that is Shadowed. What was charged for a candidate is settled in the same
// call, also where the policy itself denied; if that fails, only an Event tells.
func (l *Limiter) Settle(ctx context.Context, res Result, actual int64) (Result, error) {
	q := res.settle(actual)
	var candidate question
	if res.Candidate != nil {
		candidate = res.Candidate.settle(actual)
		candidate.beside = true
	}
	var settled Result
	var err error
	switch {
	case res.charge != nowhere && q.key == "" && candidate.key == "":
		err = ErrNotCharged
	case actual < 0 || actual > maxUnits:
		err = &InputError{Field: "actual", Value: strconv.FormatInt(actual, 10), Want: "0 to 1000000000", fault: ErrInvalidCost}
	case res.charge == nowhere, q.key == "", res.charge == inProcess && l.standIn.store == nil: // the last is another limiter's
		settled = Result{Allowed: true, Degraded: res.Degraded, Shadowed: res.Shadowed, Limit: res.Limit, ServerTime: res.ServerTime}
	case res.charge == inProcess:
		settled = l.standIn.settle(&q)
		if actual < res.charged {
			l.lines.freed(q.key)
		}
	case candidate.key != "":
		return l.callTwo(ctx, q, candidate)
	default:
		return l.call(ctx, &q)
	}
	l.tell(ctx, &q, 0, &trip{of: 1}, &settled, err)
	if err == nil && candidate.key != "" { // the policy's own charge was denied, or is not in Redis
		if beside, err := l.call(ctx, &candidate); err == nil {
			settled.Candidate = &beside
		}
	}
	return settled, err
}

// AllowAll asks several limits at one moment and charges all of them or none: 20 at once and 100 a minute, a user's
// limit and that of the user's team. It is one round trip, and a denial changes nothing on any limit.
//
// It takes 1 to 16 requests on different limits, else the error matches [ErrInvalidRequests]. Their keys must share a
// slot: the requests are of one Key, or have one Tag, else the error matches [ErrCrossSlot], on a single server too. Each
// Result of a call that was allowed can be settled by itself.
func (l *Limiter) AllowAll(ctx context.Context, reqs ...Request) (Results, error) {
	return l.decideAll(ctx, opTake, 1, reqs)
}

// PeekAll tells whether AllowAll would admit the requests, and the wait if not; it charges and writes nothing. The costs may
// be 0, to see only what is free.
func (l *Limiter) PeekAll(ctx context.Context, reqs ...Request) (Results, error) {
	return l.decideAll(ctx, opPeek, 0, reqs)
}

// Batch asks for several decisions in one pipeline, each independent of the others: some may be allowed and some
// denied, and a request that is refused or fails leaves the rest alone. The outcomes are in the order of the requests.
// Requests for one key are decided in their order, unless the server learned their script in between.
//
// A large batch goes in pipelines of at most 1000 commands, one after the other (with Config.Candidates a request may take two). Each has
// Config.Timeout to itself, so that size alone makes none fail. Where one had no answer at all, those after it are not sent, and fail
// like it.
func (l *Limiter) Batch(ctx context.Context, reqs ...Request) []Outcome {
	outcomes := make([]Outcome, len(reqs))
	var questions []question
	var place []int // of the requests that the questions are for
	for n, req := range reqs {
		if err := check(1, &req); err != nil {
			outcomes[n].Err = err
			l.tellRefused(ctx, opTake, req, n, len(reqs), err)
			continue
		}
		req.Policy.choose()
		if l.known(ctx, &req, n, len(reqs), &outcomes[n].Result) {
			continue
		}
		q := l.question(opTake, &req)
		questions, place = append(questions, q), append(place, n)
		if q, ok := l.beside(ctx, opTake, req, n, len(reqs)); ok {
			questions, place = append(questions, q), append(place, n)
		}
	}
	if len(questions) > 0 {
		l.pipeline(ctx, len(reqs), questions, place, outcomes)
	}
	return outcomes
}

// Reset forgets what the subject has used of the policy: its whole limit is free. Other policies and other subjects are
// left alone, and so are keys under a Request.Tag. If the answer is lost, resetting again is safe.
func (l *Limiter) Reset(ctx context.Context, key string, p Policy) error {
	if err := validate(key, &p); err != nil {
		l.tellRefused(ctx, opReset, Request{Policy: p}, 0, 1, err)
		return err
	}
	l.standIn.reset(l.keys.key(key, "", p))
	keys := l.shardKeys(key, "", p)
	t := l.depart(1)
	t.commands = len(keys)
	l.denials.corrected(keys...)
	err := l.loader.remove(ctx, keys)
	l.denials.corrected(keys...)
	l.lines.freed(keys...) // also after an error: it may have been done, and in this process it was
	if err != nil {
		err = failure(ctx, opReset, keys, err)
	}
	l.arrive(&t)
	l.tell(ctx, &question{op: opReset, policy: p}, 0, &t, &Result{Allowed: err == nil}, err)
	return err
}

// Load sends the scripts to every node that the client knows, primaries and replicas. It is optional: a node that lacks
// a script gets it with the first call that needs it. It saves that call the second round trip, and shows at start-up
// what can't be reached. The error joins one *[CallError] per node that failed; the other nodes have been loaded.
//
// With Config.Functions it puts the library of functions where there is none, once per server and not per start. It replaces
// none: an older one is a *[LibraryError], and so is a later one without this version's functions; one with another digest, as it
// says itself, matches [ErrReply].
func (l *Limiter) Load(ctx context.Context) error {
	t := l.depart(1)
	err := l.loader.load(ctx)
	l.arrive(&t)
	l.tell(ctx, &question{op: opLoad}, 0, &t, &Result{Allowed: err == nil}, err)
	return err
}

// decide is the way of every verb for one limit from a request to its Result.
func (l *Limiter) decide(ctx context.Context, op string, req Request) (res Result, err error) {
	if err := check(0, &req); err != nil {
		l.tellRefused(ctx, op, req, 0, 1, err)
		return res, err
	}
	if op == opTake {
		req.Policy.choose()
		if l.known(ctx, &req, 0, 1, &res) {
			return res, nil
		}
	}
	return l.askFor(ctx, op, &req)
}

// askFor asks what a request asks for. It is apart from decide so that a cached denial does not pay for a question.
func (l *Limiter) askFor(ctx context.Context, op string, req *Request) (Result, error) {
	if op == opPeek && req.Policy.shards > 0 {
		return l.peekShards(ctx, req)
	}
	q := l.question(op, req)
	return l.callBoth(ctx, &q, req)
}

// callBoth asks a question, and the policy's candidate if there is one.
func (l *Limiter) callBoth(ctx context.Context, q *question, req *Request) (Result, error) {
	if candidate, ok := l.beside(ctx, q.op, *req, 0, 1); ok {
		return l.callTwo(ctx, *q, candidate)
	}
	return l.call(ctx, q)
}

func (l *Limiter) callTwo(ctx context.Context, q, candidate question) (Result, error) {
	var out [1]Outcome
	l.pipeline(ctx, 1, []question{q, candidate}, []int{0, 0}, out[:])
	return out[0].Result, out[0].Err
}

// call asks one question.
func (l *Limiter) call(ctx context.Context, q *question) (Result, error) {
	i := q.invocation()
	l.denials.depart(q)
	t := l.depart(1)
	answer, err := l.loader.run(ctx, i)
	l.arrive(&t, answer)
	return l.conclude(ctx, q, 0, &t, i.keys, answer, err)
}

// conclude makes a Result of what came back for a question, or of the failure.
func (l *Limiter) conclude(ctx context.Context, q *question, index int, t *trip, keys []string, answer said, err error) (Result, error) {
	var res Result
	if err == nil {
		res, err = q.answer(answer)
	}
	if err != nil {
		err = failure(ctx, q.op, keys, err)
	}
	return l.finish(ctx, q, index, t, res, err)
}

// finish applies what is configured beyond the decision, and tells the observer.
func (l *Limiter) finish(ctx context.Context, q *question, index int, t *trip, res Result, err error) (Result, error) {
	fault := err
	if !q.beside {
		if err != nil && l.standIn.covers(q.op, err) {
			if q.policy.shard > 0 { // in this process the limit is one
				whole := *q
				whole.policy = q.policy.whole()
				whole.key = l.keys.key(q.subject, q.tag, whole.policy)
				q = &whole
			}
			res, err = l.standIn.decide(q), nil
		}
	}
	if l.denials.cache != nil {
		l.remember(q, t, &res, err)
	}
	if q.op == opSettle && q.cost < q.charged && err == nil {
		l.lines.freed(q.key)
	}
	if !q.beside && err == nil && !res.Allowed && l.shadows(q.subject) {
		q.shadow(&res)
	}
	l.tell(ctx, q, index, t, &res, fault)
	return res, err
}

// decideAll is the way of several requests to their Results.
func (l *Limiter) decideAll(ctx context.Context, op string, least int64, reqs []Request) (Results, error) {
	questions, err := l.askAll(op, least, reqs)
	if err != nil {
		for n, req := range reqs {
			l.tellRefused(ctx, op, req, n, len(reqs), err)
		}
		return Results{}, err
	}
	i := together(op, questions)
	t := l.depart(len(questions))
	t.script = i.script
	answer, err := l.loader.run(ctx, i)
	l.arrive(&t, answer)
	var results Results
	if err == nil {
		results, err = decodeAll(answer, questions)
	}
	if err != nil {
		err = failure(ctx, op, i.keys, err)
	}
	fault := err
	if err != nil && l.standIn.covers(op, err) {
		results, err = l.standIn.decideAll(questions), nil
	}
	if err == nil && !results.Allowed {
		l.shadow(&results, questions)
	}
	for n := range questions {
		var res Result
		if err == nil {
			res = results.Each[n]
		}
		l.tell(ctx, &questions[n], n, &t, &res, fault)
	}
	return results, err
}

// question is a checked request with its key.
type question struct {
	op      string
	subject string
	tag     string
	key     string // the Redis key
	policy  Policy
	cost    int64 // settle: what the cost should have been
	charged int64 // settle: what it was
	receipt int64 // settle: of the charge
	beside  bool  // of a candidate: it decides nothing
	mark    mark  // take: when it was sent, if there is a DenyCache
}

// check checks a request, whose cost is at least that much. No argument that fails here reaches Redis.
func check(least int64, req *Request) error {
	if err := validate(req.Key, &req.Policy); err != nil {
		return err
	}
	if most := req.Policy.most(); req.Cost < least || req.Cost > most {
		want := strconv.FormatInt(least, 10) + " to " + strconv.FormatInt(most, 10) + ", the limit"
		if req.Policy.shards > 0 {
			want += " of a shard"
		}
		return &InputError{Field: "cost", Value: strconv.FormatInt(req.Cost, 10), Want: want, fault: ErrInvalidCost}
	}
	return nil
}

// question is what a request that was checked asks.
func (l *Limiter) question(op string, req *Request) question {
	key := l.keys.key(req.Key, req.Tag, req.Policy)
	return question{op: op, subject: req.Key, tag: req.Tag, key: key, policy: req.Policy, cost: req.Cost}
}

// askAll checks requests that are asked together.
func (l *Limiter) askAll(op string, least int64, reqs []Request) ([]question, error) {
	if len(reqs) < 1 || len(reqs) > maxTogether {
		const want = "1 to 16"
		return nil, &InputError{Field: "the number of requests", Value: strconv.Itoa(len(reqs)), Want: want, fault: ErrInvalidRequests}
	}
	questions := make([]question, len(reqs))
	for n, req := range reqs {
		if err := check(least, &req); err != nil {
			return nil, nameRequest(n, err)
		}
		if req.Policy.shards > 0 {
			const want = "one that is not sharded"
			return nil, &InputError{Field: "policy of " + nth(n), Value: req.Policy.String(), Want: want, fault: ErrCrossSlot}
		}
		q := l.question(op, &req)
		if req.slot() != reqs[0].slot() {
			const want = "all of one Key or one Tag"
			return nil, &InputError{Field: nth(n), Value: "in another slot than reqs[0]", Want: want, fault: ErrCrossSlot}
		}
		for m := range n {
			if questions[m].key == q.key {
				const want = "each on a limit of its own (Policy.Named tells limits of one algorithm and window apart)"
				return nil, &InputError{Field: nth(n), Value: "on the same limit as " + nth(m), Want: want, fault: ErrInvalidRequests}
			}
		}
		questions[n] = q
	}
	return questions, nil
}

// slot is the subject whose digest is the key's hash tag.
func (r *Request) slot() string {
	if r.Tag != "" {
		return r.Tag
	}
	return r.Key
}

func nth(n int) string { return "reqs[" + strconv.Itoa(n) + "]" }

// nameRequest says which of several requests was refused.
func nameRequest(n int, err error) error {
	var refused *InputError
	if !errors.As(err, &refused) {
		return err
	}
	named := *refused
	named.Field += " of " + nth(n)
	return &named
}

// validate checks what every request has.
func validate(key string, p *Policy) error {
	if key == "" {
		return &InputError{Field: "key", Value: `""`, Want: "at least one byte", fault: ErrInvalidKey}
	}
	return p.validate()
}

// invocation is the question as its script takes it: operation, cost, the policy and, to settle, the receipt.
func (q *question) invocation() *invocation {
	var room [96]byte
	b := append(room[:0], q.op...)
	b = strconv.AppendInt(append(b, ' '), q.cost-q.charged, 10)
	b = q.policy.appendArgs(b)
	if q.op == opSettle {
		b = strconv.AppendInt(append(b, ' '), q.receipt, 10)
	}
	i := &invocation{script: &scripts[q.policy.kind]}
	i.keys = append(i.room[:0:1], q.key)
	i.args = appendWords(i.room[1:1], string(b))
	return i
}

// together is several questions as multi.lua takes them: the operation, then for each its algorithm, cost and policy.
func together(op string, questions []question) *invocation {
	var room [512]byte
	b := append(room[:0], op...)
	keys := make([]string, len(questions))
	for n, q := range questions {
		keys[n] = q.key
		b = append(append(b, ' '), scripts[q.policy.kind].name...)
		b = strconv.AppendInt(append(b, ' '), q.cost, 10)
		b = q.policy.appendArgs(b)
	}
	return &invocation{script: &scripts[multi], keys: keys, args: appendWords(make([]string, 0, 1+5*len(questions)), string(b))}
}

// appendWords appends the words between the blanks of a text. They are one allocation, the text's.
func appendWords(words []string, text string) []string {
	for word := range strings.SplitSeq(text, " ") {
		words = append(words, word)
	}
	return words
}

// answer reads what the script said to the question.
func (q *question) answer(answer said) (Result, error) {
	elements, err := readArray(answer)
	if err != nil {
		return Result{}, err
	}
	result, err := q.result(elements)
	if err != nil {
		return Result{}, err
	}
	q.charge(&result)
	return result, nil
}
