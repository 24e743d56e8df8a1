package main

import (
	"bytes"
	"regexp"
	"testing"
	"time"

	"github.com/sluicego/sluice"
)

func TestWaiting(t *testing.T) {
	t.Setenv("REDIS_ADDR", "")
	var out bytes.Buffer
	start := time.Now()
	if err := run(t.Context(), &out, sluice.TokenBucket(5, 10, 100*time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	want := regexp.MustCompile(`^one more would wait too long, and knew after \S+\n40 workers were let in within \S+\n$`)
	if !want.MatchString(out.String()) {
		t.Errorf("got\n%s\nwant it to match\n%s", out.String(), want)
	}
	if took := time.Since(start); took < 340*time.Millisecond {
		t.Errorf("took %v, want at least what the bucket needs for 35", took)
	}
}
