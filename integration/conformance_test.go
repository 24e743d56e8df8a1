package integration

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/sluicego/sluice/conformance/servers"
	"github.com/sluicego/sluice/integration/containers"
)

// conformanceTests builds the tests of the conformance module, once.
var conformanceTests = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "sluice")
	if err != nil {
		return "", err
	}
	scratch = dir
	binary := filepath.Join(dir, "conformance.test")
	cmd := exec.Command("go", "test", "-c", "-o", binary, ".")
	cmd.Dir = conformanceDir()
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%w\n%s", err, out)
	}
	return binary, nil
})

func conformanceDir() string { return filepath.Join(servers.Scripts(), "..", "conformance") }

// conform runs conformance tests on a server with a held clock: vectors, the faults of others, random walks against the
// model, of which there are fewer than usual. The scripts are called by a user ("name:password@", or nobody) and with the
// options of a URL.
func conform(t *testing.T, c *containers.Clocked, user, options string) {
	t.Helper()
	binary, err := conformanceTests()
	if err != nil {
		t.Fatalf("build the conformance tests: %v", err)
	}
	cmd := exec.CommandContext(t.Context(), binary, "-test.v", "-rapid.checks=20", "-rapid.nofailfile",
		"-test.run", "^Test(Vectors$|VectorsByFunction|ScriptsAgree|Fault|Errors|AllowAll)")
	cmd.Dir = conformanceDir()
	cmd.Env = append(os.Environ(), "SLUICE_SERVER_URL=unix://"+c.Socket, "SLUICE_SERVER_CALLER_URL=unix://"+user+c.Socket+options,
		"SLUICE_SERVER_CLOCK="+c.ClockFile, "SLUICE_SERVER_NAME="+c.Name)
	out, err := cmd.CombinedOutput()
	passed := strings.Count(string(out), "--- PASS: ")
	if err != nil {
		t.Fatalf("%v\n%s", err, failures(string(out)))
	}
	if passed < 100 {
		t.Fatalf("only %d tests ran\n%s", passed, out)
	}
	t.Logf("%d tests of the conformance module passed", passed)
}

// failures leaves out what passed.
func failures(out string) string {
	var kept []string
	for line := range strings.SplitSeq(out, "\n") {
		if trimmed := strings.TrimSpace(line); !strings.HasPrefix(trimmed, "=== ") && !strings.HasPrefix(trimmed, "--- PASS") {
			kept = append(kept, line)
		}
	}
	const most = 40
	return strings.Join(kept[:min(len(kept), most)], "\n")
}
