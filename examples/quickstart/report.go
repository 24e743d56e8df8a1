package main

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/sluicego/sluice"
)

// busiestShown is how many subjects the second table names.
const busiestShown = 8

// A report is all there is to tell.
type report struct {
	log      *accessLog
	source   string          // the log's name
	server   string          // where the scripts ran
	policies []sluice.Policy // as the user gave them
	progress func(done int)  // hears of the requests done so far
	before   summary         // without a limit
	after    []summary       // one per policy
}

// write prints the report. Its lines have 80 columns at most, long file names aside.
func (r *report) write(w io.Writer) error {
	var out strings.Builder
	r.writeHead(&out)
	out.WriteByte('\n')
	r.writeOutcome(&out)
	out.WriteByte('\n')
	r.writeBusiest(&out)
	_, err := io.WriteString(w, out.String())
	return err
}

func (r *report) writeHead(w io.Writer) {
	clock := func(t time.Time) string { return t.UTC().Format("2 Jan 2006 15:04:05") }
	visits := r.log.visits
	fmt.Fprintf(w, "Log      %s\n", r.source)
	fmt.Fprintf(w, "         %s from %s (client addresses)\n", count(len(visits), "request"), count(len(r.log.subjects), "subject"))
	fmt.Fprintf(w, "         %s to %s UTC\n", clock(visits[0].at), clock(visits[len(visits)-1].at))
	if n := r.log.disordered; n > 0 {
		fmt.Fprintf(w, "         %s out of order, sorted by time\n", count(n, "line"))
	}
	if n := r.log.unreadable; n > 0 {
		fmt.Fprintf(w, "         %s left out that can't be read, the first is line %d\n", count(n, "line"), r.log.firstBad)
	}
	texts := make([]string, len(r.policies))
	for i, p := range r.policies {
		texts[i] = p.String()
	}
	fmt.Fprintf(w, "Policy   %s for each subject\n", strings.Join(texts, ", "))
	fmt.Fprintf(w, "Server   %s\n", r.server)
}

func (r *report) writeOutcome(w io.Writer) {
	rows := [][]string{
		{"", "", "", "subjects", "worst burst"},
		{"", "admitted", "denied", "ever denied", "in any " + windowText(r.policies[0])},
		{"before limiting", strconv.Itoa(r.before.admitted), "-", "-", strconv.Itoa(r.before.burst)},
	}
	for i, s := range r.after {
		rows = append(rows, []string{
			kinds[r.policies[i].Algorithm()], strconv.Itoa(s.admitted), share(s.denied, s.requests()),
			share(s.everDenied, len(s.subjects)), strconv.Itoa(s.burst),
		})
	}
	writeColumns(w, rows)
	if len(r.policies) > 1 {
		fmt.Fprint(w, "\nThe log is exact. A counter estimates, and a bucket refills while it drains:\n"+
			"either can let more than the limit through in some window.\n")
	}
}

func (r *report) writeBusiest(w io.Writer) {
	rows := [][]string{{"", "", "worst"}, {"busiest subjects", "requests", "burst"}}
	for _, p := range r.policies {
		rows[0] = append(rows[0], "denied")
		rows[1] = append(rows[1], "by "+p.Algorithm())
	}
	for _, who := range r.before.busiest(busiestShown) {
		before := r.before.subjects[who]
		row := []string{r.log.subjects[who], strconv.Itoa(before.requests()), strconv.Itoa(before.burst)}
		for _, s := range r.after {
			row = append(row, strconv.Itoa(s.subjects[who].denied))
		}
		rows = append(rows, row)
	}
	writeColumns(w, rows)
}

// writeColumns aligns the first column to the left and the others, which hold numbers, to the right.
func writeColumns(w io.Writer, rows [][]string) {
	var widths []int
	for _, row := range rows {
		for i, cell := range row {
			if i == len(widths) {
				widths = append(widths, 0)
			}
			widths[i] = max(widths[i], utf8.RuneCountInString(cell))
		}
	}
	for _, row := range rows {
		var line strings.Builder
		for i, cell := range row {
			if i == 0 {
				fmt.Fprintf(&line, "%-*s", widths[i], cell)
			} else {
				fmt.Fprintf(&line, "   %*s", widths[i], cell)
			}
		}
		fmt.Fprintln(w, strings.TrimRight(line.String(), " "))
	}
}

// share writes n and its part of all.
func share(n, all int) string {
	return fmt.Sprintf("%d %6.1f%%", n, 100*float64(n)/float64(all))
}

// count writes 1 line, 2 lines.
func count(n int, what string) string {
	if n != 1 {
		what += "s"
	}
	return fmt.Sprint(n, " ", what)
}
