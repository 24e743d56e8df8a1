package main

import (
	"slices"
	"strings"
	"testing"
)

const listing = `{"Action":"start","Package":"p/a"}
{"Action":"output","Package":"p/a","Output":"TestOne\n"}
{"Action":"output","Package":"p/a","Output":"FuzzTwo\n"}
{"Action":"output","Package":"p/a","Output":"ok  \tp/a\t0.004s\n"}
{"Action":"pass","Package":"p/a","Elapsed":0.004}
`

func events(lines ...string) string { return strings.Join(lines, "\n") + "\n" }

func TestVerdict(t *testing.T) {
	const (
		one   = `{"Action":"pass","Package":"p/a","Test":"TestOne"}`
		two   = `{"Action":"pass","Package":"p/a","Test":"FuzzTwo"}`
		sub   = `{"Action":"pass","Package":"p/a","Test":"TestOne/sub"}`
		ended = `{"Action":"pass","Package":"p/a","Elapsed":1.5}`
	)
	cases := []struct {
		name    string
		events  string
		strict  bool
		wantOut string
		wantErr string
	}{
		{"all ran", events(one, sub, two, ended), true, "3 tests passed (2 of 2 at the top), 0 failed, 0 skipped", ""},
		{"closing line", events(one, two, ended), true, "ok    p/a", ""},
		{"one did not run", events(one, ended), true, "LISTED, BUT DID NOT RUN: p/a FuzzTwo", "not every test ran"},
		{"one did not run, which is allowed", events(one, ended), false, "LISTED, BUT DID NOT RUN: p/a FuzzTwo", ""},
		{"one of that name in another package", events(one, strings.ReplaceAll(two, "p/a", "p/b"), ended), true,
			"LISTED, BUT DID NOT RUN: p/a FuzzTwo", "not every test ran"},
		{"a skipped subtest", events(one, `{"Action":"skip","Package":"p/a","Test":"TestOne/sub"}`, two, ended), true,
			"SKIPPED: p/a TestOne/sub", "not every test ran"},
		{"a package without tests is no skip", events(one, two, `{"Action":"skip","Package":"p/none"}`), true, "0 skipped", ""},
		{"left out by a log line", events(`{"Action":"output","Package":"p/a","Test":"TestOne","Output":"    x.go:1: NOT RUN ON A REAL SERVER\n"}`, one, two, ended), true,
			"LEFT OUT: p/a TestOne: x.go:1: NOT RUN ON A REAL SERVER", "not every test ran"},
		{"a failure shows its output", events(`{"Action":"output","Package":"p/a","Test":"TestOne","Output":"got 1, want 2\n"}`,
			`{"Action":"fail","Package":"p/a","Test":"TestOne"}`, two, `{"Action":"fail","Package":"p/a"}`), false, "got 1, want 2\n", "tests failed"},
		{"output of a success is not shown", events(`{"Action":"output","Package":"p/a","Test":"TestOne","Output":"loud\n"}`,
			one, two, `{"Action":"fail","Package":"p/a"}`), false, "FAILED: p/a", "tests failed"},
		{"a build that fails", events(`{"ImportPath":"p/a","Action":"build-output","Output":"x.go:1: undefined: y\n"}`,
			`{"ImportPath":"p/a","Action":"build-fail"}`, `{"Action":"fail","Package":"p/a","FailedBuild":"p/a"}`), false, "undefined: y", "tests failed"},
		{"all left out", events(`{"Action":"output","Package":"p/a","Output":"NOT RUN in containers\n"}`, ended), false, "LEFT OUT: p/a: NOT RUN in containers", ""},
		{"all left out, strictly", events(`{"Action":"output","Package":"p/a","Output":"NOT RUN in containers\n"}`, ended), true, "0 tests passed", "not every test ran"},
		{"nothing at all", "", false, "0 tests passed", "no test ran"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			var out strings.Builder
			listed, err := read(strings.NewReader(listing), &strings.Builder{})
			if err != nil {
				t.Fatal(err)
			}
			if want := []string{"p/a TestOne", "p/a FuzzTwo"}; !slices.Equal(listed.listed, want) {
				t.Fatalf("listed %q, want %q", listed.listed, want)
			}
			ran, err := read(strings.NewReader(c.events), &out)
			if err != nil {
				t.Fatal(err)
			}
			err = verdict(&out, listed, ran, c.strict)
			if !strings.Contains(out.String(), c.wantOut) || strings.Contains(out.String(), "loud") {
				t.Errorf("printed\n%swant %q", out.String(), c.wantOut)
			}
			switch {
			case c.wantErr == "" && err != nil:
				t.Errorf("error %v, want none", err)
			case c.wantErr != "" && (err == nil || !strings.Contains(err.Error(), c.wantErr)):
				t.Errorf("error %v, want %q", err, c.wantErr)
			}
		})
	}
}

func TestWhatIsNotJSONIsAnError(t *testing.T) {
	if _, err := read(strings.NewReader("go: no such flag\n"), &strings.Builder{}); err == nil {
		t.Error("a line that is not JSON was taken")
	}
}
