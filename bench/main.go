// Bench measures Sluice beside a floor and its peers, on servers that it starts, and writes docs/performance.md.
//
// Everything is a ratio within one run: in each round every row runs once, and its floor right beside it; a figure is the
// median over the rounds, with the least and the most. Run nothing else meanwhile.
//
//	go run . -out ../docs                  the whole, some minutes per server
//	go run . -rounds 1 -calls 500 -load 500 -keys 500    a smoke test
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"os"
	"slices"
	"strings"

	"github.com/sluicego/sluice"
)

func main() {
	log.SetFlags(0)
	servers := flag.String("servers", cmp.Or(os.Getenv("SLUICE_BENCH_SERVERS"), "redis-server"), "server command lines, separated by commas")
	rounds := flag.Int("rounds", 7, "rounds, of which the medians are taken")
	calls := flag.Int("calls", 30_000, "calls per row and round, at the server alone")
	loads := flag.Int("load", 20_000, "calls per row and round, through the clients")
	keys := flag.Int("keys", 1_000_000, "keys of the largest load")
	scripts := flag.String("scripts", "../scripts", "folder of the scripts")
	out := flag.String("out", "", "folder to write performance.md and its chart to; otherwise standard output")
	flag.Parse()
	var results []result
	for line := range strings.SplitSeq(*servers, ",") {
		r, err := measure(line, *scripts, *rounds, *calls, *loads, *keys)
		if err != nil {
			log.Fatal(err)
		}
		results = append(results, r)
	}
	if err := report(results, *out); err != nil {
		log.Fatal(err)
	}
}

// sample is one figure over the rounds.
type sample []float64

func (s sample) median() float64 {
	if len(s) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(s))
	return sorted[len(sorted)/2]
}

func (s sample) String() string {
	switch len(s) {
	case 0:
		return ""
	case 1:
		return fmt.Sprintf("%.2f", s[0])
	}
	return fmt.Sprintf("%.2f (%.2f to %.2f)", s.median(), slices.Min(s), slices.Max(s))
}

// result is everything measured on one server.
type result struct {
	server  string
	rows    []row
	cost    []sample // per row, us
	ratio   []sample // per row, to its floor
	shapes  []shape
	names   []string // of contenders, in order
	peers   []string // those of them that are others'
	keys    int      // of the largest load
	slowest float64  // us, of a call while 10^5 entries expire
	memory  memory

	scales []scale

	cached       sample // ns
	cachedAllocs float64
}

// shape is one way to load the contenders.
type shape struct {
	goroutines, keys int
	loads            map[string][]load // by contender, per round
}

func measure(commandLine, dir string, rounds, calls, loads, keys int) (r result, err error) {
	s, err := start(commandLine)
	if err != nil {
		return r, err
	}
	defer s.stop()
	r.server = s.name
	p, err := s.pipe()
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, p.conn.Close()) }()
	var loaded []script
	if r.rows, loaded, err = rows(dir); err != nil {
		return r, err
	}
	for _, script := range loaded {
		if err := p.send([][]byte{command("SCRIPT", "LOAD", script.text)}); err != nil {
			return r, err
		}
	}
	if err := s.client.Do(context.Background(), s.client.B().FunctionLoad().FunctionCode(sluice.FunctionLibrary()).Build()).Error(); err != nil {
		return r, err
	}
	r.cost, r.ratio = make([]sample, len(r.rows)), make([]sample, len(r.rows))
	for round := range rounds {
		for i, row := range r.rows {
			cost, floor, err := row.run(s, p, calls)
			if err != nil {
				return r, err
			}
			r.cost[i] = append(r.cost[i], cost)
			r.ratio[i] = append(r.ratio[i], cost/floor)
		}
		log.Printf("%s: scripts, round %d of %d", s.name, round+1, rounds)
	}
	if r.slowest, err = slowest(s, p, dir); err != nil {
		return r, err
	}
	if err := s.flush(); err != nil {
		return r, err
	}

	all, stop, err := contenders(s, dir)
	if err != nil {
		return r, err
	}
	defer stop()
	for _, c := range all {
		r.names = append(r.names, c.name)
		if c.peer {
			r.peers = append(r.peers, c.name)
		}
	}
	r.keys = keys
	for _, sh := range []shape{{goroutines: 1, keys: 1}, {goroutines: 64, keys: 1}, {goroutines: 64, keys: 10_000}, {goroutines: 512, keys: 10_000}, {goroutines: 64, keys: keys}} {
		if err := sh.load(s, all, rounds, loads, sh.keys == keys); err != nil {
			return r, err
		}
		r.shapes = append(r.shapes, sh)
	}
	if err := s.flush(); err != nil {
		return r, err
	}
	if r.memory, err = weigh(s, p, dir, all); err != nil {
		return r, err
	}
	if r.cached, r.cachedAllocs, err = cachedDenials(s, rounds, 20*loads); err != nil {
		return r, err
	}
	r.scales, err = scales(commandLine, rounds, loads/2)
	return r, err
}

// load has every contender make its calls, in rounds.
func (sh *shape) load(s *server, all []contender, rounds, calls int, fill bool) error {
	sh.loads = map[string][]load{}
	if fill { // all keys are there before the first round
		for i, c := range all {
			if c.peer {
				continue // the largest load is for how Sluice grows
			}
			if _, err := c.drive(s, i, 256, sh.keys, sh.keys/max(1, c.batch)); err != nil {
				return err
			}
		}
	}
	if sh.goroutines == 1 { // more rounds, but shorter ones: latency has outliers
		rounds, calls = 3*rounds, calls/3
	}
	for round := range rounds {
		for i, c := range all {
			if fill && c.peer {
				continue
			}
			n := calls / max(1, c.batch/2)
			if c.slow {
				n /= 10
			}
			l, err := c.drive(s, i, sh.goroutines, sh.keys, n)
			if err != nil {
				return err
			}
			sh.loads[c.name] = append(sh.loads[c.name], l)
		}
		log.Printf("%s: %d goroutines, %d keys, round %d of %d", s.name, sh.goroutines, sh.keys, round+1, rounds)
	}
	return nil
}
