package conformance_test

import (
	"context"
	"fmt"
	"iter"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/sluicego/sluice/conformance/model"
	"github.com/sluicego/sluice/conformance/servers"
)

var kinds = []model.Kind{model.Log, model.Counter, model.Bucket}

// epoch is where the clocks of these tests start: a whole minute, in microseconds.
const epoch = 1_699_999_980_000_000

// run sets the keys of this run apart from those of another on the same server.
var run = strconv.FormatInt(time.Now().UnixNano(), 36)

// tb is what testing.T and rapid.T have in common, as far as it is needed here.
type tb interface {
	Helper()
	Context() context.Context
	Fatalf(format string, args ...any)
	Errorf(format string, args ...any)
}

// subject is a key of a server, and the script that is called on it.
type subject struct {
	name   string     // for a subtest
	kind   model.Kind // with model.Multi the key is the start of several
	server *servers.Server
	key    string
	now    int64 // us
	by     means // nil: as servers calls it
	brief  bool  // a vector's replies alone are of interest: a repeated step is made without them but for its last call
}

// means is another way to call a script: by a loader in another language, as a function.
type means func(t tb, k model.Kind, keys, args []string) ([]int64, error)

// subjects are every algorithm on every server, each with the clock at the epoch and a key of the test's own.
func subjects(t *testing.T) iter.Seq[*subject] {
	t.Helper()
	return subjectsOf(t, kinds...)
}

// subjectsAndMulti are those and multi.
func subjectsAndMulti(t *testing.T) iter.Seq[*subject] {
	t.Helper()
	return subjectsOf(t, append(slices.Clip(kinds), model.Multi)...)
}

func subjectsOf(t *testing.T, kinds ...model.Kind) iter.Seq[*subject] {
	t.Helper()
	all := servers.All(t)
	return func(yield func(*subject) bool) {
		for _, server := range all {
			for _, k := range kinds {
				s := &subject{
					name:   server.Name + "/" + k.Script(),
					kind:   k,
					server: server,
					key:    fmt.Sprintf("sluice:{%s %s}:%s", run, t.Name(), k),
				}
				s.at(epoch)
				if !yield(s) {
					return
				}
			}
		}
	}
}

// on is another key, and the script of another algorithm.
func (s *subject) on(k model.Kind, key string) *subject {
	other := *s
	other.kind, other.key = k, key
	return &other
}

// at sets the server's clock.
func (s *subject) at(us int64) {
	s.now = us
	s.server.SetTime(us)
}

// do sends a command.
func (s *subject) do(t tb, command ...string) rueidis.RedisResult {
	t.Helper()
	return s.server.Client.Do(t.Context(), s.server.Client.B().Arbitrary(command...).Build())
}

// eval calls the script with these keys.
func (s *subject) eval(t tb, keys []string, args ...string) ([]int64, error) {
	t.Helper()
	if s.by != nil {
		return s.by(t, s.kind, keys, args)
	}
	return s.server.EvalKeys(t.Context(), s.kind.Script(), keys, args...)
}

// call calls the script with the arguments of a model's call.
func (s *subject) call(t tb, op string, cost int64, p model.Policy, receipt int64) []int64 {
	t.Helper()
	args := arguments(op, cost, p, receipt)
	got, err := s.eval(t, []string{s.key}, args...)
	if err != nil {
		t.Fatalf("%v: %v", args, err)
	}
	return got
}

// arguments are the ARGV of a model's call.
func arguments(op string, cost int64, p model.Policy, receipt int64) []string {
	args := []string{op, text(cost), text(p.Limit)}
	if p.Kind == model.Bucket {
		args = append(args, text(p.Refill))
	}
	args = append(args, text(p.WindowMS))
	if op == "settle" {
		args = append(args, text(receipt))
	}
	return args
}

func text(n int64) string { return strconv.FormatInt(n, 10) }

// pttl is the key's PTTL: -1 no expiry, -2 no key.
func (s *subject) pttl(t tb) int64 {
	t.Helper()
	got, err := s.do(t, "PTTL", s.key).AsInt64()
	if err != nil {
		t.Fatalf("PTTL: %v", err)
	}
	return got
}

// content is all there is to see of the key: its value, byte for byte where the server dumps it, and its expiry.
func (s *subject) content(t tb) string {
	t.Helper()
	return s.contents(t, []string{s.key})[s.key]
}

// contents are those of several keys.
func (s *subject) contents(t tb, keys []string) map[string]string {
	t.Helper()
	b := s.server.Client.B()
	dump := func(key string) rueidis.Completed { return b.Dump().Key(key).Build() }
	if s.server.Name == "miniredis" { // which dumps strings only
		dump = func(key string) rueidis.Completed { return b.Type().Key(key).Build() }
	}
	var commands rueidis.Commands
	for _, key := range keys {
		commands = append(commands, dump(key), b.Pttl().Key(key).Build())
	}
	all := map[string]string{}
	results := s.server.Client.DoMulti(t.Context(), commands...)
	for i, key := range keys {
		value, err := results[2*i].ToAny()
		if s.server.Name == "miniredis" && err == nil {
			value, err = s.readAny(t, key, value.(string))
		}
		if err != nil && !rueidis.IsRedisNil(err) {
			t.Fatalf("read %s: %v", key, err)
		}
		ttl, err := results[2*i+1].AsInt64()
		if err != nil {
			t.Fatalf("PTTL of %s: %v", key, err)
		}
		all[key] = fmt.Sprintf("%q expires in %d ms", value, ttl)
		if ttl == -2 { // removed since it was read, if it was there
			all[key] = "no key"
		}
	}
	return all
}

// unchanged says whether a call wrote nothing, by the key's content before and after it. In a key's last millisecond the server
// itself may remove it.
func unchanged(before, after string) bool {
	return after == before || after == "no key" && strings.HasSuffix(before, " expires in 0 ms")
}

// readAny reads a key's value, of a type.
func (s *subject) readAny(t tb, key, kind string) (any, error) {
	t.Helper()
	switch kind {
	case "none", "string":
		return s.do(t, "GET", key).ToAny()
	case "list":
		return s.do(t, "LRANGE", key, "0", "-1").ToAny()
	case "set":
		return s.do(t, "SMEMBERS", key).ToAny()
	case "hash":
		return s.do(t, "HGETALL", key).ToAny()
	case "zset":
		return s.do(t, "ZRANGE", key, "0", "-1", "WITHSCORES").ToAny()
	}
	return nil, fmt.Errorf("TYPE is %q", kind)
}

// checkUntil holds the key's expiry against a moment in ms; 0 is no key, or one whose time has come.
func (s *subject) checkUntil(t tb, until int64) {
	t.Helper()
	got := s.pttl(t)
	if until == 0 {
		if got != -2 && got != 0 {
			t.Fatalf("PTTL is %d, want no key", got)
		}
		return
	}
	if want := until - s.now/1000; got != want {
		t.Fatalf("PTTL is %d, want %d", got, want)
	}
}
