package servers

import (
	"context"
	"crypto/sha256"
	_ "embed"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/rueidis"
)

//go:embed shim/fakeclock.c
var fakeclock []byte

// startTimeout bounds how long a server may take until it answers. It is generous: only a broken one needs it.
const startTimeout = 20 * time.Second

// Redis starts the redis-server or valkey-server binary, a path or a name on the PATH, on a port and in a
// folder of its own, with its clock held by the shim in shim/fakeclock.c. It is killed when the test ends. The
// shim needs Linux and a C compiler (cc, or $CC); it is compiled once and kept in the user's cache folder.
// The test fails if the server doesn't start, or if its TIME does not follow the clock.
func Redis(t testing.TB, binary string) *Server {
	t.Helper()
	shim, err := Shim()
	if err != nil {
		t.Fatalf("the clock shim for %s: %v", binary, err)
	}
	dir := t.TempDir()
	clock := NewClock(t, filepath.Join(dir, "clock"))
	addr := launch(t, binary, dir, "LD_PRELOAD="+shim, "FAKECLOCK="+clock.path)
	return Attach(t, name(binary), addr, connect(t, "redis://"+addr), clock)
}

// Attach makes a Server of one that the test has started itself. It must run under the shim of Shim, with
// FAKECLOCK naming the clock's file; then its time is set to Epoch. A nil clock means that its time runs: then
// SetTime fails the test. The client stays the caller's to close.
func Attach(t testing.TB, name, addr string, client rueidis.Client, clock *Clock) *Server {
	t.Helper()
	s := &Server{Name: name, Addr: addr, Client: client, Caller: client, t: t}
	if clock == nil {
		s.setTime = func(int64) { t.Fatal(name + ": its clock can't be set") }
		return s
	}
	s.setTime = func(us int64) {
		now, err := clock.now()
		if err != nil {
			t.Fatalf("%s: read the clock: %v", s.Name, err)
		}
		if us == now {
			return
		}
		if us < now {
			// What has expired by now must not come back with the old time: Redis deletes it only when it
			// is touched or when its cron comes by, which the test can't see.
			if err := touchAll(context.Background(), s.Client); err != nil {
				t.Fatalf("%s: SCAN before the clock goes back: %v", s.Name, err)
			}
		}
		if err := clock.set(us); err != nil {
			t.Fatalf("%s: move the clock: %v", s.Name, err)
		}
	}
	// Once is enough: it follows the clock or it does not.
	for _, us := range []int64{Epoch + 1, Epoch} {
		s.SetTime(us)
		got, err := client.Do(context.Background(), client.B().Time().Build()).AsStrSlice()
		want := fmt.Sprintf("[%d %d]", us/1e6, us%1e6)
		if err != nil || fmt.Sprint(got) != want {
			t.Fatalf("%s does not follow the clock: TIME = %v, %v, want %s", s.Name, got, err, want)
		}
	}
	return s
}

// launch starts the process and returns its address once it answers. The port is chosen free, but
// another process can take it first: then the server ends, and the next port is tried.
func launch(t testing.TB, binary, dir string, env ...string) string {
	t.Helper()
	logPath := filepath.Join(dir, "log")
	for range 3 {
		port, err := FreePort()
		if err != nil {
			t.Fatal(err)
		}
		log, err := os.Create(logPath)
		if err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command(binary, "--bind", "127.0.0.1", "--port", port, "--dir", dir, "--save", "", "--appendonly", "no")
		cmd.Env = append(os.Environ(), env...)
		cmd.Stdout, cmd.Stderr = log, log
		cmd.SysProcAttr = dieWithParent()
		started, ended := make(chan error), make(chan struct{})
		go func() {
			defer close(ended)
			runtime.LockOSThread() // the parent that dieWithParent watches is this thread
			err := cmd.Start()
			started <- err
			if err == nil {
				_ = cmd.Wait() // it ends by our kill, or its log says why
			}
		}()
		err = <-started
		_ = log.Close() // the child has its own
		if err != nil {
			t.Fatalf("start %s: %v", binary, err)
		}
		// SIGTERM would not do: a server shuts down in its cron, which does not run while the clock stands still.
		kill := func() {
			_ = cmd.Process.Kill() // fails only if it has ended
			<-ended
		}
		addr := net.JoinHostPort("127.0.0.1", port)
		if answers(addr, ended) {
			t.Cleanup(kill)
			return addr
		}
		kill()
	}
	text, _ := os.ReadFile(logPath) // what there is of it is all we can show
	t.Fatalf("%s does not answer; its log:\n%s", binary, text)
	return ""
}

// answers waits until the server at addr answers PING, false if it ends first or takes too long.
func answers(addr string, ended <-chan struct{}) bool {
	for deadline := time.Now().Add(startTimeout); time.Now().Before(deadline); {
		if ping(addr) {
			// Somebody else's server could hold the port: ours must still be running.
			select {
			case <-ended:
				return false
			default:
				return true
			}
		}
		select {
		case <-ended:
			return false
		case <-time.After(5 * time.Millisecond):
		}
	}
	return false
}

func ping(addr string) bool {
	conn, err := net.DialTimeout("tcp", addr, time.Second)
	if err != nil {
		return false
	}
	defer func() { _ = conn.Close() }()
	if err := conn.SetDeadline(time.Now().Add(time.Second)); err != nil {
		return false
	}
	if _, err := conn.Write([]byte("PING\r\n")); err != nil {
		return false
	}
	answer := make([]byte, len("+PONG"))
	n, err := conn.Read(answer)
	return err == nil && string(answer[:n]) == "+PONG"
}

// FreePort is a port of the loopback that nobody listens on. It is below those that systems give to outgoing connections, one of
// which could take the port before the server does.
func FreePort() (string, error) {
	for range 100 {
		port := strconv.Itoa(10_000 + rand.IntN(20_000))
		l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", port))
		if err == nil {
			return port, l.Close()
		}
	}
	return "", errors.New("no free port among 100 tried")
}

// touchAll makes the server look at every key, and so delete those that have expired.
func touchAll(ctx context.Context, client rueidis.Client) error {
	for cursor := uint64(0); ; {
		page, err := client.Do(ctx, client.B().Scan().Cursor(cursor).Count(10_000).Build()).AsScanEntry()
		if err != nil || page.Cursor == 0 {
			return err
		}
		cursor = page.Cursor
	}
}

// name is what the binary calls itself: "redis-7.0.15" from "Redis server v=7.0.15 sha=...".
func name(binary string) string {
	out, err := exec.Command(binary, "--version").Output()
	if f := strings.Fields(string(out)); err == nil && len(f) > 2 {
		return strings.ToLower(f[0]) + "-" + strings.TrimPrefix(f[2], "v=")
	}
	return filepath.Base(binary)
}

// Shim compiles the clock shim for this machine (Linux, glibc, cc or $CC) and returns the library's path, to be
// preloaded into a server with LD_PRELOAD.
func Shim() (string, error) { return compileShim() }

// The name holds the source's digest, so it is compiled once for a version of the source; the rename makes it
// whole for others who look for it at once.
var compileShim = sync.OnceValues(func() (string, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		cache = os.TempDir()
	}
	dir := filepath.Join(cache, "sluice")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", err
	}
	digest := sha256.Sum256(fakeclock)
	lib := filepath.Join(dir, "fakeclock-"+hex.EncodeToString(digest[:8])+".so")
	if _, err := os.Stat(lib); err == nil {
		return lib, nil
	}
	tmp, err := os.MkdirTemp(dir, "cc")
	if err != nil {
		return "", err
	}
	defer func() { _ = os.RemoveAll(tmp) }()
	src, out := filepath.Join(tmp, "fakeclock.c"), filepath.Join(tmp, "fakeclock.so")
	if err := os.WriteFile(src, fakeclock, 0o600); err != nil {
		return "", err
	}
	cc := os.Getenv("CC")
	if cc == "" {
		cc = "cc"
	}
	if msg, err := exec.Command(cc, "-O2", "-Wall", "-shared", "-fPIC", "-o", out, src).CombinedOutput(); err != nil {
		return "", fmt.Errorf("%s: %w\n%s", cc, err, msg)
	}
	return lib, os.Rename(out, lib)
})

// Clock is the time of servers under the shim. It is the file that the shim maps: 8 bytes, the time in microseconds since the
// epoch, little-endian.
type Clock struct {
	path string
	file *os.File
}

// NewClock opens the file at path, or makes it, and sets the time to Epoch. The server's FAKECLOCK must name it.
func NewClock(t testing.TB, path string) *Clock {
	t.Helper()
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600) // never cut short: a server may have mapped it
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = file.Close() })
	c := &Clock{path: path, file: file}
	if err := c.set(Epoch); err != nil {
		t.Fatal(err)
	}
	return c
}

// now is what the file says: another process may have moved it.
func (c *Clock) now() (int64, error) {
	var cell [8]byte
	_, err := c.file.ReadAt(cell[:], 0)
	return int64(binary.LittleEndian.Uint64(cell[:])), err
}

// set is one write of eight aligned bytes; the server sees them in its mapping of the same page.
func (c *Clock) set(us int64) error {
	_, err := c.file.WriteAt(binary.LittleEndian.AppendUint64(nil, uint64(us)), 0)
	return err
}
