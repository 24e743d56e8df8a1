package main

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
)

// report writes the results as Markdown with a chart to a folder, or without one to standard output.
func report(results []result, folder string) error {
	if folder == "" {
		write(os.Stdout, results, "")
		return nil
	}
	const chart = "performance.svg"
	if err := draw(results[0], filepath.Join(folder, chart)); err != nil {
		return err
	}
	var text strings.Builder
	write(&text, results, chart)
	return os.WriteFile(filepath.Join(folder, "performance.md"), []byte(text.String()), 0o600)
}

func write(w io.Writer, results []result, chart string) {
	p := func(format string, args ...any) { fmt.Fprintf(w, format+"\n", args...) }
	p("# Performance")
	p("")
	p("Written by `make bench`. Figures are medians over the rounds of one run (least to most in brackets), as ratios to what ran right")
	p("beside them: machines differ, proportions hold. Measured on %d shared cores with %s, servers and clients on one machine.", runtime.NumCPU(), runtime.Version())
	p("")
	p("The floor, TGS, is the least that a decision in Redis can be: a script that reads `TIME`, reads an integer and writes one with an")
	p("expiry, called with the same number of arguments.")
	if chart != "" {
		p("")
		p("![server CPU per decision](%s)", chart)
	}
	for _, r := range results {
		r.write(p)
	}
}

func (r *result) write(p func(format string, args ...any)) {
	p("")
	p("## %s", r.server)
	p("")
	p("### The bars")
	p("")
	p("| what | measured | bar | |")
	p("|---|---|---|---|")
	for _, c := range r.checks() {
		p("%s", c)
	}
	p("")
	p("### At the server alone: CPU per call, pipelined")
	p("")
	p("| call | us | x TGS, or what is named |")
	p("|---|---|---|")
	for i, row := range r.rows {
		name := row.name
		if row.than != "" {
			name += ", x " + row.than
		}
		p("| %s | %.2f | %s |", name, r.cost[i].median(), r.ratio[i])
	}
	for _, sh := range r.shapes {
		p("")
		p("### Through the clients: %d goroutines, %d keys", sh.goroutines, sh.keys)
		p("")
		p("| limiter | decisions/s | x floor | p50 us | p99 us | server us | x floor | client us | allocations |")
		p("|---|---|---|---|---|---|---|---|---|")
		for _, name := range r.names {
			if len(sh.loads[name]) == 0 {
				continue
			}
			median := func(get func(load) float64) float64 { return sh.of(name, get).median() }
			speed := func(l load) float64 { return l.perSecond }
			server := func(l load) float64 { return l.server }
			p("| %s | %.0f | %s | %.0f | %.0f | %.2f | %s | %.2f | %.1f |", name, median(speed), sh.ratio(name, floorName, speed),
				median(func(l load) float64 { return float64(l.p50.Microseconds()) }),
				median(func(l load) float64 { return float64(l.p99.Microseconds()) }),
				median(server), sh.ratio(name, floorName, server),
				median(func(l load) float64 { return l.client }),
				median(func(l load) float64 { return l.allocs }))
		}
	}
	p("")
	p("### On a cluster: %d calls per second for each shard, 10000 keys", perShard)
	p("")
	p("| shards | server CPU per decision, us | the busiest shard's part |")
	p("|---|---|---|")
	for _, c := range r.scales {
		p("| %d | %s | %s |", c.shards, c.perCall, c.busiest)
	}
	p("")
	p("### Memory")
	p("")
	p("A key of 13 bytes: token bucket %.0f bytes, sliding counter %.0f, %s %.0f. A sliding log, for each entry:", r.memory.bucket, r.memory.counter, rateName, r.memory.redisRate)
	for _, n := range entries {
		p("%.0f bytes of %d.", r.memory.perEntry[n], n)
	}
}

// draw charts the server's CPU time per decision through the clients, at 64 goroutines and 10 000 keys.
func draw(r result, path string) error {
	var names []string
	var values plotter.Values
	for _, sh := range r.shapes {
		if sh.goroutines != 64 || sh.keys != 10_000 {
			continue
		}
		for _, name := range r.names {
			var cost sample
			for _, l := range sh.loads[name] {
				cost = append(cost, l.server)
			}
			names, values = append(names, name), append(values, cost.median())
		}
	}
	chart := plot.New()
	chart.Title.Text = "Server CPU per decision, " + r.server + ", 64 goroutines, 10 000 keys"
	chart.X.Label.Text = "microseconds"
	chart.X.Min = 0
	bars, err := plotter.NewBarChart(values, vg.Points(14))
	if err != nil {
		return err
	}
	bars.Horizontal = true
	bars.LineStyle.Width = 0
	chart.Add(bars)
	chart.NominalY(names...)
	return chart.Save(vg.Points(640), vg.Points(float64(60+28*len(names))), path)
}
