package main

import (
	"errors"
	"strings"
	"testing"
	"testing/iotest"
	"time"
)

func TestParseLine(t *testing.T) {
	noon := time.Date(2025, 3, 30, 12, 0, 0, 0, time.UTC)
	tests := []struct {
		name, line string
		client     string
		at         time.Time
	}{
		{"common", `192.0.2.1 - - [30/Mar/2025:12:00:00 +0000] "GET / HTTP/1.1" 200 512`, "192.0.2.1", noon},
		{"combined", `192.0.2.1 - - [30/Mar/2025:12:00:00 +0000] "GET / HTTP/1.1" 200 512 "-" "curl/8"`, "192.0.2.1", noon},
		{"carriage return", `192.0.2.1 - - [30/Mar/2025:12:00:00 +0000] "GET / HTTP/1.1" 200 512` + "\r", "192.0.2.1", noon},
		{"no size", `192.0.2.1 - - [30/Mar/2025:12:00:00 +0000] "GET / HTTP/1.1" 304 -`, "192.0.2.1", noon},
		{"east of Greenwich", `192.0.2.1 - - [30/Mar/2025:14:00:00 +0200] "GET / HTTP/1.1" 200 1`, "192.0.2.1", noon},
		{"west of Greenwich", `192.0.2.1 - - [30/Mar/2025:04:30:00 -0730] "GET / HTTP/1.1" 200 1`, "192.0.2.1", noon},
		{"the day before", `192.0.2.1 - - [29/Mar/2025:23:00:00 -1300] "GET / HTTP/1.1" 200 1`, "192.0.2.1", noon},
		{"IPv6", `2001:db8::1 - - [30/Mar/2025:12:00:00 +0000] "GET / HTTP/1.1" 200 1`, "2001:db8::1", noon},
		{"IPv6 in full", `2001:0DB8:0:0:0:0:0:1 - - [30/Mar/2025:12:00:00 +0000] "GET / HTTP/1.1" 200 1`, "2001:db8::1", noon},
		{"IPv4 in IPv6", `::ffff:192.0.2.1 - - [30/Mar/2025:12:00:00 +0000] "GET / HTTP/1.1" 200 1`, "192.0.2.1", noon},
		{"host name", `crawler.example.net - - [30/Mar/2025:12:00:00 +0000] "GET / HTTP/1.1" 200 1`, "crawler.example.net", noon},
		{"user", `192.0.2.1 - anna [30/Mar/2025:12:00:00 +0000] "GET / HTTP/1.1" 200 1`, "192.0.2.1", noon},
		{"user with blanks", `192.0.2.1 - anna [x] b [30/Mar/2025:12:00:00 +0000] "GET / HTTP/1.1" 200 1`, "192.0.2.1", noon},
		{"escaped quote", `192.0.2.1 - - [30/Mar/2025:12:00:00 +0000] "GET /\"] \"x HTTP/1.1" 200 1`, "192.0.2.1", noon},
		{"escaped backslash", `192.0.2.1 - - [30/Mar/2025:12:00:00 +0000] "GET /\\" 200 1`, "192.0.2.1", noon},
		{"TLS to a plain port", `192.0.2.1 - - [30/Mar/2025:12:00:00 +0000] "\x16\x03\x01" 400 226 "-" "-"`, "192.0.2.1", noon},
		{"empty request", `192.0.2.1 - - [30/Mar/2025:12:00:00 +0000] "" 408 -`, "192.0.2.1", noon},
		{"agent cut short", `192.0.2.1 - - [30/Mar/2025:12:00:00 +0000] "GET / HTTP/1.1" 200 1 "-" "Mozilla/5.0 (Win`, "192.0.2.1", noon},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			client, at, err := parseLine(tt.line)
			if err != nil || client != tt.client || !at.Equal(tt.at) {
				t.Errorf("got %q, %v, %v; want %q, %v", client, at, err, tt.client, tt.at)
			}
		})
	}
}

func TestParseLineUnreadable(t *testing.T) {
	tests := map[string]string{
		"prose":          `the log was rotated`,
		"error log":      `[Sun Mar 30 12:00:00 2025] [error] [client 192.0.2.1] File does not exist: /x`,
		"no client":      ` - - [30/Mar/2025:12:00:00 +0000] "GET / HTTP/1.1" 200 1`,
		"no user":        `192.0.2.1 - [30/Mar/2025:12:00:00 +0000] "GET / HTTP/1.1" 200 1`,
		"no brackets":    `192.0.2.1 - - 30/Mar/2025:12:00:00 +0000 "GET / HTTP/1.1" 200 1`,
		"no zone":        `192.0.2.1 - - [30/Mar/2025:12:00:00] "GET / HTTP/1.1" 200 1`,
		"no such day":    `192.0.2.1 - - [30/Feb/2025:12:00:00 +0000] "GET / HTTP/1.1" 200 1`,
		"empty time":     `192.0.2.1 - - [] "GET / HTTP/1.1" 200 1`,
		"cut in time":    `192.0.2.1 - - [30/Mar/2025:12:0`,
		"cut in request": `192.0.2.1 - - [30/Mar/2025:12:00:00 +0000] "GET /abc`,
		"open at escape": `192.0.2.1 - - [30/Mar/2025:12:00:00 +0000] "GET /abc\`,
		"no status":      `192.0.2.1 - - [30/Mar/2025:12:00:00 +0000] "GET / HTTP/1.1"`,
		"no size":        `192.0.2.1 - - [30/Mar/2025:12:00:00 +0000] "GET / HTTP/1.1" 200`,
		"long status":    `192.0.2.1 - - [30/Mar/2025:12:00:00 +0000] "GET / HTTP/1.1" 2000 1`,
		"odd status":     `192.0.2.1 - - [30/Mar/2025:12:00:00 +0000] "GET / HTTP/1.1" 2x0 1`,
		"odd size":       `192.0.2.1 - - [30/Mar/2025:12:00:00 +0000] "GET / HTTP/1.1" 200 1k`,
	}
	for name, line := range tests {
		t.Run(name, func(t *testing.T) {
			if client, at, err := parseLine(line); err == nil {
				t.Errorf("got %q, %v; want an error", client, at)
			}
		})
	}
}

func TestReadLog(t *testing.T) {
	const request = `"GET / HTTP/1.1" 200 1`
	log, err := readLog(strings.NewReader(strings.Join([]string{
		`192.0.2.1 - - [30/Mar/2025:01:59:59 +0100] ` + request,
		`192.0.2.2 - - [30/Mar/2025:03:00:00 +0200] ` + request, // a second later: summer time has begun
		``,
		`what is this?`,
		`192.0.2.3 - - [30/Mar/2025:01:59:58 +0100] ` + request,
		`2001:db8::0:1 - - [30/Mar/2025:01:00:00 +0000] ` + request, // the same moment as line 2
		`192.0.2.1 - - [30/Mar/2025:03:00:00 +0200] ` + request,
		`192.0.2.1 - - [`,
		`2001:db8::1 - - [30/Mar/2025:03:00:01 +0200] "GET /` + strings.Repeat("x", 2*maxLine) + `" 414 1`,
		`192.0.2.2 - - [30/Mar/2025:03:00:01 +0200] "GET /" 200 1 "-" "` + strings.Repeat("x", 2*maxLine) + `"`,
		`192.0.2.2 - - [30/Mar/2025:03:00:02 +0200] ` + request, // no newline at the end
	}, "\n")))
	if err != nil {
		t.Fatal(err)
	}
	type named struct {
		subject string
		second  int
	}
	start := time.Date(2025, 3, 30, 0, 59, 58, 0, time.UTC)
	want := []named{
		{"192.0.2.3", 0}, {"192.0.2.1", 1}, {"192.0.2.2", 2}, {"2001:db8::1", 2}, {"192.0.2.1", 2}, {"192.0.2.2", 3}, {"192.0.2.2", 4},
	}
	if len(log.visits) != len(want) {
		t.Fatalf("got %d visits, want %d", len(log.visits), len(want))
	}
	for i, v := range log.visits {
		if got := (named{log.subjects[v.subject], int(v.at.Sub(start) / time.Second)}); got != want[i] {
			t.Errorf("visit %d: got %v, want %v", i, got, want[i])
		}
	}
	if log.unreadable != 3 || log.firstBad != 4 || log.disordered != 1 || len(log.subjects) != 4 {
		t.Errorf("got %d unreadable from line %d, %d out of order, %d subjects; want 3 from line 4, 1, 4",
			log.unreadable, log.firstBad, log.disordered, len(log.subjects))
	}
	if got := log.span(); got != 4*time.Second {
		t.Errorf("got a span of %v, want 4s", got)
	}
}

func TestReadLogErrors(t *testing.T) {
	broken := errors.New("broken disk")
	if _, err := readLog(iotest.ErrReader(broken)); !errors.Is(err, broken) {
		t.Errorf("broken reader: got %v", err)
	}
	if _, err := readLog(strings.NewReader("\n\n")); err == nil || !strings.Contains(err.Error(), "empty") {
		t.Errorf("empty: got %v", err)
	}
	_, err := readLog(strings.NewReader("\na,b\nc,d\n"))
	if err == nil || !strings.Contains(err.Error(), "none of its 2 lines") || !strings.Contains(err.Error(), "line 2") {
		t.Errorf("not a log: got %v", err)
	}
}
