// Package plan reads the limits of tenants from configuration: a plan is a named list of policies, such as "free" with a
// burst and a daily limit, that apply together. It is a module of its own, so that who does not need it does not get a
// YAML parser.
//
//	free:
//	  burst: bucket:20+5/1s
//	  daily: counter:1000/1d
//	pro:
//	  burst: bucket:100+50/1s
//	  daily: counter:50000/1d
//
// A policy is written in its text form (see [sluice.ParsePolicy]) under its name. JSON is YAML, so it may be JSON as well.
//
//	var store plan.Store
//	err := store.Load("plans.yaml")
//	...
//	p, ok := store.Plan("free")
//	res, err := limiter.AllowAll(ctx, p.Requests(tenant, 1)...)
//
// Since the name of a policy is a part of its key (see [sluice.Policy.Named]), a tenant that changes plans, and a plan
// whose numbers are changed, keep what was used: the new limit applies at once to the old usage.
package plan

import (
	"errors"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/sluicego/sluice"
)

// maxPolicies is the most limits that [sluice.Limiter.AllowAll] asks at once.
const maxPolicies = 16

// A Plan is a named list of 1 to 16 policies that apply together.
type Plan struct {
	name     string
	policies []sluice.Policy
}

// Name is the plan's name: "free".
func (p Plan) Name() string { return p.name }

// Policies are the plan's policies, in the order of the text. Each has a name.
func (p Plan) Policies() []sluice.Policy { return slices.Clone(p.policies) }

// Requests asks all of the plan's policies for a subject, at one cost, in the order of Policies: they are for
// [sluice.Limiter.AllowAll]. Where a policy counts something else than the others, change that request's Cost.
func (p Plan) Requests(key string, cost int64) []sluice.Request {
	reqs := make([]sluice.Request, len(p.policies))
	for i, policy := range p.policies {
		reqs[i] = sluice.Request{Key: key, Policy: policy, Cost: cost}
	}
	return reqs
}

// Plans are the plans of one text. They do not change.
type Plans struct {
	plans map[string]Plan
	// The algorithm of each name: policies of one name share their state on a subject, so it is the same in all plans.
	algorithms map[string]string
}

// Plan is the plan of that name.
func (p Plans) Plan(name string) (Plan, bool) {
	plan, ok := p.plans[name]
	return plan, ok
}

// Names are the plans' names, sorted.
func (p Plans) Names() []string { return slices.Sorted(maps.Keys(p.plans)) }

// ReadFile reads plans from a YAML or JSON file. The error joins one *[Error] for each mistake, up to 100 of them and then how many
// more there are; of a file that can't be read it is the one of [os.ReadFile].
func ReadFile(file string) (Plans, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return Plans{}, err
	}
	return parse(file, text)
}

// Parse reads plans from YAML or JSON, in UTF-8. The error is as of [ReadFile].
func Parse(text []byte) (Plans, error) { return parse("", text) }

// An Error is a mistake in a text of plans: "plans.yaml:3: free.daily: limit is 0, want 1 to 1000000000".
type Error struct {
	File  string // empty for a text that was not read from a file
	Line  int    // from 1
	Field string // the plan and the policy: "free.daily", long names cut and strange ones quoted; empty where the text is no YAML
	Err   error  // what is wrong: a *sluice.InputError if it is a part of a policy
}

func (e *Error) Error() string {
	at := "line "
	if e.File != "" {
		at = e.File + ":"
	}
	at += strconv.Itoa(e.Line) + ": "
	if e.Field != "" {
		at += e.Field + ": "
	}
	return "sluice: " + at + strings.TrimPrefix(e.Err.Error(), "sluice: ")
}

// Unwrap is what is wrong.
func (e *Error) Unwrap() error { return e.Err }

// A Store holds the plans in force, and lets them be swapped while they are used. The zero Store has no plan. It is safe for
// concurrent use.
type Store struct {
	mu         sync.RWMutex
	plans      Plans
	algorithms map[string]string // of every name that was ever in force
}

// Load reads a file as [ReadFile] does and swaps its plans in. If there is an error the plans in force stay.
func (s *Store) Load(file string) error {
	plans, err := ReadFile(file)
	if err != nil {
		return err
	}
	return s.Swap(plans)
}

// Swap puts plans in force, for all calls of Plan from now on. It fails, and the plans in force stay, if a policy has
// another algorithm than the one of its name had at any time in this Store: the state on live keys could not be read, and calls would
// fail with a [sluice.StateError]. Such a policy needs another name.
//
// A Store knows only what was in force in it: a process that starts anew with a file in which an algorithm was changed, takes it.
func (s *Store) Swap(plans Plans) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(plans.algorithms)) {
		if was, is := s.algorithms[name], plans.algorithms[name]; was != "" && was != is {
			errs = append(errs, errors.New("sluice: policy "+name+" is a "+is+" and was a "+was+", want the same algorithm or another name"))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	s.plans = plans
	if s.algorithms == nil {
		s.algorithms = map[string]string{}
	}
	maps.Copy(s.algorithms, plans.algorithms)
	return nil
}

// Plan is the plan in force of that name.
func (s *Store) Plan(name string) (Plan, bool) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.plans.Plan(name)
}
