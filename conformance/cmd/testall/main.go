// Command testall runs go test and makes sure that every test ran. It prints the closing line of each package and the
// output of what failed, and at the end what was skipped, what the sources have but did not run, and what a test itself
// reported as left out (a logged line with "NOT RUN"). With -strict any of these is a failure too.
//
//	go run ./conformance/cmd/testall [-strict] [-race ...] ./... ./conformance/...
//
// Whatever follows -strict is passed to go test: flags first, then packages, each with a slash.
package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/doc"
	"go/parser"
	"go/token"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

func main() {
	args := os.Args[1:]
	strict := len(args) > 0 && args[0] == "-strict"
	if strict {
		args = args[1:]
	}
	if err := run(args, strict); err != nil {
		fmt.Fprintln(os.Stderr, "testall:", err)
		os.Exit(1)
	}
}

func run(args []string, strict bool) error {
	wanted, err := declared(args)
	if err != nil {
		return err
	}
	ran, err := output(append([]string{"test", "-json"}, args...), func(r io.Reader) (*results, error) {
		return read(r, os.Stdout)
	})
	return errors.Join(err, verdict(os.Stdout, wanted, ran, strict))
}

// declared are the tests in the sources of the packages that go test is given, as "package TestX": what it has to run. Asking the
// test binaries would be to link them all twice, and to trust that they tell.
func declared(args []string) ([]string, error) {
	first := slices.IndexFunc(args, func(a string) bool { return strings.Contains(a, "/") })
	if first < 0 {
		return nil, errors.New("no package is named by a path, as in ./conformance")
	}
	list := []string{"list", "-json=ImportPath,Dir,TestGoFiles,XTestGoFiles"}
	if slices.Contains(args[:first], "-race") {
		list = append(list, "-race") // a build tag, too
	}
	cmd := exec.Command("go", append(list, args[first:]...)...)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("list the packages: %w", err)
	}
	var names []string
	for d := json.NewDecoder(bytes.NewReader(out)); ; {
		var p struct {
			ImportPath, Dir           string
			TestGoFiles, XTestGoFiles []string
		}
		if err := d.Decode(&p); err == io.EOF {
			return names, nil
		} else if err != nil {
			return nil, fmt.Errorf("list the packages: %w", err)
		}
		for _, name := range append(p.TestGoFiles, p.XTestGoFiles...) {
			file, err := parser.ParseFile(token.NewFileSet(), filepath.Join(p.Dir, name), nil, parser.ParseComments|parser.SkipObjectResolution)
			if err != nil {
				continue // it does not compile, which go test says in full
			}
			for _, name := range testsIn(file) {
				names = append(names, p.ImportPath+" "+name)
			}
		}
	}
}

// testsIn are the functions of a file that go test runs.
func testsIn(file *ast.File) []string {
	var names []string
	for _, d := range file.Decls {
		if f, ok := d.(*ast.FuncDecl); ok && f.Recv == nil && f.Name.Name != "TestMain" && isTest(f.Name.Name) {
			names = append(names, f.Name.Name)
		}
	}
	for _, e := range doc.Examples(file) {
		if e.Output != "" || e.EmptyOutput { // one without is compiled only
			names = append(names, "Example"+e.Name)
		}
	}
	return names
}

// isTest is go test's own rule: what follows the prefix is no lower-case letter.
func isTest(name string) bool {
	for _, prefix := range []string{"Test", "Fuzz"} {
		if rest, ok := strings.CutPrefix(name, prefix); ok {
			r, _ := utf8.DecodeRuneInString(rest)
			return !unicode.IsLower(r)
		}
	}
	return false
}

// output runs the go command and hands its output to read. A failure of the command comes back with what was read.
func output(args []string, read func(io.Reader) (*results, error)) (*results, error) {
	cmd := exec.Command("go", args...)
	cmd.Stderr = os.Stderr
	pipe, err := cmd.StdoutPipe()
	if err != nil {
		return &results{}, err
	}
	if err := cmd.Start(); err != nil {
		return &results{}, err
	}
	r, err := read(pipe)
	return r, errors.Join(err, cmd.Wait())
}

// event is a line of go test -json.
type event struct {
	Action      string
	Package     string
	ImportPath  string // of output of the compiler
	Test        string
	Output      string
	Elapsed     float64
	FailedBuild string
}

// results are what go test told, tests named "package Test/sub".
type results struct {
	passed  []string
	failed  []string // packages too
	skipped []string
	leftOut []string // output lines with NOT RUN
}

// read follows the events of go test and prints what is worth reading: one line for each package, and the output of failures.
func read(in io.Reader, w io.Writer) (*results, error) {
	r := &results{}
	pending := map[string][]string{} // output of a test, a package or a build, by its name
	tests := map[string]int{}
	lines := bufio.NewReader(in)
	for {
		line, err := lines.ReadString('\n')
		if err == io.EOF {
			return r, nil
		}
		if err != nil {
			return r, err
		}
		var e event
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			return r, fmt.Errorf("go test wrote %q: %w", line, err)
		}
		id := strings.TrimSpace(e.Package + e.ImportPath + " " + e.Test)
		switch e.Action {
		case "output", "build-output":
			pending[id] = append(pending[id], e.Output)
			if strings.Contains(e.Output, "NOT RUN") {
				r.leftOut = append(r.leftOut, id+": "+strings.TrimSpace(e.Output))
			}
			continue
		case "build-fail":
			fmt.Fprint(w, strings.Join(pending[id], ""))
		case "pass":
			if e.Test != "" {
				r.passed = append(r.passed, id)
				tests[e.Package]++
			} else {
				fmt.Fprintf(w, "ok    %-60s %6.2fs  %d tests\n", e.Package, e.Elapsed, tests[e.Package])
			}
		case "skip":
			if e.Test != "" {
				r.skipped = append(r.skipped, id)
			}
		case "fail":
			r.failed = append(r.failed, id)
			fmt.Fprint(w, strings.Join(pending[id], ""))
		default:
			continue
		}
		delete(pending, id)
	}
}

// verdict prints what did not pass, and returns an error if that is a failure.
func verdict(w io.Writer, wanted []string, ran *results, strict bool) error {
	absent := slices.DeleteFunc(slices.Clone(wanted), func(id string) bool {
		return slices.Contains(ran.passed, id) || slices.Contains(ran.failed, id) || slices.Contains(ran.skipped, id)
	})
	list := func(what string, ids []string) {
		for _, id := range ids {
			fmt.Fprintf(w, "%s: %s\n", what, id)
		}
	}
	list("FAILED", ran.failed)
	list("SKIPPED", ran.skipped)
	list("DECLARED, BUT DID NOT RUN", absent)
	list("LEFT OUT", ran.leftOut)
	fmt.Fprintf(w, "%d tests passed (%d of %d at the top), %d failed, %d skipped\n",
		len(ran.passed), len(wanted)-len(absent), len(wanted), len(ran.failed), len(ran.skipped))
	switch missing := len(ran.skipped) + len(absent) + len(ran.leftOut); {
	case len(ran.failed) > 0:
		return errors.New("tests failed")
	case len(ran.passed) == 0 && len(ran.leftOut) == 0: // where all was left out, saying so is right
		return errors.New("no test ran")
	case strict && missing > 0:
		return errors.New("not every test ran")
	}
	return nil
}
