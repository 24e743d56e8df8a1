package conformance_test

import (
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/sluicego/sluice/conformance/servers"
)

// sources are the scripts by name, and at least the three. The library of functions is made of them.
func sources(t *testing.T) map[string]string {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(servers.Scripts(), "*.lua"))
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]string{}
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		all[strings.TrimSuffix(filepath.Base(path), ".lua")] = string(text)
	}
	delete(all, "functions")
	if len(all) < 3 {
		t.Fatalf("only %d scripts found", len(all))
	}
	return all
}

// called are the Redis commands that a script's code calls.
func called(text string) map[string]bool {
	commands := map[string]bool{}
	for _, m := range regexp.MustCompile(`redis\.p?call\('([A-Z]+)'`).FindAllStringSubmatch(text, -1) {
		commands[m[1]] = true
	}
	return commands
}

// TestHeadersTellTheCommands holds the header of each script to its code: the commands that it names are those called.
func TestHeadersTellTheCommands(t *testing.T) {
	for name, text := range sources(t) {
		t.Run(name, func(t *testing.T) {
			head, _, _ := strings.Cut(text, "\n\n")
			m := regexp.MustCompile(`(?s)Commands: (.*?)\.`).FindStringSubmatch(head)
			if m == nil {
				t.Fatal("the header names no commands")
			}
			want := map[string]bool{}
			for _, command := range regexp.MustCompile(`[A-Z]{3,}`).FindAllString(m[1], -1) {
				want[command] = true
			}
			if diff := cmp.Diff(want, called(text)); diff != "" {
				t.Errorf("commands (-header +code):\n%s", diff)
			}
			if calls := strings.Count(text, ".call(") + strings.Count(text, ".pcall("); calls != strings.Count(text, ".call('")+strings.Count(text, ".pcall('") {
				t.Error("a command that is not a plain string can't be checked")
			}
			_, main, _ := strings.Cut(text, "-- [main]")
			for _, arg := range regexp.MustCompile(`(?:KEYS|ARGV)\[\d\]`).FindAllString(main, -1) {
				if !strings.Contains(head, "-- "+arg) {
					t.Errorf("the header does not tell %s, which the code uses", arg)
				}
			}
		})
	}
}

// TestPublishedRightsAreThoseUsed holds the ACL line of scripts/README.md to the commands in the scripts.
func TestPublishedRightsAreThoseUsed(t *testing.T) {
	readme, err := os.ReadFile("../scripts/README.md")
	if err != nil {
		t.Fatal(err)
	}
	line := regexp.MustCompile(`(?m)^    ACL SETUSER .*-@all (.*)$`).FindStringSubmatch(string(readme))
	if line == nil {
		t.Fatal("no ACL line found")
	}
	rights := strings.Fields(line[1])
	want := []string{"+eval", "+evalsha", "+script|load"}
	used := map[string]bool{}
	for _, text := range sources(t) {
		maps.Copy(used, called(text))
	}
	for command := range used {
		want = append(want, "+"+strings.ToLower(command))
	}
	slices.Sort(rights)
	slices.Sort(want)
	if diff := cmp.Diff(want, rights); diff != "" {
		t.Errorf("rights (-scripts +published):\n%s", diff)
	}
}

// TestSharedTextIsTheSame holds the parts that scripts share, each script being complete in itself, to one text.
func TestSharedTextIsTheSame(t *testing.T) {
	part := regexp.MustCompile(`(?ms)^ *-- \[((?:shared|algorithm): \w+)\]\n(.*?)^ *-- \[end\]\n`)
	margin := regexp.MustCompile(`(?m)^ +`) // in a function it is indented
	first := map[string]string{}
	where := map[string]string{}
	shared := 0
	all := sources(t)
	for _, name := range slices.Sorted(maps.Keys(all)) {
		for _, m := range part.FindAllStringSubmatch(all[name], -1) {
			here := margin.ReplaceAllString(m[2], "")
			if text, ok := first[m[1]]; !ok {
				first[m[1]], where[m[1]] = here, name
			} else if shared++; text != here {
				t.Errorf("[%s] in %s.lua differs from that in %s.lua:\n%s", m[1], name, where[m[1]], cmp.Diff(text, here))
			}
		}
	}
	if shared < 3 {
		t.Errorf("only %d shared parts found", shared)
	}
}

// TestScriptsStayPortable refuses what some server lacks, or what makes a script depend on anything but its arguments,
// its key and the server's time.
func TestScriptsStayPortable(t *testing.T) {
	for name, text := range sources(t) {
		for _, word := range []string{"cjson", "cmsgpack", "struct.", "bit.", "replicate_commands", "setresp", "math.random", "os.", "_G", "\r", "\t"} {
			if strings.Contains(text, word) {
				t.Errorf("%s.lua contains %q", name, word)
			}
		}
	}
}
