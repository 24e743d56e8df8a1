package conformance_test

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/sluicego/sluice/conformance/model"
	"github.com/sluicego/sluice/conformance/servers"
	"github.com/sluicego/sluice/conformance/vectors"
)

func library(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(servers.Scripts(), "functions.lua"))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// functionServer is a server with the library loaded, nil (and the log says so) if there is none that has functions.
func functionServer(t *testing.T) *servers.Server {
	t.Helper()
	s := realServer(t)
	if s == nil {
		return nil
	}
	err := s.Client.Do(t.Context(), s.Client.B().FunctionLoad().Replace().FunctionCode(library(t)).Build()).Error()
	if err != nil && strings.Contains(err.Error(), "unknown command") {
		t.Logf("%s has no functions", s.Name)
		return nil
	}
	if err != nil {
		t.Fatalf("FUNCTION LOAD: %v", err)
	}
	return s
}

// fcall is the command that calls a script's function: the one that only reads, if that will do.
func fcall(b rueidis.Builder, script string, keys []string, args ...string) rueidis.Completed {
	words := []string{"FCALL", "sluice_v1_" + script}
	if len(args) > 0 && args[0] == "peek" {
		words = []string{"FCALL_RO", "sluice_v1_" + script + "_peek"}
	}
	return b.Arbitrary(slices.Concat(words, []string{strconv.Itoa(len(keys))}, keys, args)...).Build()
}

func TestVectorsByFunction(t *testing.T) {
	servers.Parallel(t)
	server := functionServer(t)
	if server == nil {
		return
	}
	byFunction := func(t tb, k model.Kind, keys, args []string) ([]int64, error) {
		return server.Client.Do(t.Context(), fcall(server.Client.B(), k.Script(), keys, args...)).AsIntSlice()
	}
	for _, k := range append(slices.Clip(kinds), model.Multi) {
		file, err := vectors.Read(k)
		if err != nil {
			t.Fatal(err)
		}
		for i, v := range file.Vectors {
			s := &subject{kind: k, server: server, key: fmt.Sprintf("sluice:{%s}:%s:%d", run, k, i), by: byFunction, brief: true}
			t.Run(k.Script()+"/"+v.Name, func(t *testing.T) { runVector(t, s, v) })
		}
	}
}

// TestFunctionAndScriptShareALimit has them called by turns on one key.
func TestFunctionAndScriptShareALimit(t *testing.T) {
	server := functionServer(t)
	if server == nil {
		return
	}
	for _, p := range []model.Policy{
		{Kind: model.Log, Limit: 10, WindowMS: 1000}, {Kind: model.Counter, Limit: 10, WindowMS: 1000}, {Kind: model.Bucket, Limit: 10, Refill: 3, WindowMS: 500},
	} {
		script, key, now, state := p.Kind.Script(), "sluice:{"+run+"}:both "+string(p.Kind), int64(epoch), model.New()
		for i := range int64(40) {
			now += 1_003 * i
			server.SetTime(now)
			op := []string{"take", "peek"}[i/2%2]
			args := arguments(op, i%4, p, 0)
			call := server.Eval
			if i%2 == 0 {
				call = func(ctx context.Context, script, key string, args ...string) ([]int64, error) {
					return server.Client.Do(ctx, fcall(server.Client.B(), script, []string{key}, args...)).AsIntSlice()
				}
			}
			got, err := call(t.Context(), script, key, args...)
			if want := state.Call(now, op, i%4, p, 0).Numbers(); err != nil || !slices.Equal(got, want) {
				t.Fatalf("%s, call %d, %v: got %v, %v, want %v", script, i, args, got, err, want)
			}
		}
	}
}

// TestFunctionsForPeekOnlyPeek: they write nothing, and say why not.
func TestFunctionsForPeekOnlyPeek(t *testing.T) {
	server := functionServer(t)
	if server == nil {
		return
	}
	key := "{" + run + "}peek"
	for script, policy := range map[string][]string{
		"sliding_log": {"1", "10", "1000"}, "sliding_counter": {"1", "10", "1000"}, "token_bucket": {"1", "10", "10", "1000"},
		"multi": {"sliding_log", "1", "10", "1000"},
	} {
		for _, op := range []string{"take", "settle", "", "PEEK"} {
			for _, command := range []string{"FCALL", "FCALL_RO"} {
				words := slices.Concat([]string{command, "sluice_v1_" + script + "_peek", "1", key, op}, policy)
				err := server.Client.Do(t.Context(), server.Client.B().Arbitrary(words...).Build()).Error()
				if err == nil || !strings.HasPrefix(err.Error(), "SLUICEARG operation must be peek") {
					t.Errorf("%v: got %v, want SLUICEARG operation", words, err)
				}
			}
		}
	}
	if n, err := server.Client.Do(t.Context(), server.Client.B().Exists().Key(key).Build()).AsInt64(); n != 0 || err != nil {
		t.Errorf("EXISTS = %d, %v, want no key", n, err)
	}
}

// TestFunctionRights calls every function as a user who may not send scripts: the published rights with those for functions in
// the place of those for scripts.
func TestFunctionRights(t *testing.T) {
	server := functionServer(t)
	if server == nil {
		return
	}
	readme, err := os.ReadFile("../scripts/README.md")
	if err != nil {
		t.Fatal(err)
	}
	line := regexp.MustCompile(`(?m)^    ACL SETUSER .* resetkeys (.*)$`).FindStringSubmatch(string(readme))
	if line == nil || !strings.Contains(string(readme), "`+fcall +fcall_ro` in place of `+eval +evalsha +script|load`") {
		t.Fatal("the rights are not told as expected")
	}
	words := []string{"ACL", "SETUSER", "caller", "on", ">secret", "resetkeys"}
	for right := range strings.FieldsSeq(line[1]) {
		if right != "+eval" && right != "+evalsha" && right != "+script|load" {
			words = append(words, right)
		}
	}
	words = append(words, "+fcall", "+fcall_ro") // after -@all
	if err := server.Client.Do(t.Context(), server.Client.B().Arbitrary(words...).Build()).Error(); err != nil {
		t.Fatal(err)
	}
	client, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{server.Addr}, Username: "caller", Password: "secret", DisableCache: true})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	key := "sluice:{" + run + "}rights:"
	for _, call := range [][]string{
		{"sliding_log", "take", "1", "2", "1000"}, {"sliding_log", "settle", "-1", "2", "1000", "0"}, {"sliding_log", "peek", "1", "2", "1000"},
		{"sliding_counter", "take", "1", "2", "1000"}, {"sliding_counter", "peek", "1", "2", "1000"},
		{"token_bucket", "take", "1", "2", "2", "1000"}, {"token_bucket", "settle", "1", "2", "2", "1000", "0"}, {"token_bucket", "peek", "1", "2", "2", "1000"},
		{"multi", "take", "sliding_log", "1", "2", "1000"}, {"multi", "peek", "sliding_log", "1", "2", "1000"},
	} {
		if _, err := client.Do(t.Context(), fcall(client.B(), call[0], []string{key + call[0]}, call[1:]...)).AsIntSlice(); err != nil {
			t.Errorf("%v: %v", call, err)
		}
	}
}

// TestFunctionsOutOfMemory: a take is refused whole, and a peek is answered.
func TestFunctionsOutOfMemory(t *testing.T) {
	server := functionServer(t)
	if server == nil {
		return
	}
	maxmemory := func(bytes string) {
		if err := server.Client.Do(context.Background(), server.Client.B().ConfigSet().ParameterValue().ParameterValue("maxmemory", bytes).Build()).Error(); err != nil {
			t.Fatal(err)
		}
	}
	maxmemory("1")
	defer maxmemory("0")
	keys := []string{"{" + run + "}oom"}
	if err := server.Client.Do(t.Context(), fcall(server.Client.B(), "sliding_log", keys, "take", "1", "2", "1000")).Error(); err == nil || !strings.HasPrefix(err.Error(), "OOM ") {
		t.Errorf("take: got %v, want OOM", err)
	}
	if got, err := server.Client.Do(t.Context(), fcall(server.Client.B(), "sliding_log", keys, "peek", "1", "2", "1000")).AsIntSlice(); err != nil || got[1] != 2 {
		t.Errorf("peek: got %v, %v, want 2 remaining", got, err)
	}
}

func TestFunctionVersion(t *testing.T) {
	server := functionServer(t)
	if server == nil {
		return
	}
	m := regexp.MustCompile(`return \{(\d+), '([0-9a-f]{40})'\}`).FindStringSubmatch(library(t))
	if m == nil {
		t.Fatal("the library has no version")
	}
	got, err := server.Client.Do(t.Context(), server.Client.B().Arbitrary("FCALL_RO", "sluice_version", "0").Build()).ToAny()
	if want := fmt.Sprintf("[%s %s]", m[1], m[2]); err != nil || fmt.Sprint(got) != want {
		t.Errorf("sluice_version: got %v, %v, want %s", got, err, want)
	}
}

// TestFunctionsSurvive a restart and a failover: no script is sent again, and what was used is kept.
func TestFunctionsSurvive(t *testing.T) {
	servers.Parallel(t)
	server := functionServer(t)
	if server == nil {
		return
	}
	info, err := server.Client.Do(t.Context(), server.Client.B().Info().Section("server").Build()).ToString()
	if err != nil {
		t.Fatal(err)
	}
	m := regexp.MustCompile(`(?m)^executable:(\S+)`).FindStringSubmatch(info)
	if m == nil {
		t.Fatalf("no executable in %q", info)
	}
	binary := m[1]

	dir, addr := t.TempDir(), freeAddr(t)
	take := func(client rueidis.Client, remaining int64) {
		t.Helper()
		got, err := client.Do(t.Context(), fcall(client.B(), "sliding_log", []string{"key"}, "take", "1", "10", "3600000")).AsIntSlice()
		if err != nil || got[1] != remaining {
			t.Fatalf("take: got %v, %v, want %d remaining", got, err, remaining)
		}
	}
	primary, kill := startPlain(t, binary, addr, dir)
	if err := primary.Do(t.Context(), primary.B().FunctionLoad().FunctionCode(library(t)).Build()).Error(); err != nil {
		t.Fatal(err)
	}
	take(primary, 9)
	if err := primary.Do(t.Context(), primary.B().Save().Build()).Error(); err != nil {
		t.Fatal(err)
	}
	kill()

	primary, kill = startPlain(t, binary, addr, dir)
	take(primary, 8)
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		t.Fatal(err)
	}
	replica, _ := startPlain(t, binary, freeAddr(t), t.TempDir(), "--replicaof", host, port)
	within(t, "the replica has the key", func() bool {
		n, err := replica.Do(t.Context(), replica.B().Exists().Key("key").Build()).AsInt64()
		return err == nil && n == 1
	})
	if got, err := replica.Do(t.Context(), fcall(replica.B(), "sliding_log", []string{"key"}, "peek", "1", "10", "3600000")).AsIntSlice(); err != nil || got[1] != 8 {
		t.Errorf("peek on the replica: got %v, %v, want 8 remaining", got, err)
	}
	kill()
	if err := replica.Do(t.Context(), replica.B().Replicaof().No().One().Build()).Error(); err != nil {
		t.Fatal(err)
	}
	take(replica, 7)
}

// startPlain starts a server whose clock runs, in a folder that it keeps, and returns a client and its end.
func startPlain(t *testing.T, binary, addr, dir string, options ...string) (rueidis.Client, func()) {
	t.Helper()
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(binary, append([]string{"--bind", host, "--port", port, "--dir", dir, "--save", ""}, options...)...)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var client rueidis.Client
	ended := false
	kill := func() {
		if ended {
			return
		}
		ended = true
		if client != nil {
			client.Close()
		}
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // it was killed
	}
	t.Cleanup(kill)
	within(t, binary+" answers", func() bool {
		client, err = rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{addr}, DisableCache: true})
		return err == nil
	})
	return client, kill
}

func freeAddr(t *testing.T) string {
	t.Helper()
	port, err := servers.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	return net.JoinHostPort("127.0.0.1", port)
}

// within waits until something is so.
func within(t *testing.T, what string, so func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !so(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("waited in vain: %s", what)
		}
	}
}
