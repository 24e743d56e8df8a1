// Command sharding measures how early a sharded policy can deny: each call goes to a shard at random, so one shard is
// full before the others are. It prints the table of docs/scaling.md.
//
//	go run ./examples/sharding
package main

import (
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"slices"
)

const runs = 1000

func main() { table(os.Stdout) }

func table(w io.Writer) {
	random := rand.New(rand.NewPCG(1, 2))
	fmt.Fprintln(w, "| shards | a shard's limit | first denial, median | first denial, 1 in 100 | denied of a full limit, mean | 1 in 100 |")
	fmt.Fprintln(w, "|---|---|---|---|---|---|")
	for _, shards := range []int{4, 16, 64} {
		for _, share := range []int{10, 100, 1000} {
			first := make([]float64, runs)
			denied := make([]float64, runs)
			sum := 0.0
			for n := range runs {
				first[n], denied[n] = window(random, shards, share)
				sum += denied[n]
			}
			slices.Sort(first)
			slices.Sort(denied)
			fmt.Fprintf(w, "| %d | %d | %.0f %% | %.0f %% | %.1f %% | %.1f %% |\n", shards, share,
				first[runs/2], first[runs/100], sum/runs, denied[runs-runs/100])
		}
	}
}

// window is one window in which exactly the limit is asked for, in units. It returns, in percent of the limit, what was
// admitted before the first denial, and what was denied in all.
func window(random *rand.Rand, shards, share int) (first, denied float64) {
	used := make([]int, shards)
	limit, denials := shards*share, 0
	for unit := range limit {
		shard := random.IntN(shards) // as Policy.Sharded chooses
		if used[shard] < share {
			used[shard]++
			continue
		}
		if denials++; denials == 1 {
			first = percent(unit, limit)
		}
	}
	if denials == 0 {
		first = 100
	}
	return first, percent(denials, limit)
}

func percent(n, of int) float64 { return 100 * float64(n) / float64(of) }
