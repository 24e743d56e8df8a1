package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

const sample = `-- a < b and 'text' -- 1
local floor = math.floor --[[ 2 >
3 ]]
local x, y = -n, a - 1 -- why + not
local n = text + 0
if not (x <= 'a < "b" -- \' +') then return redis.call('UNLINK', key) end
redis.call('SET', key, f(x % 10), 'KEEPTTL')
return math.min(a .. b, floor(a[1] / 2) * (c) - 1)
`

func changes(t *testing.T, src string) []string {
	t.Helper()
	all, err := mutants("sample", src)
	if err != nil {
		t.Fatal(err)
	}
	got := make([]string, len(all))
	for i, m := range all {
		if m.homes[0].source == src {
			t.Errorf("line %d: %s changes nothing", m.line, m.change)
		}
		got[i] = m.change
	}
	return got
}

func TestMutantsOfASample(t *testing.T) {
	want := []string{
		"floor -> ceil",
		"drop unary -", "- -> +", "1 -> 2", "1 -> 0",
		"0 -> 1", "0 -> -1",
		"drop not", "<= -> <", "<= -> >", "drop UNLINK",
		"drop SET", "% -> /", "10 -> 11", "10 -> 9", "drop KEEPTTL",
		"min -> max", "floor -> math.ceil", "1 -> 2", "1 -> 0", "/ -> *", "2 -> 3", "2 -> 1",
		"* -> /", "- -> +", "1 -> 2 (2)", "1 -> 0 (2)",
	}
	if got := changes(t, sample); !slices.Equal(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
}

func TestAMutantDiffersInOnePlace(t *testing.T) {
	all, err := mutants("sample", sample)
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(sample, "\n")
	for _, m := range all {
		for i, line := range strings.Split(m.homes[0].source, "\n") {
			if (line != lines[i]) != (i+1 == m.line) {
				t.Errorf("%s in line %d: line %d is %q", m.change, m.line, i+1, line)
			}
		}
	}
	if got, want := all[1].text, "local x, y = -n, a - 1"; got != want {
		t.Errorf("the line's code is %q, want %q", got, want)
	}
	if got, want := all[10].homes[0].source, strings.Replace(sample, "redis.call('UNLINK', key)", "nil", 1); got != want {
		t.Errorf("without UNLINK:\n%s", got)
	}
	if got, want := all[11].homes[0].source, strings.Replace(sample, "redis.call('SET', key, f(x % 10), 'KEEPTTL')", "do end", 1); got != want {
		t.Errorf("without SET:\n%s", got)
	}
}

func TestSharedTextIsMutatedOnce(t *testing.T) {
	text := map[string]string{
		"one": "-- head\nlocal a = b + c\n-- [shared: s]\n\nlocal x = y * z\n-- [end]\n-- [algorithm: one]\nlocal p = q / r\n-- [end]\n",
		"two": "  -- [algorithm: one]\n  local p = q / r\n  -- [end]\n  -- [shared: s]\n\n  local x = y * z\n  -- [end]\n-- [main]\nreturn u < v\n",
	}
	all, err := allMutants([]string{"one", "two"}, text)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, m := range all {
		line := m.script + " " + m.change
		for _, h := range m.homes {
			if !strings.Contains(h.source, "y / z") && m.script == "shared" || len(h.source) < len(text[h.script]) {
				t.Errorf("%s in %s:\n%s", m.change, h.script, h.source)
			}
			line += " " + h.script
		}
		got = append(got, line)
	}
	want := []string{"one + -> - one", "shared * -> / one two", "one / -> * one", "two < -> <= two", "two < -> >= two"}
	if !slices.Equal(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
}

func TestSourceThatIsNotUnderstoodIsRefused(t *testing.T) {
	for _, src := range []string{"--[[ open", "'open", "x = [[long]]", "x = 1.5", "redis.call('SET', key"} {
		if all, err := mutants("sample", src); err == nil {
			t.Errorf("%q gave %d mutants, want an error", src, len(all))
		}
	}
}

func TestReport(t *testing.T) {
	all, err := mutants("sample", sample)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "mutants.txt")
	write := func(text string) explained {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		why, err := readExplained(path)
		if err != nil {
			t.Fatal(err)
		}
		return why
	}
	cases := []struct {
		name      string
		survived  []mutant
		explained string
		atLeast   float64
		wantOut   string
		wantErr   string
	}{
		{"all killed", nil, "", 100, "killed   27 of   27 = 100.0 %; explained   0, so 100.0 %; open 0", ""},
		{"one open, few enough", all[:1], "", 95, "survived at sample.lua:2: sample | local floor = math.floor | floor -> ceil", ""},
		{"two open, too many", all[:2], "", 95, "killed   25 of   27 =  92.6 %; explained   0, so  92.6 %; open 2", "92.6 % killed"},
		{"one of two explained", all[:2], "# note\n\nsample | local floor = math.floor | floor -> ceil | because\n", 95,
			"killed   25 of   27 =  92.6 %; explained   1, so  96.2 %; open 1", ""},
		{"all explained", all[:1], "sample | local floor = math.floor | floor -> ceil | because", 100, "explained   1, so 100.0 %", ""},
		{"explained, yet killed", nil, "sample | local floor = math.floor | floor -> ceil | because", 0, "killed", "killed or not there"},
		{"explained, not there", nil, "sample | return 1 | 1 -> 2 | because", 0, "killed", "killed or not there"},
		{"of a script that was not tried", nil, "other | return 1 | 1 -> 2 | because", 100, "killed", ""},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			var out strings.Builder
			err := report(&out, all, c.survived, write(c.explained), c.atLeast)
			if !strings.Contains(out.String(), c.wantOut) {
				t.Errorf("printed\n%swant %q", out.String(), c.wantOut)
			}
			switch {
			case c.wantErr == "" && err != nil:
				t.Errorf("error %v, want none", err)
			case c.wantErr != "" && (err == nil || !strings.Contains(err.Error(), c.wantErr)):
				t.Errorf("error %v, want %q", err, c.wantErr)
			}
		})
	}
	for _, bad := range []string{"a | b | c", "a | b | c | d\na | b | c | e"} {
		if err := os.WriteFile(path, []byte(bad), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := readExplained(path); err == nil {
			t.Errorf("%q was read, want an error", bad)
		}
	}
}

func TestSlowerTests(t *testing.T) {
	const output = `=== RUN   TestA
--- PASS: TestA (2.00s)
    --- PASS: TestA/x (1.90s)
        --- PASS: TestA/x/quick_(one) (0.30s)
        --- PASS: TestA/x/slow_(one) (0.31s)
    --- PASS: TestA/y (0.10s)
--- PASS: TestB (1.00s)
PASS
`
	if got, want := slower(output, 300*time.Millisecond), `^TestA$/^x$/^slow_\(one\)$|^TestB$`; got != want {
		t.Errorf("slower tests: %s, want %s", got, want)
	}
	if got := slower(output, time.Hour); got != "" {
		t.Errorf("slower than an hour: %q", got)
	}
}
