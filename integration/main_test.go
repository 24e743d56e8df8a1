package integration

import (
	"os"
	"testing"

	"github.com/sluicego/sluice/integration/containers"
)

func TestMain(m *testing.M) { os.Exit(containers.Main(m)) }
