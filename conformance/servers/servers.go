// Package servers gives the conformance tests Redis-compatible servers whose clock the test moves: miniredis
// in the test's own process, and a redis-server or valkey-server process under a preloaded shim. Both answer
// TIME with exactly the moment set, and both expire keys by it, forward and back, so that one test can hold
// every server to the same numbers without ever sleeping.
package servers

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"
	"testing"

	"github.com/redis/rueidis"
)

// Epoch is the time in microseconds at which every server starts: 2023-11-14 22:13:20 UTC, a whole second and
// no edge of a minute, so that a test that never sets the clock is still the same test every time.
const Epoch int64 = 1_700_000_000_000_000

// Server is a Redis-compatible server that belongs to one test and whose clock that test moves.
type Server struct {
	// Name says which server it is, for subtests: "miniredis", or the binary's own "redis-7.0.15".
	Name string
	// Addr is the server's TCP address, host:port.
	Addr string
	// Client is connected to Addr. It is closed when the test ends.
	Client rueidis.Client
	// Caller is the client that calls the scripts: Client, or one of a user who may do nothing else.
	Caller rueidis.Client

	t       testing.TB
	setTime func(us int64)
}

// SetTime moves the server's clock to us, in microseconds since the epoch, forward or back. TIME answers
// exactly that until the next call, and keys expire by it as they do on Redis: a key is there as long as the
// time in milliseconds has not passed its expiry, its PTTL grows when the clock goes back, and a key that
// had expired before stays gone. No command may be under way meanwhile.
func (s *Server) SetTime(us int64) {
	s.t.Helper()
	s.setTime(us)
}

// Flush removes every key of this server. Loaded scripts stay.
func (s *Server) Flush(t testing.TB) {
	t.Helper()
	if err := s.Client.Do(context.Background(), s.Client.B().Flushall().Build()).Error(); err != nil {
		t.Fatalf("%s: FLUSHALL: %v", s.Name, err)
	}
}

// Eval is shorthand for EvalKeys with one key.
func (s *Server) Eval(ctx context.Context, script, key string, args ...string) ([]int64, error) {
	return s.EvalKeys(ctx, script, []string{key}, args...)
}

// EvalKeys runs one of the scripts, "token_bucket" say, read from Scripts, on keys of one slot and returns the
// integers of its reply. It is sent by its digest, and whole where the server does not know that. An error reply is
// returned as rueidis gives it.
func (s *Server) EvalKeys(ctx context.Context, script string, keys []string, args ...string) ([]int64, error) {
	lua, err := Script(script)
	if err != nil {
		return nil, err
	}
	return lua.Exec(ctx, s.Caller, keys, args).AsIntSlice()
}

// Scripts is the directory that holds the .lua files: $SLUICE_SCRIPTS if it is set (a mutated copy, say),
// otherwise scripts/ of this repository.
func Scripts() string {
	if dir := os.Getenv("SLUICE_SCRIPTS"); dir != "" {
		return dir
	}
	_, file, _, _ := runtime.Caller(0)
	return filepath.Join(filepath.Dir(file), "..", "..", "scripts")
}

// sources caches each script by its path: the property tests call them many thousand times.
var sources sync.Map

// Script is one of the scripts, "token_bucket" say, read from Scripts.
func Script(script string) (*rueidis.Lua, error) {
	path := filepath.Join(Scripts(), script+".lua")
	if lua, ok := sources.Load(path); ok {
		return lua.(*rueidis.Lua), nil
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	lua := rueidis.NewLuaScript(string(text))
	sources.Store(path, lua)
	return lua, nil
}

// All starts one of each server that this machine can run: miniredis always, and a Redis process if
// $SLUICE_REDIS_SERVER names its binary or a redis-server or valkey-server is on the PATH. Without one the
// log says what is left out; with $SLUICE_REQUIRE_REDIS=1 the test fails instead. $SLUICE_SERVERS=miniredis
// leaves the process out on purpose, for runs where only speed matters.
//
// With $SLUICE_SERVER_URL, of the form that rueidis.ParseURL reads, there is only that one server, which runs
// already and belongs to the tests: in a container, say. $SLUICE_SERVER_NAME is its name, $SLUICE_SERVER_CLOCK
// the file of its clock, and $SLUICE_SERVER_CALLER_URL, if set, the URL by which the scripts are called.
func All(t testing.TB) []*Server {
	t.Helper()
	if url := os.Getenv("SLUICE_SERVER_URL"); url != "" {
		return []*Server{running(t, url)}
	}
	all := []*Server{Miniredis(t)}
	if os.Getenv("SLUICE_SERVERS") == "miniredis" {
		return all
	}
	binary, left := find(), ""
	if binary == "" {
		left = "NOT RUN ON A REAL SERVER: no redis-server on the PATH and no $SLUICE_REDIS_SERVER"
	} else if _, err := Shim(); err != nil {
		left = fmt.Sprintf("NOT RUN ON A REAL SERVER: its clock can't be held: %v", err)
	}
	if left != "" {
		if os.Getenv("SLUICE_REQUIRE_REDIS") == "1" {
			t.Fatal(left)
		}
		t.Log(left)
		return all
	}
	return append(all, Redis(t, binary))
}

func find() string {
	if binary := os.Getenv("SLUICE_REDIS_SERVER"); binary != "" {
		return binary
	}
	for _, name := range []string{"redis-server", "valkey-server"} {
		if binary, err := exec.LookPath(name); err == nil {
			return binary
		}
	}
	return ""
}

// running is the server at $SLUICE_SERVER_URL, emptied first.
func running(t testing.TB, url string) *Server {
	t.Helper()
	client := connect(t, url)
	var addr string
	for addr = range client.Nodes() { // there is one
	}
	s := Attach(t, os.Getenv("SLUICE_SERVER_NAME"), addr, client, NewClock(t, os.Getenv("SLUICE_SERVER_CLOCK")))
	s.Flush(t)
	if caller := os.Getenv("SLUICE_SERVER_CALLER_URL"); caller != "" {
		s.Caller = connect(t, caller)
	}
	return s
}

// Parallel lets a test that starts servers of its own, by All, run beside others. With $SLUICE_SERVER_URL they all have the same
// one, and run one after the other.
func Parallel(t *testing.T) {
	t.Helper()
	if os.Getenv("SLUICE_SERVER_URL") == "" {
		t.Parallel()
	}
}

// connect returns a client of the server at a URL, closed when the test ends.
func connect(t testing.TB, url string) rueidis.Client {
	t.Helper()
	option, err := rueidis.ParseURL(url)
	if err != nil {
		t.Fatalf("%s: %v", url, err)
	}
	option.DisableCache = true // miniredis has no client tracking
	client, err := rueidis.NewClient(option)
	if err != nil {
		t.Fatalf("connect to %s: %v", url, err)
	}
	t.Cleanup(client.Close)
	return client
}
