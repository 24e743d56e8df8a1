// Package images tells which servers the integration tests run on. build.sh beside it makes their images.
package images

import (
	_ "embed"
	"os"
	"slices"
	"strconv"
	"strings"
)

//go:embed default
var defaultList string

// Image is a server to test.
type Image struct {
	Name    string // "redis", "valkey", "redict"
	Version string // "7.0"
}

// All lists the servers to test: those of $SLUICE_TEST_IMAGES ("redis:7.0=redis:7.0,valkey:8.1=..."), or the file
// default. What stands after the equals sign is for build.sh alone.
func All() []Image {
	list := os.Getenv("SLUICE_TEST_IMAGES")
	if list == "" {
		list = defaultList
	}
	var all []Image
	for pair := range strings.SplitSeq(list, ",") {
		key, _, _ := strings.Cut(strings.TrimSpace(pair), "=")
		name, version, ok := strings.Cut(key, ":")
		if image := (Image{name, version}); ok && !slices.Contains(all, image) {
			all = append(all, image)
		}
	}
	return all
}

// String is how subtests name the server, "redis-7.0".
func (i Image) String() string { return i.Name + "-" + i.Version }

// Ref is the image's name in Docker's local store, where build.sh puts it.
func (i Image) Ref() string { return "sluice-test/" + i.Name + ":" + i.Version }

// Binary is the name of the server's program.
func (i Image) Binary() string { return i.Name + "-server" }

// HoldsClock reports whether a preloaded clock holds the server's TIME. Valkey 9.1 derives it from the CPU's
// counter between two syncs.
func (i Image) HoldsClock() bool {
	major, _, _ := strings.Cut(i.Version, ".")
	n, err := strconv.Atoi(major)
	return err == nil && (i.Name != "valkey" || n < 9)
}
