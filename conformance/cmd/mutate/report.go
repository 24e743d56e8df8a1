package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
)

// place names a mutant without its line number, so that an explanation holds as long as the line does.
type place struct {
	script string // or "shared"
	text   string
	change string
}

// explained are the survivors that are accounted for, and the reasons.
type explained map[place]string

// of finds the reason why a mutant can't be killed, "" without, and the place that it stands under.
func (e explained) of(m mutant) (place, string) {
	p := place{m.script, m.text, m.change}
	return p, e[p]
}

// readExplained reads the explained survivors: one a line, "script | line of code | change | reason"; lines that
// start with # and empty lines are for the reader.
func readExplained(path string) (explained, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	why := explained{}
	for i, line := range strings.Split(string(text), "\n") {
		if line = strings.TrimSpace(line); line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		f := strings.Split(line, " | ")
		if len(f) != 4 || f[3] == "" {
			return nil, fmt.Errorf("%s:%d: want script | line | change | reason", path, i+1)
		}
		p := place{f[0], f[1], f[2]}
		if why[p] != "" {
			return nil, fmt.Errorf("%s:%d: explained twice", path, i+1)
		}
		why[p] = f[3]
	}
	return why, nil
}

// report prints the figures and the survivors. The error says why the run counts as failed.
func report(w io.Writer, all, survived []mutant, why explained, atLeast float64) error {
	alive := map[place]bool{} // explanations that were needed
	type figures struct{ total, survived, explained int }
	of := map[string]*figures{}
	var scripts []string
	for _, m := range all {
		if of[m.script] == nil {
			of[m.script] = &figures{}
			scripts = append(scripts, m.script)
		}
		of[m.script].total++
	}
	var open []mutant
	for _, m := range survived {
		of[m.script].survived++
		p, reason := why.of(m)
		if reason == "" {
			open = append(open, m)
			continue
		}
		of[m.script].explained++
		alive[p] = true
	}

	var sum figures
	line := func(script string, f figures) {
		killed := f.total - f.survived
		fmt.Fprintf(w, "%-18s killed %4d of %4d = %5.1f %%; explained %3d, so %5.1f %%; open %d\n",
			script, killed, f.total, percent(killed, f.total), f.explained, percent(killed, f.total-f.explained), f.survived-f.explained)
	}
	for _, m := range open {
		fmt.Fprintf(w, "survived at %s.lua:%d: %s | %s | %s\n", m.homes[0].script, m.line, m.script, m.text, m.change)
	}
	for _, script := range scripts {
		f := *of[script]
		line(script, f)
		sum.total, sum.survived, sum.explained = sum.total+f.total, sum.survived+f.survived, sum.explained+f.explained
	}
	line("all", sum)

	var problems []error
	tried := map[place]bool{}
	for _, m := range all {
		tried[place{m.script, m.text, m.change}] = true
	}
	for p := range why {
		// A shared line need not be in the scripts that were chosen.
		if !alive[p] && of[p.script] != nil && (tried[p] || p.script != "shared") {
			problems = append(problems, fmt.Errorf("explained, but killed or not there: %s | %s | %s", p.script, p.text, p.change))
		}
	}
	if score := percent(sum.total-sum.survived, sum.total-sum.explained); score < atLeast {
		problems = append(problems, fmt.Errorf("%.1f %% killed, want at least %.0f %%", score, atLeast))
	}
	return errors.Join(problems...)
}

func percent(part, whole int) float64 {
	if whole == 0 {
		return 0
	}
	return 100 * float64(part) / float64(whole)
}
