package plan

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v4"

	"github.com/sluicego/sluice"
)

// reader collects the plans of a text, and its mistakes.
type reader struct {
	file     string
	plans    Plans
	first    map[string]string // where a policy's name was seen first, for the messages: "free.daily in line 3"
	mistakes []*Error
}

func parse(file string, text []byte) (Plans, error) {
	r := reader{
		file:  file,
		plans: Plans{plans: map[string]Plan{}, algorithms: map[string]string{}},
		first: map[string]string{},
	}
	if line, err := checkCharacters(text); err != nil {
		r.fail(line, "", err)
	} else if document := r.read(text); document != nil {
		r.readPlans(document.Content[0])
	}
	if len(r.mistakes) == 0 {
		return r.plans, nil
	}
	slices.SortStableFunc(r.mistakes, func(a, b *Error) int { return a.Line - b.Line })
	var errs []error
	for _, mistake := range r.mistakes[:min(len(r.mistakes), maxTold)] {
		errs = append(errs, mistake)
	}
	if more := len(r.mistakes) - maxTold; more > 0 {
		errs = append(errs, fmt.Errorf("sluice: and %d more", more))
	}
	return Plans{}, errors.Join(errs...)
}

// maxTold is the most mistakes that are told: a file of another kind is wrong in every line.
const maxTold = 100

// checkCharacters finds what can't be in YAML, and its line, which the parser does not tell.
func checkCharacters(text []byte) (line int, err error) {
	for i := 0; i < len(text); {
		c, size := utf8.DecodeRune(text[i:])
		switch {
		case c == utf8.RuneError && size == 1:
			err = errors.New("is no UTF-8")
		case c < ' ' && c != '\t' && c != '\n' && c != '\r':
			err = fmt.Errorf("holds the control character %q", c)
		}
		if err != nil {
			return 1 + bytes.Count(text[:i], []byte("\n")), err
		}
		i += size
	}
	return 0, nil
}

// read reads the text's one document; nil after a mistake.
func (r *reader) read(text []byte) *yaml.Node {
	loader, err := yaml.NewLoader(bytes.NewReader(text))
	if err != nil {
		r.fail(1, "", err)
		return nil
	}
	var first, second yaml.Node
	if err := loader.Load(&first); err != nil {
		r.failToRead(err)
		return nil
	}
	if err := loader.Load(&second); err == nil {
		r.fail(second.Line, "", errors.New("is a second document, want one"))
		return nil
	} else if !errors.Is(err, io.EOF) {
		r.failToRead(err)
		return nil
	}
	return &first
}

func (r *reader) failToRead(err error) {
	var malformed *yaml.LoadError
	switch {
	case errors.Is(err, io.EOF):
		r.fail(1, "", errors.New("there is no plan"))
	case errors.As(err, &malformed):
		r.fail(max(malformed.Mark.Line, 1), "", errors.New(show(strings.TrimPrefix(malformed.Message, "yaml: "), 200)))
	default:
		r.fail(1, "", err)
	}
}

func (r *reader) fail(line int, field string, err error) {
	r.mistakes = append(r.mistakes, &Error{File: r.file, Line: line, Field: field, Err: err})
}

// entries are the keys and values of a mapping, each key once; the mapping is that of a field in a line.
func (r *reader) entries(n *yaml.Node, line int, field, want string) (entries [][2]*yaml.Node) {
	if n.Kind != yaml.MappingNode {
		r.fail(line, field, errors.New("is "+describe(n)+", want "+want))
		return nil
	}
	lines := map[string]int{}
	for i := 0; i < len(n.Content); i += 2 {
		key, value := n.Content[i], resolve(n.Content[i+1])
		switch first, twice := lines[key.Value]; {
		case key.Kind != yaml.ScalarNode || key.Value == "" || key.Tag == "!!null":
			r.fail(key.Line, field, errors.New("a name is "+describe(key)+", want a text"))
		case key.Value == "<<":
			r.fail(key.Line, field, errors.New("has a <<, want all of it written out, or an alias for the whole"))
		case twice:
			r.fail(key.Line, join(field, name(key)), fmt.Errorf("is in line %d already", first))
		default:
			lines[key.Value] = key.Line
			entries = append(entries, [2]*yaml.Node{key, value})
		}
	}
	return entries
}

func (r *reader) readPlans(n *yaml.Node) {
	entries := r.entries(n, n.Line, "", "plans by their names")
	if n.Kind == yaml.MappingNode && len(n.Content) == 0 {
		r.fail(n.Line, "", errors.New("there is no plan"))
	}
	for _, entry := range entries {
		key, value := entry[0], entry[1]
		r.plans.plans[key.Value] = Plan{key.Value, r.readPolicies(key, value)}
	}
}

func (r *reader) readPolicies(plan, n *yaml.Node) (policies []sluice.Policy) {
	entries := r.entries(n, plan.Line, name(plan), "policies by their names")
	if size := len(n.Content) / 2; n.Kind == yaml.MappingNode && (size < 1 || size > maxPolicies) {
		r.fail(plan.Line, name(plan), fmt.Errorf("has %d policies, want 1 to %d", size, maxPolicies))
	}
	for _, entry := range entries {
		key, value := entry[0], entry[1]
		field := join(name(plan), name(key))
		policy, err := readPolicy(key.Value, value)
		if err != nil {
			r.fail(key.Line, field, err)
			continue
		}
		algorithm, seen := r.plans.algorithms[key.Value]
		if seen && algorithm != policy.Algorithm() {
			r.fail(key.Line, field, fmt.Errorf("is a %s, but %s is a %s: policies of one name share their state", policy.Algorithm(), r.first[key.Value], algorithm))
			continue
		}
		if !seen {
			r.plans.algorithms[key.Value] = policy.Algorithm()
			r.first[key.Value] = field + " in line " + strconv.Itoa(key.Line)
		}
		policies = append(policies, policy)
	}
	return policies
}

func readPolicy(named string, n *yaml.Node) (sluice.Policy, error) {
	if n.Kind != yaml.ScalarNode {
		return sluice.Policy{}, errors.New("is " + describe(n) + ", want a policy such as counter:100/1m")
	}
	policy, err := sluice.ParsePolicy(n.Value)
	if err != nil {
		return sluice.Policy{}, err
	}
	if policy.Name() != "" {
		return sluice.Policy{}, errors.New("has another name, " + policy.Name() + ", want none: it is named by its key")
	}
	if policy.Shards() > 1 {
		return sluice.Policy{}, errors.New("is over " + strconv.Itoa(policy.Shards()) + " shards, want one that is not: its keys are in different slots, so it can't be asked with others")
	}
	policy = policy.Named(named)
	_, err = policy.MarshalText() // whether the name is fit
	return policy, err
}

// resolve follows an alias to what it stands for.
func resolve(n *yaml.Node) *yaml.Node {
	if n.Kind == yaml.AliasNode {
		return n.Alias
	}
	return n
}

func describe(n *yaml.Node) string {
	switch n.Kind {
	case yaml.MappingNode:
		return "a mapping"
	case yaml.SequenceNode:
		return "a list"
	case yaml.AliasNode:
		return "an alias"
	}
	if n.Value == "" || n.Tag == "!!null" {
		return "empty"
	}
	return strconv.Quote(clip(n.Value, maxShown))
}

// maxShown is how much of a name or a value an error shows, in bytes.
const maxShown = 64

// name is the text of a key, for an error.
func name(key *yaml.Node) string { return show(key.Value, maxShown) }

// show is a text fit for one line: cut if it is long, and quoted if it holds anything that does not print.
func show(s string, most int) string {
	cut := clip(s, most)
	if strings.ContainsFunc(cut, func(c rune) bool { return !strconv.IsPrint(c) }) {
		return strconv.Quote(cut)
	}
	return cut
}

// clip cuts a long text, between two characters.
func clip(s string, most int) string {
	if len(s) <= most {
		return s
	}
	for !utf8.RuneStart(s[most]) {
		most--
	}
	return s[:most] + "..."
}

// join is the name of a field in another: free.daily.
func join(field, name string) string {
	return strings.TrimPrefix(field+"."+name, ".")
}
