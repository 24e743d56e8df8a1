package main

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/sluicego/sluice"
)

// kinds are the algorithms as policies spell them, and as the table does.
var kinds = map[string]string{"log": "sliding log", "counter": "sliding counter", "bucket": "token bucket"}

// parsePolicies reads -policy: LIMIT/WINDOW is the same limit for all three algorithms, where the bucket holds LIMIT and
// gains as much per WINDOW; anything else is one policy. All that it returns have the same window.
func parsePolicies(s string) ([]sluice.Policy, error) {
	texts := []string{s}
	if !strings.Contains(s, ":") {
		limit, window, _ := strings.Cut(s, "/")
		texts = []string{"log:" + s, "counter:" + s, "bucket:" + limit + "+" + limit + "/" + window}
	}
	var policies []sluice.Policy
	for _, text := range texts {
		p, err := sluice.ParsePolicy(text)
		var refused *sluice.InputError
		if errors.As(err, &refused) && refused.Field != "policy" {
			return nil, fmt.Errorf("-policy %s: the %s is %s, want %s", s, refused.Field, refused.Value, refused.Want)
		}
		if err != nil {
			return nil, fmt.Errorf("-policy %s: want a limit and its window, such as 10/1m, "+
				"or one algorithm: log:10/1m, counter:10/1m or bucket:50+10/1m", s)
		}
		policies = append(policies, p)
	}
	return policies, nil
}

// windowText is the policy's window or period as its text has it, such as 1m.
func windowText(p sluice.Policy) string {
	_, window, _ := strings.Cut(p.String(), "/")
	return window
}

// withWindow is the policy over another window.
func withWindow(p sluice.Policy, window time.Duration) (sluice.Policy, error) {
	head, _, _ := strings.Cut(p.String(), "/")
	return sluice.ParsePolicy(head + "/" + window.String())
}

// compress returns the window for a log that is replayed at a speed. Windows are whole milliseconds, so it returns the
// speed, too, at which log and window are compressed by exactly the same factor.
func compress(window time.Duration, speed float64) (time.Duration, float64, error) {
	longest := float64(window.Milliseconds())
	if !(1 <= speed && speed <= longest) {
		return 0, 0, fmt.Errorf("-speed is %v, want 1 to %v: at that the policy's window takes 1ms, the shortest there is", speed, longest)
	}
	ms := math.Round(longest / speed)
	return time.Duration(ms) * time.Millisecond, longest / ms, nil
}
