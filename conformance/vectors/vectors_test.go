package vectors_test

import (
	"bytes"
	"os"
	"testing"

	"github.com/sluicego/sluice/conformance/model"
	"github.com/sluicego/sluice/conformance/vectors"
)

var kinds = []model.Kind{model.Log, model.Counter, model.Bucket, model.Multi}

func TestFilesAreWhatTheModelMakes(t *testing.T) {
	for _, k := range kinds {
		want := vectors.Make(k).Encode()
		got, err := os.ReadFile(vectors.Path(k))
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got, want) {
			t.Errorf("%s is stale: go generate ./vectors", vectors.Path(k))
		}
	}
}

func TestVectorsAreManyAndNamed(t *testing.T) {
	for _, k := range kinds {
		f, err := vectors.Read(k)
		if err != nil {
			t.Fatal(err)
		}
		if len(f.Vectors) < 60 {
			t.Errorf("%s: %d vectors, want 60 at least", k, len(f.Vectors))
		}
		seen := map[string]bool{}
		for _, v := range f.Vectors {
			if v.Name == "" || v.Pins == "" || seen[v.Name] {
				t.Errorf("%s: %q pins %q: a name of its own and a line are due", k, v.Name, v.Pins)
			}
			seen[v.Name] = true
			for i, s := range v.Steps {
				numbers := 5
				if k == model.Multi && s.Script == "" {
					numbers = 2 + 5*len(s.Keys)
				}
				if len(s.Command) == 0 && (len(s.Reply) == numbers) == (len(s.Error) >= 2) {
					t.Errorf("%s: %q: step %d has neither a reply nor an error, or both", k, v.Name, i)
				}
			}
		}
	}
}
