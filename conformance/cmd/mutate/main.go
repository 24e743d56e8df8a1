// Command mutate asks whether the conformance tests bite. It changes the Lua scripts in one place at a time
// (a comparison, a sign, a rounding, a constant by one, a write left out ...), runs the tests on each such
// mutant with miniredis, and counts how many of them the tests kill. What survives is listed: either the mutant
// decides as the script does, and mutants.txt says why, or a test is missing.
//
//	go run ./cmd/mutate [-run regexp] [script ...]      in the folder conformance
//
// It fails if fewer than 95 of 100 mutants are killed, those in mutants.txt aside, or if mutants.txt speaks of a
// mutant that is killed or does not exist.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/yuin/gopher-lua/parse"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "mutate:", err)
		os.Exit(1)
	}
}

func run() error {
	dir := flag.String("scripts", "../scripts", "the folder with the .lua files")
	explained := flag.String("explained", "mutants.txt", "the file of explained survivors")
	tests := flag.String("run", ".", "the tests to run, as for go test -run")
	parallel := flag.Int("parallel", 2, "mutants tried at once")
	atLeast := flag.Float64("at-least", 95, "the least share of mutants to be killed, in percent, explained ones aside")
	flag.Parse()

	scripts, err := readScripts(*dir, flag.Args())
	if err != nil {
		return err
	}
	var all []mutant
	for _, script := range scripts.chosen {
		of, err := mutants(script, scripts.text[script])
		if err != nil {
			return err
		}
		for _, m := range of {
			if _, err := parse.Parse(strings.NewReader(m.source), m.script); err != nil {
				return fmt.Errorf("%s:%d %s is not Lua: %w", m.script, m.line, m.change, err)
			}
		}
		all = append(all, of...)
	}
	why, err := readExplained(*explained)
	if err != nil {
		return err
	}

	tmp, err := os.MkdirTemp("", "mutate")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(tmp) }()
	s := &suite{tmp: tmp, tests: *tests, scripts: scripts}
	if err := s.build(); err != nil {
		return err
	}
	start := time.Now()
	survived, err := s.tryAll(all, *parallel)
	if err != nil {
		return err
	}
	return report(os.Stdout, all, survived, why, scripts.chosen, *atLeast, time.Since(start))
}

// scripts are the texts of all scripts by name, and the names of those to be mutated.
type scripts struct {
	text   map[string]string
	chosen []string
}

func readScripts(dir string, chosen []string) (scripts, error) {
	s := scripts{text: map[string]string{}, chosen: chosen}
	paths, err := filepath.Glob(filepath.Join(dir, "*.lua"))
	if err != nil {
		return s, err
	}
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			return s, err
		}
		script := strings.TrimSuffix(filepath.Base(path), ".lua")
		s.text[script] = string(text)
		if len(chosen) == 0 {
			s.chosen = append(s.chosen, script)
		}
	}
	for _, script := range s.chosen {
		if s.text[script] == "" {
			return s, fmt.Errorf("no %s.lua in %s", script, dir)
		}
	}
	if len(s.chosen) == 0 {
		return s, fmt.Errorf("no scripts in %s", dir)
	}
	return s, nil
}

// suite is the compiled test binary and how to run it on a mutant.
type suite struct {
	tmp     string
	tests   string
	scripts scripts
	timeout time.Duration // for one mutant; an endless loop is a kill too
}

// build compiles the tests and makes sure that they can tell: they must pass on the scripts as they are, with
// their bytes changed but not their meaning, and must fail on each script that does nothing right.
func (s *suite) build() error {
	out, err := exec.Command("go", "test", "-c", "-o", s.binary(), ".").CombinedOutput()
	if err != nil {
		return fmt.Errorf("compile the tests: %w\n%s", err, out)
	}
	s.timeout = 5 * time.Minute
	start := time.Now()
	for _, script := range s.scripts.chosen {
		if killed, out, err := s.try("same", script, s.scripts.text[script]+"-- no change\n"); err != nil || killed {
			return errors.Join(fmt.Errorf("the tests fail before any change, with a comment added to %s:\n%s", script, out), err)
		}
	}
	s.timeout = max(10*time.Second, 5*time.Since(start)/time.Duration(len(s.scripts.chosen)))
	for _, script := range s.scripts.chosen {
		killed, _, err := s.try("void", script, "return {1, 0, 0, 0, 0}")
		if err != nil {
			return err
		}
		if !killed {
			return fmt.Errorf("the tests pass on a %s that does nothing: do they run it?", script)
		}
	}
	return nil
}

func (s *suite) binary() string { return filepath.Join(s.tmp, "conformance.test") }

// try runs the tests with one script replaced and tells whether they noticed.
func (s *suite) try(id, script, source string) (killed bool, output []byte, err error) {
	dir := filepath.Join(s.tmp, id)
	if err := os.Mkdir(dir, 0o700); err != nil {
		return false, nil, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	for name, text := range s.scripts.text {
		if name == script {
			text = source
		}
		if err := os.WriteFile(filepath.Join(dir, name+".lua"), []byte(text), 0o600); err != nil {
			return false, nil, err
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), s.timeout)
	defer cancel()
	// A counterexample need not be small here, nor kept.
	cmd := exec.CommandContext(ctx, s.binary(), "-test.run="+s.tests, "-test.failfast", "-test.short",
		"-rapid.seed=1", "-rapid.shrinktime=0s", "-rapid.nofailfile")
	cmd.Env = append(os.Environ(), "SLUICE_SCRIPTS="+dir, "SLUICE_SERVERS=miniredis", "SLUICE_REQUIRE_REDIS=")
	output, err = cmd.CombinedOutput()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		return false, output, err
	}
	return err != nil, output, nil
}

// tryAll tries every mutant and returns those that survived, in order.
func (s *suite) tryAll(all []mutant, parallel int) ([]mutant, error) {
	survived := make([]bool, len(all))
	failures := make([]error, len(all))
	next := make(chan int)
	var workers sync.WaitGroup
	for range parallel {
		workers.Go(func() {
			for i := range next {
				killed, _, err := s.try(fmt.Sprint(i), all[i].script, all[i].source)
				survived[i], failures[i] = !killed, err
			}
		})
	}
	for i := range all {
		next <- i
	}
	close(next)
	workers.Wait()
	var left []mutant
	for i, m := range all {
		if survived[i] {
			left = append(left, m)
		}
	}
	return left, errors.Join(slices.DeleteFunc(failures, func(err error) bool { return err == nil })...)
}
