package vectors

import (
	"fmt"
	"slices"
	"strings"

	"github.com/sluicego/sluice/conformance/model"
)

// The first words of the scripts' error replies.
const (
	argCode   = "SLUICEARG"
	stateCode = "SLUICESTATE"
)

// argumentNames are the names of ARGV, in order.
func argumentNames(k model.Kind) []string {
	if k == model.Bucket {
		return []string{"operation", "cost", "capacity", "refill", "period_ms", "receipt"}
	}
	return []string{"operation", "cost", "limit", "window_ms", "receipt"}
}

// shapes are texts that are no decimal integer in its shortest form.
var shapes = []struct {
	name  string
	texts []string
}{
	{"empty", []string{""}},
	{"blank", []string{" ", "\t", "\n"}},
	{"blank before", []string{" 5", "\t5", "\n5"}},
	{"blank behind", []string{"5 ", "5\t", "5\n", "5\r\n"}},
	{"NUL behind", []string{"5\x00", "5\x006", "\x005"}},
	{"plus sign", []string{"+5", "+0"}},
	{"fraction", []string{"5.0", "5.", ".5", "1.5", "0.0"}},
	{"exponent", []string{"5e0", "1e3", "1E3", "10e-1"}},
	{"hexadecimal", []string{"0x5", "0X5", "5h", "a"}},
	{"not a number", []string{"nan", "NaN", "-nan", "nan(5)"}},
	{"infinite", []string{"inf", "-inf", "Infinity", "1e999"}},
	{"separators", []string{"1_000", "1,000", "1'000", "1 000"}},
	{"words and other digits", []string{"five", "true", "nil", "{}", "٥", "５"}},
	{"leading zeros", []string{"05", "00", "0010", "00000000000000000000000005"}},
	{"two signs", []string{"--5", "+-5", "-", "- 5", "5-"}},
}

// refuse adds a refused call for each of the named arguments and each text: a take, and a settle where only that
// has the argument.
func (d *draft) refuse(texts, names []string) {
	for _, name := range names {
		i := slices.Index(argumentNames(d.kind), name)
		for _, text := range texts {
			args := append([]string{"take", "1"}, d.policyArgs()...)
			if name == "receipt" {
				args = append([]string{"settle", "1"}, append(d.policyArgs(), "0")...)
			}
			args[i] = text
			d.fails(argCode, name, nil, args...)
		}
	}
}

// arguments are the calls that are refused for their arguments: on a missing key, which stays missing, and on a
// used one, which stays as it is.
func (m *maker) arguments() {
	names := argumentNames(m.kind)
	numbers := names[1:]                     // all that have to be numbers
	policy := names[2 : len(names)-1]        // limit .. window
	positive := policy                       // what may not be 0
	units := names[1 : len(names)-2]         // what ends at 10^9: cost, limit; and refill
	duration := names[len(names)-2]          // window_ms or period_ms
	settled := func(d *draft, cost string) { // the same for settle's cost
		d.fails(argCode, "cost", nil, append([]string{"settle", cost}, append(d.policyArgs(), "0")...)...)
	}
	onBoth := func(name, pins string, refused func(d *draft)) {
		m.vector("refused: "+name, pins, func(d *draft) {
			refused(d)
			d.take(4).is(1, 6, 0, some)
			d.after(1 * ms)
			refused(d)
			d.peek(10).denied()
		})
	}
	for _, s := range shapes {
		onBoth(s.name, fmt.Sprintf("%q and the like in every place of a number", s.texts[0]), func(d *draft) {
			d.refuse(s.texts, numbers)
			for _, text := range s.texts {
				settled(d, text)
			}
		})
	}
	onBoth("minus sign", "a sign is for settle's cost alone", func(d *draft) {
		d.refuse([]string{"-1", "-5", "-0", "-1000000000"}, numbers)
		d.fails(argCode, "cost", nil, append([]string{"peek", "-1"}, d.policyArgs()...)...)
	})
	onBoth("minus sign and zero", "a difference has one form only: no -0, no zeros in front", func(d *draft) {
		settled(d, "-0")
		settled(d, "-05")
		settled(d, "-00")
	})
	onBoth("zero", "a limit, refill or window of 0", func(d *draft) {
		d.refuse([]string{"0", "00"}, positive)
	})
	onBoth("one above the range", "each range ends where it says", func(d *draft) {
		d.refuse([]string{"1000000001"}, units)
		d.refuse([]string{"31622400001"}, []string{duration})
		d.refuse([]string{"9007199254740992"}, []string{"receipt"})
		settled(d, "1000000001")
		settled(d, "-1000000001")
		d.fails(argCode, "cost", nil, append([]string{"peek", "1000000001"}, d.policyArgs()...)...)
	})
	onBoth("2^31", "no wrapping at 32 bits", func(d *draft) {
		d.refuse([]string{"2147483648", "4294967296", "4294967297"}, units)
		settled(d, "2147483648")
		settled(d, "-2147483649")
	})
	onBoth("2^53 - 1", "the largest exact double is above every range but the receipt's", func(d *draft) {
		d.refuse([]string{"9007199254740991"}, numbers[:len(numbers)-1])
		settled(d, "-9007199254740991")
	})
	onBoth("2^53 + 1", "a number that a double would round into something else", func(d *draft) {
		d.refuse([]string{"9007199254740993"}, numbers)
		settled(d, "-9007199254740993")
	})
	onBoth("2^63 - 1", "no wrapping at 64 bits", func(d *draft) {
		d.refuse([]string{"9223372036854775807", "9223372036854775808", "18446744073709551616", "18446744073709551617"}, numbers)
		settled(d, "-9223372036854775808")
	})
	onBoth("four hundred digits", "a number that overflows a double", func(d *draft) {
		huge := make([]byte, 400)
		for i := range huge {
			huge[i] = '9'
		}
		d.refuse([]string{string(huge)}, numbers)
		settled(d, "-"+string(huge))
	})
	onBoth("too few arguments", "every argument is required", func(d *draft) {
		d.fails(argCode, "ARGV", nil, "take", "1")
		d.fails(argCode, "ARGV", nil, append([]string{"take", "1"}, d.policyArgs()[1:]...)...)
		d.fails(argCode, "ARGV", nil, append([]string{"peek"}, d.policyArgs()...)...)
		d.fails(argCode, "ARGV", nil, append([]string{"settle", "1"}, d.policyArgs()...)...)
	})
	onBoth("too many arguments", "one more is as wrong as one less", func(d *draft) {
		d.fails(argCode, "ARGV", nil, append([]string{"take", "1"}, append(d.policyArgs(), "0")...)...)
		d.fails(argCode, "ARGV", nil, append([]string{"peek", "1"}, append(d.policyArgs(), "0")...)...)
		d.fails(argCode, "ARGV", nil, append([]string{"take", "1"}, append(d.policyArgs(), "")...)...)
		d.fails(argCode, "ARGV", nil, append([]string{"settle", "1"}, append(d.policyArgs(), "0", "0")...)...)
	})
	onBoth("unknown operation", "take, peek and settle, to the letter", func(d *draft) {
		d.refuse([]string{"", "TAKE", "Take", " take", "take ", "take\n", "take\x00", "taken", "refund", "1", "nil"}, []string{"operation"})
	})
	onBoth("no key", "one key, not none", func(d *draft) {
		d.fails(argCode, "KEYS", []string{NoKey}, append([]string{"take", "1"}, d.policyArgs()...)...)
		d.fails(argCode, "KEYS", []string{NoKey}, append([]string{"peek", "1"}, d.policyArgs()...)...)
	})
	onBoth("two keys", "one key, not two", func(d *draft) {
		d.fails(argCode, "KEYS", []string{Key, Key + ":2"}, append([]string{"take", "1"}, d.policyArgs()...)...)
		d.fails(argCode, "KEYS", []string{Key, Key}, append([]string{"settle", "1"}, append(d.policyArgs(), "0")...)...)
	})
	m.vector("largest arguments", "each range includes its ends", func(d *draft) {
		d.policy(model.MaxUnits, model.MaxWindowMS)
		d.take(model.MaxUnits).is(1, 0, 0, some)
		d.peek(model.MaxUnits).denied()
		d.settleAny(model.MaxUnits, model.MaxReceipt).ok()
		d.settleAny(-model.MaxUnits, 0).is(1, 0, 0, some)
		d.settleAny(-model.MaxUnits, 0).is(1, model.MaxUnits, 0, 0)
	})
	m.vector("smallest arguments", "each range includes its ends", func(d *draft) {
		d.policy(1, 1)
		d.take(0).is(1, 1, 0, 0)
		d.settleAny(0, 0).is(1, 1, 0, 0)
		d.take(1).is(1, 0, 0, some)
	})
}

type foreignState struct {
	name  string
	setup [][]string
}

// foreignStates are what a key may hold that no script wrote.
func foreignStates(key string) []foreignState {
	return []foreignState{
		{"a text", [][]string{{"SET", key, "abc"}}},
		{"an empty text", [][]string{{"SET", key, ""}}},
		{"a number", [][]string{{"SET", key, "5"}}},
		{"a fraction", [][]string{{"SET", key, "1.5"}}},
		{"numbers with blanks", [][]string{{"SET", key, "1 2 3 4 5 6"}}},
		{"numbers with colons", [][]string{{"SET", key, "1:2:3:4:5"}}},
		{"a list", [][]string{{"RPUSH", key, "1", "2", "3"}}},
		{"a set", [][]string{{"SADD", key, "1"}}},
		{"a hash", [][]string{{"HSET", key, "a", "1"}}},
		{"a hash of numbers", [][]string{{"HSET", key, "1", "1", "2", "2", "3", "3", "4", "4"}}},
		{"a sorted set", [][]string{{"ZADD", key, "1", "a"}}},
		{"a sorted set of numbers", [][]string{{"ZADD", key, "0", "1", "1", "2", "2", "3"}}},
		{"a sorted set of times", [][]string{{"ZADD", key, "1699999980000000", "1699999980000000:1"}}},
		{"a counter whose window is 0", [][]string{{"SET", key, "counter:0:1699999980000:5:5"}}},
		{"a counter whose window is too long", [][]string{{"SET", key, "counter:31622400001:1699999980000:5:5"}}},
		{"a counter above its bound", [][]string{{"SET", key, "counter:1000:1699999980000:5:1000000000001"}}},
		{"a counter that was above its bound", [][]string{{"SET", key, "counter:1000:1699999980000:1000000000001:5"}}},
		{"a counter of four hundred digits", [][]string{{"SET", key, "counter:1000:1699999980000:" + strings.Repeat("9", 400) + ":0"}}},
		{"a bucket that lacks too much", [][]string{{"SET", key, "bucket:1000:1699999990000:1699999980000000:2000000001:0"}}},
		{"a bucket whose fraction is a token", [][]string{{"SET", key, "bucket:1000:1699999990000:1699999980000000:1:1000000"}}},
		{"a bucket of another period whose fraction is a token", [][]string{{"SET", key, "bucket:2000:1699999990000:1699999980000000:1:2000000"}}},
		{"a bucket whose end starts with a 0", [][]string{{"SET", key, "bucket:1000:01699999990000:1699999980000000:1:0"}}},
		{"a bucket whose period is 0", [][]string{{"SET", key, "bucket:0:1699999990000:1699999980000000:1:0"}}},
		{"a bucket known for too long", [][]string{{"SET", key, "bucket:1000:1763244780001:1699999980000000:1:0"}}},
		{"a bucket of four hundred digits", [][]string{{"SET", key, "bucket:1000:1699999990000:1699999980000000:" + strings.Repeat("9", 400) + ":0"}}},
		{"a log whose window is 0", [][]string{{"RPUSH", key, "log:0:1699999990000:0", "060a2416ed13000000000000011"}}},
		{"a log of four hundred digits", [][]string{{"RPUSH", key, "log:1000:" + strings.Repeat("9", 400) + ":0", "060a2416ed13000000000000011"}}},
		{"a log whose newest entry is older than its oldest", [][]string{{"RPUSH", key, "log:1000:1699999990000:0", "060a2416ed13000000000000011", "060a2416e571e00000000000021"}}},
		{"a log that has forgotten its newest entry", [][]string{{"RPUSH", key, "log:1000:1699999990000:1", "060a2416ed13000000000000011"}}},
		{"a log whose base has fifteen digits", [][]string{{"RPUSH", key, "log:1000:1699999990000:100000000000000", "060a2416ed13000000000000011"}}},
		{"a state with an expiry", [][]string{{"SET", key, "abc"}, {"PEXPIRE", key, "500"}}},
	}
}

// foreign are the states that are not ours: an error for every operation, and nothing is touched. A state's end is
// not looked at, for a foreign one has none: the steps do not tell it.
func (m *maker) foreign() {
	for _, s := range foreignStates(Key) {
		m.vector("foreign: "+s.name, "a state that is not ours is an error, never a free window", func(d *draft) {
			d.vector.Setup = s.setup
			for _, call := range [][]string{{"take", "1"}, {"take", "0"}, {"take", "11"}, {"peek", "1"}, {"settle", "1"}, {"settle", "-1"}, {"settle", "0"}} {
				args := slices.Concat(call, d.policyArgs())
				if call[0] == "settle" {
					args = append(args, "0")
				}
				d.fails(stateCode, "KEYS[1]", nil, args...)
				d.vector.Steps[len(d.vector.Steps)-1].UntilMS = nil
			}
		})
	}
}
