// Command plans reads what tenants get from a file, moves a tenant to another plan, changes the plans while they are in use,
// and shows what becomes of a file with mistakes. Nothing of what was used is lost on the way.
//
//	go run ./examples/plans
//	REDIS_ADDR=localhost:6379 go run ./examples/plans
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/sluicego/sluice"
	"github.com/sluicego/sluice/examples/internal/demo"
	"github.com/sluicego/sluice/plan"
)

// The file as it is read first, as it is changed to, and as somebody saves it half finished.
const (
	first = `free:
  burst: bucket:10+10/1s
  daily: counter:15/1d
pro:
  burst: bucket:50+50/1s
  daily: counter:1000/1d
`
	changed = `free:
  burst: bucket:10+10/1s
  daily: counter:20/1d
pro:
  burst: bucket:50+50/1s
  daily: counter:1000/1d
`
	broken = `free:
  burst: bucket:10+0/1s
  daily: counter:20/1w
pro:
  daily: log:1000/1d
`
)

func main() {
	if err := run(context.Background(), os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "plans:", err)
		os.Exit(1)
	}
}

// run is the whole program.
func run(ctx context.Context, stdout io.Writer) error {
	server, err := demo.StartStill()
	if err != nil {
		return err
	}
	defer server.Close()
	limiter, err := sluice.New(server.Client, sluice.Config{Prefix: "sluice-plans"})
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "plans")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	if err := os.Chdir(dir); err != nil {
		return err
	}
	var store plan.Store
	load := func(text string) error {
		if err := os.WriteFile("plans.yaml", []byte(text), 0o600); err != nil {
			return err
		}
		return store.Load("plans.yaml")
	}

	tenant := sluice.Key("tenant", time.Now().String()) // a new one each time
	send := func(tier string, count int) error {
		p, ok := store.Plan(tier)
		if !ok {
			return fmt.Errorf("there is no plan %s", tier)
		}
		admitted := 0
		var last sluice.Results
		for range count {
			res, err := limiter.AllowAll(ctx, p.Requests(tenant, 1)...)
			if err != nil {
				return err
			}
			if last = res; res.Allowed {
				admitted++
			}
		}
		fmt.Fprintf(stdout, "%s: %d of %d admitted\n", tier, admitted, count)
		for n, policy := range p.Policies() {
			fmt.Fprintf(stdout, "   %s has %d of %d free\n", policy.Name(), last.Each[n].Remaining, policy.Limit())
		}
		return server.Pass(ctx, time.Second)
	}

	if err := load(first); err != nil {
		return err
	}
	if err := send("free", 10); err != nil {
		return err
	}
	if err := send("free", 10); err != nil {
		return err
	}
	fmt.Fprintln(stdout, "the tenant pays for more:")
	if err := send("pro", 3); err != nil {
		return err
	}
	fmt.Fprintln(stdout, "and no longer; but the plans are more generous now:")
	if err := load(changed); err != nil {
		return err
	}
	if err := send("free", 5); err != nil {
		return err
	}
	fmt.Fprintln(stdout, "a file with mistakes changes nothing:")
	if err := load(broken); err != nil {
		fmt.Fprintln(stdout, err)
	}
	return send("free", 1)
}
