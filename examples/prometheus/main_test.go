package main

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

const want = `db_client_operation_duration_seconds_count{db_operation_name="EVALSHA",db_system_name="redis",sluice_operation="take"} 5
sluice_decisions_total{sluice_candidate="false",sluice_operation="take",sluice_outcome="allowed",sluice_policy="per-address",sluice_source="redis"} 3
sluice_decisions_total{sluice_candidate="false",sluice_operation="take",sluice_outcome="denied",sluice_policy="per-address",sluice_source="redis"} 2
sluice_script_reloads_total{sluice_policy="per-address"} 1
sluice_wait_seconds_count{sluice_policy="per-address"} 2
`

func TestOnce(t *testing.T) {
	t.Setenv("REDIS_ADDR", "")
	var out strings.Builder
	if err := run("", true, &out); err != nil {
		t.Fatal(err)
	}
	if got := out.String(); got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
}

// The alerts name metrics and labels that there are.
func TestAlertsNameWhatThereIs(t *testing.T) {
	text, err := os.ReadFile("alerts.yml")
	if err != nil {
		t.Fatal(err)
	}
	words := regexp.MustCompile(`\b(sluice|db_client)_[a-z_]+`).FindAllString(string(text), -1)
	if len(words) < 5 {
		t.Fatalf("only %q in the alerts", words)
	}
	for _, word := range words {
		if word != "sluice_server_skew_seconds" && !strings.Contains(want, strings.Replace(word, "_bucket", "_count", 1)) {
			t.Errorf("the alerts speak of %s, which is nowhere", word)
		}
	}
}
