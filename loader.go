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
)

const (
	slidingLogSHA1     = "f87e670755c47b87849cbc141c044204199170fd"
	slidingCounterSHA1 = "28adf4a49a6fcb29c8508dfd4760678ab499b7a8"
	tokenBucketSHA1    = "8719f57efb35b6e9358e73a2be5cf49a5674d3ef"
)

type script struct {
	file string // in scripts/
	sha1 string
	text string
}

var scripts = [...]script{
	slidingLog:     {"sliding_log.lua", slidingLogSHA1, slidingLogText},
	slidingCounter: {"sliding_counter.lua", slidingCounterSHA1, slidingCounterText},
	tokenBucket:    {"token_bucket.lua", tokenBucketSHA1, tokenBucketText},
}

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
	key    string
	args   []string
}

// byDigest is the invocation as it is sent first.
func (i *invocation) byDigest(b rueidis.Builder) rueidis.Completed {
	return b.Evalsha().Sha1(i.script.sha1).Numkeys(1).Key(i.key).Arg(i.args...).Build()
}

// byText is the invocation as it is sent to a server that does not know the script, which it does from then on.
func (i *invocation) byText(b rueidis.Builder) rueidis.Completed {
	return b.Eval().Script(i.script.text).Numkeys(1).Key(i.key).Arg(i.args...).Build()
}

// loader is all that talks to Redis.
//
// None of its commands is marked as read-only or retryable, so rueidis sends each of them once: its retries (after a
// broken connection, LOADING, TRYAGAIN, CLUSTERDOWN) are for commands so marked. What it repeats for any command is
// what a node has refused to run, a MOVED, ASK or REDIRECT, and what was cut off by ClientOption.ConnLifetime (see
// New).
type loader struct {
	client  rueidis.Client
	timeout time.Duration
}

// run runs one invocation.
func (l *loader) run(ctx context.Context, i *invocation) (rueidis.RedisResult, error) {
	return within(ctx, l.timeout, func(ctx context.Context) rueidis.RedisResult {
		res := l.client.Do(ctx, i.byDigest(l.client.B()))
		if isNoScript(res.Error()) {
			res = l.client.Do(ctx, i.byText(l.client.B()))
		}
		return res
	})
}

// runAll runs invocations in one pipeline, and those whose script was unknown in a second one.
func (l *loader) runAll(ctx context.Context, all []*invocation) ([]rueidis.RedisResult, error) {
	return within(ctx, l.timeout, func(ctx context.Context) []rueidis.RedisResult {
		commands := make(rueidis.Commands, len(all))
		for n, i := range all {
			commands[n] = i.byDigest(l.client.B())
		}
		results := l.client.DoMulti(ctx, commands...)

		var unknown []int
		var again rueidis.Commands // not commands[:0], which the client may still be reading if the context ended
		for n, res := range results {
			if isNoScript(res.Error()) {
				unknown = append(unknown, n)
				again = append(again, all[n].byText(l.client.B()))
			}
		}
		if len(unknown) > 0 {
			for n, res := range l.client.DoMulti(ctx, again...) {
				results[unknown[n]] = res
			}
		}
		return results
	})
}

// remove deletes a key. UNLINK, since a log may be large and its memory can be freed beside the server's main thread.
func (l *loader) remove(ctx context.Context, key string) error {
	res, err := within(ctx, l.timeout, func(ctx context.Context) rueidis.RedisResult {
		return l.client.Do(ctx, l.client.B().Unlink().Key(key).Build())
	})
	if err == nil {
		err = res.Error()
	}
	return err
}

// load sends every script to every node that the client knows, all nodes at once, and joins what went wrong.
func (l *loader) load(ctx context.Context) error {
	nodes := l.client.Nodes()
	addrs := slices.Sorted(maps.Keys(nodes))
	errs := make([]error, len(addrs))
	var wg sync.WaitGroup
	for n, addr := range addrs {
		wg.Go(func() {
			if err := l.loadNode(ctx, nodes[addr]); err != nil {
				errs[n] = failure(ctx, opLoad, "", fmt.Errorf("%s: %w", addr, err))
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

func (l *loader) loadNode(ctx context.Context, node rueidis.Client) error {
	known := scripts[slidingLog:]
	results, err := within(ctx, l.timeout, func(ctx context.Context) []rueidis.RedisResult {
		commands := make(rueidis.Commands, len(known))
		for n := range known {
			commands[n] = node.B().ScriptLoad().Script(known[n].text).Build()
		}
		return node.DoMulti(ctx, commands...)
	})
	if err != nil {
		return err
	}
	for n, res := range results {
		digest, err := res.ToString()
		if err != nil {
			return err
		}
		if digest != known[n].sha1 {
			return &replyError{what: known[n].file + " has the digest " + strconv.Quote(clip(digest)) + ", want " + known[n].sha1}
		}
	}
	return nil
}

// notSentError marks the errors of calls that ended before anything was sent.
type notSentError struct{ error }

func (e notSentError) Unwrap() error { return e.error }

// within runs f, for as long as the timeout if there is one.
//
// f gets a goroutine then, since rueidis does not look at the context everywhere: a call waits for a connection that
// another call is dialling and for room in a full pipeline, and in a cluster for the topology, however long its own
// deadline has passed. Whatever f goes on to do by itself, it sends nothing more: rueidis looks at the context before
// it writes a command.
func within[T any](ctx context.Context, timeout time.Duration, f func(context.Context) T) (T, error) {
	if err := ctx.Err(); err != nil {
		var none T
		return none, notSentError{err}
	}
	if timeout == 0 {
		return f(ctx), nil
	}
	bounded, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	answer := make(chan T, 1)
	go func() { answer <- f(bounded) }()
	select {
	case res := <-answer:
		return res, nil
	case <-bounded.Done():
	}
	select { // an answer in the same instant still counts
	case res := <-answer:
		return res, nil
	default:
		var none T
		return none, bounded.Err()
	}
}

// isNoScript says whether the server does not know the script, so that nothing ran. The error may have been wrapped by
// the client.
func isNoScript(err error) bool {
	var said *rueidis.RedisError
	return errors.As(err, &said) && said.IsNoScript()
}

// failure makes the error of a failed call. It looks at the error as the client returned it, before anything hides its type.
func failure(ctx context.Context, op, key string, err error) error {
	e := &CallError{Op: op, Err: err, fault: ErrBackend}
	var said *rueidis.RedisError
	switch {
	case errors.Is(err, ErrReply):
		e.Unknown = changes(op)
	case errors.As(err, &said):
		// The server refused: the scripts check before they write, so nothing was charged.
		switch text := said.Error(); {
		case said.IsNil():
			e.Err, e.Unknown = &replyError{what: "nil"}, changes(op)
		case strings.HasPrefix(text, "SLUICESTATE"):
			e.Err = &StateError{Key: key, Message: strings.TrimSpace(strings.TrimPrefix(text, "SLUICESTATE"))}
		case strings.HasPrefix(text, "SLUICEARG"):
			// Arguments are checked before they are sent, so client and script disagree about the contract.
			e.Err = &replyError{what: text, err: err}
		}
	default:
		e.Unknown = changes(op) && maySent(err)
		if ended(ctx) {
			e.fault = nil
		}
	}
	return e
}

// changes says whether an operation changes a limit.
func changes(op string) bool { return op != opPeek && op != opLoad }

// maySent says whether a command that failed without an answer may have been sent.
func maySent(err error) bool {
	var notSent notSentError
	var network *net.OpError
	return !errors.As(err, &notSent) && !errors.Is(err, rueidis.ErrNoSlot) &&
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
