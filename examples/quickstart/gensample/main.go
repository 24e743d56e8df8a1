// Command gensample writes the access log that quickstart reads when it is given no other.
//
// The log is made up: half an hour of a small site on the night of 30 March 2025, in Combined Log Format, with
// addresses that are set aside for documentation (192.0.2.0/24, 198.51.100.0/24, 203.0.113.0/24, 2001:db8::/32).
// Chance has a fixed seed, so every run writes the same bytes. In it are
//
//   - readers who ask for a page or a few, minutes apart;
//   - browsers that load a page with all its parts within seconds, which a limit should survive;
//   - a feed reader that calls every five minutes, and a monitor that keeps to ten requests a minute exactly;
//   - a scraper that asks 40 times a minute for nine minutes;
//   - a scraper on IPv6 that sends 25 requests at once every two minutes;
//   - a client that saves up for the turn of the minute: ten requests before it and ten after.
//
// It has what real logs have, too. A server logs a request when it is done, by the time at which it began, so
// lines are out of order. Half way through the clocks go forward from +0100 to +0200. A few lines can't be read.
package main

import (
	"flag"
	"fmt"
	"log"
	"math/rand/v2"
	"os"
	"slices"
	"time"
)

func main() {
	log.SetFlags(0)
	log.SetPrefix("gensample: ")
	out := flag.String("o", "", "write the log to `FILE` (default: standard output)")
	flag.Parse()
	if err := run(*out); err != nil {
		log.Fatal(err)
	}
}

func run(out string) error {
	if out == "" {
		_, err := os.Stdout.Write(generate())
		return err
	}
	return os.WriteFile(out, generate(), 0o644)
}

const seed = 20250330

var (
	start      = time.Date(2025, time.March, 30, 0, 45, 0, 0, time.UTC)
	summerTime = time.Date(2025, time.March, 30, 1, 0, 0, 0, time.UTC)
)

const length = 30 * time.Minute

// A request is a line with the moment at which the server writes it.
type request struct {
	done time.Time
	line string
}

// A site collects requests.
type site struct {
	random   *rand.Rand
	requests []request
}

// generate returns the log.
func generate() []byte {
	s := &site{random: rand.New(rand.NewPCG(seed, seed))}
	s.readers()
	s.browsers()
	s.robots()
	s.garbage()
	slices.SortStableFunc(s.requests, func(a, b request) int { return a.done.Compare(b.done) })

	var text []byte
	for _, r := range s.requests {
		text = append(append(text, r.line...), '\n')
	}
	return text
}

// ask logs one request, begun a while after the start of the log.
func (s *site) ask(client string, after time.Duration, what, agent string) {
	begun := start.Add(after)
	zone := time.FixedZone("", 1*60*60)
	if !begun.Before(summerTime) {
		zone = time.FixedZone("", 2*60*60)
	}
	status, size := 200, fmt.Sprint(200+s.random.IntN(40000))
	switch s.random.IntN(20) {
	case 0:
		status, size = 304, "-"
	case 1:
		status, size = 404, "196"
	}
	s.requests = append(s.requests, request{
		done: begun.Add(s.between(0, 2500*time.Millisecond)),
		line: fmt.Sprintf(`%s - - [%s] "GET %s HTTP/1.1" %d %s "-" %q`,
			client, begun.In(zone).Format("02/Jan/2006:15:04:05 -0700"), what, status, size, agent),
	})
}

// between returns a random time, at least from and below to.
func (s *site) between(from, to time.Duration) time.Duration {
	return from + time.Duration(s.random.Int64N(int64(to-from)))
}

func (s *site) page() string { return fmt.Sprintf("/articles/%d", 1+s.random.IntN(80)) }

func (s *site) agent() string {
	systems := []string{"X11; Linux x86_64", "Windows NT 10.0; Win64; x64", "Macintosh; Intel Mac OS X 10.15"}
	version := 120 + s.random.IntN(16)
	return fmt.Sprintf("Mozilla/5.0 (%s; rv:%d.0) Gecko/20100101 Firefox/%[2]d.0", systems[s.random.IntN(len(systems))], version)
}

// readers ask for one to six pages, half a minute or more apart.
func (s *site) readers() {
	for i := range 120 {
		var client string
		switch i % 3 {
		case 0:
			client = fmt.Sprintf("192.0.2.%d", 100+i)
		case 1:
			client = fmt.Sprintf("198.51.100.%d", 100+i)
		case 2:
			client = fmt.Sprintf("2001:db8:%x::%x", 0x100+i, 1+s.random.IntN(0xffff))
		}
		agent := s.agent()
		at := s.between(0, length)
		for range 1 + s.random.IntN(6) {
			s.ask(client, at, s.page(), agent)
			at += s.between(30*time.Second, 4*time.Minute)
			if at >= length {
				break
			}
		}
	}
}

// browsers load a page and its parts, up to three times.
func (s *site) browsers() {
	parts := []string{"/style.css", "/app.js", "/logo.svg", "/fonts/text.woff2", "/favicon.ico"}
	for i := range 16 {
		client := fmt.Sprintf("192.0.2.%d", 10+i)
		agent := s.agent()
		for range 1 + s.random.IntN(3) {
			at := s.between(0, length-10*time.Second)
			s.ask(client, at, s.page(), agent)
			for n := range 4 + s.random.IntN(16) {
				what := fmt.Sprintf("/images/%d.webp", 1+s.random.IntN(300))
				if n < len(parts) {
					what = parts[n]
				}
				s.ask(client, at+s.between(200*time.Millisecond, 4*time.Second), what, agent)
			}
		}
	}
}

func (s *site) robots() {
	for at := 70 * time.Second; at < length; at += 5 * time.Minute {
		s.ask("198.51.100.7", at, "/feed.xml", "FeedReader/2.4")
	}
	for at := time.Duration(0); at < length; at += 6 * time.Second {
		s.ask("198.51.100.30", at, "/health", "Monitor/1.0")
	}
	for at := 4 * time.Minute; at < 13*time.Minute; at += 1500 * time.Millisecond {
		s.ask("203.0.113.77", at, s.page(), "python-requests/2.32")
	}
	for at := 90 * time.Second; at < length; at += 2 * time.Minute {
		for range 25 {
			s.ask("2001:db8:bad::66", at+s.between(0, 3*time.Second), s.page(), "Scrapy/2.12")
		}
	}
	for _, minute := range []time.Duration{5, 12, 20, 27} {
		for n := range time.Duration(20) {
			s.ask("203.0.113.9", minute*time.Minute-5*time.Second+n*500*time.Millisecond, "/search?q=tickets", "curl/8.5.0")
		}
	}
}

// garbage adds what is not a request: one that can be read all the same, and lines that can't.
func (s *site) garbage() {
	add := func(after time.Duration, line string) {
		s.requests = append(s.requests, request{start.Add(after), line})
	}
	add(2*time.Minute, `203.0.113.200 - - [30/Mar/2025:01:47:00 +0100] "\x16\x03\x01" 400 226 "-" "-"`)
	add(7*time.Minute, `192.0.2.131 - - [30/Mar/2025:01:5`)
	add(11*time.Minute, `[Sun Mar 30 01:56:00 2025] [error] [client 203.0.113.200] script not found: /cgi-bin/test`)
	add(16*time.Minute, `- - - [-] "-" 000 0 "-" "-"`)
	add(22*time.Minute, `198.51.100.142 - - [30/Mar/2025:03:07:00 +0200] "GET /articles/`)
	add(26*time.Minute, `logrotate: 1 file rotated`)
}
