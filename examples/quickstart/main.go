// Command quickstart shows what rate limiting does to real traffic: it replays an access log through the sliding
// log, the sliding counter and the token bucket at once, and prints what each let through.
//
//	go run ./examples/quickstart -log access.log -policy 10/1m
//
// It needs nothing but Go. Without -redis it runs the scripts on a miniredis in its own process, whose clock
// follows the times in the log, so that days are replayed in seconds and every run gives the same numbers.
//
// With -redis (or REDIS_ADDR) it runs them on a real server, whose clock nobody can move, so the log is replayed
// in real time, -speed times as fast as it was written. The policy's window is shortened by the same factor:
// at -speed 60 a minute of the log takes a second, and 10/1m is enforced as 10/1s. That keeps the decisions those of
// the log at its own speed, but for what the network and the scheduler add: a millisecond of delay
// is a millisecond of the short window. Windows are whole milliseconds, so the speed is bounded by the window, and
// adjusted a little where the window would not come out even.
// The keys it makes there have a prefix of their own for each run and are removed at the end; no other key is touched.
package main

import (
	"bytes"
	"context"
	"crypto/rand"
	_ "embed"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/sluicego/sluice"
)

//go:generate go run ./gensample -o testdata/access.log

// sample is made up by gensample.
//
//go:embed testdata/access.log
var sample []byte

const usage = `Usage: go run ./examples/quickstart [flags]

Replays an access log through three rate limiters and shows what each lets through.
Each client address may make so many requests; the log's own times decide when.

  -log FILE     access log in Common or Combined Log Format, - for standard input
                (default: a small made-up log that is built in)
  -policy P     the limit for each client (default 10/1m). LIMIT/WINDOW tries it with all
                three algorithms; log:10/1m, counter:10/1m or bucket:50+10/1m tries that one
  -redis ADDR   run on this server: host:port or redis://user:password@host:port/0
                (default: $REDIS_ADDR; when that is not set, a miniredis in this process)
  -speed X      with -redis: replay the log X times as fast as it was written, with the
                window shortened as much, so that the decisions stay the same (default 60)
  -h            show this help

Examples:
  go run ./examples/quickstart
  go run ./examples/quickstart -log /var/log/nginx/access.log -policy 100/1m
  zcat access.log.*.gz | go run ./examples/quickstart -log - -policy bucket:50+10/1s
  go run ./examples/quickstart -redis localhost:6379 -speed 600
`

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the program at once
	if err := run(ctx, os.Args[1:], os.Getenv, os.Stdin, os.Stdout, os.Stderr); err != nil {
		fmt.Fprintf(os.Stderr, "quickstart: %v\n", err)
		os.Exit(1)
	}
}

// run is the whole program.
func run(ctx context.Context, args []string, getenv func(string) string, stdin io.Reader, stdout, stderr io.Writer) error {
	flags := flag.NewFlagSet("quickstart", flag.ContinueOnError)
	flags.SetOutput(io.Discard) // main prints errors
	flags.Usage = func() {}
	logFile := flags.String("log", "", "")
	policyText := flags.String("policy", "10/1m", "")
	addr := flags.String("redis", getenv("REDIS_ADDR"), "")
	speed := flags.Float64("speed", 60, "")
	err := flags.Parse(args)
	if errors.Is(err, flag.ErrHelp) {
		_, err := io.WriteString(stdout, usage)
		return err
	}
	if err != nil {
		return fmt.Errorf("%w (-h shows all flags)", err)
	}
	if flags.NArg() > 0 {
		return fmt.Errorf("unexpected argument %q (-log names a log, -h shows all flags)", flags.Arg(0))
	}
	given := make(map[string]bool)
	flags.Visit(func(f *flag.Flag) { given[f.Name] = true })
	policies, err := parsePolicies(*policyText)
	if err != nil {
		return err
	}
	log, source, err := openLog(*logFile, stdin)
	if err != nil {
		return err
	}
	r := &report{log: log, source: source, policies: policies, progress: every(5*time.Second, func(done int) {
		fmt.Fprintf(stderr, "%d of %d requests\n", done, len(log.visits))
	})}

	if *addr == "" {
		if given["speed"] {
			return errors.New("-speed goes with -redis: a miniredis follows the log's clock, as fast as it can")
		}
		err = r.runEmbedded(ctx)
	} else {
		err = r.runLive(ctx, *addr, *speed, stderr)
	}
	if err != nil {
		return err
	}
	return r.write(stdout)
}

// openLog reads the log that the flag names, and says what to call it.
func openLog(name string, stdin io.Reader) (*accessLog, string, error) {
	var from io.Reader
	switch name {
	case "":
		name, from = "the built-in sample (-log FILE reads another)", bytes.NewReader(sample)
	case "-":
		name, from = "standard input", stdin
	default:
		f, err := os.Open(name)
		if errors.Is(err, fs.ErrNotExist) {
			return nil, "", fmt.Errorf("there is no file %s; without -log the built-in sample is replayed", name)
		}
		if err != nil {
			return nil, "", err
		}
		defer func() { _ = f.Close() }() // it was only read
		from = f
	}
	log, err := readLog(from)
	if err != nil {
		return nil, "", fmt.Errorf("can't read %s: %w", name, err)
	}
	return log, name, nil
}

// decide fills in the outcome: it replays the log under policies on a server, in whose time a window is that long.
func (r *report) decide(
	ctx context.Context, limiter *sluice.Limiter, policies []sluice.Policy, window time.Duration,
	moveTo func(ctx context.Context, at time.Time) error,
) error {
	decisions, err := replay(ctx, limiter, policies, r.log, moveTo, r.progress)
	if ctx.Err() != nil {
		return errors.New("interrupted")
	}
	if err != nil {
		return err
	}
	r.before = summarize(r.log, unlimited(r.log), r.policies[0].Window())
	for _, d := range decisions {
		r.after = append(r.after, summarize(r.log, d, window))
	}
	return nil
}

// runEmbedded replays the log on a miniredis that follows its clock.
func (r *report) runEmbedded(ctx context.Context) error {
	server, err := startEmbedded()
	if err != nil {
		return err
	}
	defer server.close()
	limiter, err := sluice.New(server.client, sluice.Config{})
	if err != nil {
		return err
	}
	r.server = "an embedded miniredis whose clock follows the log"
	return r.decide(ctx, limiter, r.policies, r.policies[0].Window(), server.moveTo)
}

// runLive replays the log on a real server, in real time.
func (r *report) runLive(ctx context.Context, addr string, speed float64, stderr io.Writer) (err error) {
	window, speed, err := compress(r.policies[0].Window(), speed)
	if err != nil {
		return err
	}
	policies := make([]sluice.Policy, len(r.policies))
	for i, p := range r.policies {
		if policies[i], err = withWindow(p, window); err != nil {
			return err
		}
	}
	option, err := redisOption(addr)
	if err != nil {
		return fmt.Errorf("-redis: %w", err)
	}
	where := strings.Join(option.InitAddress, ",") // not addr, which may hold a password
	client, err := connect(option)
	if err != nil {
		return fmt.Errorf("can't connect to %s: %w (is a server running there? "+
			"Without -redis and REDIS_ADDR a miniredis is used)", where, err)
	}
	defer client.Close()
	prefix := "sluice-quickstart-" + rand.Text()[:8]
	limiter, err := sluice.New(client, sluice.Config{Prefix: prefix})
	if err != nil {
		return err
	}
	if err := limiter.Load(ctx); err != nil {
		return fmt.Errorf("can't load the scripts at %s: %w", where, err)
	}

	pace := &pacer{speed: speed}
	fmt.Fprintf(stderr, "Replaying %s of log in %s. The keys start with %s and are removed at the end.\n",
		r.log.span(), pace.takes(r.log.span()).Round(time.Second/10), prefix)
	defer func() { err = errors.Join(err, removeKeys(ctx, limiter, policies, r.log)) }()
	if err := r.decide(ctx, limiter, policies, window, pace.moveTo); err != nil {
		return err
	}
	r.server = fmt.Sprintf("%s, %.4g times as fast: %s of the log took %s\n         requests came up to %s late",
		where, speed, windowText(r.policies[0]), window, pace.late.Round(time.Millisecond/10))
	if pace.late > window/10 {
		r.server += ", which is long for that: try a lower -speed"
	}
	return nil
}

// removeKeys removes what a replay may have left, also when it was interrupted. Keys expire by themselves, too, within two windows.
func removeKeys(ctx context.Context, limiter *sluice.Limiter, policies []sluice.Policy, log *accessLog) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
	defer cancel()
	for _, subject := range log.subjects {
		for _, p := range policies {
			if err := limiter.Reset(ctx, sluice.Key(subject), p); err != nil {
				return fmt.Errorf("removing the keys: %w", err)
			}
		}
	}
	return nil
}
