// Command functions makes scripts/functions.lua, the scripts as one library of Redis Functions, of the scripts' own text,
// and notes its digest in scripts/SHA1SUMS:
//
//	go generate ./cmd/functions        in the folder conformance
package main

import (
	"bytes"
	"crypto/sha1"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/sluicego/sluice/conformance/servers"
)

//go:generate go run .

// version is what sluice_version tells, and is in the functions' names, so that a client finds no function in an older library.
// Raise it, and libraryVersion in the loader, with every release whose library is another than that of the release before;
// while the contract is kept, register the functions by their older names too, so that older clients find theirs.
const version = 1

// names are the scripts, each a function of the library.
var names = []string{"sliding_log", "sliding_counter", "token_bucket", "multi"}

func main() {
	if err := write(servers.Scripts()); err != nil {
		fmt.Fprintln(os.Stderr, "functions:", err)
		os.Exit(1)
	}
}

func write(dir string) error {
	text, err := library(dir)
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, "functions.lua"), text, 0o644); err != nil {
		return err
	}
	sums, err := os.ReadFile(filepath.Join(dir, "SHA1SUMS"))
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "SHA1SUMS"), withSum(sums, text), 0o644)
}

// withSum are the sums with that of the library in its place in the order of names.
func withSum(sums, text []byte) []byte {
	line := digest(text) + "  functions.lua\n"
	var out bytes.Buffer
	for old := range bytes.Lines(sums) {
		_, name, _ := bytes.Cut(bytes.TrimSpace(old), []byte("  "))
		if string(name) > "functions.lua" {
			out.WriteString(line)
			line = ""
		}
		if string(name) != "functions.lua" {
			out.Write(old)
		}
	}
	out.WriteString(line)
	return out.Bytes()
}

func digest(text []byte) string {
	sum := sha1.Sum(text)
	return hex.EncodeToString(sum[:])
}

const header = `#!lua name=sluice
-- Sluice as a library of Redis Functions. Made of the scripts beside it by conformance/cmd/functions: do not edit.
--
-- FUNCTION LOAD REPLACE puts it on a server, once. It is stored and replicated with the data, so it is there after a
-- restart and a failover, and there is no NOSCRIPT.
--
-- Functions  sluice_v1_sliding_log, sluice_v1_sliding_counter, sluice_v1_token_bucket, sluice_v1_multi: what the scripts
--            of these names do. Keys, arguments, reply and errors are told in their files.
--            sluice_v1_sliding_log_peek and so on: the same for the operation peek alone. They write nothing, so
--            FCALL_RO takes them, on a replica too.
--            sluice_version: {version, digest}. The version grows with every release that changes the library, and is in
--            the functions' names; a later library has the earlier names too, as long as it does the same. The digest
--            is the SHA-1 of this text with 40 zeros in the place of the digest.
-- Needs      Redis >= 7.0 or Valkey, of 64 bits. A state is the same to a function and to its script: both may be used
--            on one key.

`

const footer = `local function register(name, run)
  redis.register_function('sluice_v1_' .. name, run)
  redis.register_function{
    function_name = 'sluice_v1_' .. name .. '_peek',
    flags = {'no-writes'},
    callback = function(keys, args)
      if args[1] ~= 'peek' then return redis.error_reply('SLUICEARG operation must be peek') end
      return run(keys, args)
    end,
  }
end

`

var (
	helper = regexp.MustCompile(`(?ms)^-- \[shared: (\w+)\]\n(.*?)^-- \[end\]\n\n`)
	marker = regexp.MustCompile(`(?m)^ *-- \[.*\]\n`)
)

// library is the text of the library, of the scripts in a folder.
func library(dir string) ([]byte, error) {
	var helpers, mains, registers strings.Builder
	have := map[string]bool{}
	for _, name := range names {
		text, err := os.ReadFile(filepath.Join(dir, name+".lua"))
		if err != nil {
			return nil, err
		}
		_, code, _ := strings.Cut(string(text), "\n\n") // without the contract
		before, main, ok := strings.Cut(code, "-- [main]\n")
		if !ok {
			return nil, fmt.Errorf("%s.lua has no [main]", name)
		}
		before = helper.ReplaceAllStringFunc(before, func(block string) string {
			m := helper.FindStringSubmatch(block)
			if !have[m[1]] {
				helpers.WriteString(m[2] + "\n")
			}
			have[m[1]] = true
			return ""
		})
		// The keys and arguments of a script are globals, those of a function are its parameters.
		fmt.Fprintf(&mains, "%slocal function run_%s(KEYS, ARGV)\n%send\n\n", before, name, indent(main))
		fmt.Fprintf(&registers, "register('%s', run_%[1]s)\n", name)
	}
	zeros := strings.Repeat("0", 2*sha1.Size)
	text := header + helpers.String() + marker.ReplaceAllString(mains.String(), "") + footer + registers.String() + fmt.Sprintf(`redis.register_function{
  function_name = 'sluice_version',
  flags = {'no-writes'},
  callback = function() return {%d, '%s'} end,
}
`, version, zeros)
	return []byte(strings.Replace(text, zeros, digest([]byte(text)), 1)), nil
}

func indent(text string) string {
	return regexp.MustCompile(`(?m)^(.)`).ReplaceAllString(text, "  $1")
}
