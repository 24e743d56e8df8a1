package conformance_test

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/sluicego/sluice/conformance/model"
	"github.com/sluicego/sluice/conformance/servers"
	"github.com/sluicego/sluice/conformance/vectors"
)

func TestVectors(t *testing.T) {
	servers.Parallel(t)
	for s := range subjectsAndMulti(t) {
		t.Run(s.name, func(t *testing.T) {
			file, err := vectors.Read(s.kind)
			if err != nil {
				t.Fatal(err)
			}
			key := s.key
			for i, v := range file.Vectors {
				t.Run(v.Name, func(t *testing.T) {
					s.key = fmt.Sprintf("%s:%d", key, i)
					runVector(t, s, v)
				})
			}
		})
	}
}

func runVector(t *testing.T, s *subject, v vectors.Vector) {
	t.Helper()
	s.at(v.StartUS)
	for _, command := range v.Setup {
		if err := s.do(t, s.keyIn(command)...).Error(); err != nil {
			t.Fatalf("%v: %v", command, err)
		}
	}
	keys := s.keysOf(v)
	receipts := make([]int64, len(v.Steps))
	for i, step := range v.Steps {
		var got []int64
		var err error
		var before map[string]string
		for n := range max(1, step.Repeat) {
			s.at(s.now + step.AdvanceUS)
			if len(step.Command) > 0 {
				if err := s.do(t, s.keyIn(step.Command)...).Error(); err != nil {
					t.Fatalf("step %d: %v: %v", i, step.Command, err)
				}
				continue
			}
			if step.Repeat == 0 && !s.brief {
				before = s.contents(t, keys)
			}
			called := s.scriptOf(step)
			if s.brief && n < step.Repeat-1 {
				called.by = nil
			}
			got, err = called.eval(t, s.calledWith(step), receiptsIn(step.Args, receipts)...)
		}
		switch {
		case len(step.Command) > 0:
			continue
		case len(step.Error) > 0:
			if err == nil || !strings.HasPrefix(err.Error(), strings.Join(step.Error, " ")+" ") {
				t.Fatalf("step %d: %q: got %v, %v, want error %v", i, step.Args, got, err, step.Error)
			}
		case err != nil:
			t.Fatalf("step %d: %q: %v", i, step.Args, err)
		case !slices.Equal(got, step.Reply):
			t.Fatalf("step %d: %q: got %v, want %v", i, step.Args, got, step.Reply)
		default:
			receipts[i] = got[len(got)-1]
		}
		if before != nil {
			charged := s.mayWrite(step)
			for key, after := range s.contents(t, keys) {
				if !unchanged(before[key], after) && !slices.Contains(charged, key) {
					t.Fatalf("step %d: %q: wrote %s\n%s\nover\n%s", i, step.Args, key, after, before[key])
				}
			}
		}
		if step.UntilMS != nil {
			s.checkUntil(t, *step.UntilMS)
		}
		for key, until := range step.UntilsMS {
			s.on(s.kind, s.keyIn([]string{key})[0]).checkUntil(t, until)
		}
	}
}

// keysOf are all keys of a vector.
func (s *subject) keysOf(v vectors.Vector) []string {
	keys := []string{s.key}
	for _, step := range v.Steps {
		keys = append(keys, s.calledWith(step)...)
	}
	slices.Sort(keys)
	return slices.Compact(keys)
}

// mayWrite are the keys that a step may change: none with an error, a peek, a denied take and one of nothing.
func (s *subject) mayWrite(step vectors.Step) []string {
	if len(step.Error) > 0 || step.Args[0] == "peek" || step.Reply[0] == 0 {
		return nil
	}
	var charged []string
	costs := step.Args[1:2]
	if s.scriptOf(step).kind == model.Multi {
		costs = costsIn(step.Args)
	}
	for i, key := range s.calledWith(step) {
		if step.Args[0] == "settle" || costs[i] != "0" {
			charged = append(charged, key)
		}
	}
	return charged
}

// costsIn are the costs in the ARGV of multi.
func costsIn(args []string) []string {
	var costs []string
	for i, a := range args {
		if slices.ContainsFunc(kinds, func(k model.Kind) bool { return k.Script() == a }) {
			costs = append(costs, args[i+1])
		}
	}
	return costs
}

// scriptOf is the script that a step calls.
func (s *subject) scriptOf(step vectors.Step) *subject {
	for _, k := range kinds {
		if step.Script == k.Script() {
			return s.on(k, s.key)
		}
	}
	return s.on(s.kind, s.key)
}

// calledWith are the KEYS of a step.
func (s *subject) calledWith(step vectors.Step) []string {
	switch {
	case step.Keys == nil:
		return []string{s.key}
	case step.Keys[0] == vectors.NoKey:
		return nil
	}
	return s.keyIn(step.Keys)
}

// keyIn puts the key in its place.
func (s *subject) keyIn(words []string) []string {
	out := slices.Clone(words)
	for i, w := range out {
		out[i] = strings.ReplaceAll(w, vectors.Key, s.key)
	}
	return out
}

// receiptsIn puts the receipts of earlier steps in their places.
func receiptsIn(args []string, receipts []int64) []string {
	out := slices.Clone(args)
	for i, a := range out {
		if n, ok := strings.CutPrefix(a, "$"); ok {
			step, err := strconv.Atoi(n)
			if err != nil {
				panic(err) // a broken file, not a broken script
			}
			out[i] = text(receipts[step])
		}
	}
	return out
}
