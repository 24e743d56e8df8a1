// Package images tells which servers the integration tests run on. build.sh beside it makes their images.
package images

import (
	_ "embed"
	"fmt"
	"os"
	"regexp"
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
	OrLater bool   // a later version will do too: where no image can be pulled, it is what Debian has in a suite that moves on
}

// entry is a server in a list, and what to pull for it.
var entry = regexp.MustCompile(`^([a-z]+):(\d+\.\d+)(\+?)(?:=.*)?$`)

// All lists the servers to test: those of $SLUICE_TEST_IMAGES ("redis:7.0=redis:7.0,valkey:9.1+=..."), or the file
// default. What stands after the equals sign is for build.sh alone. An entry of another form is an error.
func All() ([]Image, error) {
	list := os.Getenv("SLUICE_TEST_IMAGES")
	if list == "" {
		list = defaultList
	}
	var all []Image
	for text := range strings.SplitSeq(list, ",") {
		m := entry.FindStringSubmatch(strings.TrimSpace(text))
		if m == nil {
			return nil, fmt.Errorf("SLUICE_TEST_IMAGES has %q, want name:version=reference, as in redis:7.0=redis:7.0", text)
		}
		if image := (Image{m[1], m[2], m[3] != ""}); !slices.Contains(all, image) {
			all = append(all, image)
		}
	}
	return all, nil
}

// String is how subtests name the server, "redis-7.0".
func (i Image) String() string { return i.Name + "-" + i.tag() }

// Ref is the image's name in Docker's local store, where build.sh puts it.
func (i Image) Ref() string { return "sluice-test/" + i.Name + ":" + i.tag() }

func (i Image) tag() string {
	if i.OrLater {
		return i.Version + "-or-later"
	}
	return i.Version
}

// Is reports whether a server of this version, "9.1.2", is what the image should have.
func (i Image) Is(version string) bool {
	major, minor := split(i.Version)
	gotMajor, gotMinor := split(version)
	return major == gotMajor && minor == gotMinor || i.OrLater && (gotMajor > major || gotMajor == major && gotMinor > minor)
}

// Binary is the name of the server's program.
func (i Image) Binary() string { return i.Name + "-server" }

// HoldsClock reports whether a preloaded clock holds the server's TIME. Valkey 9.1 derives it from the CPU's
// counter between two syncs.
func (i Image) HoldsClock() bool {
	major, _ := split(i.Version)
	return i.Name != "valkey" || major < 9
}

// HasFunctions reports whether the server has FUNCTION and FCALL: all but Redis 6.
func (i Image) HasFunctions() bool {
	major, _ := split(i.Version)
	return major >= 7
}

// split returns the first two numbers of a version, -1 for what is none.
func split(version string) (major, minor int) {
	parts := strings.SplitN(version+"..", ".", 3)
	number := func(s string) int {
		n, err := strconv.Atoi(s)
		if err != nil {
			return -1
		}
		return n
	}
	return number(parts[0]), number(parts[1])
}
