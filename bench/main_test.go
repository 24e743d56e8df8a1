package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestMeasure runs the whole once, with next to no calls: every row and every contender is measured and reported.
func TestMeasure(t *testing.T) {
	binary, err := exec.LookPath("redis-server")
	if err != nil {
		if os.Getenv("SLUICE_REQUIRE_REDIS") == "1" {
			t.Fatal(err)
		}
		t.Log("NOT RUN: the benchmarks need a redis-server")
		return
	}
	r, err := measure(binary, "../scripts", 1, 200, 600, 600)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := report([]result{r}, dir); err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile(filepath.Join(dir, "performance.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range r.rows {
		if !strings.Contains(string(page), "| "+row.name) {
			t.Errorf("no row %q", row.name)
		}
	}
	for _, name := range r.names {
		want := len(r.shapes)
		if slices.Contains(r.peers, name) {
			want-- // not in the largest
		}
		if got := strings.Count(string(page), "| "+name+" |"); got != want {
			t.Errorf("%s stands in %d tables, want %d", name, got, want)
		}
	}
	for _, c := range r.checks() {
		if len(c.measured) == 0 || c.measured.median() <= 0 && c.bar > 0 {
			t.Errorf("%s: got %v, want it measured", c.what, c.measured)
		}
	}
	if _, err := os.Stat(filepath.Join(dir, "performance.svg")); err != nil {
		t.Error(err)
	}
}
