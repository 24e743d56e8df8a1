package integration

import (
	"fmt"
	"os"
	"testing"

	"github.com/sluicego/sluice/integration/containers"
)

// scratch is a folder for what several tests share; empty if none has made it.
var scratch string

func TestMain(m *testing.M) {
	if order := os.Getenv(hammerOrder); order != "" {
		os.Exit(hammerProcess(order))
	}
	code := containers.Main(m)
	if err := os.RemoveAll(scratch); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}
