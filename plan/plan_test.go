package plan

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sluicego/sluice"
)

const tiers = `# What tenants get.
free:
  burst: bucket:20+5/1s
  daily: counter:1000/1d
pro: # and what they pay for
  daily: counter:50000/1d
  burst: bucket:100+50/1s
  exports: "log:10/1h"
trial: &trial {burst: bucket:5+1/1s}
partner: *trial
`

func TestParse(t *testing.T) {
	plans, err := Parse([]byte(tiers))
	if err != nil {
		t.Fatal(err)
	}
	if got, want := plans.Names(), []string{"free", "partner", "pro", "trial"}; !slices.Equal(got, want) {
		t.Errorf("names %q, want %q", got, want)
	}
	for name, want := range map[string][]sluice.Policy{
		"free": {sluice.TokenBucket(20, 5, time.Second).Named("burst"), sluice.SlidingCounter(1000, 24*time.Hour).Named("daily")},
		"pro": {
			sluice.SlidingCounter(50000, 24*time.Hour).Named("daily"), sluice.TokenBucket(100, 50, time.Second).Named("burst"),
			sluice.SlidingLog(10, time.Hour).Named("exports"),
		},
		"trial":   {sluice.TokenBucket(5, 1, time.Second).Named("burst")},
		"partner": {sluice.TokenBucket(5, 1, time.Second).Named("burst")},
	} {
		p, ok := plans.Plan(name)
		if !ok || p.Name() != name || !slices.Equal(p.Policies(), want) {
			t.Errorf("%s: %v, %v, want %v", name, p, ok, want)
		}
	}
	if p, ok := plans.Plan("Free"); ok {
		t.Errorf("a plan that is not there: %v", p)
	}

	free, _ := plans.Plan("free")
	free.Policies()[0] = sluice.Policy{} // a copy
	want := []sluice.Request{
		{Key: "tenant", Policy: sluice.TokenBucket(20, 5, time.Second).Named("burst"), Cost: 3},
		{Key: "tenant", Policy: sluice.SlidingCounter(1000, 24*time.Hour).Named("daily"), Cost: 3},
	}
	if got := free.Requests("tenant", 3); !slices.Equal(got, want) {
		t.Errorf("requests %+v, want %+v", got, want)
	}
	if got := (Plan{}).Requests("tenant", 3); len(got) != 0 {
		t.Errorf("requests of the zero Plan: %+v, want none, which AllowAll refuses", got)
	}
}

func TestParseJSON(t *testing.T) {
	for _, text := range []string{
		`{"free": {"burst": "bucket:20+5/1s", "daily": "counter:1000/1d"}}`,
		"{\n\t\"free\": {\n\t\t\"burst\": \"bucket:20+5\\/1s\",\n\t\t\"daily\": \"counter:1000\\u002f1d\"\n\t}\n}\n",
	} {
		plans, err := Parse([]byte(text))
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		free, _ := plans.Plan("free")
		if got, want := fmt.Sprint(free.Policies()), "[burst=bucket:20+5/1s daily=counter:1000/1d]"; got != want {
			t.Errorf("%s: got %s, want %s", text, got, want)
		}
	}
	_, err := Parse([]byte("{\n\t\"free\": {\n\t\t\"burst\": \"bucket:20+0/1s\"\n\t}\n}\n"))
	if want := "sluice: line 3: free.burst: refill is 0, want 1 to 1000000000"; err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
}

func TestMistakesNameLineAndField(t *testing.T) {
	many := "free:\n"
	for i := range 17 {
		many += fmt.Sprintf("  p%d: log:5/1m\n", i)
	}
	_, err := sluice.ParsePolicy("")
	_, forms, _ := strings.Cut(err.Error(), `""`) // what a policy looks like
	long, wide := strings.Repeat("x", 1000), "a"+strings.Repeat("ä", 100)
	tests := []struct{ text, want string }{
		{"", "line 1: there is no plan"},
		{"# nothing\n", "line 1: there is no plan"},
		{"~\n", "line 1: is empty, want plans by their names"},
		{"{}\n", "line 1: there is no plan"},
		{"- free\n", "line 1: is a list, want plans by their names"},
		{"free:\n  a: [\n", "line 3: did not find expected node content"},
		{"free:\n\ta: log:5/1m\n", "line 2: found character that cannot start any token"},
		{"free: *base\n", "line 1: unknown anchor 'base' referenced"},
		{"free: {a: log:5/1m}\n---\npro: {a: log:5/1m}\n", "line 2: is a second document, want one"},
		{"free:\n  a: log:5/1m\n\n\n--- # the other\n\n\npro: {a: log:5/1m}\n", "line 5: is a second document, want one"},
		{"free: {a: log:5/1m}\n---\n", "line 2: is a second document, want one"},
		{"free: {a: log:5/1m}\n---\npro: [\n", "line 4: did not find expected node content"},
		{"free:\n  a: log:5/1m\nb:\n  y: log:5/1m\x00\n", "line 4: holds the control character '\\x00'"},
		{"free:\r\n  a: log:5/1m # \x1b[31m\r\n", "line 2: holds the control character '\\x1b'"},
		{"free:\n  a: log:5/1m\nb:\n  y: log:5/1m\xff\n", "line 4: is no UTF-8"},
		{"free:\n  a: log:5/1m \xed\xa0\x80\n", "line 2: is no UTF-8"},
		{"\xff\xfef\x00", "line 1: is no UTF-8"},
		{"free:\n", "line 1: free: is empty, want policies by their names"},
		{"\nfree: log:5/1m\n", "line 2: free: is \"log:5/1m\", want policies by their names"},
		{"free:\n  - log:5/1m\n", "line 1: free: is a list, want policies by their names"},
		{"\nfree: {}\n", "line 2: free: has 0 policies, want 1 to 16"},
		{many, "line 1: free: has 17 policies, want 1 to 16"},
		{"free: {a: log:5/1m}\nfree: {a: log:5/1m}\n", "line 2: free: is in line 1 already"},
		{"free:\n  a: log:5/1m\n  a: log:6/1m\n", "line 3: free.a: is in line 2 already"},
		{"'': {a: log:5/1m}\n", "line 1: a name is empty, want a text"},
		{"free:\n  '': log:5/1m\n", "line 2: free: a name is empty, want a text"},
		{"? [a]\n: {a: log:5/1m}\n", "line 1: a name is a list, want a text"},
		{"free:\n  ? {a: b}\n  : log:5/1m\n", "line 2: free: a name is a mapping, want a text"},
		{"free:\n  a: log:0/1m\n", "line 2: free.a: limit is 0, want 1 to 1000000000"},
		{"free:\n  a:\n    log:5/61d1s2\n", "line 2: free.a: window is \"61d1s2\", want whole milliseconds from 1ms to 366d"},
		{"free:\n  a: 5\n", "line 2: free.a: policy is \"5\"" + forms},
		{"free:\n  a:\n", "line 2: free.a: policy is \"\"" + forms},
		{"free:\n  a: {limit: 5}\n", "line 2: free.a: is a mapping, want a policy such as counter:100/1m"},
		{"free:\n  a: [log:5/1m]\n", "line 2: free.a: is a list, want a policy such as counter:100/1m"},
		{"free:\n  a: b=log:5/1m\n", "line 2: free.a: has another name, b, want none: it is named by its key"},
		{"free:\n  a: log:80/1m*8\n", "line 2: free.a: is over 8 shards, want one that is not: its keys are in different slots, so it can't be asked with others"},
		{"free:\n  a b: log:5/1m\n", "line 2: free.a b: name is \"a b\", want 1 to 64 of the characters A-Z a-z 0-9 . _ -"},
		{"free: &f\n  a: log:5/1m\npro:\n  <<: *f\n", "line 4: pro: has a <<, want all of it written out, or an alias for the whole"},
		{"\n<<: {a: log:5/1m}\n", "line 2: has a <<, want all of it written out, or an alias for the whole"},
		{"~: {a: log:5/1m}\n", "line 1: a name is empty, want a text"},
		{"null: {a: log:5/1m}\n", "line 1: a name is empty, want a text"},
		{"? \n: {a: log:5/1m}\n", "line 1: a name is empty, want a text"},
		{"free:\n  ~: log:5/1m\n", "line 2: free: a name is empty, want a text"},
		{"\"a\\nb\": {c: log:0/1m}\n", "line 1: \"a\\nb\".c: limit is 0, want 1 to 1000000000"},
		{"free: {\"\\e[2J\": log:5/1m}\n", "line 1: free.\"\\x1b[2J\": name is \"\\x1b[2J\", want 1 to 64 of the characters A-Z a-z 0-9 . _ -"},
		{long + ":\n", "line 1: " + long[:64] + "...: is empty, want policies by their names"},
		{"? " + long + "\n: {a: log:0/1m}\n", "line 2: " + long[:64] + "....a: limit is 0, want 1 to 1000000000"},
		{"? {" + long + ": {a: log:0/1m}}\n", "line 1: a name is a mapping, want a text"},
		{wide + ": {}\n", "line 1: a" + strings.Repeat("ä", 31) + "...: has 0 policies, want 1 to 16"},
		{"a: {b: log:5/1m}\n" + long + ": {b: log:5/1m}\n" + long + ": {b: log:5/1m}\n", "line 3: " + long[:64] + "...: is in line 2 already"},
		{"free: *" + long + "\n", "line 1: " + ("unknown anchor '" + long)[:200] + "..."},
		{"free:\n  a: log:5/1m\npro:\n  a: counter:5/1m\n", "line 4: pro.a: is a counter, but free.a in line 2 is a log: policies of one name share their state"},
		{"free: &f {a: *f}\n", "line 1: free.a: is a mapping, want a policy such as counter:100/1m"},
	}
	for _, tt := range tests {
		plans, err := Parse([]byte(tt.text))
		if err == nil || err.Error() != "sluice: "+tt.want || len(plans.Names()) != 0 {
			t.Errorf("%q: got %v, %v, want %s", tt.text, plans.Names(), err, tt.want)
		}
	}
}

func TestAllMistakesAreTold(t *testing.T) {
	file := filepath.Join(t.TempDir(), "plans.yaml")
	text := "free:\n  a: log:0/1m\n  b: counter:5/0s\n  a: log:5/1m\npro:\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := ReadFile(file)
	want := []string{
		":2: free.a: limit is 0, want 1 to 1000000000",
		":3: free.b: window is 0s, want whole milliseconds from 1ms to 366d",
		":4: free.a: is in line 2 already",
		":5: pro: is empty, want policies by their names",
	}
	for i := range want {
		want[i] = "sluice: " + file + want[i]
	}
	if err == nil || err.Error() != strings.Join(want, "\n") {
		t.Errorf("got\n%v\nwant\n%s", err, strings.Join(want, "\n"))
	}
	var mistake *Error
	var input *sluice.InputError
	if !errors.As(err, &mistake) || mistake.File != file || mistake.Line != 2 || mistake.Field != "free.a" ||
		!errors.As(err, &input) || input.Field != "limit" || !errors.Is(err, sluice.ErrInvalidPolicy) {
		t.Errorf("got %#v, want an Error for line 2 with the InputError", mistake)
	}
	if _, err := ReadFile(filepath.Join(t.TempDir(), "none.yaml")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a file that is not there: %v", err)
	}
}

// A text of another kind may be wrong in every line.
func TestNotEveryMistakeIsTold(t *testing.T) {
	text := ""
	for i := range 150 {
		text += fmt.Sprintf("p%d: {a: log:0/1m}\n", i)
	}
	_, err := Parse([]byte(text))
	lines := strings.Split(fmt.Sprint(err), "\n")
	if len(lines) != 101 || lines[99] != "sluice: line 100: p99.a: limit is 0, want 1 to 1000000000" || lines[100] != "sluice: and 50 more" {
		t.Errorf("%d lines, the last of them %q", len(lines), lines[max(len(lines)-2, 0):])
	}
}

// What was in force some swaps ago is on live keys still.
func TestStoreRemembersAlgorithms(t *testing.T) {
	var store Store
	for i, tt := range []struct{ text, want string }{
		{"free: {daily: counter:5/1d}", "<nil>"},
		{"free: {other: counter:5/1d}", "<nil>"},
		{"free: {daily: bucket:5+5/1d}", "sluice: policy daily is a bucket and was a counter, want the same algorithm or another name"},
		{"free: {daily: counter:7/1d}", "<nil>"},
		{"free: {other: log:5/1d}", "sluice: policy other is a log and was a counter, want the same algorithm or another name"},
	} {
		plans, err := Parse([]byte(tt.text))
		if err != nil {
			t.Fatal(err)
		}
		if got := fmt.Sprint(store.Swap(plans)); got != tt.want {
			t.Errorf("swap %d: got %s, want %s", i, got, tt.want)
		}
	}
	if free, _ := store.Plan("free"); fmt.Sprint(free.Policies()) != "[daily=counter:7/1d]" {
		t.Errorf("in force is %v", free.Policies())
	}
}

func TestStore(t *testing.T) {
	var store Store
	if p, ok := store.Plan("free"); ok {
		t.Errorf("the zero Store has %v", p)
	}
	file := filepath.Join(t.TempDir(), "plans.yaml")
	load := func(text string) error {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return store.Load(file)
	}
	check := func(want string) {
		t.Helper()
		if p, ok := store.Plan("free"); !ok || fmt.Sprint(p.Policies()) != want {
			t.Errorf("free is %v, %v, want %s", p.Policies(), ok, want)
		}
	}
	if err := load("free: {a: log:5/1m, b: counter:5/1m}\n"); err != nil {
		t.Fatal(err)
	}
	check("[a=log:5/1m b=counter:5/1m]")
	if err := load("free: {a: log:7/1h, c: counter:5/1m}\npro: {a: log:9/1h}\n"); err != nil {
		t.Fatal(err)
	}
	check("[a=log:7/1h c=counter:5/1m]")
	// Whatever is wrong, the plans in force stay.
	if err := load("free: {a: log:0/1h}\n"); !errors.Is(err, sluice.ErrInvalidPolicy) {
		t.Errorf("got %v, want ErrInvalidPolicy", err)
	}
	check("[a=log:7/1h c=counter:5/1m]")
	const want = "sluice: policy a is a bucket and was a log, want the same algorithm or another name\n" +
		"sluice: policy c is a log and was a counter, want the same algorithm or another name"
	if err := load("free: {c: log:5/1m}\npro: {a: bucket:5+5/1m}\n"); err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
	check("[a=log:7/1h c=counter:5/1m]")
	if err := store.Swap(Plans{}); err != nil {
		t.Errorf("no plans: %v", err)
	}
	if p, ok := store.Plan("free"); ok {
		t.Errorf("after the last plan was removed: %v", p)
	}
}

func TestStoreIsSwappedWhileItIsUsed(t *testing.T) {
	var store Store
	var both [2]Plans
	for i := range both {
		var err error
		if both[i], err = Parse(fmt.Appendf(nil, "free: {a: log:%d/1m, b: log:%d/1m}\n", i+1, i+1)); err != nil {
			t.Fatal(err)
		}
	}
	if err := store.Swap(both[0]); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 1000 {
				p, ok := store.Plan("free")
				if policies := p.Policies(); !ok || policies[0].Limit() != policies[1].Limit() {
					t.Errorf("%v, %v is of two texts", policies, ok)
				}
			}
		})
		wg.Go(func() {
			for i := range 100 {
				if err := store.Swap(both[i%2]); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
}

// Whatever the text, it is either plans that can be used or an error with a line.
func FuzzParse(f *testing.F) {
	for _, text := range []string{tiers, "", "free:\n  a: [\n", `{"free": {"a": "log:5/1m"}}`, "free: &f {a: *f}\n", "? [a]\n: b\n", "a: !!binary x\n", "%YAML 9.9\n---\na: b\n"} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		plans, err := Parse(text)
		if err != nil {
			var mistake *Error
			if !errors.As(err, &mistake) || mistake.Line < 1 || len(plans.Names()) != 0 {
				t.Fatalf("%q: %v, %v", text, plans.Names(), err)
			}
			return
		}
		if len(plans.Names()) == 0 {
			t.Fatalf("%q: no plans and no error", text)
		}
		for _, name := range plans.Names() {
			if name == "" || name == "<<" {
				t.Fatalf("%q: a plan %q", text, name)
			}
			p, _ := plans.Plan(name)
			if n := len(p.Policies()); n < 1 || n > 16 {
				t.Fatalf("%q: plan %q has %d policies", text, name, n)
			}
			for _, policy := range p.Policies() {
				if _, err := policy.MarshalText(); err != nil || policy.Name() == "" {
					t.Fatalf("%q: policy %v: %v", text, policy, err)
				}
			}
		}
	})
}
