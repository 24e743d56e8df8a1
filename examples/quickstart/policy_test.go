package main

import (
	"math"
	"slices"
	"testing"
	"time"

	"github.com/sluicego/sluice"
)

func TestParsePolicies(t *testing.T) {
	tests := []struct {
		text string
		want []sluice.Policy
	}{
		{theLimit.text, theLimit.policies},
		{"3/1d12h", []sluice.Policy{
			sluice.SlidingLog(3, 36*time.Hour), sluice.SlidingCounter(3, 36*time.Hour), sluice.TokenBucket(3, 3, 36*time.Hour),
		}},
		{"log:3/7d", []sluice.Policy{sluice.SlidingLog(3, 7*24*time.Hour)}},
		{"night=bucket:50+10/1s", []sluice.Policy{sluice.TokenBucket(50, 10, time.Second).Named("night")}},
	}
	for _, tt := range tests {
		got, err := parsePolicies(tt.text)
		if err != nil || !slices.Equal(got, tt.want) {
			t.Errorf("%s: got %v, %v; want %v", tt.text, got, err, tt.want)
		}
	}
}

func TestWithWindow(t *testing.T) {
	for _, window := range []time.Duration{
		time.Millisecond, 1500 * time.Millisecond, time.Minute, 24 * time.Hour, 36*time.Hour + time.Millisecond, 366 * 24 * time.Hour,
	} {
		for _, p := range []sluice.Policy{
			sluice.SlidingLog(7, window),
			sluice.SlidingCounter(7, window).Named("d-log"),
			sluice.TokenBucket(1, 9, window),
		} {
			other, err := withWindow(p, 50*time.Hour)
			if err != nil || other.Window() != 50*time.Hour {
				t.Errorf("%s: got %s, %v with the window of 50h", p, other, err)
			}
			if back, err := withWindow(other, window); err != nil || back != p {
				t.Errorf("%s: got %s, %v with its own window", p, back, err)
			}
		}
	}
}

func TestCompress(t *testing.T) {
	tests := []struct {
		window time.Duration
		speed  float64
		want   time.Duration
		at     float64
	}{
		{time.Minute, 1, time.Minute, 1},
		{time.Minute, 60, time.Second, 60},
		{time.Minute, 60_000, time.Millisecond, 60_000},
		{time.Second, 600, 2 * time.Millisecond, 500},               // 1.67 ms
		{10 * time.Millisecond, 1.5, 7 * time.Millisecond, 10. / 7}, // 6.67 ms
	}
	for _, tt := range tests {
		if got, at, err := compress(tt.window, tt.speed); err != nil || got != tt.want || at != tt.at {
			t.Errorf("%v at %v: got %v at %v, %v; want %v at %v", tt.window, tt.speed, got, at, err, tt.want, tt.at)
		}
	}
	for _, speed := range []float64{-1, 0, 0.99, 1000.5, math.Inf(1), math.Inf(-1), math.NaN()} {
		if got, at, err := compress(time.Second, speed); err == nil {
			t.Errorf("1s at %v: got %v at %v, want an error", speed, got, at)
		}
	}
}
