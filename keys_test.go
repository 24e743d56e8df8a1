package sluice

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

// The vectors were computed by another program in another language, not by this package.
func TestKeyVectors(t *testing.T) {
	text, err := os.ReadFile("testdata/keys.json")
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Vectors []struct {
			Name, Prefix, Subject, Key string
			Secret                     *string
			Plain                      bool
			Parts                      []string
			Tag                        string
			Policy                     Policy
		}
	}
	if err := json.Unmarshal(text, &file); err != nil {
		t.Fatal(err)
	}
	if len(file.Vectors) < 30 {
		t.Fatalf("%d vectors, want at least 30", len(file.Vectors))
	}
	for _, v := range file.Vectors {
		t.Run(v.Name, func(t *testing.T) {
			cfg := Config{Prefix: v.Prefix, PlainKeys: v.Plain}
			if v.Secret != nil {
				cfg.Secret = unhex(t, *v.Secret)
			}
			keys, err := newKeyspace(cfg)
			if err != nil {
				t.Fatal(err)
			}
			subject := string(unhex(t, v.Subject))
			if v.Parts != nil {
				var parts []string
				for _, part := range v.Parts {
					parts = append(parts, string(unhex(t, part)))
				}
				if got := Key(parts...); got != subject {
					t.Fatalf("Key(%q) = %q, want %q", parts, got, subject)
				}
			}
			if got := keys.key(subject, string(unhex(t, v.Tag)), v.Policy); got != v.Key {
				t.Errorf("got %s, want %s", got, v.Key)
			}
		})
	}
}

func unhex(t *testing.T, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(s)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestTwoRulesShareAKey(t *testing.T) {
	// Each of these is a limit of its own.
	policies := []Policy{
		SlidingLog(5, time.Minute), SlidingLog(5, time.Hour), SlidingCounter(5, time.Minute), TokenBucket(5, 5, time.Minute),
		SlidingLog(5, time.Minute).Named("login"), SlidingLog(5, time.Minute).Named("log-60000"), SlidingLog(5, time.Minute).Named("60000"),
	}
	subjects := []string{
		Key("a", "b:c"), Key("a:b", "c"), Key("a", "b", "c"), Key("a:b:c"), "a:b:c", Key("", "a"), Key("a", ""), Key("a"), "a",
		Key("1:a"), Key("a", "", ""), "{a}", "{a", "a}", "}{", "{}", "\x00", "\x00\x00", "é", "e\u0301", "\xe9", "%7B", "{", "%", "%25", " ", "*?[]",
		"login", "log/60000",
	}
	for name, cfg := range map[string]Config{
		"hashed": {}, "keyed": {Secret: []byte("0123456789abcdef")}, "plain": {PlainKeys: true},
	} {
		keys, err := newKeyspace(cfg)
		if err != nil {
			t.Fatal(err)
		}
		seen := map[string]string{}
		check := func(subject, tag string, p Policy) {
			key, limit := keys.key(subject, tag, p), clip(subject)+" under "+tag+" by "+p.String()
			if other, ok := seen[key]; ok {
				t.Errorf("%s: %q is the key of both %q and %q", name, clip(key), other, limit)
			}
			seen[key] = limit
		}
		for _, subject := range subjects {
			for _, tag := range []string{"", "a", "b", "a:b"} {
				if tag == subject {
					continue // the same as none
				}
				for _, p := range policies {
					check(subject, tag, p)
				}
			}
		}
		for _, unit := range []string{"x", "}", "\x01"} {
			for _, size := range []int{84, 85, 86, 255, 256, 257, 1<<20 - 1, 1 << 20} {
				subject := strings.Repeat(unit, size)
				for _, tag := range []string{"", "c"} {
					check(subject, tag, policies[0])
					if written := string(keys.appendSubject(nil, subject)); written != subject {
						check(written, tag, policies[0]) // a subject that looks like another's digest
					}
				}
				check("c", subject, policies[0])
			}
		}
	}
}

// TestPlainKeysAreBounded: a subject of megabytes would hold up the calls of all others.
func TestPlainKeysAreBounded(t *testing.T) {
	keys, err := newKeyspace(Config{PlainKeys: true})
	if err != nil {
		t.Fatal(err)
	}
	p := SlidingLog(5, time.Minute)
	for _, tt := range []struct {
		subject string
		want    string // between the braces
	}{
		{strings.Repeat("x", 256), strings.Repeat("x", 256)},
		{strings.Repeat("x", 257), "%sha256-15eb95a462ee20bd91a415ae2d4aed34"},
		{strings.Repeat("{", 85), strings.Repeat("%7B", 85)},
		{strings.Repeat("{", 86), "%sha256-de3a29b9c71fd8c1126ba8bd0ce137f4"},
		{strings.Repeat("x", 1<<20), "%sha256-8f990ba0b577b51cf009ea049368c16b"},
	} {
		if got := hashTag(keys.key(tt.subject, "", p)); got != tt.want {
			t.Errorf("%s, %d bytes: hash tag %s, want %s", tt.subject[:1], len(tt.subject), got, tt.want)
		}
		if got, most := len(keys.key(tt.subject, tt.subject+"y", p)), 600; got > most {
			t.Errorf("%s, %d bytes, under a tag: a key of %d bytes, want %d at most", tt.subject[:1], len(tt.subject), got, most)
		}
	}
}

func TestKeyOfATag(t *testing.T) {
	p := SlidingLog(5, time.Minute)
	for name, cfg := range map[string]Config{"hashed": {}, "plain": {PlainKeys: true}} {
		keys, err := newKeyspace(cfg)
		if err != nil {
			t.Fatal(err)
		}
		if got, want := keys.key("a", "a", p), keys.key("a", "", p); got != want {
			t.Errorf("%s: a key under its own tag is %s, want %s", name, got, want)
		}
		if got, want := hashTag(keys.key("b", "a", p)), hashTag(keys.key("a", "", p)); got != want {
			t.Errorf("%s: hash tag under the tag a is %s, want that of a, %s", name, got, want)
		}
	}
}

func TestEmptyKeyRefused(t *testing.T) {
	client := replying(fiveReply(1, 0, 0, 0, 0))
	p := SlidingLog(5, time.Minute)
	for _, key := range []string{"", Key(), Key(""), Key("", "")} {
		for _, cfg := range []Config{{}, {PlainKeys: true}} {
			l := newLimiter(t, client, cfg)
			_, allowErr := l.Allow(t.Context(), key, p)
			_, peekErr := l.Peek(t.Context(), key, p, 1)
			_, waitErr := l.Wait(t.Context(), key, p, 1)
			for _, err := range []error{allowErr, peekErr, waitErr, l.Reset(t.Context(), key, p), l.Batch(t.Context(), Request{Key: key, Policy: p, Cost: 1})[0].Err} {
				var input *InputError
				if !errors.Is(err, ErrInvalidKey) || !errors.As(err, &input) || input.Field != "key" {
					t.Errorf("%q: error %v, want an InputError that is ErrInvalidKey", key, err)
				}
			}
		}
	}
	if client.count() != 0 {
		t.Errorf("sent %q", client.sent)
	}
}

func TestConfigRefused(t *testing.T) {
	client := replying(fiveReply(1, 0, 0, 0, 0))
	secret := []byte("0123456789abcdef")
	a, b := SlidingLog(1, time.Second).Named("a"), SlidingLog(1, time.Second).Named("b")
	tests := []struct {
		cfg   Config
		field string // empty: fine
	}{
		{Config{}, ""},
		{Config{Prefix: "shop:limits-1"}, ""},
		{Config{Prefix: strings.Repeat("p", 64)}, ""},
		{Config{Secret: secret, Timeout: time.Second}, ""},
		{Config{PlainKeys: true}, ""},
		{Config{Prefix: "a{b"}, "Prefix"},
		{Config{Prefix: "a}b"}, "Prefix"},
		{Config{Prefix: "a b"}, "Prefix"},
		{Config{Prefix: "a\n"}, "Prefix"},
		{Config{Prefix: "\x7f"}, "Prefix"},
		{Config{Prefix: "é"}, "Prefix"},
		{Config{Prefix: strings.Repeat("p", 65)}, "Prefix"},
		{Config{Secret: []byte{}}, "Secret"},
		{Config{Secret: secret[:15]}, "Secret"},
		{Config{Secret: secret, PlainKeys: true}, "PlainKeys"},
		{Config{Timeout: -1}, "Timeout"},
		{Config{OnFailure: FailOpen}, ""},
		{Config{OnFailure: FailLocal, Processes: 1}, ""},
		{Config{OnFailure: FailLocal, Processes: 10_000, LocalKeys: 1}, ""},
		{Config{OnFailure: FailLocal + 1}, "OnFailure"},
		{Config{OnFailure: FailLocal}, "Processes"},
		{Config{OnFailure: FailLocal, Processes: -1}, "Processes"},
		{Config{OnFailure: FailLocal, Processes: 10_001}, "Processes"},
		{Config{OnFailure: FailLocal, Processes: 1, LocalKeys: -1}, "LocalKeys"},
		{Config{Breaker: &countingBreaker{}, Timeout: time.Second}, ""},
		{Config{Breaker: &countingBreaker{}}, "Timeout"},
		{Config{DenyFor: -1}, "DenyFor"},
		{Config{ShadowPercent: 100}, ""},
		{Config{ShadowPercent: 101}, "ShadowPercent"},
		{Config{ShadowPercent: -1}, "ShadowPercent"},
		{Config{Candidates: map[Policy]Policy{SlidingLog(1, time.Second): SlidingLog(1, time.Second).Named("new")}}, ""},
		{Config{Candidates: map[Policy]Policy{SlidingLog(1, time.Second): SlidingLog(2, time.Second)}}, "Candidates"},
		{Config{Candidates: map[Policy]Policy{SlidingLog(1, time.Second): {}}}, "Candidates"},
		{Config{Candidates: map[Policy]Policy{SlidingLog(1, time.Second): a, SlidingLog(2, time.Second): b}}, ""}, // policies of one key
		{Config{Candidates: map[Policy]Policy{a: b, b: SlidingLog(1, time.Second).Named("c")}}, "Candidates"},
		{Config{Candidates: map[Policy]Policy{a: b, SlidingLog(5, time.Second).Named("b"): SlidingLog(1, time.Second).Named("c")}}, "Candidates"},
		{Config{Candidates: map[Policy]Policy{SlidingLog(1, time.Second): a, SlidingLog(1, time.Minute): a}}, "Candidates"},
		{Config{Candidates: map[Policy]Policy{SlidingLog(1, time.Second): a, SlidingLog(1, time.Minute): SlidingLog(2, time.Second).Named("a")}}, "Candidates"},
		{Config{Candidates: map[Policy]Policy{{}: SlidingLog(1, time.Second)}}, "Candidates"},
	}
	for _, tt := range tests {
		l, err := New(client, tt.cfg)
		if tt.field == "" {
			if err != nil || l == nil {
				t.Errorf("%+v: %v, %v, want a Limiter", tt.cfg, l, err)
			}
			continue
		}
		var input *InputError
		if l != nil || !errors.Is(err, ErrInvalidConfig) || !errors.As(err, &input) || input.Field != tt.field {
			t.Errorf("%+v: %v, %v, want an InputError for %s that is ErrInvalidConfig", tt.cfg, l, err, tt.field)
		}
	}
	if l, err := New(nil, Config{}); l != nil || !errors.Is(err, ErrInvalidConfig) {
		t.Errorf("New(nil) = %v, %v, want ErrInvalidConfig", l, err)
	}
}

func TestSecretIsCopied(t *testing.T) {
	secret := []byte("0123456789abcdef")
	keys, err := newKeyspace(Config{Secret: secret})
	if err != nil {
		t.Fatal(err)
	}
	p := SlidingLog(5, time.Minute)
	clear(secret)
	want, err := newKeyspace(Config{Secret: []byte("0123456789abcdef")})
	if err != nil {
		t.Fatal(err)
	}
	if got, want := keys.key("a", "", p), want.key("a", "", p); got != want {
		t.Errorf("after the caller cleared its secret the key is %s, want %s", got, want)
	}
}

// hashTag is the part of a key by which a cluster places it.
func hashTag(key string) string {
	if _, after, ok := strings.Cut(key, "{"); ok {
		if tag, _, ok := strings.Cut(after, "}"); ok && tag != "" {
			return tag
		}
	}
	return key
}

var fuzzPolicies = []Policy{
	SlidingLog(5, time.Minute), SlidingCounter(5, time.Minute), TokenBucket(5, 1, time.Second),
	SlidingLog(5, time.Hour), SlidingLog(5, time.Minute).Named("login"),
}

func fuzzKeyspaces(t testing.TB) []keyspace {
	t.Helper()
	var all []keyspace
	for _, cfg := range []Config{{}, {Secret: []byte("0123456789abcdef")}, {PlainKeys: true}} {
		keys, err := newKeyspace(cfg)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, keys)
	}
	return all
}

// Two subjects of up to three parts are one if and only if their parts are.
func FuzzKeyInjective(f *testing.F) {
	spaces := fuzzKeyspaces(f)
	f.Add(2, "a", "b:c", "", 2, "a:b", "c", "")
	f.Add(1, "1:a", "", "", 2, "1", "a", "")
	f.Add(3, "a", "", "", 2, "a", "", "")
	f.Add(2, "", "a", "", 2, "a", "", "")
	f.Add(1, "{", "", "", 1, "%7B", "", "")
	f.Add(1, "\x00", "", "", 1, "%00", "", "")
	f.Add(1, strings.Repeat("x", 257), "", "", 1, strings.Repeat("x", 258), "", "")
	f.Add(2, strings.Repeat("{", 86), "a", "", 1, strings.Repeat("{", 86), "", "")
	f.Fuzz(func(t *testing.T, n int, a1, a2, a3 string, m int, b1, b2, b3 string) {
		a := []string{a1, a2, a3}[:1+uint(n)%3]
		b := []string{b1, b2, b3}[:1+uint(m)%3]
		keyA, keyB := Key(a...), Key(b...)
		if keyA == "" || keyB == "" {
			return // refused
		}
		same := slices.Equal(a, b)
		if (keyA == keyB) != same {
			t.Fatalf("Key(%q) = %q, Key(%q) = %q", a, keyA, b, keyB)
		}
		for _, keys := range spaces {
			for _, p := range fuzzPolicies {
				if (keys.key(keyA, "", p) == keys.key(keyB, "", p)) != same {
					t.Fatalf("%q and %q: keys %s and %s", a, b, keys.key(keyA, "", p), keys.key(keyB, "", p))
				}
				// The tag of one and the subject of the other can't be taken for each other.
				if (keys.key(keyA, keyB, p) == keys.key(keyB, keyA, p)) != same {
					t.Fatalf("%q and %q under each other: keys %s and %s", a, b, keys.key(keyA, keyB, p), keys.key(keyB, keyA, p))
				}
				// A tag, or raw bytes, never make another's key.
				if !same && keys.key(a1+":"+a2, "", p) == keys.key(a2, a1, p) && a1 != "" && a2 != "" {
					t.Fatalf("%q under %q is the key of the subject %q", a2, a1, a1+":"+a2)
				}
			}
		}
	})
}

var (
	hashedKey = regexp.MustCompile(`^sluice:\{[0-9a-f]{32}\}:(log/60000|counter/60000|bucket/1000|log/3600000|login)$`)
	taggedKey = regexp.MustCompile(`^sluice:\{[0-9a-f]{32}\}:[0-9a-f]{32}:(log/60000|counter/60000|bucket/1000|log/3600000|login)$`)
	plainKey  = regexp.MustCompile(`^sluice:\{[!-z|~]{1,256}\}:([!-z|~]{1,256}:)?(log/60000|counter/60000|bucket/1000|log/3600000|login)$`)
)

// All keys of a subject share a hash tag; a hashed key is a form with nothing but hex in it, so no byte of a subject
// can show, and a plain one is printable, with braces that are its own.
func FuzzKeyShape(f *testing.F) {
	spaces := fuzzKeyspaces(f)
	for _, s := range []string{"a", "{", "}", "{}", "}{", "\x00", "203.0.113.7", "*?[]", "é", "\xff\xfe", "a b", "a:b", "%", strings.Repeat("x", 5000)} {
		f.Add(s, "")
		f.Add(s, "b")
		f.Add("b", s)
	}
	f.Fuzz(func(t *testing.T, subject, tag string) {
		if subject == "" {
			return // refused
		}
		for _, keys := range spaces {
			tags := map[string]bool{}
			for _, p := range fuzzPolicies {
				key := keys.key(subject, tag, p)
				tags[hashTag(key)] = true
				shape := hashedKey
				switch {
				case keys.plain:
					shape = plainKey
				case tag != "" && tag != subject:
					shape = taggedKey
				}
				if !shape.MatchString(key) {
					t.Fatalf("%q under %q: key %q does not match %s", subject, tag, key, shape)
				}
				if strings.Count(key, "{") != 1 || strings.Count(key, "}") != 1 {
					t.Fatalf("%q under %q: key %q has other braces than its own", subject, tag, key)
				}
			}
			if len(tags) != 1 {
				t.Fatalf("%q under %q: hash tags %v, want one", subject, tag, tags)
			}
		}
	})
}
