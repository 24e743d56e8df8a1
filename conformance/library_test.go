package conformance_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/sluicego/sluice"
)

// TestDenialsWithoutMemory: what docs/operating.md says of scripts and functions when the server is full.
func TestDenialsWithoutMemory(t *testing.T) {
	server := functionServer(t)
	if server == nil {
		return
	}
	set := func(value string) {
		t.Helper()
		command := server.Client.B().ConfigSet().ParameterValue().ParameterValue("maxmemory", value).Build()
		if err := server.Client.Do(context.Background(), command).Error(); err != nil {
			t.Fatal(err)
		}
	}
	defer set("0")
	p := sluice.SlidingLog(1, time.Minute)
	for _, functions := range []bool{false, true} {
		set("0")
		l, err := sluice.New(server.Client, sluice.Config{Prefix: "full-" + run, Functions: functions})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := l.Allow(t.Context(), "shut", p); err != nil {
			t.Fatal(err)
		}
		set("1")
		res, err := l.Allow(t.Context(), "shut", p)
		if full := err != nil && strings.Contains(err.Error(), "OOM"); res.Allowed || full != functions || !functions && err != nil {
			t.Errorf("functions %t, a limit that is shut: got %+v, %v", functions, res, err)
		}
		if res, err := l.Allow(t.Context(), "open", p); res.Allowed || err == nil || !strings.Contains(err.Error(), "OOM") {
			t.Errorf("functions %t, a limit with room: got %+v, %v, want OOM", functions, res, err)
		}
	}
}

// TestLoadFindsALaterLibrary, which does not have the functions of this version any more, or has them.
func TestLoadFindsALaterLibrary(t *testing.T) {
	server := functionServer(t)
	if server == nil {
		return
	}
	load := func(text string) {
		t.Helper()
		if err := server.Client.Do(context.Background(), server.Client.B().FunctionLoad().Replace().FunctionCode(text).Build()).Error(); err != nil {
			t.Fatal(err)
		}
	}
	defer load(library(t))
	l, err := sluice.New(server.Client, sluice.Config{Functions: true})
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Load(t.Context()); err != nil {
		t.Errorf("this version: %v", err)
	}
	later := strings.NewReplacer("return {1, '", "return {99, '", "'sluice_v1_' ..", "'sluice_v99_' ..").Replace(library(t))
	load(later)
	var missing *sluice.LibraryError
	if err := l.Load(t.Context()); !errors.As(err, &missing) || missing.Version != 99 {
		t.Errorf("a later one without this version's functions: %v, want a LibraryError", err)
	}
	load(strings.Replace(library(t), "return {1, '", "return {99, '", 1))
	if err := l.Load(t.Context()); err != nil {
		t.Errorf("a later one with them: %v", err)
	}
}
