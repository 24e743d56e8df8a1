package sluice

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/redis/rueidis"
)

func TestDecode(t *testing.T) {
	got, err := decode(elementsOf(t, integers(1, 3, 0, 60_000, 1_700_000_000_123_456)), 10)
	if want := (reply{true, 3, 0, time.Minute, 1_700_000_000_123_456}); err != nil || got != want {
		t.Errorf("got %+v, %v, want %+v", got, err, want)
	}
	got, err = decode(elementsOf(t, integers(0, 0, 1, 2, 0)), 10)
	if want := (reply{false, 0, time.Millisecond, 2 * time.Millisecond, 0}); err != nil || got != want {
		t.Errorf("got %+v, %v, want %+v", got, err, want)
	}
	if _, err = decode(elementsOf(t, integers(0, 10, maxWaitMS, maxWaitMS, maxReceipt)), 10); err != nil {
		t.Errorf("the largest numbers: %v", err)
	}
}

func elementsOf(t *testing.T, body []byte) []rueidis.RedisMessage {
	t.Helper()
	elements, err := readArray(said{res: rueidis.NewResult(message(body), nil)})
	if err != nil {
		t.Fatal(err)
	}
	return elements
}

func TestMalformedReplies(t *testing.T) {
	// Each is an error and a Result that denies, never an admission.
	one := element(':', 1)
	tests := map[string][]byte{
		"no array":              one,
		"a string":              textElement('+', "OK"),
		"a long string":         textElement('$', strings.Repeat("1", 1000)),
		"nil":                   element('_', 0),
		"a boolean":             element('#', 1),
		"a map":                 element('%', 2, one, one),
		"no elements":           integers(),
		"four elements":         integers(1, 0, 0, 0),
		"six elements":          integers(1, 0, 0, 0, 0, 0),
		"nested":                element('*', 1, integers(1, 0, 0, 0, 0)),
		"a string element":      element('*', 5, textElement('$', "1"), one, one, one, one),
		"a nil element":         element('*', 5, element('_', 0), one, one, one, one),
		"a boolean element":     element('*', 5, element('#', 1), one, one, one, one),
		"a float element":       element('*', 5, one, one, textElement(',', "0"), one, one),
		"an error element":      element('*', 5, one, one, one, one, textElement('-', "ERR x")),
		"an array element":      element('*', 5, integers(1), one, one, one, one),
		"allowed 2":             integers(2, 0, 0, 0, 0),
		"allowed -1":            integers(-1, 0, 0, 0, 0),
		"remaining -1":          integers(1, -1, 0, 0, 0),
		"remaining above limit": integers(1, 11, 0, 0, 0),
		"allowed and retry":     integers(1, 0, 1, 0, 0),
		"allowed and never":     integers(1, 0, -1, 0, 0),
		"denied and no retry":   integers(0, 0, 0, 0, 0),
		"denied and never":      integers(0, 0, -1, 0, 0),
		"retry too long":        integers(0, 0, maxWaitMS+1, 0, 0),
		"retry wraps":           integers(0, 0, math.MaxInt64, 0, 0),
		"reset -1":              integers(1, 0, 0, -1, 0),
		"reset too long":        integers(1, 0, 0, maxWaitMS+1, 0),
		"time -1":               integers(1, 0, 0, 0, -1),
		"time above 2^53":       integers(1, 0, 0, 0, 1<<53),
	}
	for name, body := range tests {
		t.Run(name, func(t *testing.T) {
			l := newLimiter(t, replying(rueidis.NewResult(message(body), nil)), Config{})
			res, err := l.Allow(t.Context(), "a", SlidingLog(10, time.Minute))
			var call *CallError
			if res != (Result{}) || !errors.Is(err, ErrReply) || !errors.Is(err, ErrBackend) || !errors.As(err, &call) || !call.Unknown {
				t.Errorf("got %+v, %v, want no Result and a CallError that is ErrReply and ErrBackend, outcome unknown", res, err)
			}
			if err != nil && strings.Count(err.Error(), "sluice:") != 1 {
				t.Errorf("message %q, want one prefix", err)
			}
			if _, err = l.Peek(t.Context(), "a", SlidingLog(10, time.Minute), 1); !errors.As(err, &call) || call.Unknown {
				t.Errorf("peek: %v, want a CallError, and nothing to be unknown about", err)
			}
		})
	}
}

func TestSettleIsNeverDenied(t *testing.T) {
	client := replying(fiveReply(1, 9, 0, 60_000, 1))
	l := newLimiter(t, client, Config{})
	res, err := l.Allow(t.Context(), "a", SlidingLog(10, time.Minute))
	if err != nil {
		t.Fatal(err)
	}
	client.answer = replying(fiveReply(0, 0, 1, 1, 1)).answer
	if _, err := l.Settle(t.Context(), res, 1); !errors.Is(err, ErrReply) {
		t.Errorf("a settle that was denied: %v, want ErrReply", err)
	}
}

func TestErrorReplies(t *testing.T) {
	p := SlidingLog(10, time.Minute)
	for _, said := range []string{
		"ERR Error running script", "OOM command not allowed when used memory > 'maxmemory'.", "READONLY You can't write against a read only replica.",
		"LOADING Redis is loading the dataset in memory", "CLUSTERDOWN The cluster is down", "TRYAGAIN Multiple keys request during rehashing of slot",
		"NOPERM this user has no permissions to run the 'evalsha' command", "BUSY Redis is busy running a script.", "MISCONF Redis is configured to save",
		"NOREPLICAS Not enough good replicas to write.", "NOAUTH Authentication required.", "MASTERDOWN Link with MASTER is down",
		"something NOSCRIPT", "",
	} {
		client := replying(errorReply(said))
		l := newLimiter(t, client, Config{})
		res, err := l.Allow(t.Context(), "a", p)
		var call *CallError
		var redis *rueidis.RedisError
		if res != (Result{}) || !errors.Is(err, ErrBackend) || errors.Is(err, ErrReply) || !errors.As(err, &call) || !errors.As(err, &redis) {
			t.Fatalf("%q: got %+v, %v, want no Result and a CallError that is ErrBackend and holds the RedisError", said, res, err)
		}
		if call.Op != "take" || call.Unknown {
			t.Errorf("%q: op %q, unknown %v, want take, and known: the server refused", said, call.Op, call.Unknown)
		}
		if client.verbs() != "EVALSHA" {
			t.Errorf("%q: sent %s, want it sent once", said, client.verbs())
		}
	}
}

func TestForeignStateNamesTheKey(t *testing.T) {
	l := newLimiter(t, replying(errorReply("SLUICESTATE KEYS[1] holds something that is not a sliding log")), Config{PlainKeys: true})
	_, err := l.Allow(t.Context(), "a", SlidingLog(10, time.Minute))
	var state *StateError
	if !errors.Is(err, ErrBackend) || !errors.As(err, &state) || state.Key != "sluice:{a}:log/60000" {
		t.Errorf("got %v, want a StateError for the key that is ErrBackend", err)
	}
	want := `sluice: take: key "sluice:{a}:log/60000": KEYS[1] holds something that is not a sliding log`
	if err.Error() != want {
		t.Errorf("message %s, want %s", err, want)
	}
}

func TestRefusedArgumentsAreAnUnexpectedReply(t *testing.T) {
	l := newLimiter(t, replying(errorReply("SLUICEARG cost must be an integer from 0 to 1000000000")), Config{})
	_, err := l.Allow(t.Context(), "a", SlidingLog(10, time.Minute))
	var redis *rueidis.RedisError
	var call *CallError
	if !errors.Is(err, ErrReply) || !errors.Is(err, ErrBackend) || !errors.As(err, &redis) || !errors.As(err, &call) || call.Unknown {
		t.Errorf("got %v, want a CallError that is ErrReply and ErrBackend, holds the RedisError and knows that nothing was charged", err)
	}
}

func TestErrorMessages(t *testing.T) {
	tests := []struct {
		err  error
		want string
	}{
		{&InputError{Field: "cost", Value: "11", Want: "0 to 10, the limit", fault: ErrInvalidCost}, "sluice: cost is 11, want 0 to 10, the limit"},
		{&CallError{Op: "take", Err: io.EOF, Unknown: true, fault: ErrBackend}, "sluice: take: EOF (outcome unknown)"},
		{&CallError{Op: "peek", Err: context.Canceled}, "sluice: peek: context canceled"},
		{&LimitedError{Result: Result{RetryAfter: time.Second}}, "sluice: limited, free in 1s, which the deadline does not allow"},
		{&LimitedError{Result: Result{RetryAfter: time.Second}, Err: context.Canceled}, "sluice: limited, free in 1s: context canceled"},
	}
	for _, tt := range tests {
		if got := tt.err.Error(); got != tt.want {
			t.Errorf("got %s, want %s", got, tt.want)
		}
	}
}

// Whatever the server answers, a Result is either what the five integers say or nothing.
func FuzzDecode(f *testing.F) {
	for _, body := range [][]byte{
		integers(1, 3, 0, 60_000, 1_700_000_000_123_456), integers(0, 0, 1, 2, 0), integers(1, 0, 0, 0), integers(-1, 0, 0, 0, 0), integers(),
		textElement('+', "OK"), textElement('-', "ERR x"), element('_', 0), element('*', 5, textElement('$', "1"), element(':', 0), element(':', 0), element(':', 0), element(':', 0)),
	} {
		f.Add(body, int64(10))
	}
	f.Fuzz(func(t *testing.T, body []byte, limit int64) {
		m, ok := parse(body)
		if !ok {
			return // no message, and rueidis does not check sizes here
		}
		var got reply
		elements, err := readArray(said{res: rueidis.NewResult(m, nil)})
		if err != nil && m.Error() != nil {
			return // no reply but an error
		}
		if err == nil {
			got, err = decode(elements, limit)
		}
		if err != nil {
			if !errors.Is(err, ErrReply) || got != (reply{}) {
				t.Fatalf("decode = %+v, %v", got, err)
			}
			return
		}
		// Only one form is accepted: an array of five integers.
		allowed := int64(0)
		if got.allowed {
			allowed = 1
		}
		want := integers(allowed, got.remaining, got.retry.Milliseconds(), got.reset.Milliseconds(), got.serverTime)
		if !bytes.HasPrefix(body, want) {
			t.Fatalf("decode(%x) = %+v", body, got)
		}
		if got.remaining < 0 || got.remaining > limit || got.reset < 0 || got.allowed != (got.retry == 0) || got.retry < 0 || got.serverTime < 0 {
			t.Fatalf("decode(%x) = %+v", body, got)
		}
	})
}

// parse is message for bytes that may be none: it checks that every length is within the bytes.
func parse(body []byte) (m rueidis.RedisMessage, ok bool) {
	rest, ok := skip(body, 4)
	if !ok {
		return m, false
	}
	return message(body[:len(body)-len(rest)]), true
}

func skip(b []byte, depth int) (rest []byte, ok bool) {
	if len(b) < 9 || depth == 0 {
		return nil, false
	}
	typ, n, b := b[0], binary.BigEndian.Uint64(b[1:9]), b[9:]
	switch typ {
	case ':', '_', '#':
		return b, true
	case '*', '%', '~':
		if n > uint64(len(b)) {
			return nil, false
		}
		for range n {
			if b, ok = skip(b, depth-1); !ok {
				return nil, false
			}
		}
		return b, true
	default:
		if n > uint64(len(b)) {
			return nil, false
		}
		return b[n:], true
	}
}

// A right that a script lacks ends it where it is, and what it wrote before stays: nobody can tell what was charged.
func TestDeniedInAScriptIsUnknown(t *testing.T) {
	for _, said := range []string{
		"ERR The user executing the script can't run this command or subcommand script: 1, on @user_script:9.",
		"ERR ACL failure in script: User sluice has no permissions to run the 'pexpireat' command script: 1",
	} {
		l := newLimiter(t, replying(errorReply(said)), Config{})
		_, err := l.Allow(t.Context(), "a", SlidingLog(10, time.Minute))
		var call *CallError
		if !errors.As(err, &call) || !call.Unknown {
			t.Errorf("Allow: %v, want a CallError whose outcome is unknown", err)
		}
		_, err = l.Peek(t.Context(), "a", SlidingLog(10, time.Minute), 1)
		if !errors.As(err, &call) || call.Unknown {
			t.Errorf("Peek: %v, want a CallError with nothing unknown, since it changes nothing", err)
		}
	}
}
