package containers

import (
	"context"
	"crypto/tls"
	"net"
	"path/filepath"
	"testing"

	"github.com/redis/rueidis"

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
	// Socket is a Unix socket of the server, for many small calls: half the work that they are through Docker's proxy.
	Socket string
}

// StartClocked starts a server whose clock the test moves, if its clock can be held. Its Spec's Env and Client are not used: the
// Client goes over the socket.
func StartClocked(t testing.TB, spec Spec) *Clocked {
	t.Helper()
	dir := t.TempDir()
	c := &Clocked{Socket: filepath.Join(dir, "socket")}
	spec.Args = append(spec.Args, "--unixsocket", "/sluice/clock/socket", "--unixsocketperm", "777")
	spec.Binds = append(spec.Binds, dir+":/sluice/clock")
	spec.Client = c.OverSocket
	var clock *servers.Clock
	if spec.Image.HoldsClock() {
		shim, err := servers.Shim()
		if err != nil {
			t.Fatalf("the clock shim: %v", err)
		}
		c.ClockFile = filepath.Join(dir, "clock")
		clock = servers.NewClock(t, c.ClockFile)
		spec.Env = map[string]string{"LD_PRELOAD": "/sluice/fakeclock.so", "FAKECLOCK": "/sluice/clock/clock"}
		spec.Binds = append(spec.Binds, shim+":/sluice/fakeclock.so:ro")
	}
	c.Container = Start(t, spec)
	c.Server = servers.Attach(t, spec.Image.String(), c.Container.Addr, c.Container.Client, clock)
	return c
}

// OverSocket makes a client connect to the socket, whatever its address.
func (c *Clocked) OverSocket(o *rueidis.ClientOption) {
	o.DialCtxFn = func(ctx context.Context, _ string, dialer *net.Dialer, _ *tls.Config) (net.Conn, error) {
		return dialer.DialContext(ctx, "unix", c.Socket)
	}
}
