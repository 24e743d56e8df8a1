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

// Make makes the vectors of an algorithm, or of multi.
func Make(k model.Kind) File {
	if k == model.Multi {
		return makeMulti()
	}
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
	mustBeRight(m.wrong)
	return m.file
}

// mustBeRight panics if anything was expected that is not so.
func mustBeRight(wrong []string) {
	if len(wrong) > 0 {
		panic("the model strays from what was worked out by hand:\n" + strings.Join(wrong, "\n"))
	}
}

type maker struct {
	kind  model.Kind
	file  File
	wrong []string // what was expected and is not so
}

// vector adds one; the draft starts with a policy of 10 in a second.
func (m *maker) vector(name, pins string, write func(d *draft)) {
	d := &draft{limit{kind: m.kind, state: model.New()}, newStory(name, pins)}
	d.policy(10, 1000)
	write(d)
	m.file.Vectors = append(m.file.Vectors, d.vector)
	m.wrong = append(m.wrong, d.wrong...)
}

// story is a vector being written.
type story struct {
	vector  Vector
	now     int64
	advance int64    // since the step before
	wrong   []string // what was expected and is not so
}

func newStory(name, pins string) *story {
	return &story{vector: Vector{Name: name, Pins: pins, StartUS: startUS}, now: startUS}
}

// move moves the clock.
func (s *story) move(us int64) {
	s.now += us
	s.advance += us
}

// step adds a step and returns its index.
func (s *story) step(step Step) int {
	step.AdvanceUS, s.advance = s.advance, 0
	s.vector.Steps = append(s.vector.Steps, step)
	return len(s.vector.Steps) - 1
}

// stray says that the reply of a step is not what was worked out by hand.
func (s *story) stray(step int, got []int64, want string) {
	s.wrong = append(s.wrong, fmt.Sprintf("%s: step %d is %v, want %s", s.vector.Name, step, got, want))
}

// limit is a key of a vector, by the model.
type limit struct {
	kind   model.Kind
	p      model.Policy
	state  *model.State
	voided bool  // the state's time had come at the step before
	lost   int64 // the end of a state whose expiry was taken away
}

// policy sets the limit and the window in ms; for a bucket, one that refills wholly in that time.
func (l *limit) policy(units, windowMS int64) {
	l.p = model.Policy{Kind: l.kind, Limit: units, WindowMS: windowMS}
	if l.kind == model.Bucket {
		l.p.Refill = units
	}
}

// tokens sets a bucket's policy.
func (l *limit) tokens(capacity, refill, periodMS int64) {
	l.p = model.Policy{Kind: model.Bucket, Limit: capacity, Refill: refill, WindowMS: periodMS}
}

// policyArgs are the policy as the scripts take it.
func (l *limit) policyArgs() []string {
	args := []string{strconv.FormatInt(l.p.Limit, 10)}
	if l.kind == model.Bucket {
		args = append(args, strconv.FormatInt(l.p.Refill, 10))
	}
	if !l.p.Valid() {
		panic(fmt.Sprintf("%+v is outside the domain", l.p))
	}
	return append(args, strconv.FormatInt(l.p.WindowMS, 10))
}

// args are the ARGV of a call of the single script; the receipt is settle's alone.
func (l *limit) args(op string, cost int64, receipt string) []string {
	args := append([]string{op, strconv.FormatInt(cost, 10)}, l.policyArgs()...)
	if op == "settle" {
		args = append(args, receipt)
	}
	return args
}

// outside tells the model of a command.
func (l *limit) outside(command string) {
	switch command {
	case "PERSIST":
		l.lost = l.state.Until()
	case "DEL":
		l.state.Lose()
	default:
		panic("what does the model make of " + command)
	}
}

// until is what a step tells of the key's expiry after it.
func (l *limit) until(now int64) *int64 {
	l.voided = l.state.Void(now)
	until := l.state.Until()
	if l.lost != 0 && until == l.lost {
		return nil // it may or may not have been repaired
	}
	if l.voided {
		until = 0
	}
	return &until
}

// checkClock refuses a step back to before the end of a state that was void already: whether the server has
// removed it by then is up to the server.
func (l *limit) checkClock(now int64) {
	if l.voided && !l.state.Void(now) && l.state.Until() != 0 {
		panic("a void state would come back")
	}
}

// draft is a vector about one key. Its calls ask the model for the reply at once.
type draft struct {
	limit
	*story
}

// align moves the start, before the first step, to a boundary of the policy's windows.
func (d *draft) align() {
	d.now -= d.now % (d.p.WindowMS * ms)
	d.vector.StartUS = d.now
}

// after moves the clock.
func (d *draft) after(us int64) *draft {
	d.move(us)
	return d
}

// at moves the clock to a time after the start.
func (d *draft) at(us int64) *draft { return d.after(d.vector.StartUS + us - d.now) }

// answer is the reply to a step, for the vector to say what it expects of it.
type answer struct {
	model.Reply
	story *story
	step  int
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
	d.checkClock(d.now)
	reply := d.state.Call(d.now, op, cost, d.p, receiptUS)
	return answer{reply, d.story, d.add(Step{Args: d.args(op, cost, receipt), Reply: reply.Numbers()})}
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
	d.advance = 0
	d.vector.Steps = append(d.vector.Steps, Step{
		AdvanceUS: advance, Repeat: n, Args: d.args(op, cost, "0"), Reply: a.Numbers(), UntilMS: d.until(d.now),
	})
	return a
}

// fails makes a call that is refused; nil keys: the vector's one key.
func (d *draft) fails(code, what string, keys []string, args ...string) {
	d.checkClock(d.now)
	d.add(Step{Keys: keys, Args: args, Error: []string{code, what}})
}

// outside sends a command.
func (d *draft) outside(command ...string) {
	d.vector.Steps = append(d.vector.Steps, Step{Command: command})
	d.limit.outside(command[0])
}

func (d *draft) add(s Step) int {
	s.UntilMS = d.until(d.now)
	return d.step(s)
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

func (a answer) fail(want string) { a.story.stray(a.step, a.Numbers(), want) }
