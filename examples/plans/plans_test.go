package main

import (
	"bytes"
	"testing"
)

const want = `free: 10 of 10 admitted
   burst has 0 of 10 free
   daily has 5 of 15 free
free: 5 of 10 admitted
   burst has 5 of 10 free
   daily has 0 of 15 free
the tenant pays for more:
pro: 3 of 3 admitted
   burst has 47 of 50 free
   daily has 982 of 1000 free
and no longer; but the plans are more generous now:
free: 2 of 5 admitted
   burst has 8 of 10 free
   daily has 0 of 20 free
a file with mistakes changes nothing:
sluice: plans.yaml:2: free.burst: refill is 0, want 1 to 1000000000
sluice: plans.yaml:3: free.daily: window is "1w", want whole milliseconds from 1ms to 366d
free: 0 of 1 admitted
   burst has 10 of 10 free
   daily has 0 of 20 free
`

func TestPlans(t *testing.T) {
	t.Setenv("REDIS_ADDR", "")
	t.Chdir(t.TempDir())
	var out bytes.Buffer
	if err := run(t.Context(), &out); err != nil {
		t.Fatal(err)
	}
	if got := out.String(); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}
