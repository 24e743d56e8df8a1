package conformance_test

import (
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

	"github.com/google/go-cmp/cmp"
	"github.com/sluicego/sluice/conformance/servers"
)

// fence is a fenced code block of a Markdown file, and the one after it.
type fence struct{ language, text string }

func fences(t *testing.T, path string) []fence {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var all []fence
	for _, m := range regexp.MustCompile("(?ms)^```([a-z]+)\n(.*?)^```$").FindAllStringSubmatch(string(text), -1) {
		all = append(all, fence{m[1], m[2]})
	}
	return all
}

// documents are the pages whose Go programs are run: the README and everything in docs/.
func documents(t *testing.T) []string {
	t.Helper()
	pages, err := filepath.Glob("../docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	return append(pages, "../README.md", "../scripts/README.md", "../testdata/README.md")
}

// TestProgramsInTheDocs compiles and runs every Go block of the documentation, which is a whole program each, against a
// server named by REDIS_ADDR, and compares what it prints with the text block that follows.
func TestProgramsInTheDocs(t *testing.T) {
	ran := 0
	for _, page := range documents(t) {
		blocks := fences(t, page)
		for i, block := range blocks {
			if block.language != "go" {
				continue
			}
			ran++
			t.Run(fmt.Sprintf("%s/%d", filepath.Base(page), i), func(t *testing.T) {
				dir, err := os.MkdirTemp(".", "snippet-") //nolint:usetesting // within the module, for its imports
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() {
					if err := os.RemoveAll(dir); err != nil {
						t.Error(err)
					}
				})
				if err := os.WriteFile(filepath.Join(dir, "main.go"), []byte(block.text), 0o600); err != nil {
					t.Fatal(err)
				}
				program := exec.CommandContext(t.Context(), "go", "run", "./"+dir)
				program.Env = append(os.Environ(), "REDIS_ADDR="+servers.Miniredis(t).Addr)
				got, err := program.CombinedOutput()
				if err != nil {
					t.Fatalf("%v\n%s", err, got)
				}
				if i+1 == len(blocks) || blocks[i+1].language != "text" {
					t.Fatal("no text block with the output follows the program")
				}
				if diff := cmp.Diff(blocks[i+1].text, string(got)); diff != "" {
					t.Errorf("output (-page +program):\n%s", diff)
				}
			})
		}
	}
	if ran == 0 {
		t.Error("no Go program found in the documentation")
	}
}

// TestSessionInTheScriptsReadme types the redis-cli sessions of scripts/README.md at a real server whose clock is held
// still, and moved only where a line says so.
func TestSessionInTheScriptsReadme(t *testing.T) {
	all := servers.All(t)
	i := slices.IndexFunc(all, func(s *servers.Server) bool { return s.Name != "miniredis" })
	if i < 0 {
		return // servers.All has said so, and failed where it must not be
	}
	server := all[i]
	host, port, err := net.SplitHostPort(server.Addr)
	if err != nil {
		t.Fatal(err)
	}
	const prompt = "$ redis-cli "
	later := regexp.MustCompile(`^# (\d+) ms later$`)
	now, typed := int64(1_800_000_000_000_000), 0
	server.SetTime(now)
	for _, block := range fences(t, "../scripts/README.md") {
		if block.language != "console" {
			continue
		}
		var got strings.Builder
		for line := range strings.Lines(block.text) {
			line = strings.TrimSuffix(line, "\n")
			if m := later.FindStringSubmatch(line); m != nil {
				ms, err := strconv.ParseInt(m[1], 10, 64)
				if err != nil {
					t.Fatal(err)
				}
				now += ms * 1000
				server.SetTime(now)
				got.WriteString(line + "\n")
			}
			if command, ok := strings.CutPrefix(line, prompt); ok {
				typed++
				cli := exec.CommandContext(t.Context(), "redis-cli",
					append([]string{"--no-raw", "-h", host, "-p", port}, strings.Fields(command)...)...)
				cli.Dir = ".."
				out, err := cli.CombinedOutput()
				if err != nil {
					t.Fatalf("%s: %v\n%s", line, err, out)
				}
				got.WriteString(line + "\n" + strings.TrimSpace(string(out)) + "\n")
			}
		}
		if diff := cmp.Diff(block.text, got.String()); diff != "" {
			t.Errorf("session (-page +server):\n%s", diff)
		}
	}
	if typed == 0 {
		t.Error("no command found in the session")
	}
}
