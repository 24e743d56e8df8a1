package main

import (
	"context"
	"crypto/sha1"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
)

// tgs is the floor of a useful decision: read the time, read an integer, write an integer with an expiry.
const tgs = `local t = redis.call('TIME')
local g = redis.call('GET', KEYS[1])
redis.call('SET', KEYS[1], t[1] * 1000 + 1, 'PX', 60000)
return 1`

// row is one script as it is called straight, without a client library. Its floor is the TGS script called with as many
// arguments on as many keys, since both cost whatever the script.
type row struct {
	name  string
	bar   float64                           // the most that it may cost, as a multiple of its floor; 0 is no bar
	keys  int                               // the keys called in turn, each a copy of one that setup made
	setup func(p *pipe, key string) error   // makes the state of a key before each round; nil is none
	words func(key string) []string         // the command
	floor func(key string) (words []string) // the command that it is compared with
	than  string                            // what that is, if not TGS
}

type script struct{ sha, text string }

func loadScript(dir, name string) (script, error) {
	text, err := os.ReadFile(filepath.Join(dir, name+".lua"))
	if err != nil {
		return script{}, err
	}
	return digest(string(text)), nil
}

func digest(text string) script {
	sum := sha1.Sum([]byte(text))
	return script{hex.EncodeToString(sum[:]), text}
}

func (s script) call(key string, args ...string) []string {
	return append([]string{"EVALSHA", s.sha, "1", key}, args...)
}

var logSizes = []int{100, 1000, 10_000, 100_000}

const hour, long = "3600000", "2592000000"

// byName is a script's call as a function of the library.
func byName(name, key string, args ...string) []string {
	return append([]string{"FCALL", "sluice_v1_" + name, "1", key}, args...)
}

// rows are all scripts that are measured at the server alone.
func rows(dir string) ([]row, []script, error) {
	var loaded []script
	scripts := map[string]script{}
	for _, name := range []string{"token_bucket", "sliding_counter", "sliding_log", "multi"} {
		s, err := loadScript(dir, name)
		if err != nil {
			return nil, nil, err
		}
		scripts[name] = s
		loaded = append(loaded, s)
	}
	bucket, counter, log, multi := scripts["token_bucket"], scripts["sliding_counter"], scripts["sliding_log"], scripts["multi"]
	one, floor := digest("return 1"), digest(tgs)
	loaded = append(loaded, one, floor)

	exhaust := func(s script, args ...string) func(*pipe, string) error {
		return func(p *pipe, key string) error { return p.send([][]byte{command(s.call(key, args...)...)}) }
	}
	call := func(s script, args ...string) func(string) []string {
		return func(key string) []string { return s.call(key, args...) }
	}
	all := []row{
		{name: "EVALSHA of return 1", keys: 1, words: call(one, "take", "1", "1000000", "60000")},
		{name: "TGS", keys: 1, words: call(floor, "take", "1", "1000000", "60000")},
		{name: "token_bucket, allowed", bar: 1.8, keys: 1, words: call(bucket, "take", "1", "100000000", "1000000", "60000")},
		{name: "token_bucket, denied", bar: 1.25, keys: 1, setup: exhaust(bucket, "take", "5", "5", "1", long), words: call(bucket, "take", "5", "5", "1", long)},
		{name: "token_bucket, peek", bar: 1.25, keys: 1, setup: exhaust(bucket, "take", "5", "5", "1", long), words: call(bucket, "peek", "5", "5", "1", long)},
		{name: "sliding_counter, allowed", bar: 1.6, keys: 1, words: call(counter, "take", "1", "100000000", hour)},
		{name: "sliding_counter, denied", bar: 1.25, keys: 1, setup: exhaust(counter, "take", "5", "5", long), words: call(counter, "take", "5", "5", long)},
		{name: "sliding_counter, peek", bar: 1.25, keys: 1, setup: exhaust(counter, "take", "5", "5", long), words: call(counter, "peek", "5", "5", long)},
	}
	for _, n := range logSizes {
		fill := func(p *pipe, key string) error {
			commands := make([][]byte, n)
			for i := range commands {
				commands[i] = command(log.call(key, "take", "1", "100000000", long)...)
			}
			return p.send(commands)
		}
		keys := max(4, 200_000/n) // so many that no log grows by much, nor reaches its limit, within a round
		all = append(all,
			row{name: logRow(n), bar: 2.8, keys: keys, setup: fill, words: call(log, "take", "1", "100000000", long)},
			row{name: logRow(n) + ", cost 100000", bar: 2.8, keys: keys, setup: fill, words: call(log, "take", "100000", "999999999", long)},
			row{name: fmt.Sprintf("sliding_log, denied, %d entries", n), bar: 2, keys: keys, setup: fill, words: call(log, "take", "1", strconv.Itoa(n), long)},
		)
	}
	for i := range all {
		args := all[i].words("")[4:]
		all[i].floor = func(string) []string { return floor.call("floor", args...) }
	}
	several := func(limits ...[]string) func(string) []string {
		return func(key string) []string {
			words := []string{"EVALSHA", multi.sha, strconv.Itoa(len(limits))}
			for i := range limits {
				words = append(words, key+strconv.Itoa(i))
			}
			words = append(words, "take")
			for _, limit := range limits {
				words = append(words, limit...)
			}
			return words
		}
	}
	aBucket := []string{"token_bucket", "1", "100000000", "1000000", "60000"}
	aCounter := []string{"sliding_counter", "1", "100000000", hour}
	single := call(bucket, "take", "1", "100000000", "1000000", "60000")
	single2 := call(counter, "take", "1", "100000000", hour)
	function := func(name string, args ...string) func(string) []string {
		return func(key string) []string { return byName(name, key, args...) }
	}
	return append(all,
		row{name: "token_bucket as a function, allowed", keys: 1, words: function("token_bucket", "take", "1", "100000000", "1000000", "60000"), floor: single, than: "the script"},
		row{name: "sliding_counter as a function, allowed", keys: 1, words: function("sliding_counter", "take", "1", "100000000", hour), floor: single2, than: "the script"},
		row{name: "multi, 2 limits (bucket, counter)", bar: 1.7, keys: 1, words: several(aBucket, aCounter), floor: single, than: "token_bucket, allowed"},
		row{name: "multi, 4 limits (2 buckets, 2 counters)", bar: 3, keys: 1, words: several(aBucket, aCounter, aBucket, aCounter), floor: single, than: "token_bucket, allowed"},
	), loaded, nil
}

func logRow(entries int) string { return fmt.Sprintf("sliding_log, allowed, %d entries", entries) }

// run measures every row in turn, in rounds, and its floor beside it: the server's CPU time per call.
func (r row) run(s *server, p *pipe, calls int) (cost, floor float64, err error) {
	template := r.name + "{1}"
	if r.setup != nil {
		if exists, err := s.client.Do(context.Background(), s.client.B().Exists().Key(template).Build()).AsInt64(); err != nil {
			return 0, 0, err
		} else if exists == 0 {
			if err := r.setup(p, template); err != nil {
				return 0, 0, err
			}
		}
	}
	keys := make([][]byte, r.keys)
	var copies [][]byte
	for i := range keys {
		key := fmt.Sprintf("%s{1}%d", r.name, i)
		keys[i] = command(r.words(key)...)
		if r.setup != nil {
			copies = append(copies, command("COPY", template, key, "REPLACE"))
		}
	}
	if err := p.send(copies); err != nil {
		return 0, 0, err
	}
	floors := make([][]byte, r.keys)
	for i := range floors {
		floors[i] = command(r.floor(fmt.Sprintf("%s{1}floor%d", r.name, i))...)
	}
	if cost, err = perCall(s, p, keys, calls); err != nil {
		return 0, 0, fmt.Errorf("%s: %w", r.name, err)
	}
	floor, err = perCall(s, p, floors, calls)
	return cost, floor, err
}

// perCall is the server's CPU time in microseconds per command, over calls of them.
func perCall(s *server, p *pipe, commands [][]byte, calls int) (float64, error) {
	all := make([][]byte, calls)
	for i := range all {
		all[i] = commands[i%len(commands)]
	}
	before, err := s.cpu()
	if err != nil {
		return 0, err
	}
	if err := p.send(all); err != nil {
		return 0, err
	}
	after, err := s.cpu()
	return float64((after - before).Nanoseconds()) / 1000 / float64(calls), err
}
