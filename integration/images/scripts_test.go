package images

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// fake is a machine with stand-ins for docker and what makes images, in testdata/bin.
type fake struct {
	t   *testing.T
	dir string
	env []string
}

func newFake(t *testing.T) *fake {
	t.Helper()
	bin, err := filepath.Abs("testdata/bin")
	if err != nil {
		t.Fatal(err)
	}
	f := &fake{t: t, dir: t.TempDir()}
	if err := os.Mkdir(f.path("tmp"), 0o700); err != nil {
		t.Fatal(err)
	}
	f.env = []string{"PATH=" + bin + ":" + os.Getenv("PATH"), "FAKE=" + f.dir, "TMPDIR=" + f.path("tmp"),
		"SLUICE_IMAGE_CACHE=" + f.path("cache"), "SLUICE_LEFT_OUT=" + f.path("left-out")}
	f.write("version", "7.0.15\n")
	return f
}

func (f *fake) path(name string) string { return filepath.Join(f.dir, name) }

func (f *fake) write(name, text string) {
	f.t.Helper()
	if err := os.WriteFile(f.path(name), []byte(text), 0o600); err != nil {
		f.t.Fatal(err)
	}
}

// read returns a file's text, empty if there is none.
func (f *fake) read(name string) string {
	f.t.Helper()
	text, err := os.ReadFile(f.path(name))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		f.t.Fatal(err)
	}
	return string(text)
}

// command is a script, with the stand-ins and further variables; what it prints goes to the buffer.
func (f *fake) command(env []string, script string, args ...string) (*exec.Cmd, *bytes.Buffer) {
	cmd := exec.CommandContext(f.t.Context(), script, args...)
	cmd.Env = slices.Concat(f.env, env)
	out := new(bytes.Buffer)
	cmd.Stdout, cmd.Stderr = out, out
	return cmd, out
}

// run runs a script to its end.
func (f *fake) run(env []string, script string, args ...string) (string, int) {
	f.t.Helper()
	cmd, out := f.command(env, script, args...)
	err := cmd.Run()
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		f.t.Fatal(err)
	}
	return out.String(), cmd.ProcessState.ExitCode()
}

// tidy: nothing is left of a run.
func (f *fake) tidy(out string) {
	f.t.Helper()
	left, err := os.ReadDir(f.path("tmp"))
	if err != nil || len(left) > 0 {
		f.t.Errorf("temporary files are left: %v, %v\n%s", left, err, out)
	}
	if f.read("daemon") != "" || f.read("dockerd") != "" && alive(strings.TrimSpace(f.read("dockerd"))) {
		f.t.Errorf("the daemon is left\n%s", out)
	}
}

func alive(pid string) bool {
	_, err := os.Stat("/proc/" + pid)
	return err == nil
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

const one = "SLUICE_TEST_IMAGES=redis:7.0=redis:7.0"

// startsDaemon: docker.sh installs and starts Docker on Debian alone.
var startsDaemon = exists("/etc/debian_version")

func TestDockerStartsAndStopsItsDaemon(t *testing.T) {
	f := newFake(t)
	out, code := f.run([]string{one}, "../docker.sh", "sh", "-c", `echo "in $TMPDIR" && test -e "$FAKE/daemon"; exit $(($? + 7))`)
	want := 8
	if startsDaemon {
		want = 7
	}
	if code != want || !strings.Contains(out, "in "+f.path("tmp")) {
		t.Errorf("exit code %d, want %d\n%s", code, want, out)
	}
	f.tidy(out)
}

func TestDockerEndsAtOnce(t *testing.T) {
	for sent, want := range map[syscall.Signal]int{syscall.SIGINT: 130, syscall.SIGTERM: 143, syscall.SIGHUP: 129} {
		if sent == syscall.SIGHUP && signal.Ignored(sent) {
			continue // under nohup: no shell can trap what it was started to ignore
		}
		f := newFake(t)
		// A command with a child that a signal to the command alone would not reach.
		cmd, out := f.command([]string{one}, "../docker.sh", "bash", "-c", `mktemp; sleep 60 & echo $! >"$FAKE/child"; wait`)
		f.write("containers", "mine 999999999\nother 1\n")
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		for deadline := time.Now().Add(30 * time.Second); f.read("child") == "" && time.Now().Before(deadline); {
			time.Sleep(10 * time.Millisecond)
		}
		before := time.Now()
		if err := cmd.Process.Signal(sent); err != nil {
			t.Fatal(err)
		}
		err := cmd.Wait()
		if took := time.Since(before); cmd.ProcessState.ExitCode() != want || took > 4*time.Second {
			t.Errorf("%v: %v after %v, want exit code %d at once\n%s", sent, err, took, want, out)
		}
		if alive(strings.TrimSpace(f.read("child"))) {
			t.Errorf("%v: a process of the command goes on\n%s", sent, out)
		}
		if got := f.read("removed"); startsDaemon && got != "rm --force --volumes mine\n" {
			t.Errorf("%v: removed %q, want the container whose process has ended\n%s", sent, got, out)
		}
		f.tidy(out.String())
	}
}

func TestDockerLeavesTheMachineAsItIs(t *testing.T) {
	for value, allowed := range map[string]bool{"1": false, "0": true, "": true} {
		f := newFake(t)
		for range 2 {
			out, code := f.run([]string{one, "SLUICE_NO_INSTALL=" + value}, "../docker.sh", "true")
			if code != 0 {
				t.Errorf("SLUICE_NO_INSTALL=%s: exit code %d\n%s", value, code, out)
			}
			f.tidy(out)
		}
		started, left := f.read("dockerd") != "", strings.Count(f.read("left-out"), "\n")
		if allowed = allowed && startsDaemon; started != allowed || left != map[bool]int{true: 0, false: 1}[allowed] {
			t.Errorf("SLUICE_NO_INSTALL=%s: a daemon was started: %v, want %v; %d lines of what is left out", value, started, allowed, left)
		}
	}
}

// The environment of these tests has no HOME.
func TestBuildMakesWhatIsAskedFor(t *testing.T) {
	f := newFake(t)
	f.write("daemon", "")
	image := func() string { return f.read("images/sluice-test_redis:7.0") }
	build := func(list string) string {
		t.Helper()
		out, code := f.run([]string{"SLUICE_TEST_IMAGES=" + list}, "./build.sh")
		if code != 0 {
			t.Fatalf("%s: exit code %d\n%s", list, code, out)
		}
		return out
	}
	times := func(want int) {
		t.Helper()
		if got := strings.Count(f.read("made"), "\n"); got != want {
			t.Errorf("made %d times, want %d", got, want)
		}
	}

	build("redis:7.0=redis:7.0")
	build("redis:7.0=redis:7.0")
	times(1)
	if got := f.read("images/sluice-test_redis:7.0.version"); got != "7.0.15\n" {
		t.Errorf("version %q", got)
	}
	build("redis:7.0=a.example/redis:7.0.15") // another reference, which can't be pulled
	times(2)
	if caches, err := filepath.Glob(f.path("cache/*")); err != nil || len(caches) != 1 {
		t.Errorf("cached are %v, %v, want one", caches, err)
	}
	f.write("registry", "")
	build("redis:7.0=a.example/redis:7.0.16") // one that can
	if got := image(); got != "id of a.example/redis:7.0.16\n" {
		t.Errorf("the image is %q", got)
	}
	build("redis:7.0=a.example/redis:7.0.17")
	if got := image(); got != "id of a.example/redis:7.0.17\n" {
		t.Errorf("with another reference the image is %q", got)
	}
	if out := build("redis:7.0=a.example/redis:7.0.17"); out != "" {
		t.Errorf("again: %s", out)
	}
	times(2)
}

func TestBuildOfALaterVersion(t *testing.T) {
	for list, c := range map[string]struct {
		version, said string
		code          int
	}{
		"redis:7.0=":      {"7.2.4", "another version than redis:7.0: 7.2.4", 123},
		"redis:9.9=":      {"9.9.0", "no Debian suite is known for redis:9.9", 123},
		"valkey:9.1+=":    {"9.1.2", "", 0},
		"valkey:9.1+=x":   {"10.0.1", "valkey:9.1+ IS NOT TESTED, BUT valkey 10.0.1", 0},
		"valkey:9.1+=y":   {"9.0.9", "another version than valkey:9.1+: 9.0.9", 123},
		"redict:7.3+=any": {"7.10.0", "redict:7.3+ IS NOT TESTED, BUT redict 7.10.0", 0},
	} {
		f := newFake(t)
		f.write("daemon", "")
		f.write("version", c.version)
		for range 2 { // it is said each time
			out, code := f.run([]string{"SLUICE_TEST_IMAGES=" + list}, "./build.sh")
			if code != c.code || !strings.Contains(out, c.said) || c.said == "" && strings.Contains(out, "NOT TESTED") {
				t.Errorf("%s of %s: exit code %d, want %d and %q\n%s", list, c.version, code, c.code, c.said, out)
			}
		}
	}
}
