package conformance_test

import (
	"bufio"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sluicego/sluice"
	"github.com/sluicego/sluice/conformance/model"
	"github.com/sluicego/sluice/conformance/servers"
	"github.com/sluicego/sluice/conformance/vectors"
)

// loader is a loader of the scripts in another language, in a folder of examples/. Its agent is a program that calls it as
// it is told on its standard input; docs/porting.md tells the protocol.
type loader struct {
	name   string
	folder string
	needs  string   // told where it can't run
	with   []string // the interpreter, by preference
	probe  []string // arguments that succeed where what it needs is there
	agent  []string // arguments
	demo   []string // a program in the folder, and its arguments
	picky  bool     // it refuses a client that sends commands again on its own; others tell theirs not to
	tests  string   // another, of what the vectors can't ask of it: it ends with 0
	shell  bool     // a process for every call, no NUL in a subject and no results to settle but by their numbers
}

var loaders = []loader{
	{
		name: "python", picky: true, folder: "python", needs: "python3 with redis-py", with: []string{"python3", "/usr/bin/python3"},
		probe: []string{"-c", "import redis"}, agent: []string{"agent.py", "sync"}, demo: []string{"demo.py"}, tests: "sluice_test.py",
	},
	{
		name: "python-asyncio", picky: true, folder: "python", needs: "python3 with redis-py", with: []string{"python3", "/usr/bin/python3"},
		probe: []string{"-c", "import redis.asyncio"}, agent: []string{"agent.py", "async"},
	},
	{
		name: "node-redis", picky: true, folder: "node", needs: "node, and npm ci in examples/node", with: []string{"node"},
		probe: []string{"-e", "require('redis')"}, agent: []string{"agent.mjs", "node-redis"}, demo: []string{"demo.mjs"}, tests: "sluice.test.mjs",
	},
	{
		name: "ioredis", picky: true, folder: "node", needs: "node, and npm ci in examples/node", with: []string{"node"},
		probe: []string{"-e", "require('ioredis')"}, agent: []string{"agent.mjs", "ioredis"}, demo: []string{"demo.mjs", "ioredis"},
	},
	{
		name: "ruby", folder: "ruby", needs: "ruby with redis-rb", with: []string{"ruby"},
		probe: []string{"-e", "require 'redis'"}, agent: []string{"agent.rb"}, demo: []string{"demo.rb"}, tests: "sluice_test.rb",
	},
	{
		name: "php", folder: "php", needs: "php with phpredis", with: []string{"php"},
		probe: []string{"-r", "new Redis();"}, agent: []string{"agent.php"}, demo: []string{"demo.php"}, tests: "sluice_test.php",
	},
	{
		name: "shell", folder: "shell", needs: "redis-cli and sh", with: []string{"sh"},
		probe: []string{"-c", "command -v redis-cli sha1sum sha256sum"}, agent: []string{"agent.sh"}, demo: []string{"demo.sh"}, tests: "sluice_test.sh", shell: true,
	},
}

// loadersHere are those that can run; the log names the others. $SLUICE_AGENT, a command, is the agent of a new one, and then
// the only one.
func loadersHere(t *testing.T) []loader {
	t.Helper()
	if command := strings.Fields(os.Getenv("SLUICE_AGENT")); len(command) > 0 {
		return []loader{{name: "agent", with: command[:1], agent: command[1:]}}
	}
	var here []loader
	for _, l := range loaders {
		l.with = slices.DeleteFunc(slices.Clone(l.with), func(interpreter string) bool {
			probe := exec.CommandContext(t.Context(), interpreter, l.probe...)
			probe.Dir = l.dir()
			return probe.Run() != nil
		})
		if len(l.with) == 0 {
			t.Logf("NOT RUN: the loader in %s: no %s", l.name, l.needs)
			continue
		}
		here = append(here, l)
	}
	return here
}

func (l *loader) dir() string { return filepath.Join("..", "examples", l.folder) }

func (l *loader) command(t *testing.T, addr string, args ...string) *exec.Cmd {
	t.Helper()
	scripts, err := filepath.Abs(servers.Scripts())
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(l.with[0], args...)
	cmd.Dir = l.dir()
	cmd.Env = append(os.Environ(), "REDIS_ADDR="+addr, "SLUICE_SCRIPTS="+scripts)
	return cmd
}

// agent is a running agent.
type agent struct {
	loader

	in    io.Writer
	lines chan string // closed when it ends
}

func (l *loader) start(t *testing.T, addr string) *agent {
	t.Helper()
	return l.startIn(t, addr, 0, 5*time.Second)
}

// startIn starts an agent in a database of the server, with a time-out for an answer.
func (l *loader) startIn(t *testing.T, addr string, db int, timeout time.Duration) *agent {
	t.Helper()
	cmd := l.command(t, addr, l.agent...)
	cmd.Env = append(cmd.Env, fmt.Sprintf("SLUICE_DB=%d", db), fmt.Sprintf("SLUICE_TIMEOUT=%g", timeout.Seconds()))
	complaints := &strings.Builder{}
	cmd.Stderr = complaints
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	a := &agent{loader: *l, in: in, lines: make(chan string)}
	go func() {
		defer close(a.lines)
		for scanner := bufio.NewScanner(out); scanner.Scan(); {
			a.lines <- scanner.Text()
		}
	}()
	t.Cleanup(func() {
		kill := time.AfterFunc(10*time.Second, func() { _ = cmd.Process.Kill() })
		defer kill.Stop()
		_ = in.Close() // ends it, and fails only if it has ended
		for range a.lines {
		}
		if err := cmd.Wait(); err != nil || t.Failed() {
			t.Errorf("the agent in %s ended with %v and said %s", l.name, err, complaints)
		}
	})
	a.limiter(t, "sluice", "")
	return a
}

// agentError is an error that an agent's loader raised.
type agentError struct {
	kind string // argument, state, reply, other
	text string
}

func (e *agentError) Error() string { return e.text }

// ask sends a line and returns what came back after the first word: "reply 1 9 0 100 1700000000000000".
func (a *agent) ask(t tb, want string, words ...string) (string, error) {
	t.Helper()
	if _, err := io.WriteString(a.in, strings.Join(words, " ")+"\n"); err != nil {
		t.Fatalf("%s: %v", a.name, err)
	}
	select {
	case line, ok := <-a.lines:
		verb, rest, _ := strings.Cut(line, " ")
		if kind, text, _ := strings.Cut(rest, " "); ok && verb == "error" {
			return "", &agentError{kind, text}
		}
		if !ok || verb != want {
			t.Fatalf("%s: %q: got %q, want %q", a.name, words, line, want)
		}
		return rest, nil
	case <-time.After(30 * time.Second):
		t.Fatalf("%s: %q: no answer", a.name, words)
		return "", nil
	}
}

// limiter gives the agent a prefix and a secret, empty for none.
func (a *agent) limiter(t tb, prefix, secret string) {
	t.Helper()
	if _, err := a.ask(t, "ok", "limiter", xhex(prefix), secretWord(secret)); err != nil {
		t.Fatalf("%s: %v", a.name, err)
	}
}

// numbers asks for a reply.
func (a *agent) numbers(t tb, words ...string) ([]int64, error) {
	t.Helper()
	rest, err := a.ask(t, "reply", words...)
	if err != nil {
		return nil, err
	}
	var all []int64
	for field := range strings.FieldsSeq(rest) {
		n, err := strconv.ParseInt(field, 10, 64)
		if err != nil {
			t.Fatalf("%s: %q: got %q", a.name, words, rest)
		}
		all = append(all, n)
	}
	return all, nil
}

// must asks for a reply that is no error.
func (a *agent) must(t tb, words ...string) []int64 {
	t.Helper()
	got, err := a.numbers(t, words...)
	if err != nil {
		t.Fatalf("%s: %q: %v", a.name, words, err)
	}
	return got
}

// fails asks for an error of a kind.
func (a *agent) fails(t tb, kind string, words ...string) {
	t.Helper()
	var failed *agentError
	if got, err := a.numbers(t, words...); !errors.As(err, &failed) || failed.kind != kind {
		t.Errorf("%s: %q: got %v, %+v, want an error of kind %s", a.name, words, got, err, kind)
	}
}

// call is a means to call a script through the loader.
func (a *agent) call(t tb, k model.Kind, keys, args []string) ([]int64, error) {
	t.Helper()
	words := []string{"call", k.Script(), strconv.Itoa(len(keys))}
	for _, word := range slices.Concat(keys, args) {
		words = append(words, xhex(word))
	}
	return a.numbers(t, words...)
}

// secretWord is a secret as an agent takes it, empty for none.
func secretWord(secret string) string {
	if secret == "" {
		return "-"
	}
	return xhex(secret)
}

func xhex(s string) string { return "x" + hex.EncodeToString([]byte(s)) }

// realServer is a server that is not miniredis, nil (and the log says so) if there is none.
func realServer(t *testing.T) *servers.Server {
	t.Helper()
	for _, s := range servers.All(t) {
		if s.Name != "miniredis" {
			return s
		}
	}
	return nil
}

func TestLoaders(t *testing.T) {
	for _, l := range loadersHere(t) {
		t.Run(l.name, func(t *testing.T) {
			t.Parallel()
			server := realServer(t)
			if server == nil {
				return
			}
			for _, k := range append(slices.Clip(kinds), model.Multi) {
				t.Run(k.Script(), func(t *testing.T) {
					t.Parallel() // each has a server, with a clock of its own
					loaderVectors(t, realServer(t), &l, k)
				})
			}
			t.Run("keys", func(t *testing.T) { loaderKeys(t, l.start(t, server.Addr)) })

			server.SetTime(servers.Epoch)
			if l.tests != "" {
				t.Run("its own tests", func(t *testing.T) {
					if said, err := l.command(t, server.Addr, l.tests).CombinedOutput(); err != nil {
						t.Errorf("%s: %v\n%s", l.tests, err, said)
					}
				})
			}
			between := newProxy(t, server.Addr)
			a := l.start(t, between.addr)
			for name, test := range map[string]func(*testing.T, *servers.Server, *proxy, *agent){
				"errors are typed":                typedErrors,
				"unknown script":                  unknownScript,
				"other errors are final":          otherErrors,
				"no reply of a script":            otherReplies,
				"a charge is not sent again":      lostReply,
				"results are as the script tells": results,
			} {
				t.Run(name, func(t *testing.T) {
					server.Flush(t)
					between.set(nil)
					test(t, server, between, a)
				})
			}
			if l.shell { // a connection for every call
				return
			}
			t.Run("a late reply is nobody else's", func(t *testing.T) {
				server.Flush(t)
				between.set(nil)
				lateReply(t, between, l.startIn(t, between.addr, 3, time.Second))
			})
		})
	}
}

func loaderVectors(t *testing.T, server *servers.Server, l *loader, k model.Kind) {
	a := l.start(t, server.Addr)
	file, err := vectors.Read(k)
	if err != nil {
		t.Fatal(err)
	}
	for i, v := range file.Vectors {
		s := &subject{kind: k, server: server, key: fmt.Sprintf("v%d", i), by: a.call, brief: true}
		t.Run(v.Name, func(t *testing.T) { runVector(t, s, v) })
	}
}

// keyVector is a vector of testdata/keys.json.
type keyVector struct {
	Name, Prefix, Subject, Tag, Policy, Key string

	Secret *string
	Plain  bool
	Parts  []string
}

func keyVectors(t *testing.T) (all struct{ Vectors, Refused []keyVector }) {
	t.Helper()
	text, err := os.ReadFile("../testdata/keys.json")
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, &all); err != nil {
		t.Fatal(err)
	}
	if len(all.Vectors) < 60 || len(all.Refused) < 15 {
		t.Fatalf("got %d and %d vectors, want at least 60 and 15", len(all.Vectors), len(all.Refused))
	}
	return all
}

func loaderKeys(t *testing.T, a *agent) {
	file := keyVectors(t)
	for _, v := range file.Vectors {
		// Plain keys are for debugging, in Go only.
		if v.Plain || a.shell && hasNUL(append(v.Parts, v.Subject, v.Tag)) {
			continue
		}
		t.Run(v.Name, func(t *testing.T) {
			if got, err := a.keyOf(t, v); err != nil || got != v.Key {
				t.Errorf("got %s, %v, want %s", got, err, v.Key)
			}
		})
	}
	t.Run("a prefix is no format", func(t *testing.T) {
		const want = `\a\0%d:{ca978112ca1bbdcafac231b39a23dc4d}:log/60000`
		if got, err := a.keyOf(t, keyVector{Prefix: `\a\0%d`, Subject: "61", Policy: "log:5/1m"}); err != nil || got != want {
			t.Errorf("got %q, %v, want %q", got, err, want)
		}
	})
	for _, v := range file.Refused {
		t.Run("refused: "+v.Name, func(t *testing.T) {
			var failed *agentError
			if got, err := a.keyOf(t, v); !errors.As(err, &failed) || failed.kind != "argument" {
				t.Errorf("got %s, %v, want an argument error", got, err)
			}
		})
	}
}

// keyOf asks for the key of a vector.
func (a *agent) keyOf(t *testing.T, v keyVector) (string, error) {
	t.Helper()
	prefix, secret := "sluice", "-"
	if v.Prefix != "" {
		prefix = v.Prefix
	}
	if v.Secret != nil {
		secret = "x" + *v.Secret
	}
	if _, err := a.ask(t, "ok", "limiter", xhex(prefix), secret); err != nil {
		return "", err
	}
	if v.Parts != nil {
		words := []string{"join"}
		for _, part := range v.Parts {
			words = append(words, "x"+part)
		}
		if got, err := a.ask(t, "bytes", words...); err != nil || got != "x"+v.Subject {
			t.Fatalf("%v joined: got %s, %v, want x%s", v.Parts, got, err, v.Subject)
		}
	}
	return a.ask(t, "text", slices.Concat([]string{"key", "x" + v.Subject, "x" + v.Tag}, policyWords(t, v.Policy))...)
}

// TestRefusedKeys holds Go to what no loader makes a key of.
func TestRefusedKeys(t *testing.T) {
	server := servers.All(t)[0]
	for _, v := range keyVectors(t).Refused {
		t.Run(v.Name, func(t *testing.T) {
			cfg := sluice.Config{Prefix: v.Prefix}
			if v.Secret != nil {
				cfg.Secret = []byte(unhex(t, *v.Secret)) // not nil
			}
			var parts []string
			for _, part := range v.Parts {
				parts = append(parts, unhex(t, part))
			}
			subject := unhex(t, v.Subject)
			if got := sluice.Key(parts...); v.Parts != nil && got != subject {
				t.Fatalf("%q joined: got %q, want %q", parts, got, subject)
			}
			limiter, err := sluice.New(server.Client, cfg)
			if err != nil {
				if !errors.Is(err, sluice.ErrInvalidConfig) {
					t.Error(err)
				}
				return
			}
			policy, err := sluice.ParsePolicy(v.Policy)
			if err != nil {
				if !errors.Is(err, sluice.ErrInvalidPolicy) {
					t.Error(err)
				}
				return
			}
			if got, err := limiter.Peek(t.Context(), subject, policy, 1); !errors.Is(err, sluice.ErrInvalidKey) {
				t.Errorf("got %+v, %v, want ErrInvalidKey", got, err)
			}
		})
	}
}

func unhex(t *testing.T, word string) string {
	t.Helper()
	b, err := hex.DecodeString(word)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func hasNUL(words []string) bool {
	return slices.ContainsFunc(words, func(word string) bool {
		for i := 0; i < len(word); i += 2 {
			if word[i:i+2] == "00" {
				return true
			}
		}
		return false
	})
}

// policyWords are the words of a policy as an agent takes them, of its text form in Go: script, numbers, name.
func policyWords(t *testing.T, text string) []string {
	t.Helper()
	name, text, named := strings.Cut(text, "=")
	if !named {
		name, text = "", name
	}
	algorithm, text, _ := strings.Cut(text, ":")
	numbers, window, _ := strings.Cut(text, "/")
	words := []string{model.Kind(algorithm).Script()}
	words = append(words, strings.Split(numbers, "+")...)
	if days, ok := strings.CutSuffix(window, "d"); ok {
		n, err := strconv.Atoi(days)
		if err != nil {
			t.Fatal(err)
		}
		window = strconv.Itoa(24*n) + "h"
	}
	d, err := time.ParseDuration(window)
	if err != nil {
		t.Fatal(err)
	}
	words = append(words, strconv.FormatInt(d.Milliseconds(), 10))
	if named {
		words = append(words, name)
	}
	return words
}

// results holds what a loader makes of a reply against the model.
func results(t *testing.T, server *servers.Server, _ *proxy, a *agent) {
	const now = servers.Epoch
	p := model.Policy{Kind: model.Bucket, Limit: 10, Refill: 10, WindowMS: 1000}
	state := model.New()
	policy := []string{"token_bucket", "10", "10", "1000"}
	take := func(cost int64) {
		t.Helper()
		got := a.must(t, slices.Concat([]string{"take", "x61", text(cost)}, policy)...)
		if want := state.Call(now, "take", cost, p, 0).Numbers(); !slices.Equal(got, want) {
			t.Errorf("take %d: got %v, want %v", cost, got, want)
		}
	}
	take(8)
	got := a.must(t, "settle", "3") // 5 too many
	if want := state.Call(now, "settle", -5, p, now).Numbers(); !slices.Equal(got, want) {
		t.Errorf("settle: got %v, want %v", got, want)
	}
	take(0)
	take(8)
	if !a.shell { // which settles by numbers
		a.fails(t, "argument", "settle", "1") // nothing was charged
	}
	take(11) // never
	if _, err := a.ask(t, "ok", append([]string{"reset", "x61"}, policy...)...); err != nil {
		t.Error(err)
	}
	state.Lose()
	take(10)
}

func typedErrors(t *testing.T, server *servers.Server, _ *proxy, a *agent) {
	key, err := a.ask(t, "text", "key", "x61", "x", "sliding_log", "5", "60000")
	if err != nil {
		t.Fatal(err)
	}
	if err := server.Client.Do(t.Context(), server.Client.B().Set().Key(key).Value("not ours").Build()).Error(); err != nil {
		t.Fatal(err)
	}
	a.fails(t, "state", "take", "x61", "1", "sliding_log", "5", "60000")
	a.fails(t, "argument", "take", "x62", "-1", "sliding_log", "5", "60000")
	a.fails(t, "argument", "take", "x62", "1", "sliding_log", "0", "60000")
	a.fails(t, "argument", "take", "x62", "1", "token_bucket", "1000000000", "1", "31622400000")
	// What the script can't see is refused by the loader: it would make another's key.
	a.fails(t, "argument", "take", "x", "1", "sliding_log", "5", "60000")
	a.fails(t, "argument", "take", "x62", "1", "sliding_log", "5", "60000", "a:b")
	a.fails(t, "argument", "take", "x62", "1", "sliding_log", "5", "60000", strings.Repeat("n", 65))
	for _, settings := range [][]string{{"", ""}, {"a{b", ""}, {"a b", ""}, {"é", ""}, {strings.Repeat("p", 65), ""}, {"sluice", "fifteen bytes, "}} {
		_, err := a.ask(t, "ok", "limiter", xhex(settings[0]), secretWord(settings[1]))
		if err == nil && a.shell { // which looks at them when it uses them
			_, err = a.numbers(t, "peek", "x62", "1", "sliding_log", "5", "60000")
		}
		var failed *agentError
		if !errors.As(err, &failed) || failed.kind != "argument" {
			t.Errorf("%q: got %v, want an argument error", settings, err)
		}
	}
	a.limiter(t, "sluice", "")
}

func unknownScript(t *testing.T, server *servers.Server, between *proxy, a *agent) {
	if err := server.Client.Do(t.Context(), server.Client.B().ScriptFlush().Build()).Error(); err != nil {
		t.Fatal(err)
	}
	take := []string{"take", "x61", "1", "sliding_log", "5", "60000"}
	for remaining := range 2 {
		if got := a.must(t, take...); got[1] != int64(4-remaining) {
			t.Errorf("remaining is %d, want %d", got[1], 4-remaining)
		}
	}
	if diff := cmp.Diff([]string{"EVALSHA take", "EVAL take", "EVALSHA take"}, between.seen()); diff != "" {
		t.Errorf("calls (-want +got):\n%s", diff)
	}

	// The server that forgets again at once is not asked for ever.
	between.set(func(string) string { return "-NOSCRIPT No matching script. Please use EVAL.\r\n" })
	a.fails(t, "other", take...)
	if diff := cmp.Diff([]string{"EVALSHA take", "EVAL take"}, between.seen()); diff != "" {
		t.Errorf("calls (-want +got):\n%s", diff)
	}
}

func otherErrors(t *testing.T, _ *servers.Server, between *proxy, a *agent) {
	for _, reply := range []string{
		"ERR this is no NOSCRIPT error", "OOM command not allowed when used memory > 'maxmemory'.", "NOPERM this user has no permissions",
		"READONLY You can't write against a read only replica.", "BUSY Redis is busy running a script.",
		"MISCONF Redis is configured to save RDB snapshots", "CLUSTERDOWN The cluster is down", "TRYAGAIN Multiple keys request",
		"LOADING Redis is loading the dataset in memory", "MASTERDOWN Link with MASTER is down", "NOREPLICAS Not enough good replicas to write.",
	} {
		between.set(func(string) string { return "-" + reply + "\r\n" })
		a.fails(t, "other", "take", "x61", "1", "sliding_log", "5", "60000")
		if diff := cmp.Diff([]string{"EVALSHA take"}, between.seen()); diff != "" {
			t.Errorf("%s: calls (-want +got):\n%s", reply, diff)
		}
	}
}

// otherReplies are not what the script gives. None of them is a denial.
func otherReplies(t *testing.T, _ *servers.Server, between *proxy, a *agent) {
	kind := "reply"
	if a.shell { // which has but one status for all this
		kind = "other"
	}
	const four = ":4\r\n:0\r\n:0\r\n:1700000000000000\r\n"
	for _, reply := range []string{
		"+OK\r\n", "+QUEUED\r\n", "$0\r\n\r\n", "$-1\r\n", ":1\r\n", "*-1\r\n", "*0\r\n", "*4\r\n" + four, "*6\r\n:1\r\n:1\r\n" + four,
		"*5\r\n$4\r\ntrue\r\n" + four, "*5\r\n$3\r\n1.0\r\n" + four, "*5\r\n$1\r\n-\r\n" + four, "*5\r\n$-1\r\n" + four,
		"*5\r\n*1\r\n:1\r\n" + four,
	} {
		if a.shell && strings.HasPrefix(reply, "*5\r\n*1") { // which redis-cli shows as it does five integers
			continue
		}
		between.set(func(string) string { return reply })
		a.fails(t, kind, "take", "x61", "1", "sliding_log", "5", "60000")
	}
	between.set(func(string) string { return "*5\r\n:1\r\n" + four })
	a.must(t, "take", "x61", "1", "sliding_log", "5", "60000")
	a.fails(t, kind, "call", "multi", "1", "x61", xhex("take"), xhex("sliding_log"), xhex("1"), xhex("5"), xhex("60000"))
	between.set(func(string) string { return "*7\r\n:1\r\n:0\r\n:1\r\n" + four })
	a.must(t, "call", "multi", "1", "x61", xhex("take"), xhex("sliding_log"), xhex("1"), xhex("5"), xhex("60000"))
}

// lostReply takes one unit; the server charges it, and the connection breaks before the answer.
func lostReply(t *testing.T, _ *servers.Server, between *proxy, a *agent) {
	if a.picky {
		a.fails(t, "argument", "retrying")
	}
	policy := []string{"sliding_log", "5", "60000"}
	a.must(t, slices.Concat([]string{"peek", "x61", "1"}, policy)...) // the script is known now
	between.set(func(call string) string {
		if call == "EVALSHA take" {
			return lost
		}
		return ""
	})
	a.fails(t, "other", slices.Concat([]string{"take", "x61", "1"}, policy)...)
	// A client may need a moment to connect anew, and must have sent by then what it kept.
	var got []int64
	var err error
	for deadline := time.Now().Add(10 * time.Second); got == nil && time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		got, err = a.numbers(t, slices.Concat([]string{"peek", "x61", "1"}, policy)...)
	}
	if err != nil || got[1] != 4 {
		t.Errorf("afterwards: got %v, %v, want 4 remaining", got, err)
	}
	takes := slices.DeleteFunc(between.seen(), func(call string) bool { return call != "EVALSHA take" })
	if len(takes) != 1 {
		t.Errorf("the take was sent %d times, want once", len(takes))
	}
}

// lateReply has the answer to a take, and then that to a reset, come after the loader has given up. It must not be the
// answer to what is called next, which is another limit's and denied. The agent is in a database that a new connection is
// not in.
func lateReply(t *testing.T, between *proxy, a *agent) {
	shut, open := []string{"sliding_log", "1", "60000"}, []string{"sliding_log", "100", "60000"}
	a.must(t, slices.Concat([]string{"take", "x61", "1"}, shut)...)
	for used, late := range [][]string{{"take", "x62", "1"}, {"reset", "x63"}, {"take", "x62", "1"}} {
		between.held.Lock()
		a.fails(t, "other", slices.Concat(late, open)...)
		between.held.Unlock()
		var got []int64
		var err error
		for range 2 {
			if got, err = a.numbers(t, slices.Concat([]string{"take", "x61", "1"}, shut)...); err != nil || got[0] != 0 {
				t.Errorf("after the late reply to %q: got %v, %v, want a denial", late, got, err)
			}
		}
		if got := a.must(t, slices.Concat([]string{"peek", "x62", "1"}, open)...); got[1] != int64(99-used/2) {
			t.Errorf("after the late reply to %q: %d remain of 100", late, got[1])
		}
	}
}

// TestLoadersShareALimit has Go and every other loader call on one limit by turns. Together they are told what one caller
// would be.
func TestLoadersShareALimit(t *testing.T) {
	t.Parallel()
	server := realServer(t)
	if server == nil {
		return
	}
	secret, subject := []byte("correct horse battery staple"), sluice.Key("api", "203.0.113.7\xff")
	limiter, err := sluice.New(server.Client, sluice.Config{Prefix: "shared", Secret: secret})
	if err != nil {
		t.Fatal(err)
	}
	var agents []*agent
	for _, l := range loadersHere(t) {
		a := l.start(t, server.Addr)
		a.limiter(t, "shared", string(secret))
		agents = append(agents, a)
	}
	for _, p := range []model.Policy{
		{Kind: model.Log, Limit: 20, WindowMS: 1000},
		{Kind: model.Counter, Limit: 20, WindowMS: 1000},
		{Kind: model.Bucket, Limit: 20, Refill: 7, WindowMS: 500},
	} {
		t.Run(p.Kind.Script(), func(t *testing.T) {
			callers := []sharer{&goSharer{limiter: limiter, subject: subject, policy: goPolicy(p)}}
			for _, a := range agents {
				callers = append(callers, &agentSharer{agent: a, subject: subject, policy: append([]string{p.Kind.Script()}, arguments("", 0, p, 0)[2:]...)})
			}
			shareALimit(t, server, p, callers)
		})
	}
}

// sharer is one of those who share a limit. It settles what it charged last.
type sharer interface {
	take(t *testing.T, cost int64) []int64
	peek(t *testing.T, cost int64) []int64
	settle(t *testing.T, actual int64) []int64
	reset(t *testing.T)
}

func shareALimit(t *testing.T, server *servers.Server, p model.Policy, callers []sharer) {
	type charge struct{ cost, receipt int64 }
	open := make([]*charge, len(callers)) // to be settled
	state, now, random := model.New(), servers.Epoch, rand.New(rand.NewPCG(1, 2))
	taken := 0
	for step := range 20 * len(callers) {
		now += random.Int64N(p.WindowMS * 1000 / 8)
		server.SetTime(now)
		i := random.IntN(len(callers))
		cost := random.Int64N(p.Limit/2 + 1)
		var got []int64
		var want model.Reply
		what := "take"
		switch n := random.IntN(10); {
		case n == 0 && step%3 == 0:
			callers[i].reset(t)
			state.Lose()
			continue
		case n < 3:
			what = "peek"
			got, want = callers[i].peek(t, cost), state.Call(now, "peek", cost, p, 0)
		case n < 6 && open[i] != nil:
			what = "settle"
			got, want = callers[i].settle(t, cost), state.Call(now, "settle", cost-open[i].cost, p, open[i].receipt)
			open[i] = nil
		default:
			got, want = callers[i].take(t, cost), state.Call(now, "take", cost, p, 0)
			open[i] = nil
			if want.Allowed {
				open[i] = &charge{cost, now}
				taken++
			}
		}
		if !slices.Equal(got, want.Numbers()) {
			t.Fatalf("step %d: %s %d by caller %d: got %v, want %v", step, what, cost, i, got, want.Numbers())
		}
	}
	if taken < 3*len(callers) {
		t.Errorf("only %d takes were allowed", taken)
	}
}

type agentSharer struct {
	agent   *agent
	subject string
	policy  []string
}

func (s *agentSharer) ask(t *testing.T, verb string, words ...string) []int64 {
	t.Helper()
	return s.agent.must(t, slices.Concat([]string{verb, xhex(s.subject)}, words, s.policy)...)
}

func (s *agentSharer) take(t *testing.T, cost int64) []int64 { return s.ask(t, "take", text(cost)) }
func (s *agentSharer) peek(t *testing.T, cost int64) []int64 { return s.ask(t, "peek", text(cost)) }
func (s *agentSharer) settle(t *testing.T, actual int64) []int64 {
	return s.agent.must(t, "settle", text(actual))
}

func (s *agentSharer) reset(t *testing.T) {
	t.Helper()
	if _, err := s.agent.ask(t, "ok", append([]string{"reset", xhex(s.subject)}, s.policy...)...); err != nil {
		t.Fatal(err)
	}
}

type goSharer struct {
	limiter *sluice.Limiter
	subject string
	policy  sluice.Policy
	last    sluice.Result
}

func (s *goSharer) take(t *testing.T, cost int64) []int64 {
	t.Helper()
	var err error
	s.last, err = s.limiter.AllowN(t.Context(), s.subject, s.policy, cost)
	return told(t, s.last, err)
}

func (s *goSharer) peek(t *testing.T, cost int64) []int64 {
	t.Helper()
	res, err := s.limiter.Peek(t.Context(), s.subject, s.policy, cost)
	return told(t, res, err)
}

func (s *goSharer) settle(t *testing.T, actual int64) []int64 {
	t.Helper()
	res, err := s.limiter.Settle(t.Context(), s.last, actual)
	return told(t, res, err)
}

func (s *goSharer) reset(t *testing.T) {
	t.Helper()
	if err := s.limiter.Reset(t.Context(), s.subject, s.policy); err != nil {
		t.Fatal(err)
	}
}

// told are the numbers of a script's reply that a Result was made of.
func told(t *testing.T, r sluice.Result, err error) []int64 {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	return model.Reply{
		Allowed: r.Allowed, Remaining: r.Remaining, ServerTimeUS: r.ServerTime.UnixMicro(),
		RetryAfterMS: r.RetryAfter.Milliseconds(), ResetAfterMS: r.ResetAfter.Milliseconds(),
	}.Numbers()
}

func goPolicy(p model.Policy) sluice.Policy {
	window := time.Duration(p.WindowMS) * time.Millisecond
	switch p.Kind {
	case model.Log:
		return sluice.SlidingLog(p.Limit, window)
	case model.Counter:
		return sluice.SlidingCounter(p.Limit, window)
	}
	return sluice.TokenBucket(p.Limit, p.Refill, window)
}

// TestLoadersDemos runs the small program beside each loader.
func TestLoadersDemos(t *testing.T) {
	server := realServer(t)
	if server == nil {
		return
	}
	for _, l := range loadersHere(t) {
		if l.demo == nil {
			continue
		}
		t.Run(l.name, func(t *testing.T) {
			server.Flush(t)
			const want = "allowed, 1 left\nallowed, 0 left\ndenied, try again in 60000 ms\n"
			if got, err := l.command(t, server.Addr, l.demo...).CombinedOutput(); err != nil || string(got) != want {
				t.Errorf("%v, printed\n%swant\n%s", err, got, want)
			}
		})
	}
}
