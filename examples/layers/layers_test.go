package main

import (
	"bytes"
	"testing"
)

const want = `/search  18 asked, 15 admitted, then denied by searches for 1m0s
/feed    25 asked,  5 admitted, then denied by burst for 100ms
/feed    25 asked, 10 admitted, then denied by burst for 100ms
/feed    25 asked, 10 admitted, then denied by burst for 100ms
/feed    25 asked, 10 admitted, then denied by burst for 100ms
/feed    25 asked, 10 admitted, then denied by burst for 100ms
/feed    25 asked, 10 admitted, then denied by burst for 100ms
/feed    25 asked, 10 admitted, then denied by burst for 100ms
/feed    25 asked, 10 admitted, then denied by burst for 100ms
/feed    25 asked, 10 admitted, then denied by burst and minute for 52s
/feed    25 asked,  0 admitted, then denied by minute for 51s
burst has 20 of 20 free
minute has 0 of 100 free
searches has 0 of 15 free
`

func TestLayers(t *testing.T) {
	t.Setenv("REDIS_ADDR", "")
	var out bytes.Buffer
	if err := run(t.Context(), &out); err != nil {
		t.Fatal(err)
	}
	if got := out.String(); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}
