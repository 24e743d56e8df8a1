package integration

import (
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
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

// elsewhere are the tests of the conformance module that don't run in containers, and why. All others do, those to come too.
var elsewhere = map[string]string{
	"TestLoaders":                   "other languages' clients: what they depend on is not the server's version",
	"TestLoadersShareALimit":        "the same",
	"TestLoadersDemos":              "the same",
	"TestRefusedKeys":               "the same",
	"TestProgramsInTheDocs":         "no server",
	"TestSessionInTheScriptsReadme": "it needs redis-cli beside the server",
	"TestFunctionsSurvive":          "it starts the server's binary itself; TestCluster has functions through a failover",
	"TestFunctionRights":            "leastRights shows them",
	"TestVectorsByLimiter":          "17 s a server, for what TestVectors and the API's walk show",
}

// conform runs the conformance tests on a server with a held clock, but those that run elsewhere; there are fewer random walks than
// usual. The scripts are called by a user ("name:password@", or nobody) and with the options of a URL.
func conform(t *testing.T, c *containers.Clocked, user, options string) {
	t.Helper()
	binary, err := conformanceTests()
	if err != nil {
		t.Fatalf("build the conformance tests: %v", err)
	}
	list, err := exec.CommandContext(t.Context(), binary, "-test.list", "^Test").Output()
	if err != nil {
		t.Fatalf("list the conformance tests: %v", err)
	}
	tests := strings.Fields(string(list))
	for name := range elsewhere {
		if !slices.Contains(tests, name) {
			t.Errorf("%s, which would run elsewhere, is no test of the conformance module", name)
		}
	}
	skip := "^(" + strings.Join(slices.Sorted(maps.Keys(elsewhere)), "|") + ")$"
	cmd := exec.CommandContext(t.Context(), binary, "-test.v", "-test.timeout=10m", "-rapid.checks=20", "-rapid.nofailfile", "-test.skip", skip)
	cmd.Dir = conformanceDir()
	cmd.Env = append(os.Environ(), "SLUICE_SERVER_URL=unix://"+c.Socket, "SLUICE_SERVER_CALLER_URL=unix://"+user+c.Socket+options,
		"SLUICE_SERVER_CLOCK="+c.ClockFile, "SLUICE_SERVER_NAME="+c.Name)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, failures(string(out)))
	}
	for _, name := range tests {
		if _, left := elsewhere[name]; !left && !strings.Contains(string(out), "--- PASS: "+name+" (") {
			t.Errorf("%s of the conformance module did not run", name)
		}
	}
	t.Logf("%d tests of the conformance module passed, %d of them at the top", strings.Count(string(out), "--- PASS: "), len(tests)-len(elsewhere))
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
