package integration

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/redis/rueidis"

	"github.com/sluicego/sluice/conformance/model"
	"github.com/sluicego/sluice/conformance/servers"
	"github.com/sluicego/sluice/conformance/vectors"
)

// single are the algorithms, by the names of their scripts.
var single = map[string]model.Kind{
	model.Log.Script(): model.Log, model.Counter.Script(): model.Counter, model.Bucket.Script(): model.Bucket,
}

// command is a call of a script, or of its function.
type command func(script string, keys []string, args ...string) []string

// byEval calls the scripts.
func byEval(t *testing.T) command {
	t.Helper()
	texts := map[string]string{}
	for _, k := range []model.Kind{model.Log, model.Counter, model.Bucket, model.Multi} {
		text, err := os.ReadFile(filepath.Join(servers.Scripts(), k.Script()+".lua"))
		if err != nil {
			t.Fatal(err)
		}
		texts[k.Script()] = string(text)
	}
	return func(script string, keys []string, args ...string) []string {
		return slices.Concat([]string{"EVAL", texts[script], strconv.Itoa(len(keys))}, keys, args)
	}
}

// byFunction calls the functions of the library, which must be loaded: for a peek those that only read.
func byFunction(script string, keys []string, args ...string) []string {
	words := []string{"FCALL", "sluice_v1_" + script}
	if len(args) > 0 && args[0] == "peek" {
		words = []string{"FCALL_RO", "sluice_v1_" + script + "_peek"}
	}
	return slices.Concat(words, []string{strconv.Itoa(len(keys))}, keys, args)
}

// vectorsInRealTime makes the calls of the vectors, those of multi too, on a server whose time runs, and holds each reply to what
// the model says for the moment that the reply carries. A vector that moves the clock is played without; one that starts from a
// state made by hand is left out, and from a command that changes the key from outside on, the rest of a vector.
func vectorsInRealTime(t *testing.T, client rueidis.Client, by command) {
	t.Helper()
	for _, k := range []model.Kind{model.Log, model.Counter, model.Bucket, model.Multi} {
		file, err := vectors.Read(k)
		if err != nil {
			t.Fatal(err)
		}
		p := &player{t: t, client: client, by: by, script: k.Script()}
		for i, v := range file.Vectors {
			if len(v.Setup) == 0 {
				p.play(fmt.Sprintf("sluice:{%s %d}:%s", t.Name(), i, k), v)
			}
		}
		if p.calls < 100 {
			t.Errorf("%s: only %d calls were made", k, p.calls)
		}
	}
}

// player plays vectors.
type player struct {
	t      *testing.T
	client rueidis.Client
	by     command
	script string
	calls  int
}

// play plays a vector on keys of its own, up to the first difference.
func (p *player) play(key string, v vectors.Vector) {
	p.t.Helper()
	states := map[string]*model.State{}
	receipts := make([]int64, len(v.Steps))
	for i, step := range v.Steps {
		if len(step.Command) > 0 {
			return
		}
		script, keys := p.script, []string{key}
		if step.Script != "" {
			script = step.Script
		}
		if step.Keys != nil {
			keys = nil
			for _, k := range step.Keys {
				if k != vectors.NoKey {
					keys = append(keys, strings.ReplaceAll(k, vectors.Key, key))
				}
			}
		}
		args := slices.Clone(step.Args)
		for j, a := range args {
			if n, ok := strings.CutPrefix(a, "$"); ok {
				args[j] = strconv.FormatInt(receipts[integers(p.t, n)[0]], 10)
			}
		}
		for range max(1, step.Repeat) {
			p.calls++
			got, err := p.client.Do(p.t.Context(), p.client.B().Arbitrary(p.by(script, keys, args...)...).Build()).AsIntSlice()
			if len(step.Error) > 0 {
				if err == nil || !strings.HasPrefix(err.Error(), strings.Join(step.Error, " ")+" ") {
					p.t.Errorf("%s: step %d: %q: got %v, %v, want error %v", v.Name, i, args, got, err, step.Error)
				}
				continue
			}
			if err != nil || len(got) < 5 {
				p.t.Errorf("%s: step %d: %q: got %v, %v", v.Name, i, args, got, err)
				return
			}
			receipts[i] = got[len(got)-1]
			if want := exact(p.t, states, receipts[i], script, keys, args); !slices.Equal(got, want) {
				p.t.Errorf("%s: step %d: %q: got %v, want %v", v.Name, i, args, got, want)
				return
			}
		}
	}
}

// exact is the model's reply to a call at that time.
func exact(t *testing.T, states map[string]*model.State, now int64, script string, keys, args []string) []int64 {
	t.Helper()
	for _, key := range keys {
		if states[key] == nil {
			states[key] = model.New()
		}
	}
	op, args := args[0], args[1:]
	if k, ok := single[script]; ok {
		cost, policy, rest := request(t, k, args)
		var receipt int64
		if op == "settle" {
			receipt = integers(t, rest...)[0]
		}
		return states[keys[0]].Call(now, op, cost, policy, receipt).Numbers()
	}
	var requests []model.Request
	for _, key := range keys {
		k := single[args[0]]
		var r model.Request
		r.State = states[key]
		r.Cost, r.Policy, args = request(t, k, args[1:])
		requests = append(requests, r)
	}
	return model.CallAll(now, op, requests...).Numbers()
}

// request reads a cost and a policy, and returns what follows.
func request(t *testing.T, k model.Kind, args []string) (cost int64, p model.Policy, rest []string) {
	t.Helper()
	if k == model.Bucket {
		n := integers(t, args[:4]...)
		return n[0], model.Policy{Kind: k, Limit: n[1], Refill: n[2], WindowMS: n[3]}, args[4:]
	}
	n := integers(t, args[:3]...)
	return n[0], model.Policy{Kind: k, Limit: n[1], WindowMS: n[2]}, args[3:]
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
