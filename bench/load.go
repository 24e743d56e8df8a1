package main

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"syscall"
	"time"
)

// load is what one contender did in one round.
type load struct {
	perSecond float64       // decisions
	p50, p99  time.Duration // per call
	server    float64       // the server's CPU time per decision, us
	client    float64       // this process' CPU time per decision, us
	allocs    float64       // per decision
	trips     float64       // writes to the server per decision: with one goroutine, round trips
}

// drive makes, as contender `index`, `calls` calls from as many goroutines as given, over keys in turn.
func (c contender) drive(s *server, index, goroutines, keys, calls int) (load, error) {
	names := make([]string, keys)
	for i := range names {
		names[i] = subject(index, i)
	}
	ctx := context.Background()
	each := max(1, calls/goroutines)
	took := make([][]time.Duration, goroutines)
	failed := make([]error, goroutines)

	runtime.GC()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	serverBefore, err := s.cpu()
	if err != nil {
		return load{}, err
	}
	clientBefore, tripsBefore := ownCPU(), trips.Load()
	start := time.Now()
	var wg sync.WaitGroup
	for g := range goroutines {
		took[g] = make([]time.Duration, 0, each)
		wg.Go(func() {
			for i := range each {
				// A large step, so that neighbours in time are no neighbours in the key space.
				key := names[(g*each+i)*7919%keys]
				sent := time.Now()
				if err := c.allow(ctx, key); err != nil {
					failed[g] = err
					return
				}
				took[g] = append(took[g], time.Since(sent))
			}
		})
	}
	wg.Wait()
	elapsed := time.Since(start)
	client, sent := ownCPU()-clientBefore, trips.Load()-tripsBefore
	serverAfter, err := s.cpu()
	if err != nil {
		return load{}, err
	}
	runtime.ReadMemStats(&after)
	for _, err := range failed {
		if err != nil {
			return load{}, fmt.Errorf("%s: %w", c.name, err)
		}
	}
	all := slices.Concat(took...)
	slices.Sort(all)
	decisions := float64(len(all) * max(1, c.batch))
	return load{
		perSecond: decisions / elapsed.Seconds(),
		p50:       all[len(all)/2],
		p99:       all[len(all)*99/100],
		server:    float64((serverAfter - serverBefore).Nanoseconds()) / 1000 / decisions,
		client:    float64(client.Nanoseconds()) / 1000 / decisions,
		allocs:    float64(after.Mallocs-before.Mallocs) / decisions,
		trips:     float64(sent) / decisions,
	}, nil
}

// ownCPU is the CPU time that this process has used, user and system.
func ownCPU() time.Duration {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		return 0
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}
