package vectors

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/sluicego/sluice/conformance/model"
)

func makeMulti() File {
	m := &multiMaker{file: File{Format: Format, Algorithm: model.Multi.Script(), Script: "scripts/multi.lua"}}
	m.together()
	m.refused()
	m.foreign()
	mustBeRight(m.wrong)
	return m.file
}

type multiMaker struct {
	file  File
	wrong []string
}

// vector adds one; the draft starts without keys.
func (m *multiMaker) vector(name, pins string, write func(d *multiDraft)) {
	d := &multiDraft{story: newStory(name, pins)}
	write(d)
	m.file.Vectors = append(m.file.Vectors, d.vector)
	m.wrong = append(m.wrong, d.wrong...)
}

// multiDraft is a vector about several keys.
type multiDraft struct {
	*story
	keys []*key
}

// key is one of them. Its own calls are those of the single script.
type key struct {
	limit
	name    string
	foreign bool // it holds what is not ours, and keeps it
	d       *multiDraft
}

func (d *multiDraft) log(limit, windowMS int64) *key { return d.key(model.Log, limit, windowMS) }
func (d *multiDraft) counter(limit, windowMS int64) *key {
	return d.key(model.Counter, limit, windowMS)
}

func (d *multiDraft) bucket(capacity, refill, periodMS int64) *key {
	k := d.key(model.Bucket, capacity, periodMS)
	k.tokens(capacity, refill, periodMS)
	return k
}

// key adds a key and its policy; a bucket refills wholly in the window.
func (d *multiDraft) key(kind model.Kind, units, windowMS int64) *key {
	k := &key{limit: limit{kind: kind, state: model.New()}, name: fmt.Sprintf("%s:%d", Key, len(d.keys)+1), d: d}
	k.policy(units, windowMS)
	d.keys = append(d.keys, k)
	return k
}

// after moves the clock.
func (d *multiDraft) after(us int64) *multiDraft {
	d.move(us)
	return d
}

// at moves the clock to a time after the start.
func (d *multiDraft) at(us int64) *multiDraft { return d.after(d.vector.StartUS + us - d.now) }

// charge is a key and the cost there.
type charge struct {
	*key
	cost int64
}

func (k *key) of(cost int64) charge { return charge{k, cost} }

// multiArgs is what the ARGV of multi have for the limit.
func (c charge) multiArgs() []string {
	return append([]string{c.kind.Script(), strconv.FormatInt(c.cost, 10)}, c.policyArgs()...)
}

// each is the same cost for every key of the vector.
func (d *multiDraft) each(cost int64) []charge {
	var all []charge
	for _, k := range d.keys {
		all = append(all, k.of(cost))
	}
	return all
}

func (d *multiDraft) take(charges ...charge) multiAnswer { return d.call("take", charges...) }
func (d *multiDraft) peek(charges ...charge) multiAnswer { return d.call("peek", charges...) }

func (d *multiDraft) call(op string, charges ...charge) multiAnswer {
	d.checkClock()
	step, requests := multiStep(op, charges), []model.Request{}
	for _, c := range charges {
		requests = append(requests, model.Request{State: c.state, Policy: c.p, Cost: c.cost})
	}
	reply := model.CallAll(d.now, op, requests...)
	step.Reply = reply.Numbers()
	return multiAnswer{reply, d.story, d.add(step)}
}

// multiStep is the call without its outcome.
func multiStep(op string, charges []charge) Step {
	step := Step{Args: []string{op}}
	for _, c := range charges {
		step.Keys = append(step.Keys, c.name)
		step.Args = append(step.Args, c.multiArgs()...)
	}
	return step
}

// times makes one step of n equal calls, with the clock moved before each.
func (d *multiDraft) times(n int, advance int64, op string, charges ...charge) multiAnswer {
	if d.advance != 0 {
		panic(d.vector.Name + ": the clock is moved already")
	}
	first := len(d.vector.Steps)
	var a multiAnswer
	for range n {
		a = d.after(advance).call(op, charges...)
	}
	d.vector.Steps = append(d.vector.Steps[:first], d.vector.Steps[a.step])
	d.vector.Steps[first].Repeat = n
	a.step = first
	return a
}

// fails makes a call that is refused with an error of these first words.
func (d *multiDraft) fails(words string, keys, args []string) {
	d.checkClock()
	d.add(Step{Keys: keys, Args: args, Error: strings.Fields(words)})
}

// exact makes a denied take, shows that 1 ms before its wait is over it is denied still, and then admitted.
func (d *multiDraft) exact(charges ...charge) {
	a := d.take(charges...).denied()
	if a.RetryAfterMS > 1 {
		d.after((a.RetryAfterMS-1)*ms).take(charges...).is(0, 1)
	}
	d.after(1 * ms).take(charges...).ok()
}

func (k *key) take(cost int64) answer { return k.call("take", cost, 0, "") }
func (k *key) peek(cost int64) answer { return k.call("peek", cost, 0, "") }

// settle settles what a step charged.
func (k *key) settle(cost int64, step int) answer {
	reply := k.d.vector.Steps[step].Reply
	return k.call("settle", cost, reply[len(reply)-1], fmt.Sprintf("$%d", step))
}

// settleAny settles without a receipt.
func (k *key) settleAny(cost int64) answer { return k.call("settle", cost, 0, "0") }

func (k *key) call(op string, cost, receiptUS int64, receipt string) answer {
	d := k.d
	d.checkClock()
	reply := k.state.Call(d.now, op, cost, k.p, receiptUS)
	return answer{reply, d.story, d.add(Step{
		Script: k.kind.Script(), Keys: []string{k.name}, Args: k.args(op, cost, receipt), Reply: reply.Numbers(),
	})}
}

// outside sends a command about the key.
func (k *key) outside(command string) {
	k.d.step(Step{Command: []string{command, k.name}})
	k.limit.outside(command)
}

func (d *multiDraft) checkClock() {
	for _, k := range d.keys {
		k.checkClock(d.now)
	}
}

func (d *multiDraft) add(s Step) int {
	s.UntilsMS = map[string]int64{}
	for _, k := range d.keys {
		if until := k.until(d.now); until != nil && !k.foreign {
			s.UntilsMS[k.name] = *until
		}
	}
	return d.step(s)
}

// multiAnswer is the reply to a step, for the vector to say what it expects of it.
type multiAnswer struct {
	model.MultiReply
	story *story
	step  int
}

func (a multiAnswer) ok() multiAnswer     { return a.is(1, 0) }
func (a multiAnswer) denied() multiAnswer { return a.is(0, some) }

// row is the first four numbers of a limit.
type row [4]int64

// is tells the verdict, the wait, and the limits if any are given.
func (a multiAnswer) is(allowed, retry int64, limits ...row) multiAnswer {
	got, want := a.Numbers(), []int64{allowed, retry}
	for _, l := range limits {
		want = append(append(want, l[:]...), some) // some time
	}
	right := len(limits) == 0 || len(want) == len(got)
	for i := range min(len(want), len(got)) {
		right = right && (want[i] == some || want[i] == got[i])
	}
	if !right {
		a.story.stray(a.step, got, fmt.Sprint(want))
	}
	return a
}
