package images

import (
	"fmt"
	"testing"
)

func TestAll(t *testing.T) {
	for list, want := range map[string]string{
		"redis:7.0=redis:7.0":                          "[redis-7.0]",
		"redis:7.0=a.example/redis:7.0.15,redis:7.0=x": "[redis-7.0]",
		"redict:7.3=,  valkey:9.1+=valkey/valkey:9.1":  "[redict-7.3 valkey-9.1-or-later]",
	} {
		t.Setenv("SLUICE_TEST_IMAGES", list)
		if got, err := All(); err != nil || fmt.Sprint(got) != want {
			t.Errorf("%q: got %v, %v, want %s", list, got, err, want)
		}
	}
	for _, list := range []string{"redis", "redis=redis:7.0", "redis:7", "redis:7.0,", "redis:latest=redis", "redis:7.0-alpine="} {
		t.Setenv("SLUICE_TEST_IMAGES", list)
		if got, err := All(); err == nil {
			t.Errorf("%q: got %v, want an error", list, got)
		}
	}
	t.Setenv("SLUICE_TEST_IMAGES", "")
	if got, err := All(); err != nil || len(got) < 6 {
		t.Errorf("by default: got %v, %v", got, err)
	}
}

func TestIs(t *testing.T) {
	exact, later := Image{"valkey", "9.1", false}, Image{"valkey", "9.1", true}
	for version, want := range map[string][2]bool{
		"9.1.2": {true, true}, "9.1": {true, true}, "9.10.0": {false, true}, "9.2.0": {false, true}, "10.0.1": {false, true},
		"9.0.9": {false, false}, "8.1.4": {false, false}, "8.9.0": {false, false}, "": {false, false}, "x": {false, false},
	} {
		if got := [2]bool{exact.Is(version), later.Is(version)}; got != want {
			t.Errorf("%q: exactly, and at least, 9.1 is %v, want %v", version, got, want)
		}
	}
}

func TestWhatServersHave(t *testing.T) {
	for image, want := range map[Image][2]bool{
		{"redis", "6.0", false}: {true, false}, {"redis", "7.0", false}: {true, true}, {"redict", "7.3", true}: {true, true},
		{"valkey", "8.1", false}: {true, true}, {"valkey", "9.1", true}: {false, true}, {"redis", "10.0", false}: {true, true},
	} {
		if got := [2]bool{image.HoldsClock(), image.HasFunctions()}; got != want {
			t.Errorf("%s holds its clock, has functions: got %v, want %v", image, got, want)
		}
	}
}
