package sluice

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/rueidis"
)

// The scripts' texts, and their SHA-1 digests as in scripts/SHA1SUMS. The digests are pinned, not computed, so that a changed
// script can't go out unnoticed and so that nothing here needs SHA-1, which a FIPS 140 build of Go refuses.
var (
	//go:embed scripts/sliding_log.lua
	slidingLogText string
	//go:embed scripts/sliding_counter.lua
	slidingCounterText string
	//go:embed scripts/token_bucket.lua
	tokenBucketText string
	//go:embed scripts/multi.lua
	multiText string
)

// The scripts as a library of Redis Functions.
//
//go:embed scripts/functions.lua
var libraryText string

// libraryVersion is that of libraryText. It is in its functions' names, so a library that is older has none of them.
const (
	libraryVersion  = 1
	functionPrefix  = "sluice_v1_"
	peekSuffix      = "_peek"
	versionFunction = "sluice_version"
)

const (
	slidingLogSHA1     = "bc4751859cbdb0f0e4e561b6265bc0c8eebe39f4"
	slidingCounterSHA1 = "bf839e2a7734e1b03b1262322559c6bb93ff5f06"
	tokenBucketSHA1    = "59566d5e63143ea0d0461d8d944bb608c043d105"
	multiSHA1          = "5f53c00877b385de7b5a7b13b9aba3be979c16ec"
)

type script struct {
	name     string // of the file in scripts/, and of the algorithm in the arguments of multi.lua
	function string
	sha1     string
	text     string
}

// multi is the place among the scripts of the one for several limits at once.
const multi = tokenBucket + 1

var scripts = [...]script{
	slidingLog:     {"sliding_log", functionPrefix + "sliding_log", slidingLogSHA1, slidingLogText},
	slidingCounter: {"sliding_counter", functionPrefix + "sliding_counter", slidingCounterSHA1, slidingCounterText},
	tokenBucket:    {"token_bucket", functionPrefix + "token_bucket", tokenBucketSHA1, tokenBucketText},
	multi:          {"multi", functionPrefix + "multi", multiSHA1, multiText},
}

// FunctionLibrary is the scripts as a library of Redis Functions: what [Config.Functions] needs on the server. [Limiter.Load] puts it
// where there is none; to replace an older one, send it as FUNCTION LOAD REPLACE. It is scripts/functions.lua.
func FunctionLibrary() string { return libraryText }

// Operations: the first three are the scripts'.
const (
	opTake   = "take"
	opPeek   = "peek"
	opSettle = "settle"
	opReset  = "reset"
	opLoad   = "load"
)

// invocation is one run of a script. It outlives its command, which rueidis recycles once it's answered, so that it can
// be sent again.
type invocation struct {
	script *script
	keys   []string
	args   []string
	room   [7]string // for the keys and args of one limit, so that they cost no allocation of their own
}

// byDigest is the invocation as it is sent first.
func (i *invocation) byDigest(b rueidis.Builder) rueidis.Completed {
	return b.Evalsha().Sha1(i.script.sha1).Numkeys(int64(len(i.keys))).Key(i.keys...).Arg(i.args...).Build()
}

// byText is the invocation as it is sent to a server that does not know the script, which it does from then on.
func (i *invocation) byText(b rueidis.Builder) rueidis.Completed {
	return b.Eval().Script(i.script.text).Numkeys(int64(len(i.keys))).Key(i.keys...).Arg(i.args...).Build()
}

// byName is the invocation as a call of a function. A peek goes by FCALL_RO, which needs no right to write; it isn't marked as read-only,
// like no other command.
func (i *invocation) byName(b rueidis.Builder) rueidis.Completed {
	if i.args[0] == opPeek {
		return i.readOnly(b, i.script.function+peekSuffix, i.args)
	}
	return b.Fcall().Function(i.script.function).Numkeys(int64(len(i.keys))).Key(i.keys...).Arg(i.args...).Build()
}

// askVersion asks for the version of the library on the node that has the invocation's keys.
func (i *invocation) askVersion(b rueidis.Builder) rueidis.Completed {
	return i.readOnly(b, versionFunction, nil)
}

// command is what an operation sends first, and the script or function that it calls, if it does.
func (l *loader) command(op string, s *script) (command, procedure string) {
	switch {
	case op == opReset:
		return "UNLINK", ""
	case op == opLoad && l.functions:
		return "FUNCTION LOAD", ""
	case op == opLoad:
		return "SCRIPT LOAD", ""
	case !l.functions:
		return "EVALSHA", s.name
	case op == opPeek:
		return "FCALL_RO", s.function + peekSuffix
	}
	return "FCALL", s.function
}

func (i *invocation) readOnly(b rueidis.Builder, function string, args []string) rueidis.Completed {
	return b.Arbitrary("FCALL_RO", function, strconv.Itoa(len(i.keys))).Keys(i.keys...).Args(args...).Build()
}

// loader is all that talks to Redis.
//
// None of its commands is marked as read-only or retryable, so rueidis sends each of them once: its retries (after a
// broken connection, LOADING, TRYAGAIN, CLUSTERDOWN) are for commands so marked. What it repeats for any command is
// what a node has refused to run, a MOVED, ASK or REDIRECT, and what was cut off by ClientOption.ConnLifetime (see
// New).
type loader struct {
	client    rueidis.Client
	timeout   time.Duration
	breaker   Breaker // nil: none
	functions bool
}

// said is what came back for a command.
type said struct {
	res      rueidis.RedisResult
	reloaded bool          // the server did not know the script, and was sent it
	library  *LibraryError // the server did not know the function
}

// err is what failed, if that was Redis: what a breaker is to know.
func (s said) err() error {
	if s.library != nil {
		return s.library
	}
	return redisFault(s.res.Error())
}

// saidAll is what came back for a pipeline.
type saidAll []said

func (all saidAll) err() error {
	for _, s := range all {
		if err := s.err(); err != nil {
			return err
		}
	}
	return nil
}

// unanswered is what failed, if Redis answered nothing at all.
func (all saidAll) unanswered() error {
	var failed error
	for _, s := range all {
		if failed = s.err(); failed == nil || classify(failed) == ClassUnavailable {
			return nil
		}
	}
	return failed
}

// run runs one invocation.
func (l *loader) run(ctx context.Context, i *invocation) (said, error) {
	if l.functions {
		return within(ctx, l, l.client, i, callFunction)
	}
	return within(ctx, l, l.client, i, evaluate)
}

func evaluate(ctx context.Context, client rueidis.Client, i *invocation) said {
	res := client.Do(ctx, i.byDigest(client.B()))
	if !isNoScript(res.Error()) {
		return said{res: res}
	}
	return said{res: client.Do(ctx, i.byText(client.B())), reloaded: true}
}

func callFunction(ctx context.Context, client rueidis.Client, i *invocation) said {
	res := client.Do(ctx, i.byName(client.B()))
	if !isNoFunction(res.Error()) {
		return said{res: res}
	}
	return said{library: libraryError(client.Do(ctx, i.askVersion(client.B())), res.Error())}
}

// runAll runs invocations in one pipeline, and sends a second one for those whose script or function was unknown.
func (l *loader) runAll(ctx context.Context, all []*invocation) (saidAll, error) {
	if l.functions {
		return within(ctx, l, l.client, all, callFunctions)
	}
	return within(ctx, l, l.client, all, evaluateAll)
}

func evaluateAll(ctx context.Context, client rueidis.Client, all []*invocation) saidAll {
	results := sendEach(ctx, client, all, (*invocation).byDigest)
	unknown, which := those(all, results, isNoScript)
	for n, again := range sendEach(ctx, client, unknown, (*invocation).byText) {
		results[which[n]] = said{res: again.res, reloaded: true}
	}
	return results
}

func callFunctions(ctx context.Context, client rueidis.Client, all []*invocation) saidAll {
	results := sendEach(ctx, client, all, (*invocation).byName)
	unknown, which := those(all, results, isNoFunction)
	for n, version := range sendEach(ctx, client, unknown, (*invocation).askVersion) {
		results[which[n]] = said{library: libraryError(version.res, results[which[n]].res.Error())}
	}
	return results
}

// those are the invocations with such an error, and their places among all.
func those(all []*invocation, results saidAll, is func(error) bool) (some []*invocation, places []int) {
	for n := range results {
		if is(results[n].res.Error()) {
			some, places = append(some, all[n]), append(places, n)
		}
	}
	return some, places
}

func sendEach(
	ctx context.Context, client rueidis.Client, all []*invocation,
	as func(*invocation, rueidis.Builder) rueidis.Completed,
) saidAll {
	if len(all) == 0 {
		return nil
	}
	commands := make(rueidis.Commands, len(all))
	for n, i := range all {
		commands[n] = as(i, client.B())
	}
	return sendAll(ctx, client, commands)
}

func sendAll(ctx context.Context, client rueidis.Client, commands rueidis.Commands) saidAll {
	all := make(saidAll, len(commands))
	for n, res := range client.DoMulti(ctx, commands...) {
		all[n].res = res
	}
	return all
}

// remove deletes keys.
func (l *loader) remove(ctx context.Context, keys []string) error {
	answers, err := within(ctx, l, l.client, keys, unlink)
	for _, answer := range answers {
		if err == nil {
			err = answer.res.Error()
		}
	}
	return err
}

// unlink sends UNLINK, since a log may be large and its memory can be freed beside the server's main thread. Each key gets
// its own, as they may be in different slots.
func unlink(ctx context.Context, client rueidis.Client, keys []string) saidAll {
	commands := make(rueidis.Commands, len(keys))
	for n, key := range keys {
		commands[n] = client.B().Unlink().Key(key).Build()
	}
	return sendAll(ctx, client, commands)
}

// load sends every script, or the library, to every node that the client knows, all nodes at once, and joins what went wrong.
func (l *loader) load(ctx context.Context) error {
	nodes := l.client.Nodes()
	addrs := slices.Sorted(maps.Keys(nodes))
	errs := make([]error, len(addrs))
	var wg sync.WaitGroup
	for n, addr := range addrs {
		wg.Go(func() {
			if err := l.loadNode(ctx, nodes[addr]); err != nil {
				errs[n] = failure(ctx, opLoad, nil, fmt.Errorf("%s: %w", addr, err))
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

func (l *loader) loadNode(ctx context.Context, node rueidis.Client) error {
	unbroken := &loader{timeout: l.timeout} // what one node does says little about the limits on the others
	if l.functions {
		installed, err := within(ctx, unbroken, node, libraryText, install)
		if err == nil {
			err = installed.fault
		}
		return err
	}
	known := scripts[slidingLog:]
	results, err := within(ctx, unbroken, node, known, sendScripts)
	if err != nil {
		return err
	}
	for n := range results {
		digest, err := results[n].res.ToString()
		if err != nil {
			return err
		}
		if digest != known[n].sha1 {
			return &replyError{what: known[n].name + ".lua has the digest " + strconv.Quote(clip(digest)) + ", want " + known[n].sha1}
		}
	}
	return nil
}

func sendScripts(ctx context.Context, node rueidis.Client, all []script) saidAll {
	commands := make(rueidis.Commands, len(all))
	for n := range all {
		commands[n] = node.B().ScriptLoad().Script(all[n].text).Build()
	}
	return sendAll(ctx, node, commands)
}

// installed is what came of putting the library on a node.
type installed struct{ fault error }

func (i installed) err() error { return i.fault }

// install puts the library on a node that has none, and checks the one that it has. It replaces none: another program may need it
// as it is.
func install(ctx context.Context, node rueidis.Client, text string) installed {
	ask := func() rueidis.RedisResult {
		return node.Do(ctx, node.B().Arbitrary("FCALL_RO", versionFunction, "0").Build())
	}
	has := ask()
	missing := has.Error()
	if isNoFunction(missing) {
		refused := node.Do(ctx, node.B().FunctionLoad().FunctionCode(text).Build()).Error()
		if status(refused) == "READONLY" {
			return installed{} // a replica, to which its primary sends the library
		}
		if refused != nil { // if not because another process was faster
			missing = refused
		}
		has = ask()
	}
	version, digest, err := readVersion(has)
	switch {
	case isNoFunction(err):
		return installed{&LibraryError{Err: missing}}
	case err != nil:
		return installed{err}
	case version < libraryVersion:
		return installed{&LibraryError{Version: version}}
	case version == libraryVersion && digest != ownDigest(text):
		return installed{&replyError{what: "the library of functions has the digest " + strconv.Quote(clip(digest)) + ", which its version has not"}}
	}
	// A call without a key is refused by a function that is there. A later library may have this version's functions no more.
	probe := node.Do(ctx, node.B().Arbitrary("FCALL_RO", scripts[multi].function+peekSuffix, "0", opPeek).Build()).Error()
	switch {
	case probe == nil:
		return installed{&replyError{what: scripts[multi].function + peekSuffix + " takes a call without a key"}}
	case isNoFunction(probe):
		return installed{&LibraryError{Version: version, Err: probe}}
	case strings.HasPrefix(probe.Error(), "SLUICEARG"):
		return installed{}
	}
	return installed{probe}
}

// ownDigest is what the text of a library says of itself: its last word in quotes.
func ownDigest(text string) string {
	end := strings.LastIndexByte(text, '\'')
	return text[strings.LastIndexByte(text[:end], '\'')+1 : end]
}

// readVersion reads what versionFunction tells.
func readVersion(res rueidis.RedisResult) (version int64, digest string, err error) {
	elements, err := readArray(said{res: res})
	if err != nil {
		return 0, "", err
	}
	if len(elements) != 2 {
		return 0, "", &replyError{what: versionFunction + " has " + strconv.Itoa(len(elements)) + " elements, want 2"}
	}
	if version, err = elements[0].ToInt64(); err == nil {
		digest, err = elements[1].ToString()
	}
	if err != nil {
		return 0, "", &replyError{what: versionFunction + ": " + err.Error()}
	}
	return version, digest, nil
}

// libraryError says why a function is missing, by what was said of the version.
func libraryError(version rueidis.RedisResult, missing error) *LibraryError {
	e := &LibraryError{Err: missing}
	e.Version, _, _ = readVersion(version) // 0 if there is none
	return e
}

// notSentError marks the errors of calls that ended before anything was sent.
type notSentError struct{ error }

func (e notSentError) Unwrap() error { return e.error }

func notSentAtAll(err error) bool {
	var notSent notSentError
	return errors.As(err, &notSent)
}

// within has f send what it is for: through the breaker and for as long as the timeout, if there are any. f is a plain
// function that is handed its argument: a closure would cost every call an allocation.
//
// f gets a goroutine when there is a timeout, since rueidis does not look at the context everywhere: a call waits for a
// connection that another call is dialling and for room in a full pipeline, and in a cluster for the topology, however
// long its own deadline has passed. Whatever f goes on to do by itself, it sends nothing more: rueidis looks at the
// context before it writes a command.
func within[A any, T interface{ err() error }](
	ctx context.Context, l *loader, client rueidis.Client, arg A,
	f func(ctx context.Context, client rueidis.Client, arg A) T,
) (T, error) {
	var none T
	if err := ctx.Err(); err != nil {
		return none, notSentError{err}
	}
	if l.timeout == 0 { // so there is no breaker
		return f(ctx, client, arg), nil
	}
	if l.breaker != nil {
		return withinBreaker(ctx, l, client, arg, f)
	}
	bounded, cancel := context.WithTimeout(ctx, l.timeout)
	defer cancel()
	answer := make(chan T, 1)
	go func() { answer <- f(bounded, client, arg) }()
	return await(bounded, answer)
}

// withinBreaker is within, where there are a timeout and a breaker.
//
// The breaker learns how every call went, whatever its caller does meanwhile: so f does not stop when the caller's
// context ends. Were such calls failures, callers who hang up could open the breaker; were they left out, they could use
// up the probes and keep it from closing.
func withinBreaker[A any, T interface{ err() error }](
	ctx context.Context, l *loader, client rueidis.Client, arg A,
	f func(ctx context.Context, client rueidis.Client, arg A) T,
) (T, error) {
	var none T
	done, err := l.breaker.Allow()
	if err != nil {
		return none, notSentError{&breakerError{err}}
	}
	bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), l.timeout)
	answer := make(chan T, 1)
	go func() { answer <- f(bounded, client, arg) }()
	report := func(res T, err error) (T, error) {
		cancel()
		if err == nil {
			done(res.err())
		} else {
			done(err)
		}
		return res, err
	}
	select {
	case res := <-answer:
		return report(res, nil)
	case <-bounded.Done():
		return report(await(bounded, answer))
	case <-ctx.Done():
	}
	select {
	case res := <-answer:
		return report(res, nil)
	default:
		go func() { _, _ = report(await(bounded, answer)) }()
		return none, ctx.Err()
	}
}

// await waits for an answer, for as long as the context.
func await[T any](ctx context.Context, answer <-chan T) (T, error) {
	select {
	case res := <-answer:
		return res, nil
	case <-ctx.Done():
	}
	select { // an answer in the same instant still counts
	case res := <-answer:
		return res, nil
	default:
		var none T
		return none, ctx.Err()
	}
}

// isNoScript says whether the server does not know the script, so that nothing ran. The error may have been wrapped by
// the client.
func isNoScript(err error) bool {
	if err == nil {
		return false // as nearly always, without the allocation below
	}
	var said *rueidis.RedisError
	return errors.As(err, &said) && said.IsNoScript()
}

// isNoFunction says whether the server does not know the function, or no functions at all, so that nothing ran.
func isNoFunction(err error) bool {
	if err == nil {
		return false
	}
	var said *rueidis.RedisError
	if !errors.As(err, &said) {
		return false
	}
	text := strings.TrimPrefix(said.Error(), "ERR ") // which rueidis has cut off, as of today
	return text == "Function not found" || strings.HasPrefix(text, "unknown command")
}

// failure makes the error of a failed call on these keys. It looks at the error as the client returned it, before
// anything hides its type.
func failure(ctx context.Context, op string, keys []string, err error) error {
	e := &CallError{Op: op, Class: classify(err), Err: err, fault: ErrBackend}
	var said *rueidis.RedisError
	var library *LibraryError
	switch {
	case errors.As(err, &library): // nothing ran
	case errors.Is(err, ErrReply):
		e.Unknown = changes(op)
	case errors.As(err, &said):
		// The server refused: the scripts check before they write, so nothing was charged, but for a right that is missing
		// half-way.
		switch text := said.Error(); {
		case deniedInScript(text):
			e.Unknown = changes(op)
		case said.IsNil():
			e.Err, e.Unknown = &replyError{what: "nil"}, changes(op)
		case strings.HasPrefix(text, "SLUICESTATE"):
			e.Err = stateError(keys, strings.TrimSpace(strings.TrimPrefix(text, "SLUICESTATE")))
		case strings.HasPrefix(text, "SLUICEARG"):
			// Arguments are checked before they are sent, so client and script disagree about the contract.
			e.Err = &replyError{what: text, err: err}
		}
	default:
		e.Unknown = changes(op) && maySent(err)
		if ended(ctx) {
			e.Class, e.fault = ClassCanceled, nil
		}
	}
	return e
}

// stateError says which of the keys it is that a script calls KEYS[n]; none if there is no such key.
func stateError(keys []string, message string) *StateError {
	e := &StateError{Message: message}
	_, after, _ := strings.Cut(message, "KEYS[")
	digits, _, _ := strings.Cut(after, "]")
	if n, err := strconv.Atoi(digits); err == nil && 1 <= n && n <= len(keys) {
		e.Key = keys[n-1]
	}
	return e
}

// changes says whether an operation changes a limit.
func changes(op string) bool { return op != opPeek && op != opLoad }

// maySent says whether a command that failed without an answer may have been sent.
func maySent(err error) bool {
	var network *net.OpError
	return !notSentAtAll(err) && !errors.Is(err, rueidis.ErrNoSlot) &&
		!(errors.As(err, &network) && network.Op == "dial")
}

// ended says whether the caller's context has ended. A read that is cut off by the context's deadline can return before the
// context's own timer has run, so the deadline itself counts too.
func ended(ctx context.Context) bool {
	if ctx.Err() != nil {
		return true
	}
	deadline, ok := ctx.Deadline()
	return ok && !time.Now().Before(deadline)
}
