package integration

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/sluicego/sluice/conformance/model"
	"github.com/sluicego/sluice/conformance/vectors"
	"github.com/sluicego/sluice/integration/containers"
)

// vectorsInRealTime makes the calls of the vectors on a server whose time runs, and holds each reply to what the model says
// for the moment that the reply carries. A vector that moves the clock is played without; from a command that changes the
// key from outside on, it is left.
func vectorsInRealTime(t *testing.T, c *containers.Clocked) {
	t.Helper()
	for _, k := range []model.Kind{model.Log, model.Counter, model.Bucket} {
		file, err := vectors.Read(k)
		if err != nil {
			t.Fatal(err)
		}
		calls := 0
		for i, v := range file.Vectors {
			if len(v.Setup) > 0 {
				continue
			}
			calls += playVector(t, c, k, fmt.Sprintf("sluice:{vector %d}:%s", i, k), v)
		}
		if calls < 100 {
			t.Errorf("%s: only %d calls were made", k, calls)
		}
	}
}

func playVector(t *testing.T, c *containers.Clocked, k model.Kind, key string, v vectors.Vector) (calls int) {
	t.Helper()
	state := model.New()
	receipts := make([]int64, len(v.Steps))
	for i, step := range v.Steps {
		if len(step.Command) > 0 || len(step.Keys) > 0 {
			return calls
		}
		args := slices.Clone(step.Args)
		for j, a := range args {
			if n, ok := strings.CutPrefix(a, "$"); ok {
				args[j] = strconv.FormatInt(receipts[integers(t, n)[0]], 10)
			}
		}
		for range max(1, step.Repeat) {
			calls++
			got, err := c.Eval(t.Context(), k.Script(), key, args...)
			if len(step.Error) > 0 {
				if err == nil || !strings.HasPrefix(err.Error(), strings.Join(step.Error, " ")+" ") {
					t.Errorf("%s: %q: got %v, %v, want error %v", v.Name, args, got, err, step.Error)
				}
				continue
			}
			if err != nil {
				t.Errorf("%s: %q: %v", v.Name, args, err)
				return calls
			}
			n := integers(t, args[1:]...)
			p, receipt := model.Policy{Kind: k, Limit: n[1], WindowMS: n[2]}, int64(0)
			if k == model.Bucket {
				p.Refill, p.WindowMS = n[2], n[3]
			}
			if args[0] == "settle" {
				receipt = n[len(n)-1]
			}
			receipts[i] = got[4]
			if want := state.Call(got[4], args[0], n[0], p, receipt).Numbers(); !slices.Equal(got, want) {
				t.Errorf("%s: step %d: %q: got %v, want %v", v.Name, i, args, got, want)
				return calls
			}
		}
	}
	return calls
}

func integers(t *testing.T, texts ...string) []int64 {
	t.Helper()
	all := make([]int64, len(texts))
	for i, text := range texts {
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		all[i] = n
	}
	return all
}
