// Command testall runs go test and makes sure that every test ran. It prints the closing line of each package and the
// output of what failed, and at the end what was skipped, what was listed but did not run, and what a test itself
// reported as left out (a logged line with "NOT RUN"). With -strict any of these is a failure too.
//
//	go run ./conformance/cmd/testall [-strict] [-race ...] ./... ./conformance/...
//
// Whatever follows -strict is passed to go test: flags first, then packages.
package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
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
	// The same flags, so that what is compiled for the list is used again.
	listed, err := output(append([]string{"test", "-json", "-list", "^(Test|Fuzz|Example)"}, args...), func(r io.Reader) (*results, error) {
		return read(r, io.Discard)
	})
	if err != nil {
		// A package that does not compile says so again, in full, when it is run.
		fmt.Fprintln(os.Stderr, "testall: list the tests:", err)
	}
	ran, err := output(append([]string{"test", "-json"}, args...), func(r io.Reader) (*results, error) {
		return read(r, os.Stdout)
	})
	return errors.Join(err, verdict(os.Stdout, listed, ran, strict))
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
	listed  []string // by -list
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
			if f := strings.Fields(e.Output); e.Test == "" && len(f) == 1 && isTest(f[0]) {
				r.listed = append(r.listed, id+" "+f[0])
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

func isTest(s string) bool {
	return strings.HasPrefix(s, "Test") || strings.HasPrefix(s, "Fuzz") || strings.HasPrefix(s, "Example")
}

// verdict prints what did not pass, and returns an error if that is a failure.
func verdict(w io.Writer, listed, ran *results, strict bool) error {
	absent := slices.DeleteFunc(slices.Clone(listed.listed), func(id string) bool {
		return slices.Contains(ran.passed, id) || slices.Contains(ran.failed, id) || slices.Contains(ran.skipped, id)
	})
	list := func(what string, ids []string) {
		for _, id := range ids {
			fmt.Fprintf(w, "%s: %s\n", what, id)
		}
	}
	list("FAILED", ran.failed)
	list("SKIPPED", ran.skipped)
	list("LISTED, BUT DID NOT RUN", absent)
	list("LEFT OUT", ran.leftOut)
	fmt.Fprintf(w, "%d tests passed (%d of %d at the top), %d failed, %d skipped\n",
		len(ran.passed), len(listed.listed)-len(absent), len(listed.listed), len(ran.failed), len(ran.skipped))
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
