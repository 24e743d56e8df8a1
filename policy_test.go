package sluice

import (
	"encoding/json"
	"errors"
	"math"
	"strings"
	"testing"
	"time"
)

const days366 = 366 * 24 * time.Hour

func TestPolicyRanges(t *testing.T) {
	const ms, billion = time.Millisecond, 1_000_000_000
	tests := []struct {
		policy Policy
		field  string // refused; empty: fine
	}{
		{SlidingLog(1, ms), ""},
		{SlidingLog(billion, days366), ""},
		{SlidingCounter(1, ms), ""},
		{SlidingCounter(billion, days366), ""},
		{TokenBucket(1, 1, ms), ""},
		{TokenBucket(billion, billion, days366), ""},
		{TokenBucket(1, 1, days366), ""},
		{TokenBucket(31_622_400, 1, time.Second), ""},
		{TokenBucket(billion, 32, time.Second), ""},

		{Policy{}, "policy"},
		{Policy{}.Named("a"), "policy"},
		{SlidingLog(0, ms), "limit"},
		{SlidingLog(-1, ms), "limit"},
		{SlidingLog(billion+1, ms), "limit"},
		{SlidingLog(1<<31, ms), "limit"},
		{SlidingLog(1<<53-1, ms), "limit"},
		{SlidingLog(1<<53+1, ms), "limit"},
		{SlidingLog(math.MaxInt64, ms), "limit"},
		{SlidingLog(math.MinInt64, ms), "limit"},
		{SlidingCounter(0, ms), "limit"},
		{TokenBucket(0, 1, ms), "capacity"},
		{TokenBucket(1<<53+1, 1, ms), "capacity"},
		{TokenBucket(1, 0, ms), "refill"},
		{TokenBucket(1, -1, ms), "refill"},
		{TokenBucket(1, billion+1, ms), "refill"},
		{SlidingLog(1, 0), "window"},
		{SlidingLog(1, -ms), "window"},
		{SlidingLog(1, time.Nanosecond), "window"},
		{SlidingLog(1, ms-1), "window"},
		{SlidingLog(1, ms+1), "window"},
		{SlidingLog(1, 1500*time.Microsecond), "window"},
		{SlidingLog(1, days366+ms), "window"},
		{SlidingLog(1, math.MaxInt64), "window"},
		{SlidingLog(1, math.MinInt64), "window"},
		{SlidingCounter(1, days366+1), "window"},
		{TokenBucket(1, 1, 0), "period"},
		{TokenBucket(1, 1, days366+ms), "period"},
		// Empty to full in 366 days and a millisecond's part more.
		{TokenBucket(31_622_400+1, 1, time.Second), "capacity"},
		{TokenBucket(billion, 31, time.Second), "capacity"},
		{TokenBucket(billion, 1, days366), "capacity"}, // the product passes 2^64
		{TokenBucket(2, 1, days366), "capacity"},
		{TokenBucket(billion, billion-1, days366), "capacity"},

		{SlidingLog(1, ms).Named("login"), ""},
		{SlidingLog(1, ms).Named("").Named("login"), ""},
		{SlidingLog(1, ms).Named("A-Za-z0-9._-"), ""},
		{SlidingLog(1, ms).Named(strings.Repeat("n", 64)), ""},
		{SlidingLog(1, ms).Named(""), "name"},
		{SlidingLog(1, ms).Named(strings.Repeat("n", 65)), "name"},
		{SlidingLog(1, ms).Named("log/60000"), "name"},
		{SlidingLog(1, ms).Named("a:b"), "name"},
		{SlidingLog(1, ms).Named("a=b"), "name"},
		{SlidingLog(1, ms).Named("a b"), "name"},
		{SlidingLog(1, ms).Named("{a}"), "name"},
		{SlidingLog(1, ms).Named(`"`), "name"},
		{SlidingLog(1, ms).Named("\x00"), "name"},
		{SlidingLog(1, ms).Named("é"), "name"},
	}
	client := replying(fiveReply(1, 0, 0, 0, 0))
	l := newLimiter(t, client, Config{})
	for _, tt := range tests {
		client.sent = nil
		_, err := l.AllowN(t.Context(), "a", tt.policy, 0)
		if tt.field == "" {
			if err != nil {
				t.Errorf("%v: %v, want no error", tt.policy, err)
			}
			continue
		}
		var input *InputError
		if !errors.Is(err, ErrInvalidPolicy) || !errors.As(err, &input) || input.Field != tt.field {
			t.Errorf("%v: error %v, want an InputError for %q that is ErrInvalidPolicy", tt.policy, err, tt.field)
		}
		if client.count() != 0 {
			t.Errorf("%v: sent %q", tt.policy, client.sent)
		}
	}
}

func TestPolicyErrorsNameTheRange(t *testing.T) {
	tests := []struct {
		policy Policy
		want   string
	}{
		{SlidingLog(0, time.Second), "sluice: limit is 0, want 1 to 1000000000"},
		{SlidingCounter(1, 1500*time.Microsecond), "sluice: window is 1.5ms, want whole milliseconds from 1ms to 366d"},
		{TokenBucket(1, 0, time.Second), "sluice: refill is 0, want 1 to 1000000000"},
		{TokenBucket(31_622_401, 1, time.Second), "sluice: capacity is 31622401, want at most 31622400, which refill at 1/1s within 366d"},
		{SlidingLog(1, time.Second).Named("a b"), `sluice: name is "a b", want 1 to 64 of the characters A-Z a-z 0-9 . _ -`},
		{Policy{}, "sluice: policy is none, want one of SlidingLog, SlidingCounter, TokenBucket"},
	}
	for _, tt := range tests {
		if _, err := tt.policy.MarshalText(); err == nil || err.Error() != tt.want {
			t.Errorf("%v: error %v, want %s", tt.policy, err, tt.want)
		}
	}
}

func TestPolicyText(t *testing.T) {
	tests := []struct {
		text   string
		policy Policy
		back   string // if the text is not as String writes it
	}{
		{"log:5/1m", SlidingLog(5, time.Minute), ""},
		{"counter:100/1m", SlidingCounter(100, time.Minute), ""},
		{"bucket:50+10/1s", TokenBucket(50, 10, time.Second), ""},
		{"login=log:5/1m", SlidingLog(5, time.Minute).Named("login"), ""},
		{"a.b-c_D=bucket:1+1/1ms", TokenBucket(1, 1, time.Millisecond).Named("a.b-c_D"), ""},
		{"log:1/1h", SlidingLog(1, time.Hour), ""},
		{"log:1/10h20m30s", SlidingLog(1, 10*time.Hour+20*time.Minute+30*time.Second), ""},
		{"log:1/10h0m30s", SlidingLog(1, 10*time.Hour+30*time.Second), ""},
		{"log:1/20m", SlidingLog(1, 20*time.Minute), ""},
		{"log:1/1d", SlidingLog(1, 24*time.Hour), ""},
		{"log:1/366d", SlidingLog(1, days366), ""},
		{"log:1/1d12h", SlidingLog(1, 36*time.Hour), ""},
		{"log:1/365d23h59m59.999s", SlidingLog(1, days366-time.Millisecond), ""},
		{"log:1/1.5s", SlidingLog(1, 1500*time.Millisecond), ""},
		{"log:1000000000/1ms", SlidingLog(1_000_000_000, time.Millisecond), ""},
		{"log:1000/1m*8", SlidingLog(1000, time.Minute).Sharded(8), ""},
		{"hot=bucket:256+1/1d*256", TokenBucket(256, 1, 24*time.Hour).Sharded(256).Named("hot"), ""},
		{"log:5/60s", SlidingLog(5, time.Minute), "log:5/1m"},
		{"log:5/1m0s", SlidingLog(5, time.Minute), "log:5/1m"},
		{"log:5/24h", SlidingLog(5, 24*time.Hour), "log:5/1d"},
		{"log:005/1m", SlidingLog(5, time.Minute), "log:5/1m"},
		{"log:5/1m*02", SlidingLog(5, time.Minute).Sharded(2), "log:5/1m*2"},
	}
	for _, tt := range tests {
		got, err := ParsePolicy(tt.text)
		if err != nil || got != tt.policy {
			t.Errorf("ParsePolicy(%q) = %#v, %v, want %#v", tt.text, got, err, tt.policy)
			continue
		}
		want := tt.text
		if tt.back != "" {
			want = tt.back
		}
		if got.String() != want {
			t.Errorf("%q: String() = %q, want %q", tt.text, got.String(), want)
		}
	}
}

func TestPolicyTextRefused(t *testing.T) {
	tests := []struct{ text, field string }{
		{"", "policy"},
		{"none", "policy"},
		{"log", "policy"},
		{"log:", "policy"},
		{"log:5", "policy"},
		{"gcra:5/1m", "policy"},
		{"LOG:5/1m", "policy"},
		{" log:5/1m", "policy"},
		{"bucket:5/1m", "policy"},
		{"log:/1m", "limit"},
		{"log:0/1m", "limit"},
		{"log:-5/1m", "limit"},
		{"log:+5/1m", "limit"},
		{"log:5.0/1m", "limit"},
		{"log:5e1/1m", "limit"},
		{"log:0x5/1m", "limit"},
		{"log:1_0/1m", "limit"},
		{"log: 5/1m", "limit"},
		{"log:5+5/1m", "limit"},
		{"log:1000000001/1m", "limit"},
		{"log:9223372036854775808/1m", "limit"},
		{"log:18446744073709551617/1m", "limit"},
		{"bucket:+5/1m", "capacity"},
		{"bucket:5+/1m", "refill"},
		{"bucket:5+0/1m", "refill"},
		{"bucket:5++5/1m", "refill"},
		{"bucket:1+1/0s", "period"},
		{"bucket:2+1/366d", "capacity"},
		{"log:5/", "window"},
		{"log:5/m", "window"},
		{"log:5/60", "window"},
		{"log:5/0s", "window"},
		{"log:5/-1m", "window"},
		{"log:5/+1m", "window"},
		{"log:5/1m ", "window"},
		{"log:5/1.0001s", "window"},
		{"log:5/1d-1m", "window"},
		{"log:5/1d+1m", "window"},
		{"log:5/-1d", "window"},
		{"log:5/d", "window"},
		{"log:5/1d1d", "window"},
		{"log:5/366d1ms", "window"},
		{"log:5/367d", "window"},
		{"log:5/99999999999999999999d", "window"},
		{"log:5/213504d1h", "window"}, // 2^63 ns
		{"log:5/9999999h", "window"},
		{"log:5/1m/1m", "window"},
		{"log:5/1m*", "shards"},
		{"log:5/1m*1", "shards"},
		{"log:5/1m*-2", "shards"},
		{"log:5/1m*6", "shards"},
		{"log:5/1m*2*2", "shards"},
		{"log:1000/1m*257", "shards"},
		{"log:1000/1m*99999999999", "shards"},
		{"bucket:2+400/200d*2", "shards"}, // 400 days each
		{"bucket:3+1/122d*2", "shards"},   // one of the two would take 2 * 244 days to fill
		{"=log:5/1m", "name"},
		{"a b=log:5/1m", "name"},
		{"a=b=log:5/1m", "policy"},
		{"a:b=log:5/1m", "name"},
	}
	for _, tt := range tests {
		got, err := ParsePolicy(tt.text)
		var input *InputError
		if !errors.Is(err, ErrInvalidPolicy) || !errors.As(err, &input) || input.Field != tt.field || got != (Policy{}) {
			t.Errorf("ParsePolicy(%q) = %v, %v, want an InputError for %q that is ErrInvalidPolicy", tt.text, got, err, tt.field)
		}
	}
}

// A sum beyond what a Duration holds is told as it was given, and not as what it wraps around to.
func TestPolicyWindowBeyondDurations(t *testing.T) {
	const window = "1d2562047h47m16.854775807s"
	_, err := ParsePolicy("log:5/" + window)
	var input *InputError
	if !errors.As(err, &input) || input.Field != "window" || !strings.Contains(input.Value, window) {
		t.Errorf("got %v, want an InputError for the window %s", err, window)
	}
}

func TestPolicyName(t *testing.T) {
	if got := SlidingLog(5, time.Minute).Name(); got != "" {
		t.Errorf("a policy without a name is called %q", got)
	}
	if got := SlidingLog(5, time.Minute).Named("login").Name(); got != "login" {
		t.Errorf("a policy named login is called %q", got)
	}
}

func TestPolicyParts(t *testing.T) {
	tests := []struct {
		policy        Policy
		algorithm     string
		limit, refill int64
		window        time.Duration
	}{
		{SlidingLog(5, time.Minute), "log", 5, 0, time.Minute},
		{SlidingCounter(100, time.Hour).Named("hourly"), "counter", 100, 0, time.Hour},
		{TokenBucket(50, 10, time.Second), "bucket", 50, 10, time.Second},
		{Policy{}, "", 0, 0, 0},
	}
	for _, tt := range tests {
		p := tt.policy
		if p.Algorithm() != tt.algorithm || p.Limit() != tt.limit || p.Refill() != tt.refill || p.Window() != tt.window {
			t.Errorf("%v: got %q, %d, %d, %v, want %q, %d, %d, %v", p, p.Algorithm(), p.Limit(), p.Refill(), p.Window(), tt.algorithm, tt.limit, tt.refill, tt.window)
		}
	}
}

func TestPolicyErrorCutsLongText(t *testing.T) {
	_, err := ParsePolicy(strings.Repeat("x", 1<<20))
	if err == nil || len(err.Error()) > 500 {
		t.Errorf("error of %d bytes, want a short one", len(err.Error()))
	}
}

func TestPolicyJSON(t *testing.T) {
	type config struct {
		Login Policy
		Tiers map[Policy]string
	}
	text := `{"Login":"login=log:5/1m","Tiers":{"bucket:50+10/1s":"free"}}`
	var got config
	if err := json.Unmarshal([]byte(text), &got); err != nil {
		t.Fatal(err)
	}
	if got.Login != SlidingLog(5, time.Minute).Named("login") || got.Tiers[TokenBucket(50, 10, time.Second)] != "free" {
		t.Errorf("read %v", got)
	}
	if back, err := json.Marshal(got); err != nil || string(back) != text {
		t.Errorf("wrote %s, %v, want %s", back, err, text)
	}
	if _, err := json.Marshal(config{}); !errors.Is(err, ErrInvalidPolicy) {
		t.Errorf("the zero Policy was written: %v", err)
	}
	before := got.Login
	if err := got.Login.UnmarshalText([]byte("log:0/1m")); err == nil || got.Login != before {
		t.Errorf("UnmarshalText of a bad text: %v, policy %v, want it unchanged", err, got.Login)
	}
}

func FuzzParsePolicy(f *testing.F) {
	for _, s := range []string{"log:5/1m", "login=counter:100/1d1h", "bucket:50+10/1s", "log:1/1.5s", "log:1/366d", "=log:1/1h", "bucket:2+1/366d"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		p, err := ParsePolicy(s)
		if err != nil {
			if !errors.Is(err, ErrInvalidPolicy) || p != (Policy{}) {
				t.Fatalf("ParsePolicy(%q) = %v, %v", s, p, err)
			}
			return
		}
		text, err := p.MarshalText()
		if err != nil {
			t.Fatalf("ParsePolicy(%q) is invalid: %v", s, err)
		}
		if back, err := ParsePolicy(string(text)); err != nil || back != p {
			t.Fatalf("%q is written %q, and that is read as %v, %v", s, text, back, err)
		}
	})
}
