// Command waiting has forty workers share ten calls a second to some service, with five at once. Each waits for its turn; they
// get through in the order of their coming, and Redis is asked about twice for each. Another one can't wait for so
// long, and leaves at once.
//
//	go run ./examples/waiting
//	REDIS_ADDR=localhost:6379 go run ./examples/waiting
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"sync"
	"time"

	"github.com/sluicego/sluice"
	"github.com/sluicego/sluice/examples/internal/demo"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	context.AfterFunc(ctx, stop) // a second signal ends the program at once
	if err := run(ctx, os.Stdout, sluice.TokenBucket(5, 10, time.Second)); err != nil {
		fmt.Fprintln(os.Stderr, "waiting:", err)
		os.Exit(1)
	}
}

// run is the whole program.
func run(ctx context.Context, stdout io.Writer, shared sluice.Policy) error {
	server, err := demo.Start()
	if err != nil {
		return err
	}
	defer server.Close()
	limiter, err := sluice.New(server.Client, sluice.Config{Prefix: "sluice-waiting"})
	if err != nil {
		return err
	}
	const workers = 40
	service := sluice.Key("service", time.Now().String()) // a new one each time

	start := time.Now()
	var wg sync.WaitGroup
	errs := make([]error, workers)
	for n := range workers {
		wg.Go(func() {
			if _, err := limiter.Wait(ctx, service, shared, 1); err != nil {
				errs[n] = err
				return
			}
			// Here the worker would call the service.
		})
	}

	// By now they stand in line, so it is known how long one more would wait.
	time.Sleep(shared.Window() / 10)
	soon, cancel := context.WithTimeout(ctx, shared.Window()/2)
	defer cancel()
	asked := time.Now()
	if _, err := limiter.Wait(soon, service, shared, 1); !errors.Is(err, sluice.ErrLimited) {
		return fmt.Errorf("the one in a hurry was not sent away: %w", err)
	}
	fmt.Fprintf(stdout, "one more would wait too long, and knew after %v\n", time.Since(asked).Round(time.Microsecond))

	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	fmt.Fprintf(stdout, "%d workers were let in within %v\n", workers, time.Since(start).Round(shared.Window()/10))
	return nil
}
