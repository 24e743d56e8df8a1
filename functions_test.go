package sluice

import (
	"context"
	"errors"
	"io"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/rueidis"
)

// versionReply is what sluice_version tells.
func versionReply(version int64, digest string) rueidis.RedisResult {
	content := [][]byte{element(':', version), textElement('$', digest)}
	return rueidis.NewResult(message(element('*', 2, content...)), nil)
}

var (
	noFunction = errorReply("ERR Function not found")
	// digestOf is what the library says of itself.
	digestOf = regexp.MustCompile(`'([0-9a-f]{40})'`).FindStringSubmatch(FunctionLibrary())[1]
)

// library is a fake server of functions, with the library of a version; 0 is none.
type library struct {
	version int64
	digest  string
	refuses rueidis.RedisResult // its answer to FUNCTION LOAD, if it refuses
	other   bool                // another process loads it just before
	keeps   bool                // it has the functions of libraryVersion too
}

func (lib *library) fake(answer rueidis.RedisResult) *fake {
	return &fake{answer: func(_ context.Context, words []string) rueidis.RedisResult {
		switch {
		case words[0] == "FUNCTION":
			if lib.other {
				lib.version, lib.digest = libraryVersion, digestOf
				return errorReply("ERR Library 'sluice' already exists")
			}
			if lib.refuses.Error() != nil {
				return lib.refuses
			}
			if words[1] == "LOAD" && len(words) == 3 && words[2] == FunctionLibrary() {
				lib.version, lib.digest = libraryVersion, digestOf
			}
			return textReply("sluice")
		case lib.version == 0:
			return noFunction
		case words[1] == "sluice_version":
			return versionReply(lib.version, lib.digest)
		case lib.version != libraryVersion && !lib.keeps:
			return noFunction
		case words[2] == "0":
			return errorReply("SLUICEARG KEYS must be 1 to 16 different keys")
		}
		return answer
	}}
}

func TestFunctionsAreCalledByName(t *testing.T) {
	lib := &library{version: libraryVersion}
	client := lib.fake(fiveReply(1, 5, 0, 60_000, 1_700_000_000_123_456))
	l := newLimiter(t, client, Config{PlainKeys: true, Functions: true})
	log, bucket := SlidingLog(10, time.Minute), TokenBucket(50, 10, time.Second)
	res, err := l.AllowN(t.Context(), "a", log, 3)
	if err == nil {
		_, err = l.Settle(t.Context(), res, 5)
	}
	if err == nil {
		_, err = l.Peek(t.Context(), "a", bucket, 2)
	}
	for _, out := range l.Batch(t.Context(), Request{Key: "a", Policy: log, Cost: 1}, Request{Key: "a", Policy: SlidingCounter(10, time.Minute), Cost: 1}) {
		err = errors.Join(err, out.Err)
	}
	if err != nil {
		t.Fatal(err)
	}
	client.answer = lib.fake(fiveReply(1, 0, 1, 5, 0, 60_000, 1)).answer
	for _, ask := range []func(context.Context, ...Request) (Results, error){l.AllowAll, l.PeekAll} {
		if _, err := ask(t.Context(), Request{Key: "a", Policy: log, Cost: 1}); err != nil {
			t.Fatal(err)
		}
	}
	want := []string{
		"FCALL sluice_v1_sliding_log 1 sluice:{a}:log/60000 take 3 10 60000",
		"FCALL sluice_v1_sliding_log 1 sluice:{a}:log/60000 settle 2 10 60000 1700000000123456",
		"FCALL_RO sluice_v1_token_bucket_peek 1 sluice:{a}:bucket/1000 peek 2 50 10 1000",
		"FCALL sluice_v1_sliding_log 1 sluice:{a}:log/60000 take 1 10 60000",
		"FCALL sluice_v1_sliding_counter 1 sluice:{a}:counter/60000 take 1 10 60000",
		"FCALL sluice_v1_multi 1 sluice:{a}:log/60000 take sliding_log 1 10 60000",
		"FCALL_RO sluice_v1_multi_peek 1 sluice:{a}:log/60000 peek sliding_log 1 10 60000",
	}
	var got []string
	for _, words := range client.sent {
		got = append(got, strings.Join(words, " "))
	}
	if !slices.Equal(got, want) {
		t.Errorf("sent\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	for _, s := range scripts[slidingLog:] {
		if !strings.Contains(FunctionLibrary(), "register('"+s.name+"'") || s.function != functionPrefix+s.name {
			t.Errorf("%s: the library does not register %s", s.name, s.function)
		}
	}
	if !strings.Contains(FunctionLibrary(), "'"+functionPrefix+"' .. name") {
		t.Errorf("the names of the library do not start with %s", functionPrefix)
	}
}

// TestMissingLibraryIsTold at every call, with the version that is there.
func TestMissingLibraryIsTold(t *testing.T) {
	unknownCommand := errorReply("ERR unknown command 'FCALL', with args beginning with: 'sluice_v1_sliding_log' '1' ")
	for name, c := range map[string]struct {
		client  *fake
		version int64
		says    string
	}{
		"none":      {(&library{}).fake(fiveReply()), 0, "no library of functions of version 1 (Limiter.Load puts it there): Function not found"},
		"old Redis": {replying(unknownCommand), 0, "no library of functions of version 1 (Limiter.Load puts it there): unknown command 'FCALL'"},
		"older":     {(&library{version: -1}).fake(fiveReply()), -1, "has version -1 and not 1 (replace it: FUNCTION LOAD REPLACE)"},
		"newer":     {(&library{version: 7}).fake(fiveReply()), 7, "has version 7, and not the functions of version 1"},
		"garbled": {&fake{answer: func(_ context.Context, words []string) rueidis.RedisResult {
			if words[1] == "sluice_version" {
				return fiveReply(1)
			}
			return noFunction
		}}, 0, "no library of functions of version 1"},
	} {
		t.Run(name, func(t *testing.T) {
			var events []Event
			l := newLimiter(t, c.client, Config{Functions: true, Observe: func(_ context.Context, e Event) { events = append(events, e) }})
			check := func(err error) {
				t.Helper()
				var missing *LibraryError
				var call *CallError
				if !errors.As(err, &missing) || missing.Version != c.version || !strings.Contains(err.Error(), c.says) {
					t.Errorf("got %v, want a LibraryError of version %d that says %q", err, c.version, c.says)
				}
				if !errors.Is(err, ErrBackend) || !errors.As(err, &call) || call.Unknown || call.Class != ClassUnavailable {
					t.Errorf("got %+v, want a CallError, unavailable, of which the outcome is known", call)
				}
			}
			p := SlidingLog(10, time.Minute)
			_, err := l.Allow(t.Context(), "a", p)
			check(err)
			_, err = l.Peek(t.Context(), "a", p, 1)
			check(err)
			_, err = l.AllowAll(t.Context(), Request{Key: "a", Policy: p, Cost: 1})
			check(err)
			for _, out := range l.Batch(t.Context(), Request{Key: "a", Policy: p, Cost: 1}, Request{Key: "b", Policy: p, Cost: 1}) {
				check(out.Err)
			}
			if got, want := c.client.verbs(), "FCALL FCALL_RO FCALL_RO FCALL_RO FCALL FCALL_RO FCALL FCALL FCALL_RO FCALL_RO"; got != want {
				t.Errorf("sent %s, want %s", got, want)
			}
			for _, e := range events {
				if e.Class != ClassUnavailable {
					t.Errorf("event %+v, want it unavailable", e)
				}
			}
		})
	}
}

// TestOneOfABatchHasNoFunction: on a cluster, one node may lack what the others have.
func TestOneOfABatchHasNoFunction(t *testing.T) {
	p, client := SlidingLog(10, time.Minute), &fake{}
	client.answer = func(_ context.Context, words []string) rueidis.RedisResult {
		if strings.Contains(words[3], "{b}") {
			return noFunction
		}
		return fiveReply(1, 5, 0, 60_000, 1)
	}
	l := newLimiter(t, client, Config{PlainKeys: true, Functions: true, OnFailure: FailClosed})
	out := l.Batch(t.Context(), Request{Key: "a", Policy: p, Cost: 1}, Request{Key: "b", Policy: p, Cost: 1}, Request{Key: "c", Policy: p, Cost: 1})
	if !out[0].Result.Allowed || out[0].Result.Degraded || !out[2].Result.Allowed || out[2].Result.Degraded {
		t.Errorf("got %+v and %+v, want them allowed", out[0], out[2])
	}
	if out[1].Err != nil || out[1].Result.Allowed || !out[1].Result.Degraded {
		t.Errorf("got %+v, want it denied by FailClosed", out[1])
	}
}

func TestLoadOfTheLibrary(t *testing.T) {
	readOnly := errorReply("READONLY You can't write against a read only replica.")
	full := errorReply("OOM command not allowed when used memory > 'maxmemory'.")
	altered := strings.Repeat("0", 40)
	for name, c := range map[string]struct {
		lib  library
		sent string
		says string // "": no error
		is   error
	}{
		"none":            {library{}, "FCALL_RO FUNCTION FCALL_RO FCALL_RO", "", nil},
		"the same":        {library{version: libraryVersion, digest: digestOf}, "FCALL_RO FCALL_RO", "", nil},
		"newer":           {library{version: libraryVersion + 1, digest: altered, keeps: true}, "FCALL_RO FCALL_RO", "", nil},
		"newer alone":     {library{version: libraryVersion + 1, digest: altered}, "FCALL_RO FCALL_RO", "and not the functions of version", ErrBackend},
		"another process": {library{other: true}, "FCALL_RO FUNCTION FCALL_RO FCALL_RO", "", nil},
		"a replica":       {library{refuses: readOnly}, "FCALL_RO FUNCTION", "", nil},
		"altered":         {library{version: libraryVersion, digest: altered}, "FCALL_RO", `digest "` + altered, ErrReply},
		"a word of it":    {library{version: libraryVersion, digest: "take"}, "FCALL_RO", `digest "take"`, ErrReply},
		"cut":             {library{version: libraryVersion, digest: digestOf[:39]}, "FCALL_RO", `digest "` + digestOf[:39], ErrReply},
		"older":           {library{version: -1}, "FCALL_RO", "version -1 and not 1", ErrBackend},
		"full":            {library{refuses: full}, "FCALL_RO FUNCTION FCALL_RO", "OOM", ErrBackend},
		"old Redis":       {library{refuses: errorReply("ERR unknown command `FUNCTION`")}, "FCALL_RO FUNCTION FCALL_RO", "unknown command", ErrBackend},
	} {
		t.Run(name, func(t *testing.T) {
			node := c.lib.fake(fiveReply())
			l := newLimiter(t, &fake{nodes: map[string]rueidis.Client{"a:1": node}}, Config{Functions: true})
			err := l.Load(t.Context())
			if node.verbs() != c.sent {
				t.Errorf("sent %s, want %s", node.verbs(), c.sent)
			}
			if c.says == "" && err != nil || c.says != "" && (err == nil || !strings.Contains(err.Error(), c.says) || !errors.Is(err, c.is)) {
				t.Errorf("got %v, want %q", err, c.says)
			}
		})
	}
	for probe, want := range map[string]error{"": ErrReply, "LOADING": ErrBackend, "SLUICESTATE": ErrBackend} {
		node := &fake{answer: func(_ context.Context, words []string) rueidis.RedisResult {
			switch {
			case words[1] == "sluice_version":
				return versionReply(libraryVersion, digestOf)
			case probe == "":
				return fiveReply(1)
			}
			return errorReply(probe)
		}}
		l := newLimiter(t, &fake{nodes: map[string]rueidis.Client{"a:1": node}}, Config{Functions: true})
		if err := l.Load(t.Context()); !errors.Is(err, want) {
			t.Errorf("a probe that says %q: %v, want %v", probe, err, want)
		}
	}
	gone := replying(rueidis.NewErrorResult(io.EOF))
	l := newLimiter(t, &fake{nodes: map[string]rueidis.Client{"a:1": gone}}, Config{Functions: true})
	if err := l.Load(t.Context()); !errors.Is(err, io.EOF) || gone.verbs() != "FCALL_RO" {
		t.Errorf("got %v after %s, want EOF after one call", err, gone.verbs())
	}
}
