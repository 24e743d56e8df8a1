package main

import (
	"os"
	"strings"
	"testing"
)

// TestTableOfTheDocs holds the documentation to what was measured.
func TestTableOfTheDocs(t *testing.T) {
	page, err := os.ReadFile("../../docs/scaling.md")
	if err != nil {
		t.Fatal(err)
	}
	var measured strings.Builder
	table(&measured)
	if !strings.Contains(string(page), measured.String()) {
		t.Errorf("docs/scaling.md does not have the table\n%s", measured.String())
	}
}
