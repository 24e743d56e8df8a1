package vectors

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/sluicego/sluice/conformance/model"
)

// Clock units, in microseconds.
const (
	us  = 1
	ms  = 1000
	sec = 1000 * ms
	day = 86_400 * sec
)

// startUS is where every clock starts unless a vector says otherwise: a whole minute.
const startUS = 1_699_999_980_000_000

// Make makes the vectors of an algorithm.
func Make(k model.Kind) File {
	m := &maker{kind: k, file: File{Format: Format, Algorithm: k.Script(), Script: "scripts/" + k.Script() + ".lua"}}
	m.shared()
	switch k {
	case model.Log:
		m.log()
	case model.Counter:
		m.counter()
	case model.Bucket:
		m.bucket()
	}
	m.arguments()
	m.foreign()
	if len(m.wrong) > 0 {
		panic("the model strays from what was worked out by hand:\n" + strings.Join(m.wrong, "\n"))
	}
	return m.file
}

type maker struct {
	kind  model.Kind
	file  File
	wrong []string // what was expected and is not so
}

// vector adds one; the draft starts with a policy of 10 in a second.
func (m *maker) vector(name, pins string, write func(d *draft)) {
	d := &draft{kind: m.kind, now: startUS, state: model.New(), vector: Vector{Name: name, Pins: pins, StartUS: startUS}}
	d.policy(10, 1000)
	write(d)
	m.file.Vectors = append(m.file.Vectors, d.vector)
	m.wrong = append(m.wrong, d.wrong...)
}

// draft is a vector being written. Its calls ask the model for the reply at once.
type draft struct {
	kind    model.Kind
	vector  Vector
	p       model.Policy
	state   *model.State
	now     int64
	advance int64 // since the step before
	voided  bool  // the state's time had come at the step before
	lost    int64 // the end of a state whose expiry was taken away
	wrong   []string
}

// policy sets the limit and the window in ms; for a bucket, one that refills wholly in that time.
func (d *draft) policy(limit, windowMS int64) {
	d.p = model.Policy{Kind: d.kind, Limit: limit, WindowMS: windowMS}
	if d.kind == model.Bucket {
		d.p.Refill = limit
	}
}

// tokens sets a bucket's policy.
func (d *draft) tokens(capacity, refill, periodMS int64) {
	d.p = model.Policy{Kind: model.Bucket, Limit: capacity, Refill: refill, WindowMS: periodMS}
}

// align moves the start, before the first step, to a boundary of the policy's windows.
func (d *draft) align() {
	d.now -= d.now % (d.p.WindowMS * ms)
	d.vector.StartUS = d.now
}

// after moves the clock.
func (d *draft) after(us int64) *draft {
	d.now += us
	d.advance += us
	return d
}

// at moves the clock to a time after the start.
func (d *draft) at(us int64) *draft { return d.after(d.vector.StartUS + us - d.now) }

// answer is the reply to a step, for the vector to say what it expects of it.
type answer struct {
	model.Reply
	d    *draft
	step int
}

func (d *draft) take(cost int64) answer { return d.call("take", cost, 0, "") }
func (d *draft) peek(cost int64) answer { return d.call("peek", cost, 0, "") }

// settle settles the take of an earlier step.
func (d *draft) settle(cost int64, a answer) answer {
	return d.call("settle", cost, a.ServerTimeUS, fmt.Sprintf("$%d", a.step))
}

// settleAny settles with a receipt of its own, 0 for none.
func (d *draft) settleAny(cost, receipt int64) answer {
	return d.call("settle", cost, receipt, strconv.FormatInt(receipt, 10))
}

func (d *draft) call(op string, cost, receiptUS int64, receipt string) answer {
	d.checkClock()
	reply := d.state.Call(d.now, op, cost, d.p, receiptUS)
	args := append([]string{op, strconv.FormatInt(cost, 10)}, d.policyArgs()...)
	if op == "settle" {
		args = append(args, receipt)
	}
	d.add(Step{Args: args, Reply: reply.Numbers()})
	return answer{reply, d, len(d.vector.Steps) - 1}
}

// times makes one step of n equal calls, with the clock moved before each.
func (d *draft) times(n int, advance int64, op string, cost int64) answer {
	if d.advance != 0 {
		panic(d.vector.Name + ": the clock is moved already")
	}
	var a answer
	for range n {
		d.after(advance)
		a = d.call(op, cost, 0, "0")
		d.vector.Steps = d.vector.Steps[:len(d.vector.Steps)-1]
	}
	step := Step{AdvanceUS: advance, Repeat: n, Args: append([]string{op, strconv.FormatInt(cost, 10)}, d.policyArgs()...)}
	if op == "settle" {
		step.Args = append(step.Args, "0")
	}
	step.Reply, step.UntilMS = a.Numbers(), d.until()
	d.advance = 0
	d.vector.Steps = append(d.vector.Steps, step)
	return a
}

// fails makes a call that is refused; nil keys: the vector's one key.
func (d *draft) fails(code, what string, keys []string, args ...string) {
	d.checkClock()
	d.add(Step{Keys: keys, Args: args, Error: []string{code, what}})
}

// outside sends a command.
func (d *draft) outside(command ...string) {
	d.vector.Steps = append(d.vector.Steps, Step{Command: command})
	switch command[0] {
	case "PERSIST":
		d.lost = d.state.Until()
	case "DEL":
		d.state.Lose()
	default:
		panic("what does the model make of " + command[0])
	}
}

func (d *draft) add(s Step) {
	s.AdvanceUS, d.advance = d.advance, 0
	s.UntilMS = d.until()
	d.vector.Steps = append(d.vector.Steps, s)
}

// until is what a step tells of the key's expiry after it.
func (d *draft) until() *int64 {
	d.voided = d.state.Void(d.now)
	until := d.state.Until()
	if d.lost != 0 && until == d.lost {
		return nil // it may or may not have been repaired
	}
	if d.voided {
		until = 0
	}
	return &until
}

// checkClock refuses a step back to before the end of a state that was void already: whether the server has
// removed it by then is up to the server.
func (d *draft) checkClock() {
	if d.voided && !d.state.Void(d.now) && d.state.Until() != 0 {
		panic(d.vector.Name + ": a void state would come back")
	}
}

func (d *draft) policyArgs() []string {
	args := []string{strconv.FormatInt(d.p.Limit, 10)}
	if d.kind == model.Bucket {
		args = append(args, strconv.FormatInt(d.p.Refill, 10))
	}
	if !d.p.Valid() {
		panic(fmt.Sprintf("%s: %+v is outside the domain", d.vector.Name, d.p))
	}
	return append(args, strconv.FormatInt(d.p.WindowMS, 10))
}

// exact makes a denied take, shows that 1 ms before its wait is over it is denied still, and then admitted.
func (d *draft) exact(cost int64) {
	a := d.take(cost).denied()
	if a.RetryAfterMS > 1 {
		d.after((a.RetryAfterMS-1)*ms).take(cost).is(0, some, 1, some)
	}
	d.after(1 * ms).take(cost).ok()
}

// whole shows that after a reply's reset, not sooner, the whole limit is free.
func (d *draft) whole(a answer) {
	if a.ResetAfterMS > 1 {
		d.after((a.ResetAfterMS-1)*ms).peek(0).is(1, some, 0, 1)
	}
	d.after(1*ms).peek(0).is(1, d.p.Limit, 0, 0)
}

// The expectations below are worked out by hand: a model that strays from them makes no vectors.

func (a answer) ok() answer {
	if !a.Allowed {
		a.fail("allowed")
	}
	return a
}

func (a answer) denied() answer {
	if a.Allowed {
		a.fail("denied")
	}
	return a
}

// some leaves a number of a reply open.
const some = -2

// is tells the first four numbers.
func (a answer) is(numbers ...int64) answer {
	got := a.Numbers()[:4]
	for i, want := range numbers {
		if want != some && got[i] != want {
			a.fail(fmt.Sprint(numbers))
		}
	}
	return a
}

func (a answer) fail(want string) {
	a.d.wrong = append(a.d.wrong, fmt.Sprintf("%s: step %d is %v, want %s", a.d.vector.Name, a.step, a.Numbers(), want))
}
