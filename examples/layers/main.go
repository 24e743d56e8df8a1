// Command layers puts a small bucket in front of a sliding window, for a user and for one of the user's routes: 20 requests at
// once, 100 a minute, and of these at most 15 searches. All limits are asked in one call, and either all are charged or
// none.
//
//	go run ./examples/layers                              on a miniredis, whose clock it moves
//	REDIS_ADDR=localhost:6379 go run ./examples/layers    on a real server, in real time: ten seconds
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"time"

	"github.com/sluicego/sluice"
	"github.com/sluicego/sluice/examples/internal/demo"
)

var (
	burst    = sluice.TokenBucket(20, 10, time.Second).Named("burst")
	minute   = sluice.SlidingLog(100, time.Minute).Named("minute")
	searches = sluice.SlidingLog(15, time.Minute).Named("searches")
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	context.AfterFunc(ctx, stop) // a second signal ends the program at once
	if err := run(ctx, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "layers:", err)
		os.Exit(1)
	}
}

// limits are the limits that a request has to pass, with all of it charged to the user.
//
// The searches are a subject of their own, the route of this user; the tag puts it into the user's slot, so that the call
// works on a cluster, too.
func limits(user, route string) []sluice.Request {
	reqs := []sluice.Request{
		{Key: user, Policy: burst, Cost: 1},
		{Key: user, Policy: minute, Cost: 1},
	}
	if route == "/search" {
		reqs = append(reqs, sluice.Request{Key: sluice.Key(user, route), Tag: user, Policy: searches, Cost: 1})
	}
	return reqs
}

// run is the whole program.
func run(ctx context.Context, stdout io.Writer) error {
	server, err := demo.StartStill()
	if err != nil {
		return err
	}
	defer server.Close()
	limiter, err := sluice.New(server.Client, sluice.Config{Prefix: "sluice-layers"})
	if err != nil {
		return err
	}

	user := sluice.Key("user", "alice", time.Now().String()) // a new one each time
	send := func(count int, route string) error {
		admitted, last := 0, sluice.Results{}
		for range count {
			reqs := limits(user, route)
			res, err := limiter.AllowAll(ctx, reqs...)
			if err != nil {
				return err
			}
			if res.Allowed {
				admitted++
				continue
			}
			last = res
		}
		fmt.Fprintf(stdout, "%-8s %2d asked, %2d admitted", route, count, admitted)
		if denied := last.Denied(); len(denied) > 0 {
			var names []string
			for _, n := range denied {
				names = append(names, limits(user, route)[n].Policy.Name())
			}
			fmt.Fprintf(stdout, ", then denied by %s for %v", strings.Join(names, " and "), last.RetryAfter)
		}
		fmt.Fprintln(stdout)
		return nil
	}

	if err := send(18, "/search"); err != nil {
		return err
	}
	for range 10 {
		if err := send(25, "/feed"); err != nil {
			return err
		}
		if err := server.Pass(ctx, time.Second); err != nil {
			return err
		}
	}

	// What denied is full. What did not deny was not charged.
	free, err := limiter.PeekAll(ctx, limits(user, "/search")...)
	if err != nil {
		return err
	}
	for n, req := range limits(user, "/search") {
		fmt.Fprintf(stdout, "%s has %d of %d free\n", req.Policy.Name(), free.Each[n].Remaining, free.Each[n].Limit)
	}
	return nil
}
