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

func verdict(ok bool) string {
	if ok {
		return "met"
	}
	return "missed"
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
		p("")
		p("## %s", r.server)
		p("")
		p("### At the server alone: CPU per call, pipelined")
		p("")
		p("| call | us | x floor | bar |")
		p("|---|---|---|---|")
		for i, row := range r.rows {
			bar := ""
			if row.bar > 0 {
				bar = fmt.Sprintf("%.2f %s", row.bar, verdict(r.ratio[i].median() <= row.bar))
			}
			name := row.name
			if row.than != "" {
				name += ", x " + row.than
			}
			p("| %s | %.2f | %s | %s |", name, r.cost[i].median(), r.ratio[i], bar)
		}
		p("")
		p("Slowest single call while 100 000 entries of a log expire at once: %.0f us (bar 1000, %s).", r.slowest, verdict(r.slowest <= 1000))
		for _, sh := range r.shapes {
			p("")
			p("### Through the clients: %d goroutines, %d keys", sh.goroutines, sh.keys)
			p("")
			p("| limiter | decisions/s | x floor | p50 us | p99 us | server us | x floor | client us | allocations |")
			p("|---|---|---|---|---|---|---|---|---|")
			for _, name := range r.names {
				of := func(get func(load) float64) (s sample) {
					for _, l := range sh.loads[name] {
						s = append(s, get(l))
					}
					return s
				}
				ratio := func(get func(load) float64) (s sample) {
					for i, l := range sh.loads[name] {
						s = append(s, get(l)/get(sh.loads[floorName][i]))
					}
					return s
				}
				speed := func(l load) float64 { return l.perSecond }
				server := func(l load) float64 { return l.server }
				p("| %s | %.0f | %s | %.0f | %.0f | %.2f | %s | %.2f | %.1f |", name, of(speed).median(), ratio(speed),
					of(func(l load) float64 { return float64(l.p50.Microseconds()) }).median(),
					of(func(l load) float64 { return float64(l.p99.Microseconds()) }).median(),
					of(server).median(), ratio(server),
					of(func(l load) float64 { return l.client }).median(),
					of(func(l load) float64 { return l.allocs }).median())
			}
		}
		p("")
		p("### Memory per subject")
		p("")
		p("| limiter | bytes |")
		p("|---|---|")
		for _, name := range r.names {
			if bytes, ok := r.bytes[name]; ok {
				p("| %s | %.0f |", name, bytes)
			}
		}
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
