package plan

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

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
	var document yaml.Node
	var malformed *yaml.LoadError
	switch err := yaml.Load(text, &document); {
	case errors.As(err, &malformed):
		r.fail(max(malformed.Mark.Line, 1), "", errors.New(strings.TrimPrefix(malformed.Message, "yaml: ")))
	case err != nil:
		r.fail(1, "", err)
	default:
		r.readPlans(document.Content[0])
	}
	if len(r.mistakes) == 0 {
		return r.plans, nil
	}
	slices.SortStableFunc(r.mistakes, func(a, b *Error) int { return a.Line - b.Line })
	errs := make([]error, len(r.mistakes))
	for i, mistake := range r.mistakes {
		errs[i] = mistake
	}
	return Plans{}, errors.Join(errs...)
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
		case key.Kind != yaml.ScalarNode || key.Value == "":
			r.fail(key.Line, field, errors.New("a name is "+describe(key)+", want a text"))
		case twice:
			r.fail(key.Line, join(field, key.Value), fmt.Errorf("is in line %d already", first))
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
	entries := r.entries(n, plan.Line, plan.Value, "policies by their names")
	if size := len(n.Content) / 2; n.Kind == yaml.MappingNode && (size < 1 || size > maxPolicies) {
		r.fail(plan.Line, plan.Value, fmt.Errorf("has %d policies, want 1 to %d", size, maxPolicies))
	}
	for _, entry := range entries {
		key, value := entry[0], entry[1]
		field := join(plan.Value, key.Value)
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

func readPolicy(name string, n *yaml.Node) (sluice.Policy, error) {
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
	policy = policy.Named(name)
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
	const most = 64
	value := n.Value
	if len(value) > most {
		value = value[:most] + "..."
	}
	return strconv.Quote(value)
}

// join is the name of a field in another: free.daily.
func join(field, name string) string {
	return strings.TrimPrefix(field+"."+name, ".")
}
