package main

import "fmt"

// A check is a bar, and what was measured.
type check struct {
	what     string
	measured sample
	bar      float64
	least    bool // the bar is the least that will do; otherwise it is the most
}

func (c check) met() bool {
	if c.least {
		return c.measured.median() >= c.bar
	}
	return c.measured.median() <= c.bar
}

func (c check) String() string {
	sign := "at most"
	if c.least {
		sign = "at least"
	}
	verdict := "met"
	if !c.met() {
		verdict = "missed"
	}
	return fmt.Sprintf("| %s | %s | %s %.4g | %s |", c.what, c.measured, sign, c.bar, verdict)
}

// checks are all bars of one server.
func (r *result) checks() []check {
	var all []check
	for i, row := range r.rows {
		if row.bar == 0 {
			continue
		}
		than := row.than
		if than == "" {
			than = "TGS"
		}
		all = append(all, check{what: row.name + ": x " + than, measured: r.ratio[i], bar: row.bar})
	}
	for _, n := range logSizes {
		all = append(all, check{what: logRow(n) + ": a cost of 100000 x a cost of 1", measured: r.between(logRow(n)+", cost 100000", logRow(n)), bar: 1.1})
	}
	all = append(all, check{what: "slowest call while 100 000 entries expire, us", measured: sample{r.slowest}, bar: 1000})

	many, single := r.shape(64, 10_000), r.shape(1, 1)
	server := func(l load) float64 { return l.server }
	for _, c := range []struct {
		name string
		bar  float64
	}{{bucketName, 1.3}, {counterName, 1.15}, {logName, 1.9}} {
		all = append(all, check{what: c.name + ", server CPU through the client: x TGS", measured: many.ratio(c.name, floorName, server), bar: c.bar})
	}
	for _, name := range []string{bucketName, counterName, logName} {
		for _, peer := range r.peers {
			if peer == windowName { // it counts in fixed windows by its caller's clock, which is less than there is to do
				continue
			}
			all = append(all, check{what: name + ", server CPU: x " + peer, measured: many.ratio(name, peer, server), bar: 1})
		}
	}
	speed := func(l load) float64 { return l.perSecond }
	for _, c := range []struct {
		name, than string
		bar        float64
	}{
		{bucketName, floorName, 0.9}, {counterName, floorName, 0.9},
		{bucketName, rateName, 2.2}, {counterName, rateName, 2.2}, {logName, rateName, 1.6},
		{batchName, counterName, 1.7},
	} {
		all = append(all, check{what: c.name + ", decisions/s: x " + c.than, measured: many.ratio(c.name, c.than, speed), bar: c.bar, least: true})
	}
	for _, name := range []string{bucketName, counterName, logName} {
		all = append(all,
			check{what: name + ", p50 with 1 goroutine: x TGS", measured: single.ratio(name, floorName, func(l load) float64 { return float64(l.p50) }), bar: 1.2},
			check{what: name + ", p99 with 1 goroutine: x TGS", measured: single.ratio(name, floorName, func(l load) float64 { return float64(l.p99) }), bar: 1.2},
			check{what: name + ", round trips per decision", measured: single.of(name, func(l load) float64 { return l.trips }), bar: 1},
		)
	}
	all = append(all,
		check{what: "Allow, client CPU with 1 goroutine: x " + bareName, measured: single.ratio(bucketName, bareName, func(l load) float64 { return l.client }), bar: 1.1},
		check{what: "Allow, allocations on top of " + bareName, measured: single.more(bucketName, bareName, func(l load) float64 { return l.allocs }), bar: 3},
		check{what: "a cached denial, ns", measured: r.cached, bar: 150},
		check{what: "a cached denial, allocations", measured: sample{r.cachedAllocs}, bar: 0},
		check{what: "token bucket, bytes of a key: x " + rateName, measured: sample{r.memory.bucket / r.memory.redisRate}, bar: 1.3},
		check{what: "sliding counter, bytes of a key: x " + rateName, measured: sample{r.memory.counter / r.memory.redisRate}, bar: 1.3},
	)
	for _, n := range entries {
		bar := 125.
		if n < 128 {
			bar = 45
		}
		all = append(all, check{what: fmt.Sprintf("sliding log of %d entries, bytes of one", n), measured: sample{r.memory.perEntry[n]}, bar: bar})
	}
	all = append(all, check{what: "sliding log, members after 10 calls of a cost of 1000 (with the header)", measured: sample{float64(r.memory.members)}, bar: 11})
	for _, name := range []string{bucketName, counterName, logName} {
		one, most := r.shape(64, 1), r.shape(64, r.keys)
		all = append(all,
			check{what: fmt.Sprintf("%s, server CPU with %d keys: x with 1 key", name, r.keys), measured: sample{most.of(name, server).median() / one.of(name, server).median()}, bar: 1.15},
			check{
				what:     fmt.Sprintf("%s, server CPU with %d keys: x with 1 key, as a multiple of what the floor grows by", name, r.keys),
				measured: sample{most.of(name, server).median() / one.of(name, server).median() / (most.of(floorName, server).median() / one.of(floorName, server).median())}, bar: 1.15,
			},
			check{what: name + ", server CPU with 512 goroutines: x with 1", measured: sample{r.shape(512, 10_000).of(name, server).median() / single.of(name, server).median()}, bar: 1.15},
		)
	}
	if n := len(r.scales); n > 0 {
		all = append(all, check{
			what:     fmt.Sprintf("token bucket on %d shards, server CPU per decision: x on 1", r.scales[n-1].shards),
			measured: sample{r.scales[n-1].perCall.median() / r.scales[0].perCall.median()}, bar: 1.15,
		})
	}
	return all
}

// between is one row's ratio to another, round by round.
func (r *result) between(name, than string) (s sample) {
	a, b := r.row(name), r.row(than)
	for i := range a {
		s = append(s, a[i]/b[i])
	}
	return s
}

// row is the cost of a row, by rounds.
func (r *result) row(name string) sample {
	for i := range r.rows {
		if r.rows[i].name == name {
			return r.cost[i]
		}
	}
	return nil
}

func (r *result) shape(goroutines, keys int) *shape {
	for i := range r.shapes {
		if r.shapes[i].goroutines == goroutines && r.shapes[i].keys == keys {
			return &r.shapes[i]
		}
	}
	return &shape{}
}

// of is a figure of a contender, by rounds.
func (sh *shape) of(name string, get func(load) float64) (s sample) {
	for _, l := range sh.loads[name] {
		s = append(s, get(l))
	}
	return s
}

// ratio is a figure of one contender as a multiple of another's, by rounds.
func (sh *shape) ratio(name, than string, get func(load) float64) (s sample) {
	a, b := sh.of(name, get), sh.of(than, get)
	for i := range min(len(a), len(b)) {
		s = append(s, a[i]/b[i])
	}
	return s
}

// more is how much more of a figure one contender has than another, by rounds.
func (sh *shape) more(name, than string, get func(load) float64) (s sample) {
	a, b := sh.of(name, get), sh.of(than, get)
	for i := range min(len(a), len(b)) {
		s = append(s, a[i]-b[i])
	}
	return s
}
