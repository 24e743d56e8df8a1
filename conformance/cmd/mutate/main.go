// Command mutate asks whether the conformance tests bite. It changes the Lua scripts in one place at a time
// (a comparison, a sign, a rounding, a constant by one, a write left out ...), runs the tests on each such
// mutant with miniredis, and counts how many of them the tests kill. What survives is listed: either the mutant
// decides as the script does, and mutants.txt says why, or a test is missing.
//
//	go run ./cmd/mutate [-run regexp] [script ...]      in the folder conformance
//
// It fails if fewer than 95 of 100 mutants are killed, those in mutants.txt aside, or if mutants.txt speaks of a
// mutant that is killed or does not exist.
//
// Only tests of what the scripts do are run: that a test of their text finds a change would say nothing. Random calls
// against the model come first, which notice most; tests that take long are left for those mutants that survive
// all others and are not in mutants.txt.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
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
	first := flag.String("first", "^TestScriptsAgreeWithTheModel$/^miniredis$/^SCRIPT$", "the tests to run first, as for go test -run; SCRIPT is the script's name")
	then := flag.String("then", "^Test(Vectors|Edges.*|Log.*|Foreign.*|Fault.*)$/^miniredis$/^SCRIPT$", "the tests to run on what survives the first")
	long := flag.Duration("long", 100*time.Millisecond, "what a test takes that is left for the survivors of the others")
	parallel := flag.Int("parallel", 2, "mutants tried at once")
	atLeast := flag.Float64("at-least", 95, "the least share of mutants to be killed, in percent, explained ones aside")
	flag.Parse()

	scripts, err := readScripts(*dir, flag.Args())
	if err != nil {
		return err
	}
	all, err := allMutants(scripts.chosen, scripts.text)
	if err != nil {
		return err
	}
	for _, m := range all {
		for _, h := range m.homes {
			if _, err := parse.Parse(strings.NewReader(h.source), h.script); err != nil {
				return fmt.Errorf("%s:%d %s is not Lua: %w", h.script, m.line, m.change, err)
			}
		}
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
	s := &suite{tmp: tmp, scripts: scripts, plans: map[string]plan{}}
	if err := s.build(*first, *then, *long); err != nil {
		return err
	}
	start := time.Now()
	survived, err := s.tryAll(all, *parallel, func(m mutant) bool { _, reason := why.of(m); return reason != "" })
	if err != nil {
		return err
	}
	err = report(os.Stdout, all, survived, why, *atLeast)
	fmt.Printf("%d mutants in %s, %d killed for running on and on\n", len(all), time.Since(start).Round(time.Second), s.timeouts.Load())
	return err
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
		if script == "functions" {
			continue // made of the others
		}
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
	scripts scripts
	plans   map[string]plan // by script

	timeouts atomic.Int64 // kills by the limit, not by a failing test
}

// plan is how the mutants of one script are tried: the flags of the test binary for each stage, and the processor
// time that one may take: an endless loop is a kill too, a busy machine is none.
type plan struct {
	stages [][]string
	long   []string // one more stage, nil if no test takes long
	limit  time.Duration
}

const (
	leastLimit = 10 * time.Second
	noLimit    = time.Hour
)

// build compiles the tests, finds out how long they take, and makes sure that they can tell: they must pass on the
// scripts as they are, with their bytes changed but not their meaning, and fail on a script that does nothing right.
func (s *suite) build(first, then string, long time.Duration) error {
	out, err := exec.Command("go", "test", "-c", "-o", s.binary(), ".").CombinedOutput()
	if err != nil {
		return fmt.Errorf("compile the tests: %w\n%s", err, out)
	}
	for _, script := range s.scripts.chosen {
		first, then := "-test.run="+strings.ReplaceAll(first, "SCRIPT", script), "-test.run="+strings.ReplaceAll(then, "SCRIPT", script)
		p := plan{stages: [][]string{{first}, {then}}, limit: noLimit}
		start := time.Now()
		for i, stage := range p.stages {
			out, err := s.control(script, p.limit, append(stage, "-test.v")...)
			if err != nil {
				return err
			}
			if slow := slower(out, long); i > 0 && slow != "" {
				p.stages[i], p.long = append(stage, "-test.skip="+slow), []string{"-test.run=" + slow}
			}
		}
		p.limit = max(leastLimit, 2*time.Since(start))
		for _, stage := range p.stages {
			killed, _, err := s.try("void", script, "return {1, 0, 0, 0, 0}", p.limit, stage...)
			if err != nil {
				return err
			}
			if !killed {
				return fmt.Errorf("%s passes on a %s that does nothing: does it run it?", stage, script)
			}
		}
		s.plans[script] = p
	}
	return nil
}

// control makes sure that the tests pass on a script whose bytes are changed but not its meaning.
func (s *suite) control(script string, limit time.Duration, flags ...string) (output string, err error) {
	killed, out, err := s.try("same", script, s.scripts.text[script]+"-- no change\n", limit, flags...)
	if err == nil && killed {
		err = fmt.Errorf("the tests fail without any change, with a comment added to %s:\n%s", script, out)
	}
	return string(out), err
}

var passed = regexp.MustCompile(`(?m)^ *--- PASS: (\S+) \((\S+s)\)$`)

// slower is a pattern for the tests that take longer by the output of a verbose run, "" if none does. A test with
// subtests is judged by them.
func slower(output string, limit time.Duration) string {
	runs := passed.FindAllStringSubmatch(output, -1)
	parents := map[string]bool{}
	for _, run := range runs {
		for i, c := range run[1] {
			if c == '/' {
				parents[run[1][:i]] = true
			}
		}
	}
	var slow []string
	for _, run := range runs {
		took, err := time.ParseDuration(run[2])
		if err != nil || took <= limit || parents[run[1]] {
			continue
		}
		levels := strings.Split(run[1], "/")
		for i, level := range levels {
			levels[i] = "^" + regexp.QuoteMeta(level) + "$"
		}
		slow = append(slow, strings.Join(levels, "/"))
	}
	return strings.Join(slow, "|")
}

func (s *suite) binary() string { return filepath.Join(s.tmp, "conformance.test") }

// try runs the tests with one script replaced and tells whether they noticed.
func (s *suite) try(id, script, source string, limit time.Duration, flags ...string) (killed bool, output []byte, err error) {
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
	// A counterexample need not be small here, nor kept.
	flags = append([]string{"-test.failfast", "-rapid.seed=1", "-rapid.shrinktime=0s", "-rapid.nofailfile", "-test.timeout=10m"}, flags...)
	cmd := exec.Command("sh", append([]string{"-c", `ulimit -t "$0"; exec "$@"`, fmt.Sprintf("%.0f", limit.Seconds()), s.binary()}, flags...)...)
	// Client and server wait for one another: on one thread they take half the time. There is little garbage.
	cmd.Env = append(os.Environ(), "GOMAXPROCS=1", "GOGC=400",
		"SLUICE_SCRIPTS="+dir, "SLUICE_SERVERS=miniredis", "SLUICE_REQUIRE_REDIS=")
	output, err = cmd.CombinedOutput()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		return false, output, err
	}
	if err != nil && cmd.ProcessState.UserTime()+cmd.ProcessState.SystemTime() >= limit {
		s.timeouts.Add(1)
	}
	return err != nil, output, nil
}

// tryMutant tells whether the tests of one of its scripts kill it. The long ones are run only if it is not explained.
func (s *suite) tryMutant(id string, m mutant, explained bool) (killed bool, err error) {
	for _, h := range m.homes {
		p := s.plans[h.script]
		stages := p.stages
		if p.long != nil && !explained {
			stages = append(slices.Clip(stages), p.long)
		}
		for _, stage := range stages {
			killed, _, err = s.try(id, h.script, h.source, p.limit, stage...)
			if killed || err != nil {
				return killed, err
			}
		}
	}
	return false, nil
}

// tryAll tries every mutant and returns those that survived, in order. At the end the scripts as they are must still
// pass: otherwise what went wrong meanwhile has been counted as kills.
func (s *suite) tryAll(all []mutant, parallel int, explained func(mutant) bool) ([]mutant, error) {
	killed := make([]bool, len(all))
	failures := make([]error, len(all))
	next := make(chan int)
	var workers sync.WaitGroup
	for range parallel {
		workers.Go(func() {
			for i := range next {
				killed[i], failures[i] = s.tryMutant(strconv.Itoa(i), all[i], explained(all[i]))
			}
		})
	}
	for i := range all {
		if i%100 == 0 {
			fmt.Fprintf(os.Stderr, "%d of %d mutants\n", i, len(all))
		}
		next <- i
	}
	close(next)
	workers.Wait()
	var survived []mutant
	for i, m := range all {
		if !killed[i] {
			survived = append(survived, m)
		}
	}
	for _, script := range s.scripts.chosen {
		p := s.plans[script]
		for _, stage := range p.stages {
			_, err := s.control(script, p.limit, stage...)
			failures = append(failures, err)
		}
	}
	return survived, errors.Join(failures...)
}
