package integration

import (
	"bufio"
	"errors"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/sluicego/sluice"
	"github.com/sluicego/sluice/conformance/servers"
	"github.com/sluicego/sluice/integration/containers"
)

// publishedRights is the user that scripts/README.md tells people to make: ACL SETUSER sluice on >secret ...
func publishedRights(t *testing.T) []string {
	t.Helper()
	readme, err := os.ReadFile(filepath.Join(servers.Scripts(), "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	lines := regexp.MustCompile(`(?m)^ *(ACL SETUSER sluice on >secret resetkeys ~sluice:\* -@all( \+[a-z|]+)+)$`).FindAllStringSubmatch(string(readme), -1)
	if len(lines) != 1 {
		t.Fatalf("scripts/README.md has %d lines ACL SETUSER sluice on >secret resetkeys ~sluice:* -@all ..., want one", len(lines))
	}
	return strings.Fields(lines[0][1])
}

// rightsOnAnyKey are those and some more, on keys of any prefix.
func rightsOnAnyKey(t *testing.T, more ...string) []string {
	t.Helper()
	rights := append(publishedRights(t), more...)
	rights[slices.Index(rights, "~sluice:*")] = "~*"
	return rights
}

// clientRights are the published rights of a client of a cluster, or of one with sentinels.
func clientRights(t *testing.T, where string) []string {
	t.Helper()
	readme, err := os.ReadFile(filepath.Join(servers.Scripts(), "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	m := regexp.MustCompile("(?m)^- " + where + ", .*: `([^`]+)`").FindStringSubmatch(string(readme))
	if m == nil {
		t.Fatalf("scripts/README.md does not tell the rights %q", where)
	}
	return strings.Fields(m[1])
}

// denied is how the versions say that a user may not: Redis 6.0 in a script, and the others; commands and keys.
var denied = regexp.MustCompile(`no permissions|NOPERM|can't run this command|can't access`)

// functionRights are the published rights of a user who calls the functions and may not send scripts, and last the right to load them.
func functionRights(t *testing.T) (rights []string, load string) {
	t.Helper()
	readme, err := os.ReadFile(filepath.Join(servers.Scripts(), "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	m := regexp.MustCompile("(?m)^- Rights: `([^`]+)` in place of `([^`]+)`; and `([^`]+)` for whoever loads it").FindStringSubmatch(string(readme))
	if m == nil {
		t.Fatal("scripts/README.md does not tell the rights for functions as expected")
	}
	scripts := strings.Fields(m[2])
	rights = slices.DeleteFunc(publishedRights(t), func(right string) bool { return slices.Contains(scripts, right) })
	return append(rights, strings.Fields(m[1])...), m[3]
}

// user connects as a user with these rights.
func user(t *testing.T, c *containers.Clocked, rights []string) rueidis.Client {
	t.Helper()
	c.Container.Do("ACL", "DELUSER", "sluice")
	c.Container.Do(rights...)
	return dialClocked(t, c, asUser)
}

// leastRights: a user with the published rights passes the conformance tests, or the vectors in real time where the clock can't be
// held, and there is no right that he could do without.
func leastRights(t *testing.T, c *containers.Clocked) {
	t.Helper()
	rights := publishedRights(t)
	client := user(t, c, rights)
	for _, command := range []rueidis.Completed{
		client.B().Get().Key("other:{a}:b").Build(),
		client.B().Eval().Script("return redis.call('GET', KEYS[1])").Numkeys(1).Key("other:{a}:b").Build(),
		client.B().Lpop().Key("sluice:{a}:b").Build(),
	} {
		if err := client.Do(t.Context(), command).Error(); err == nil || rueidis.IsRedisNil(err) || !denied.MatchString(err.Error()) {
			t.Errorf("with the published rights: %v: %v, want no permission", command.Commands(), err)
		}
	}
	if c.ClockFile != "" {
		conform(t, c, "sluice:secret@", "")
	} else {
		vectorsInRealTime(t, client, byEval(t))
	}
	noneToSpare(t, c, rights, func(t *testing.T, client rueidis.Client, steps int) error {
		// What uses every right in the end: first the scripts are unknown, last they are loaded ahead.
		c.Container.Do("SCRIPT", "FLUSH")
		l := newLimiter(t, client, sluice.Config{})
		return errors.Join(walk(t.Context(), l, steps, shortLimits, forward(c, 5*time.Millisecond)), l.Load(t.Context()))
	})
}

// leastRightsForFunctions is the same for functions. Only who loads the library needs the right to.
func leastRightsForFunctions(t *testing.T, c *containers.Clocked) {
	t.Helper()
	rights, load := functionRights(t)
	client := user(t, c, rights)
	if c.ClockFile == "" { // where it is held, TestVectorsByFunction plays them
		vectorsInRealTime(t, client, byFunction)
	}
	noneToSpare(t, c, rights, func(t *testing.T, client rueidis.Client, steps int) error {
		return walk(t.Context(), newLimiter(t, client, sluice.Config{Functions: true}), steps, shortLimits, forward(c, 5*time.Millisecond))
	})

	c.Container.Do("FUNCTION", "FLUSH")
	err := newLimiter(t, user(t, c, rights), sluice.Config{Functions: true}).Load(t.Context())
	if !errors.Is(err, sluice.ErrBackend) || !denied.MatchString(err.Error()) {
		t.Errorf("Load without %s: %v", load, err)
	}
	if err := newLimiter(t, user(t, c, append(slices.Clone(rights), load)), sluice.Config{Functions: true}).Load(t.Context()); err != nil {
		t.Errorf("Load with %s: %v", load, err)
	}
	c.Container.Do("ACL", "DELUSER", "sluice")
}

// shortLimits change all the time, so that a walk of some steps uses every command.
var shortLimits = []limit{logOf(20, 20*time.Millisecond), counterOf(20, 20*time.Millisecond), bucketOf(20, 20, 20*time.Millisecond)}

// noneToSpare: with the rights use works, and without any one of them it fails with an error that says so.
func noneToSpare(t *testing.T, c *containers.Clocked, rights []string, use func(t *testing.T, client rueidis.Client, steps int) error) {
	t.Helper()
	if err := use(t, user(t, c, rights), 500); err != nil {
		t.Fatalf("with the published rights: %v", err)
	}
	for i, right := range rights {
		if !strings.HasPrefix(right, "+") && !strings.HasPrefix(right, "~") {
			continue
		}
		t.Run("without "+right, func(t *testing.T) {
			err := use(t, user(t, c, slices.Delete(slices.Clone(rights), i, i+1)), 3000)
			if err == nil {
				t.Fatal("it is not needed")
			}
			var call *sluice.CallError
			if !errors.Is(err, sluice.ErrBackend) || !errors.As(err, &call) || !denied.MatchString(err.Error()) {
				t.Errorf("the error is %v", err)
			} else if call.Class != sluice.ClassUnavailable {
				t.Errorf("the error is of class %q, want %q: %v", call.Class, sluice.ClassUnavailable, err)
			}
		})
	}
	c.Container.Do("ACL", "DELUSER", "sluice")
}

// onlyItsKey: the server's own account of every command shows none on another key than the call's.
func onlyItsKey(t *testing.T, c *containers.Clocked) {
	t.Helper()
	conn, err := net.Dial("tcp", c.Addr)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	if err := conn.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Write([]byte("MONITOR\r\n")); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(conn)
	lines.Buffer(nil, 1<<20)
	if !lines.Scan() || lines.Text() != "+OK" {
		t.Fatalf("MONITOR: %q, %v", lines.Text(), lines.Err())
	}

	walked := make(chan error, 1)
	go func() {
		l := newLimiter(t, c.Client, sluice.Config{PlainKeys: true})
		err := walk(t.Context(), l, 3000, shortLimits, forward(c, 5*time.Millisecond))
		walked <- errors.Join(err, c.Client.Do(t.Context(), c.Client.B().Echo().Message("the end").Build()).Error())
	}()
	var declared []string // keys of the call under way
	seen := map[string]int{}
	for lines.Scan() {
		words := monitored(t, lines.Text())
		command := strings.ToUpper(words[0])
		if command == "ECHO" {
			break
		}
		if !strings.Contains(lines.Text(), " lua] ") {
			if command == "EVAL" || command == "EVALSHA" {
				declared = words[3 : 3+integers(t, words[2])[0]]
			}
			continue
		}
		seen[command]++
		if command != "TIME" && (len(words) < 2 || !slices.Contains(declared, words[1])) {
			t.Errorf("a call on %q: %q", declared, words)
		}
	}
	if err := <-walked; err != nil {
		t.Fatal(err)
	}
	for _, right := range publishedRights(t) {
		command, ok := strings.CutPrefix(right, "+")
		if ok && !strings.HasPrefix(command, "eval") && command != "script|load" && seen[strings.ToUpper(command)] == 0 {
			t.Errorf("%s was not seen; seen: %v", command, seen)
		}
	}
}

var quoted = regexp.MustCompile(`"(?:[^"\\]|\\.)*"`)

// monitored is the command that a line of MONITOR shows.
func monitored(t *testing.T, line string) []string {
	t.Helper()
	var words []string
	for _, q := range quoted.FindAllString(line, -1) {
		word, err := strconv.Unquote(q)
		if err != nil {
			t.Fatalf("MONITOR: %s: %v", line, err)
		}
		words = append(words, word)
	}
	if len(words) == 0 {
		t.Fatalf("MONITOR: %s", line)
	}
	return words
}
