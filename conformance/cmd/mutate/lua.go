package main

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// token is one piece of Lua source: text[start:end] of the script. Comments and blanks are no tokens.
type token struct {
	kind       kind
	text       string
	start, end int
}

type kind int

const (
	name kind = iota // identifiers and keywords
	number
	str
	op
)

// tokenise splits Lua 5.1 source, as far as the scripts use it: no nested [==[ strings.
func tokenise(src string) ([]token, error) {
	var tokens []token
	for i := 0; i < len(src); {
		start := i
		k := op
		switch c := src[i]; {
		case strings.IndexByte(" \t\r\n", c) >= 0:
			i++
			continue
		case strings.HasPrefix(src[i:], "--"):
			if strings.HasPrefix(src[i:], "--[[") {
				length := strings.Index(src[i:], "]]")
				if length < 0 {
					return nil, fmt.Errorf("offset %d: a comment without an end", start)
				}
				i += length + 2
				continue
			}
			length := strings.IndexByte(src[i:], '\n')
			if length < 0 {
				length = len(src) - i
			}
			i += length
			continue
		case c == '\'' || c == '"':
			k = str
			for i++; i < len(src) && src[i] != c; i++ {
				if src[i] == '\\' {
					i++
				}
			}
			if i >= len(src) {
				return nil, fmt.Errorf("offset %d: a string without an end", start)
			}
			i++
		case isName(c) && !isDigit(c):
			k = name
			for i < len(src) && isName(src[i]) {
				i++
			}
		case isDigit(c):
			k = number
			for i < len(src) && (isName(src[i]) || src[i] == '.' && !strings.HasPrefix(src[i:], "..")) {
				i++
			}
		default:
			i++
			for _, long := range []string{"...", "..", "==", "~=", "<=", ">=", "[["} {
				if strings.HasPrefix(src[start:], long) {
					i = start + len(long)
					break
				}
			}
			if src[start:i] == "[[" {
				return nil, fmt.Errorf("offset %d: long strings are not known here", start)
			}
		}
		tokens = append(tokens, token{k, src[start:i], start, i})
	}
	return tokens, nil
}

func isDigit(c byte) bool { return '0' <= c && c <= '9' }

func isName(c byte) bool {
	return c == '_' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || isDigit(c)
}

// mutant is one change to one place of a script, or of the text that several scripts share.
type mutant struct {
	script string // the file's name without .lua, or "shared"
	line   int    // in the first of its homes, from 1
	text   string // that line, trimmed, without its comment
	change string // "< -> <="; from the second place in the line with the same change on: "< -> <= (2)"
	homes  []home // one for each script that has the place
}

// home is a whole mutated script.
type home struct{ script, source string }

// swaps are the changes of a token that need no more than a look at it.
var swaps = map[string][]string{
	"<":   {"<=", ">="},
	"<=":  {"<", ">"},
	">":   {">=", "<="},
	">=":  {">", "<"},
	"==":  {"~="},
	"~=":  {"=="},
	"*":   {"/"},
	"/":   {"*"},
	"%":   {"/"},
	"and": {"or"},
	"or":  {"and"},
	"min": {"max"},
	"max": {"min"},
}

// writes are the commands that change a key; a mutant leaves one out.
var writes = []string{
	"'DEL'", "'EXPIRE'", "'PEXPIRE'", "'PEXPIREAT'", "'SET'", "'UNLINK'",
	"'RPUSH'", "'LPUSH'", "'LSET'", "'LTRIM'", "'LPOP'",
	"'HSET'", "'HINCRBY'", "'HDEL'", "'INCRBY'", "'DECRBY'", "'SETRANGE'",
}

// allMutants returns every mutant of the scripts, in their order. What lies in a "shared" section is one mutant with
// a home in each script that has the section, and the section of an algorithm is mutated only in that algorithm's own
// script: another test holds the copies together.
func allMutants(scripts []string, text map[string]string) ([]mutant, error) {
	var all []mutant
	shared := map[string]int{} // index in all, by the place in the section
	for _, script := range scripts {
		of, err := mutants(script, text[script])
		if err != nil {
			return nil, err
		}
		for _, m := range of {
			section, line := sectionOf(text[script], m.line)
			if algorithm, ok := strings.CutPrefix(section, "algorithm: "); ok && algorithm != script {
				continue
			}
			if strings.HasPrefix(section, "shared: ") {
				m.script = "shared"
				key := fmt.Sprintf("%s:%d %s", section, line, m.change)
				if i, ok := shared[key]; ok {
					all[i].homes = append(all[i].homes, m.homes...)
					continue
				}
				shared[key] = len(all)
			}
			all = append(all, m)
		}
	}
	return all, nil
}

// sectionOf is the name of the section that a line lies in, and the line's number within. Sections open with
// "-- [name]".
func sectionOf(src string, line int) (section string, within int) {
	for i, text := range strings.Split(src, "\n")[:line] {
		if name, ok := strings.CutPrefix(strings.TrimLeft(text, " "), "-- ["); ok {
			section, within = strings.TrimSuffix(name, "]"), line-i-1
		}
	}
	return section, within
}

// mutants returns every mutant of a script, in the order of the source.
func mutants(script, src string) ([]mutant, error) {
	tokens, err := tokenise(src)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", script, err)
	}
	var all []mutant
	seen := map[string]int{} // changes of one line
	add := func(start, end int, to, change string) {
		line := 1 + strings.Count(src[:start], "\n")
		key := fmt.Sprint(line, change)
		seen[key]++
		if seen[key] > 1 {
			change = fmt.Sprintf("%s (%d)", change, seen[key])
		}
		all = append(all, mutant{script, line, codeOf(src, tokens, start), change, []home{{script, src[:start] + to + src[end:]}}})
	}
	at := func(i int) token { // the token i, or none
		if i < 0 || i >= len(tokens) {
			return token{}
		}
		return tokens[i]
	}
	for i, t := range tokens {
		swap := func(to string) { add(t.start, t.end, to, t.text+" -> "+to) }
		if t.kind != str {
			for _, to := range swaps[t.text] {
				swap(to)
			}
		}
		switch {
		case t.text == "+" && at(i+1).text == "0":
			// text + 0 is the number that the text says, and so is text - 0.
		case t.kind == op && (t.text == "+" || t.text == "-") && isOperand(at(i-1)):
			swap(map[string]string{"+": "-", "-": "+"}[t.text])
		case t.kind == op && t.text == "-":
			add(t.start, t.end, " ", "drop unary -")
		case t.kind == name && t.text == "not":
			add(t.start, t.end, "", "drop not")
		case t.text == "floor" && at(i-1).text == ".":
			swap("ceil")
		case t.text == "floor" && at(i+1).text == "(":
			swap("math.ceil")
		case t.kind == number:
			n, err := strconv.ParseInt(t.text, 10, 64)
			if err != nil {
				return nil, fmt.Errorf("%s: %s is no plain integer", script, t.text)
			}
			swap(strconv.FormatInt(n+1, 10))
			swap(strconv.FormatInt(n-1, 10))
		case t.text == "'KEEPTTL'" && at(i-1).text == ",":
			add(at(i-1).start, t.end, "", "drop KEEPTTL")
		case t.text == "redis" && at(i+3).text == "(" && slices.Contains(writes, at(i+4).text):
			end := closing(tokens, i+3)
			if end < 0 {
				return nil, fmt.Errorf("%s: offset %d: a call without an end", script, t.start)
			}
			to := "do end"
			if at(i-1).text == "return" {
				to = "nil"
			}
			add(t.start, tokens[end].end, to, "drop "+strings.Trim(at(i+4).text, "'"))
		}
	}
	return all, nil
}

// isOperand tells whether a value ends with t, so that a minus after it is a difference and not a sign.
func isOperand(t token) bool {
	switch t.kind {
	case number, str:
		return true
	case name:
		return !slices.Contains([]string{"and", "or", "not", "return", "then", "else", "in", ""}, t.text)
	default:
		return t.text == ")" || t.text == "]" || t.text == "}"
	}
}

// closing is the index of the bracket that closes the one at tokens[open], -1 without.
func closing(tokens []token, open int) int {
	depth := 0
	for i := open; i < len(tokens); i++ {
		switch tokens[i].text {
		case "(":
			depth++
		case ")":
			if depth--; depth == 0 {
				return i
			}
		}
	}
	return -1
}

// codeOf is the line around an offset, from its first token to its last, so that comments are not part of it.
func codeOf(src string, tokens []token, offset int) string {
	from := strings.LastIndexByte(src[:offset], '\n') + 1
	to := len(src)
	if length := strings.IndexByte(src[offset:], '\n'); length >= 0 {
		to = offset + length
	}
	first, last := to, from
	for _, t := range tokens {
		if t.start >= from && t.end <= to {
			first, last = min(first, t.start), max(last, t.end)
		}
	}
	return src[first:last]
}
