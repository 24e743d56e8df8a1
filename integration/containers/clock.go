package containers

import (
	"path/filepath"
	"testing"

	"github.com/sluicego/sluice/conformance/servers"
)

// Clocked is a server whose clock the test moves.
type Clocked struct {
	*servers.Server
	// Container is where it runs.
	Container *Server
	// ClockFile is what the server takes its time from, a file as servers.NewClock makes it; empty if the clock can't be
	// held. Then the server's time runs.
	ClockFile string
	// Socket is a Unix socket of the server, for many small calls; empty like ClockFile.
	Socket string
}

// StartClocked starts a server whose clock the test moves, if its clock can be held. Its Spec's Env is not used.
func StartClocked(t testing.TB, spec Spec) *Clocked {
	t.Helper()
	if !spec.Image.HoldsClock() {
		c := Start(t, spec)
		return &Clocked{servers.Attach(t, spec.Image.String(), c.Addr, c.Client, nil), c, "", ""}
	}
	shim, err := servers.Shim()
	if err != nil {
		t.Fatalf("the clock shim: %v", err)
	}
	dir := t.TempDir()
	file := filepath.Join(dir, "clock")
	clock := servers.NewClock(t, file)
	spec.Env = map[string]string{"LD_PRELOAD": "/sluice/fakeclock.so", "FAKECLOCK": "/sluice/clock/clock"}
	spec.Args = append(spec.Args, "--unixsocket", "/sluice/clock/socket", "--unixsocketperm", "777")
	spec.Binds = append(spec.Binds, dir+":/sluice/clock", shim+":/sluice/fakeclock.so:ro")
	c := Start(t, spec)
	return &Clocked{servers.Attach(t, spec.Image.String(), c.Addr, c.Client, clock), c, file, filepath.Join(dir, "socket")}
}
