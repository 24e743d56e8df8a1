package main

import (
	"bytes"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestSampleIsReproducible fails when the shipped sample is not what this program writes:
// run go generate ./examples/quickstart.
func TestSampleIsReproducible(t *testing.T) {
	got := generate()
	want, err := os.ReadFile("../testdata/access.log")
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("the sample in testdata differs from what gensample writes (%d and %d bytes)", len(want), len(got))
	}
}

func TestSampleToFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "log")
	if err := run(file); err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(file)
	if err != nil || !bytes.Equal(got, generate()) {
		t.Errorf("the file differs from what was generated: %v", err)
	}
	if err := run(filepath.Join(t.TempDir(), "no", "such", "folder")); err == nil {
		t.Error("no error for a folder that does not exist")
	}
}

func TestSampleNamesOnlyDocumentationAddresses(t *testing.T) {
	documentation := []netip.Prefix{
		netip.MustParsePrefix("192.0.2.0/24"), netip.MustParsePrefix("198.51.100.0/24"),
		netip.MustParsePrefix("203.0.113.0/24"), netip.MustParsePrefix("2001:db8::/32"),
	}
	lines := strings.Split(strings.TrimSuffix(string(generate()), "\n"), "\n")
	if len(lines) > 2000 {
		t.Errorf("got %d lines, want at most 2000", len(lines))
	}
	used := make([]int, len(documentation))
	for n, line := range lines {
		for _, word := range strings.FieldsFunc(line, func(r rune) bool { return strings.ContainsRune(` []"()`, r) }) {
			addr, err := netip.ParseAddr(word)
			if err != nil {
				continue
			}
			i := slices.IndexFunc(documentation, func(p netip.Prefix) bool { return p.Contains(addr) })
			if i < 0 {
				t.Errorf("line %d: %s is somebody's address", n+1, addr)
				continue
			}
			used[i]++
		}
	}
	if slices.Contains(used, 0) {
		t.Errorf("addresses by prefix: %v; want some of each", used)
	}
}
