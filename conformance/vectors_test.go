package conformance_test

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/sluicego/sluice/conformance/vectors"
)

func TestVectors(t *testing.T) {
	for s := range subjects(t) {
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
	receipts := make([]int64, len(v.Steps))
	for i, step := range v.Steps {
		var got []int64
		var err error
		var before string
		for range max(1, step.Repeat) {
			s.at(s.now + step.AdvanceUS)
			if len(step.Command) > 0 {
				if err := s.do(t, s.keyIn(step.Command)...).Error(); err != nil {
					t.Fatalf("step %d: %v: %v", i, step.Command, err)
				}
				continue
			}
			if step.Repeat == 0 {
				before = s.content(t)
			}
			got, err = s.eval(t, s.keysOf(step), receiptsIn(step.Args, receipts)...)
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
			receipts[i] = got[4]
		}
		if writesNothing(step) && step.Repeat == 0 {
			if after := s.content(t); after != before {
				t.Fatalf("step %d: %q: wrote\n%s\nover\n%s", i, step.Args, after, before)
			}
		}
		if step.UntilMS != nil {
			s.checkUntil(t, *step.UntilMS)
		}
	}
}

// writesNothing reports that the step must leave the key as it is: an error, a peek, a denied take and one of
// nothing.
func writesNothing(step vectors.Step) bool {
	return len(step.Error) > 0 || step.Args[0] == "peek" || step.Reply[0] == 0 || step.Args[0] == "take" && step.Args[1] == "0"
}

func (s *subject) keysOf(step vectors.Step) []string {
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
