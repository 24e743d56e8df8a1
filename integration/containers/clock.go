package containers

import (
	"path/filepath"
	"testing"

	"github.com/redis/rueidis"

	"github.com/sluicego/sluice/conformance/servers"
	"github.com/sluicego/sluice/integration/images"
)

// Clocked starts a server whose clock the test moves. One whose clock can't be held gets none: its time runs.
func Clocked(t testing.TB, image images.Image, change func(*rueidis.ClientOption)) *servers.Server {
	t.Helper()
	spec := Spec{Image: image, Client: change}
	if !image.HoldsClock() {
		s := Start(t, spec)
		return servers.Attach(t, image.String(), s.Addr, s.Client, nil)
	}
	shim, err := servers.Shim()
	if err != nil {
		t.Fatalf("the clock shim: %v", err)
	}
	dir := t.TempDir()
	clock := servers.NewClock(t, filepath.Join(dir, "clock"))
	spec.Env = map[string]string{"LD_PRELOAD": "/sluice/fakeclock.so", "FAKECLOCK": "/sluice/clock/clock"}
	spec.Binds = []string{dir + ":/sluice/clock:ro", shim + ":/sluice/fakeclock.so:ro"}
	s := Start(t, spec)
	return servers.Attach(t, image.String(), s.Addr, s.Client, clock)
}
