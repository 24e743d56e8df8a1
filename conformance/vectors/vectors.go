// Package vectors is the conformance vectors: their format, which testdata/README.md explains for other
// languages, and their making. Their replies are the exact model's; the situations are chosen by hand.
package vectors

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"runtime"

	"github.com/sluicego/sluice/conformance/model"
)

//go:generate go run ./gen

// Format is the version of the format that this package reads and writes.
const Format = 1

// Key is the text that stands for the vector's own key.
const Key = "$KEY"

// File is one file of vectors: those of one script.
type File struct {
	Format    int
	Algorithm string // the script's name without its extension: sliding_log, sliding_counter, token_bucket, multi
	Script    string // the script's path in the repository
	Vectors   []Vector
}

// Vector is a situation: a missing key, a clock, and steps in order.
type Vector struct {
	Name    string     `json:"name"`
	Pins    string     `json:"pins"`            // what it holds fast, in a line
	StartUS int64      `json:"start_us"`        // the server's clock at the start, microseconds since the epoch
	Setup   [][]string `json:"setup,omitempty"` // commands to send first
	Steps   []Step     `json:"steps"`
}

// Step is a call of the script, or a command that happens to the key from outside. The steps of multi always name
// their keys, which are made of the vector's own.
type Step struct {
	AdvanceUS int64    `json:"advance_us,omitempty"` // how far the clock moves before, microseconds, also back
	Repeat    int      `json:"repeat,omitempty"`     // make the step so often; 0 is once. Reply and UntilMS are the last one's
	Command   []string `json:"command,omitempty"`    // a command instead of a call; its reply is of no interest
	Script    string   `json:"script,omitempty"`     // multi: the single script that is called instead, by its name
	Keys      []string `json:"keys,omitempty"`       // the call's KEYS, if not the vector's one key; "none" alone: no key
	Args      []string `json:"args,omitempty"`       // the call's ARGV; "$3" stands for the last number of step 3's reply, counted from 0
	Reply     []int64  `json:"reply,omitempty"`      // the five numbers, or those of multi
	Error     []string `json:"error,omitempty"`      // or the first words of the error reply
	UntilMS   *int64   `json:"until_ms,omitempty"`   // when the key expires, ms since the epoch; 0: no key, or PTTL 0; nil: not told

	UntilsMS map[string]int64 `json:"untils_ms,omitempty"` // multi: the same for each key, where it is told
}

// NoKey as the only one of Step.Keys is a call without any key.
const NoKey = "none"

// Dir is the folder of the vector files in this repository.
func Dir() string {
	_, file, _, _ := runtime.Caller(0)
	return filepath.Join(filepath.Dir(file), "..", "..", "testdata", "vectors")
}

// Path is where the vectors of an algorithm, or of multi, are.
func Path(k model.Kind) string { return filepath.Join(Dir(), k.Script()+".json") }

// Read reads the vectors of an algorithm, or of multi.
func Read(k model.Kind) (File, error) {
	text, err := os.ReadFile(Path(k))
	if err != nil {
		return File{}, err
	}
	var f File
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&f); err != nil {
		return File{}, fmt.Errorf("%s: %w", Path(k), err)
	}
	if f.Format != Format || f.Algorithm != k.Script() {
		return File{}, fmt.Errorf("%s: format %d of %s, want %d of %s", Path(k), f.Format, f.Algorithm, Format, k.Script())
	}
	return f, nil
}

// Encode writes the file as JSON with one step to a line, so that a change shows as the steps it changes.
func (f File) Encode() []byte {
	var out bytes.Buffer
	fmt.Fprintf(&out, "{\n\"format\": %d,\n\"algorithm\": %q,\n\"script\": %q,\n\"vectors\": [\n", f.Format, f.Algorithm, f.Script)
	for i, v := range f.Vectors {
		fmt.Fprintf(&out, "{\"name\": %s,\n \"pins\": %s,\n \"start_us\": %d,\n", text(v.Name), text(v.Pins), v.StartUS)
		if len(v.Setup) > 0 {
			fmt.Fprintf(&out, " \"setup\": %s,\n", text(v.Setup))
		}
		fmt.Fprint(&out, " \"steps\": [\n")
		for j, s := range v.Steps {
			fmt.Fprintf(&out, "  %s%s\n", text(s), comma(j, len(v.Steps)))
		}
		fmt.Fprintf(&out, " ]}%s\n", comma(i, len(f.Vectors)))
	}
	out.WriteString("]\n}\n")
	return out.Bytes()
}

func comma(i, n int) string {
	if i < n-1 {
		return ","
	}
	return ""
}

// text is v as JSON on one line.
func text(v any) string {
	var out bytes.Buffer
	encoder := json.NewEncoder(&out)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(v); err != nil {
		panic(err) // only strings and numbers go in
	}
	return string(bytes.TrimSpace(out.Bytes()))
}
