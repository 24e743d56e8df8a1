// Package demo gives the examples a server: the one at $REDIS_ADDR, or a miniredis in the example's own process.
package demo

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/rueidis"
)

// Server is a server for an example.
type Server struct {
	Client rueidis.Client
	own    *miniredis.Miniredis // nil if it is that at $REDIS_ADDR
	now    time.Time            // of the own one, if it stands still
}

// StartStill connects to a server; the clock of a miniredis stands still but for Pass. Close it at the end.
func StartStill() (*Server, error) {
	s, err := Start()
	if err == nil && s.own != nil {
		s.now = time.Unix(1_700_000_000, 0)
		s.own.SetTime(s.now)
	}
	return s, err
}

// Start connects to a server whose clock goes. Close it at the end.
func Start() (*Server, error) {
	s := &Server{}
	addr := os.Getenv("REDIS_ADDR")
	if addr == "" {
		own, err := miniredis.Run()
		if err != nil {
			return nil, fmt.Errorf("starting miniredis: %w", err)
		}
		s.own, addr = own, own.Addr()
	}
	client, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{addr}, DisableCache: true})
	if err != nil {
		if s.own != nil {
			s.own.Close()
		}
		return nil, err
	}
	s.Client = client
	return s, nil
}

// Close ends what was started.
func (s *Server) Close() {
	s.Client.Close()
	if s.own != nil {
		s.own.Close()
	}
}

// Pass lets time pass: where the clock stands still at once, elsewhere by sleeping.
func (s *Server) Pass(ctx context.Context, d time.Duration) error {
	if !s.now.IsZero() {
		s.now = s.now.Add(d)
		s.own.SetTime(s.now)
		s.own.FastForward(d) // it keeps what is left of the keys' lives apart from its clock
		return nil
	}
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
