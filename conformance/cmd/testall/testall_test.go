package main

import (
	"os"
	"slices"
	"strings"
	"testing"
)

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
		{"one did not run", events(one, ended), true, "DECLARED, BUT DID NOT RUN: p/a FuzzTwo", "not every test ran"},
		{"one did not run, which is allowed", events(one, ended), false, "DECLARED, BUT DID NOT RUN: p/a FuzzTwo", ""},
		{"one of that name in another package", events(one, strings.ReplaceAll(two, "p/a", "p/b"), ended), true,
			"DECLARED, BUT DID NOT RUN: p/a FuzzTwo", "not every test ran"},
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
			ran, err := read(strings.NewReader(c.events), &out)
			if err != nil {
				t.Fatal(err)
			}
			err = verdict(&out, []string{"p/a TestOne", "p/a FuzzTwo"}, ran, c.strict)
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

func TestDeclared(t *testing.T) {
	t.Chdir(t.TempDir())
	t.Setenv("GOWORK", "off")
	t.Setenv("GOFLAGS", "")
	t.Setenv("CGO_ENABLED", "1") // or -race is refused where there is no C compiler
	for name, text := range map[string]string{
		"go.mod": "module m\ngo 1.25\n",
		"m.go":   "package m\nfunc TestInNoTestFile() {}\n",
		"a_test.go": `package m
import "testing"
func TestMain(m *testing.M) { m.Run() }
func TestA(t *testing.T)  {}
func Test(t *testing.T)   {}
func Test_b(t *testing.T) {}
func Testify()            {}
func FuzzC(f *testing.F)  {}
type T struct{}
func (T) TestMethod()     {}
func ExampleT() {
	// Output: said
}
func ExampleT_empty() {
	// Output:
}
func ExampleT_silent() {}
`,
		"x_test.go":    "package m_test\nimport \"testing\"\nfunc TestX(t *testing.T) {}\n",
		"race_test.go": "//go:build race\npackage m\nimport \"testing\"\nfunc TestRace(t *testing.T) {}\n",
	} {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want := []string{"m TestA", "m Test", "m Test_b", "m FuzzC", "m ExampleT", "m ExampleT_empty", "m TestX"}
	for _, args := range [][]string{{"./..."}, {"-timeout", "20m", "-race", "./..."}} {
		got, err := declared(args)
		if err != nil {
			t.Fatal(err)
		}
		if len(args) > 1 {
			want = append(want, "m TestRace")
		}
		slices.Sort(got)
		slices.Sort(want)
		if !slices.Equal(got, want) {
			t.Errorf("%q: got %q, want %q", args, got, want)
		}
	}
	if got, err := declared([]string{"-race"}); err == nil {
		t.Errorf("no packages: got %q", got)
	}
}
