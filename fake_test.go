package sluice

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/redis/rueidis"
)

// fake is a client without a server: each command is handed to answer, as its words, and kept.
type fake struct {
	rueidis.Client // nil: what Sluice has no business to call panics
	answer         func(ctx context.Context, words []string) rueidis.RedisResult
	nodes          map[string]rueidis.Client

	mu        sync.Mutex
	sent      [][]string
	pipelines []int // the number of commands in each DoMulti
}

// builder is taken from a real client that can't reach anything: rueidis offers no other way to one.
var builder = func() rueidis.Builder {
	client, _ := rueidis.NewClient(rueidis.ClientOption{
		InitAddress:       []string{"nowhere"},
		ForceSingleClient: true,
		DialCtxFn: func(context.Context, string, *net.Dialer, *tls.Config) (net.Conn, error) {
			return nil, errors.New("nowhere to dial")
		},
	})
	return client.B()
}()

func (f *fake) B() rueidis.Builder { return builder }

func (f *fake) Nodes() map[string]rueidis.Client { return f.nodes }

func (f *fake) Do(ctx context.Context, cmd rueidis.Completed) rueidis.RedisResult {
	words := slices.Clone(cmd.Commands())
	f.mu.Lock()
	f.sent = append(f.sent, words)
	f.mu.Unlock()
	if cmd.IsReadOnly() || cmd.IsRetryable() {
		panic("a command that rueidis may send twice: " + strings.Join(words, " "))
	}
	return f.answer(ctx, words)
}

func (f *fake) DoMulti(ctx context.Context, multi ...rueidis.Completed) []rueidis.RedisResult {
	f.mu.Lock()
	f.pipelines = append(f.pipelines, len(multi))
	f.mu.Unlock()
	results := make([]rueidis.RedisResult, len(multi))
	for i, cmd := range multi {
		results[i] = f.Do(ctx, cmd)
	}
	return results
}

// verbs are the first words of what was sent.
func (f *fake) verbs() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	var verbs []string
	for _, words := range f.sent {
		verbs = append(verbs, words[0])
	}
	return strings.Join(verbs, " ")
}

func (f *fake) count() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.sent)
}

// replying is a fake that always gives one answer.
func replying(res rueidis.RedisResult) *fake {
	return &fake{answer: func(context.Context, []string) rueidis.RedisResult { return res }}
}

// forgetful is a fake that knows no script until it has been sent its text, and forgets all when told to.
func forgetful(res rueidis.RedisResult) (f *fake, forget func()) {
	var mu sync.Mutex
	known := map[string]bool{}
	f = &fake{answer: func(_ context.Context, words []string) rueidis.RedisResult {
		mu.Lock()
		defer mu.Unlock()
		switch words[0] {
		case "EVALSHA":
			if !known[words[1]] {
				return errorReply("NOSCRIPT No matching script. Please use EVAL.")
			}
		case "EVAL":
			for _, s := range scripts[slidingLog:] {
				if s.text == words[1] {
					known[s.sha1] = true
				}
			}
		}
		return res
	}}
	return f, func() { mu.Lock(); defer mu.Unlock(); clear(known) }
}

// message is a RedisMessage in the form that rueidis serializes: 7 bytes of expiry, then type, length or value, and content.
func message(body []byte) rueidis.RedisMessage {
	var m rueidis.RedisMessage
	if err := m.CacheUnmarshalView(append(make([]byte, 7), body...)); err != nil {
		panic(err)
	}
	return m
}

func element(typ byte, n int64, content ...[]byte) []byte {
	b := binary.BigEndian.AppendUint64([]byte{typ}, uint64(n))
	return append(b, slices.Concat(content...)...)
}

func integers(ns ...int64) []byte {
	var content [][]byte
	for _, n := range ns {
		content = append(content, element(':', n))
	}
	return element('*', int64(len(ns)), content...)
}

// textElement is a string ('+' or '$') or an error ('-').
func textElement(typ byte, s string) []byte { return element(typ, int64(len(s)), []byte(s)) }

func fiveReply(ns ...int64) rueidis.RedisResult {
	return rueidis.NewResult(message(integers(ns...)), nil)
}

func textReply(s string) rueidis.RedisResult {
	return rueidis.NewResult(message(textElement('+', s)), nil)
}

func errorReply(s string) rueidis.RedisResult {
	return rueidis.NewResult(message(textElement('-', s)), nil)
}

// newLimiter is a Limiter on a fake.
func newLimiter(t testing.TB, client rueidis.Client, cfg Config) *Limiter {
	t.Helper()
	l, err := New(client, cfg)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// Serve is a server that speaks RESP on a port of its own until the test ends, for a real rueidis client. It is
// exported for the examples, which are in a package of their own. handle gets each command but those of the handshake
// and returns the raw reply; an empty one drops the connection instead.
func Serve(t interface {
	Fatal(...any)
	Cleanup(func())
}, handle func(words []string) string) (addr string) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go serve(conn, handle)
		}
	}()
	return listener.Addr().String()
}

func serve(conn net.Conn, handle func(words []string) string) {
	defer conn.Close()
	r := bufio.NewReader(conn)
	for {
		words, err := readCommand(r)
		if err != nil {
			return
		}
		reply := "+OK\r\n"
		switch words[0] {
		case "HELLO":
			reply = "%2\r\n+version\r\n+7.0.0\r\n+proto\r\n:3\r\n"
		case "CLIENT":
		case "PING":
			reply = "+PONG\r\n"
		default:
			reply = handle(words)
		}
		if _, err := io.WriteString(conn, reply); err != nil || reply == "" {
			return
		}
	}
}

func readCommand(r *bufio.Reader) ([]string, error) {
	n, err := readLength(r, '*')
	if err != nil {
		return nil, err
	}
	words := make([]string, n)
	for i := range words {
		size, err := readLength(r, '$')
		if err != nil {
			return nil, err
		}
		b := make([]byte, size+2)
		if _, err := io.ReadFull(r, b); err != nil {
			return nil, err
		}
		words[i] = string(b[:size])
	}
	return words, nil
}

func readLength(r *bufio.Reader, typ byte) (int, error) {
	line, err := r.ReadString('\n')
	if err != nil {
		return 0, err
	}
	if line[0] != typ {
		return 0, errors.New("not RESP: " + line)
	}
	return strconv.Atoi(strings.TrimSpace(line[1:]))
}

// FiveReply is the raw reply of a script.
func FiveReply(allowed, remaining, retry, reset, serverTime int64) string {
	return fmt.Sprintf("*5\r\n:%d\r\n:%d\r\n:%d\r\n:%d\r\n:%d\r\n", allowed, remaining, retry, reset, serverTime)
}
