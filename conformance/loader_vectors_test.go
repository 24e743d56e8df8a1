package conformance_test

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/sluicego/sluice"
	"github.com/sluicego/sluice/conformance/model"
	"github.com/sluicego/sluice/conformance/servers"
	"github.com/sluicego/sluice/conformance/vectors"
)

// TestVectorsByLimiter runs the vectors through the Go loader, by EVALSHA and by FCALL. Calls that a Limiter does not send (bad
// arguments, costs above the limit, receipts of no charge of its own) are made without it, in between.
func TestVectorsByLimiter(t *testing.T) {
	servers.Parallel(t)
	all := servers.All(t)
	s := all[len(all)-1] // one will do, a real one if there is one
	t.Run(s.Name+"/scripts", func(t *testing.T) { limiterVectors(t, s, false) })
	if s := functionServer(t); s != nil {
		t.Run(s.Name+"/functions", func(t *testing.T) { limiterVectors(t, s, true) })
	}
}

func limiterVectors(t *testing.T, s *servers.Server, functions bool) {
	limiter, err := sluice.New(s.Client, sluice.Config{PlainKeys: true, Functions: functions})
	if err != nil {
		t.Fatal(err)
	}
	for k, most := range map[model.Kind]int{model.Log: 4, model.Counter: 4, model.Bucket: 4, model.Multi: 3} {
		file, err := vectors.Read(k)
		if err != nil {
			t.Fatal(err)
		}
		by := &byLimiter{Limiter: limiter, charges: map[string]charge{}}
		for i, v := range file.Vectors {
			key := fmt.Sprintf("sluice:{%s-%v-%d}", run, functions, i)
			if k != model.Multi {
				key += ":" + string(k)
			}
			one := &subject{kind: k, server: s, key: key, brief: true}
			without := *one
			one.by = func(t tb, kind model.Kind, keys, args []string) ([]int64, error) {
				if numbers, err := by.call(t, kind, keys, args); !errors.Is(err, errNotMade) {
					return numbers, err
				}
				return without.on(kind, key).eval(t, keys, args...)
			}
			t.Run(k.Script()+"/"+v.Name, func(t *testing.T) { runVector(t, one, v) })
		}
		if by.made*most < by.asked {
			t.Errorf("%s: %d of %d calls were made by the limiter, want one in %d at least", k.Script(), by.made, by.asked, most)
		}
	}
}

// charge is what a Limiter charged.
type charge struct {
	sluice.Result
	policy sluice.Policy
	cost   int64
}

// byLimiter makes a script's calls by a Limiter.
type byLimiter struct {
	*sluice.Limiter
	charges     map[string]charge // by key and receipt
	made, asked int
}

// errNotMade stands for a call that a Limiter does not make.
var errNotMade = errors.New("not a call that a Limiter makes")

// call makes a call, if a Limiter would.
func (b *byLimiter) call(t tb, k model.Kind, keys, args []string) (numbers []int64, err error) {
	b.asked++
	defer func() {
		if !errors.Is(err, errNotMade) {
			b.made++
		}
	}()
	if len(keys) == 0 || len(args) == 0 {
		return nil, errNotMade
	}
	if k == model.Multi {
		return b.together(t, keys, args)
	}
	req, rest, ok := request(k, keys[0], args[1:])
	if !ok || len(keys) > 1 {
		return nil, errNotMade
	}
	var res sluice.Result
	switch {
	case args[0] == "settle" && len(rest) == 1:
		charge, ok := b.charges[keys[0]+" "+rest[0]]
		actual := charge.cost + req.Cost
		if !ok || charge.policy != req.Policy || actual < 0 {
			return nil, errNotMade
		}
		res, err = b.Settle(t.Context(), charge.Result, actual)
	case len(rest) != 0 || req.Cost < 0 || req.Cost > req.Policy.Limit():
		return nil, errNotMade
	case args[0] == "take":
		if res, err = b.AllowN(t.Context(), req.Key, req.Policy, req.Cost); err == nil && res.Allowed {
			b.note(keys[0], res, &req)
		}
	case args[0] == "peek":
		res, err = b.Peek(t.Context(), req.Key, req.Policy, req.Cost)
	default:
		return nil, errNotMade
	}
	return five(res), serverError(err)
}

func (b *byLimiter) note(key string, res sluice.Result, req *sluice.Request) {
	b.charges[key+" "+text(res.ServerTime.UnixMicro())] = charge{res, req.Policy, req.Cost}
}

// together makes a call of multi.
func (b *byLimiter) together(t tb, keys, args []string) (numbers []int64, err error) {
	ask, least := b.AllowAll, int64(1)
	switch args[0] {
	case "take":
	case "peek":
		ask, least = b.PeekAll, 0
	default:
		return nil, errNotMade
	}
	var reqs []sluice.Request
	for rest := args[1:]; len(rest) > 0; {
		i := slices.IndexFunc(kinds, func(k model.Kind) bool { return k.Script() == rest[0] })
		if i < 0 || len(reqs) == len(keys) {
			return nil, errNotMade
		}
		var req sluice.Request
		var ok bool
		if req, rest, ok = request(kinds[i], keys[len(reqs)], rest[1:]); !ok || req.Cost < least || req.Cost > req.Policy.Limit() {
			return nil, errNotMade
		}
		reqs = append(reqs, req)
	}
	if len(reqs) != len(keys) {
		return nil, errNotMade
	}
	results, err := ask(t.Context(), reqs...)
	if errors.Is(err, sluice.ErrInvalidRequests) { // a key twice, or too many
		return nil, errNotMade
	}
	numbers = []int64{0, results.RetryAfter.Milliseconds()}
	if results.Allowed {
		numbers[0] = 1
	}
	for n, res := range results.Each {
		numbers = append(numbers, five(res)...)
		if args[0] == "take" && results.Allowed {
			b.note(keys[n], res, &reqs[n])
		}
	}
	return numbers, serverError(err)
}

// request reads cost and policy from the front of arguments. The key is that of a policy with a name, and plain.
func request(k model.Kind, key string, args []string) (req sluice.Request, rest []string, ok bool) {
	subject, name, ok := strings.Cut(strings.TrimPrefix(key, "sluice:{"), "}:")
	count := 3
	if k == model.Bucket {
		count = 4
	}
	if !ok || len(args) < count {
		return req, nil, false
	}
	var n [4]int64
	for i := range count {
		var err error
		if n[i], err = strconv.ParseInt(args[i], 10, 64); err != nil || text(n[i]) != args[i] {
			return req, nil, false
		}
	}
	cost, limit, window := n[0], n[1], time.Duration(n[count-1])*time.Millisecond
	req = sluice.Request{Key: subject, Cost: cost}
	switch k {
	case model.Log:
		req.Policy = sluice.SlidingLog(limit, window)
	case model.Counter:
		req.Policy = sluice.SlidingCounter(limit, window)
	default:
		req.Policy = sluice.TokenBucket(limit, n[2], window)
	}
	req.Policy = req.Policy.Named(name)
	_, err := req.Policy.MarshalText()
	return req, args[count:], err == nil && window/time.Millisecond == time.Duration(n[count-1])
}

// five are the numbers of a reply.
func five(res sluice.Result) []int64 {
	allowed := int64(0)
	if res.Allowed {
		allowed = 1
	}
	return []int64{allowed, res.Remaining, res.RetryAfter.Milliseconds(), res.ResetAfter.Milliseconds(), res.ServerTime.UnixMicro()}
}

// serverError is the script's error as the server said it.
func serverError(err error) error {
	var state *sluice.StateError
	if errors.As(err, &state) {
		return errors.New("SLUICESTATE " + state.Message)
	}
	return err
}
