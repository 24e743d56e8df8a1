package main

import (
	"context"
	"time"
)

// slowest is the longest that the server took, in us, for any of the calls on a log of which 10^5 entries have expired since the call before.
func slowest(s *server, p *pipe, dir string) (float64, error) {
	log, err := loadScript(dir, "sliding_log")
	if err != nil {
		return 0, err
	}
	const window = "3000"
	fill := make([][]byte, 100_000)
	for i := range fill {
		fill[i] = command(log.call("slowest", "take", "1", "100000000", window)...)
	}
	filling := time.Now()
	if err := p.send(fill); err != nil {
		return 0, err
	}
	// Entries that have expired, and one that has not, so that the log as a whole is still there.
	time.Sleep(2900*time.Millisecond - time.Since(filling))
	ctx := context.Background()
	if err := p.send(fill[:1]); err != nil {
		return 0, err
	}
	time.Sleep(1500 * time.Millisecond)
	for _, words := range [][]string{{"CONFIG", "SET", "slowlog-log-slower-than", "0"}, {"CONFIG", "SET", "slowlog-max-len", "100000"}, {"SLOWLOG", "RESET"}} {
		if err := p.send([][]byte{command(words...)}); err != nil {
			return 0, err
		}
	}
	if err := p.send(fill[:2000]); err != nil {
		return 0, err
	}
	if err := p.send([][]byte{command("CONFIG", "SET", "slowlog-log-slower-than", "10000")}); err != nil {
		return 0, err
	}
	entries, err := s.client.Do(ctx, s.client.B().Arbitrary("SLOWLOG", "GET", "3000").Build()).ToArray()
	if err != nil {
		return 0, err
	}
	longest := int64(0)
	for _, entry := range entries {
		fields, err := entry.ToArray()
		if err != nil {
			return 0, err
		}
		words, err := fields[3].AsStrSlice()
		if err != nil {
			return 0, err
		}
		took, err := fields[2].AsInt64()
		if err != nil {
			return 0, err
		}
		if words[0] == "EVALSHA" {
			longest = max(longest, took)
		}
	}
	return float64(longest), nil
}
