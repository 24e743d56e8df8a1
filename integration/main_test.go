package integration

import (
	"os"
	"testing"

	"github.com/sluicego/sluice/integration/containers"
)

func TestMain(m *testing.M) {
	if order := os.Getenv(hammerOrder); order != "" {
		os.Exit(hammerProcess(order))
	}
	os.Exit(containers.Main(m))
}
