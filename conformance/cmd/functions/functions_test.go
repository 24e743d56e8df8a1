package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/sluicego/sluice/conformance/servers"
)

func TestLibraryIsUpToDate(t *testing.T) {
	dir := servers.Scripts()
	want, err := library(dir)
	if err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(filepath.Join(dir, "functions.lua"))
	if err != nil || !bytes.Equal(got, want) {
		t.Errorf("scripts/functions.lua is not what the scripts make: run make generate (%v)", err)
	}
	sums, err := os.ReadFile(filepath.Join(dir, "SHA1SUMS"))
	if err != nil || !bytes.Equal(sums, withSum(sums, want)) {
		t.Errorf("scripts/SHA1SUMS lacks the digest of functions.lua: run make generate (%v)", err)
	}
}

// TestLibraryTellsItsDigest computes the digest as the header says.
func TestLibraryTellsItsDigest(t *testing.T) {
	text, err := library(servers.Scripts())
	if err != nil {
		t.Fatal(err)
	}
	m := regexp.MustCompile(`return \{(\d+), '([0-9a-f]{40})'\}`).FindSubmatch(text)
	if m == nil {
		t.Fatal("no version found")
	}
	if string(m[1]) != fmt.Sprint(version) {
		t.Errorf("version is %s, want %d", m[1], version)
	}
	if got, want := string(m[2]), digest(bytes.Replace(text, m[2], bytes.Repeat([]byte("0"), 40), 1)); got != want {
		t.Errorf("digest is %s, want %s", got, want)
	}
}

// TestLibraryHasEveryScript looks for every line of code of the scripts.
func TestLibraryHasEveryScript(t *testing.T) {
	text, err := library(servers.Scripts())
	if err != nil {
		t.Fatal(err)
	}
	have := map[string]bool{}
	for line := range strings.Lines(string(text)) {
		have[strings.TrimSpace(line)] = true
	}
	for _, name := range names {
		script, err := os.ReadFile(filepath.Join(servers.Scripts(), name+".lua"))
		if err != nil {
			t.Fatal(err)
		}
		_, body, _ := strings.Cut(string(script), "\n\n")
		for line := range strings.Lines(body) {
			if line = strings.TrimSpace(line); !strings.HasPrefix(line, "-- [") && !have[line] {
				t.Errorf("%s.lua: %q is not in the library", name, line)
			}
		}
	}
}

func TestSumsStayInOrder(t *testing.T) {
	const line = "40bd001563085fc35165329ea1ff5c5ecbdbbeef  functions.lua\n" // SHA-1 of 123
	for sums, want := range map[string]string{
		"":                             line,
		"1  a.lua\n":                   "1  a.lua\n" + line,
		"1  a.lua\n2  g.lua\n":         "1  a.lua\n" + line + "2  g.lua\n",
		"0  functions.lua\n":           line,
		"1  a.lua\n" + line:            "1  a.lua\n" + line,
		"0  functions.lua\n2  g.lua\n": line + "2  g.lua\n",
	} {
		if got := string(withSum([]byte(sums), []byte("123"))); got != want {
			t.Errorf("%q: got %q, want %q", sums, got, want)
		}
	}
}
