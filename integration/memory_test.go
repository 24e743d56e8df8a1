package integration

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/sluicego/sluice"
	"github.com/sluicego/sluice/integration/containers"
)

// memoryFile is set to have TestMemory measure in full and write its table:
//
//	integration/docker.sh go test ./integration -run '^TestMemory$' -timeout 30m -memory ../docs/operating.md
var memoryFile = flag.String("memory", "", "the page whose table of memory figures is written anew, between its memory marks")

const (
	memoryStart = "<!-- memory: written by integration/memory_test.go -->\n"
	memoryEnd   = "<!-- end of memory -->\n"
)

// TestMemory measures what a key and an entry of a log take on each server, and fails when they take more than they are
// known to.
func TestMemory(t *testing.T) {
	keys, entries := 10_000, []int{1000, 10_000}
	if *memoryFile != "" {
		keys, entries = 1_000_000, []int{1000, 10_000, 100_000}
	}
	var table bytes.Buffer
	fmt.Fprintf(&table, "| server | token bucket | sliding counter | sliding log, one entry |")
	for _, n := range entries {
		fmt.Fprintf(&table, " of %d |", n)
	}
	fmt.Fprintf(&table, "\n|---|%s\n", strings.Repeat("--:|", 3+len(entries)))
	for _, image := range containers.Images() {
		t.Run(image.String(), func(t *testing.T) {
			s := containers.Start(t, containers.Spec{Image: image})
			l := newLimiter(t, dial(t, s.Addr, nil), sluice.Config{})
			fmt.Fprintf(&table, "| %s %s |", image.Name, strings.Join(strings.Split(versionOf(t, s.Client, image), ".")[:2], "."))
			for _, p := range []sluice.Policy{sluice.TokenBucket(50, 10, time.Hour), sluice.SlidingCounter(100, time.Hour), sluice.SlidingLog(5, time.Hour)} {
				bytes := keyBytes(t, s, l, p, keys)
				fmt.Fprintf(&table, " %d |", bytes)
				if bytes < 50 || bytes > 500 {
					t.Errorf("%s: %d bytes a key", p, bytes)
				}
			}
			for _, n := range entries {
				bytes := entryBytes(t, s, l, n)
				fmt.Fprintf(&table, " %d |", bytes)
				if bytes < 20 || bytes > 45 {
					t.Errorf("%d bytes an entry of %d", bytes, n)
				}
			}
			fmt.Fprintln(&table)
		})
	}
	t.Logf("bytes a key of %d, and bytes an entry:\n%s", keys, table.String())
	if *memoryFile == "" || t.Failed() {
		return
	}
	page, err := os.ReadFile(*memoryFile)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, started := strings.Cut(string(page), memoryStart)
	_, after, ended := strings.Cut(rest, memoryEnd)
	if !started || !ended {
		t.Fatalf("%s lacks the lines %q and %q", *memoryFile, memoryStart, memoryEnd)
	}
	if err := os.WriteFile(*memoryFile, []byte(before+memoryStart+table.String()+memoryEnd+after), 0o644); err != nil {
		t.Fatal(err)
	}
}

// keyBytes is what one of many keys takes, its name, expiry and share of the tables included.
func keyBytes(t *testing.T, s *containers.Server, l *sluice.Limiter, p sluice.Policy, keys int) int64 {
	t.Helper()
	empty(t, s)
	if err := l.Load(t.Context()); err != nil {
		t.Fatal(err)
	}
	before := memory(t, s, "used_memory")
	takeAll(t, l, keys, func(i int) sluice.Request { return sluice.Request{Key: strconv.Itoa(i), Policy: p, Cost: 1} })
	return (memory(t, s, "used_memory") - before) / int64(keys)
}

// entryBytes is what one of many entries of a log takes.
func entryBytes(t *testing.T, s *containers.Server, l *sluice.Limiter, entries int) int64 {
	t.Helper()
	empty(t, s)
	p := sluice.SlidingLog(1_000_000, time.Hour)
	takeAll(t, l, entries, func(int) sluice.Request { return sluice.Request{Key: "k", Policy: p, Cost: 1} })
	used, err := s.Do("MEMORY", "USAGE", keys(t, s.Client)[0], "SAMPLES", "0").AsInt64()
	if err != nil {
		t.Fatal(err)
	}
	return used / int64(entries)
}

// takeAll makes n requests, which must all be allowed.
func takeAll(t *testing.T, l *sluice.Limiter, n int, request func(i int) sluice.Request) {
	t.Helper()
	const size = 5000
	for i := 0; i < n; i += size {
		var batch []sluice.Request
		for j := i; j < min(i+size, n); j++ {
			batch = append(batch, request(j))
		}
		for _, o := range l.Batch(t.Context(), batch...) {
			if o.Err != nil || !o.Result.Allowed {
				t.Fatalf("%+v, %v", o.Result, o.Err)
			}
		}
	}
}

// empty removes every key, and waits until their memory is free.
func empty(t *testing.T, s *containers.Server) {
	t.Helper()
	s.Do("FLUSHALL")
	eventually(t, func() error {
		if n := memory(t, s, "lazyfree_pending_objects"); n > 0 {
			return fmt.Errorf("%d objects are left", n)
		}
		return nil
	})
}

// memory is a number of the server's account of its memory.
func memory(t *testing.T, s *containers.Server, name string) int64 {
	t.Helper()
	info, err := s.Do("INFO", "memory").ToString()
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(info, "\n"+name+":")
	line, _, _ := strings.Cut(rest, "\r")
	n, err := strconv.ParseInt(line, 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return n
}
