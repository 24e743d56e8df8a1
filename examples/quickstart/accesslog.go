package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"
	"time"
)

// A visit is one line of an access log, as far as a rate limiter cares: who asked, and when.
type visit struct {
	subject int // index into accessLog.subjects
	at      time.Time
}

// An accessLog is what could be read of a log, in the order of time.
type accessLog struct {
	visits     []visit  // sorted by time; lines of one time keep their order in the file
	subjects   []string // client addresses, in the order of their first line
	unreadable int      // lines that are not in the format
	firstBad   int      // number of the first of them, from 1; 0 if there is none
	disordered int      // lines that are older than a line before them
}

// span is the time from the first visit to the last.
func (l *accessLog) span() time.Duration {
	return l.visits[len(l.visits)-1].at.Sub(l.visits[0].at)
}

// maxLine is how much of a line is looked at. All that matters is near its start.
const maxLine = 64 << 10

// readLog reads a log in Common or Combined Log Format. A line that can't be read is counted and left out;
// blank lines are not counted. An error means that r failed, or that nothing in it could be read.
func readLog(r io.Reader) (*accessLog, error) {
	log := new(accessLog)
	seen := make(map[string]int)
	var (
		newest   time.Time
		firstBad error
	)
	lines := bufio.NewReaderSize(r, maxLine)
	for n := 1; ; n++ {
		line, err := readLine(lines)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", n, err)
		}
		if strings.TrimSpace(line) == "" {
			continue
		}
		client, at, err := parseLine(line)
		if err != nil {
			if log.unreadable == 0 {
				log.firstBad, firstBad = n, err
			}
			log.unreadable++
			continue
		}
		subject, ok := seen[client]
		if !ok {
			client = strings.Clone(client) // lets go of the line
			subject = len(log.subjects)
			seen[client] = subject
			log.subjects = append(log.subjects, client)
		}
		if at.Before(newest) {
			log.disordered++
		} else {
			newest = at
		}
		log.visits = append(log.visits, visit{subject, at})
	}
	if len(log.visits) == 0 {
		if firstBad != nil {
			return nil, fmt.Errorf("none of its %d lines is in Common or Combined Log Format; line %d: %w",
				log.unreadable, log.firstBad, firstBad)
		}
		return nil, errors.New("it is empty")
	}
	slices.SortStableFunc(log.visits, func(a, b visit) int { return a.at.Compare(b.at) })
	return log, nil
}

// readLine returns the next line, or the first maxLine bytes of a longer one.
func readLine(r *bufio.Reader) (string, error) {
	line, rest, err := r.ReadLine()
	kept := string(line)
	for rest && err == nil {
		_, rest, err = r.ReadLine()
	}
	return kept, err
}

// parseLine reads one line of Common Log Format,
//
//	client ident user [02/Jan/2006:15:04:05 -0700] "request" status size
//
// and of Combined Log Format, which appends "referrer" "agent". What comes after the size is not looked at: a
// server that cuts a long agent short has still logged the request.
func parseLine(line string) (client string, at time.Time, err error) {
	client, rest, _ := strings.Cut(strings.TrimSpace(line), " ")

	// A user name may hold blanks and brackets, so the time is found by the quote that follows it.
	before, rest, ok := strings.Cut(rest, `] "`)
	open := strings.LastIndexByte(before, '[')
	if !ok || open < 0 {
		return "", time.Time{}, errors.New("no [time] followed by a quoted request")
	}
	if len(strings.Fields(before[:open])) < 2 {
		return "", time.Time{}, errors.New("no identity and user before the time")
	}
	at, err = time.Parse("02/Jan/2006:15:04:05 -0700", before[open+1:])
	if err != nil {
		return "", time.Time{}, err
	}

	rest, ok = afterQuote(rest)
	if !ok {
		return "", time.Time{}, errors.New("the request has no closing quote")
	}
	fields := strings.Fields(rest)
	if len(fields) < 2 || len(fields[0]) != 3 || !isNumber(fields[0]) || fields[1] != "-" && !isNumber(fields[1]) {
		return "", time.Time{}, errors.New("no status and size after the request")
	}

	// One address has one name: 2001:DB8:0::1 is 2001:db8::1, and ::ffff:192.0.2.1 is 192.0.2.1.
	// Servers that look names up log those instead, and any name will do.
	if addr, err := netip.ParseAddr(client); err == nil {
		client = addr.Unmap().String()
	}
	return client, at, nil
}

// afterQuote returns what follows the next quote that no backslash escapes.
func afterQuote(s string) (string, bool) {
	for i := 0; i < len(s); i++ {
		switch s[i] {
		case '\\':
			i++
		case '"':
			return s[i+1:], true
		}
	}
	return "", false
}

func isNumber(s string) bool {
	return s != "" && strings.Trim(s, "0123456789") == ""
}
