// Package denycache is a bounded cache for sluice.Config.DenyCache, over github.com/maypok86/otter.
//
//	limiter, err := sluice.New(client, sluice.Config{DenyCache: denycache.New(100_000)})
//
// A subject that hammers a closed door is then told so by this process, and costs Redis about one call per wait.
package denycache

import (
	"github.com/maypok86/otter/v2"

	"github.com/sluicego/sluice"
)

// A Cache holds denials, safe for concurrent use. Limiters may share one: each finds its own denials in it, and none of another's.
type Cache struct {
	denials *otter.Cache[sluice.DenyKey, *sluice.Denial]
}

// New makes a cache of at most so many denials, at least 1. One takes about 400 bytes, plus its subject. When it is full
// those that are asked for least often make room: which costs a call to Redis, and nothing else.
func New(most int) *Cache {
	return &Cache{otter.Must(&otter.Options[sluice.DenyKey, *sluice.Denial]{MaximumSize: max(most, 1)})}
}

// Get returns the denial of a limit, if there is one.
func (c *Cache) Get(k sluice.DenyKey) (*sluice.Denial, bool) { return c.denials.GetIfPresent(k) }

// Set keeps a denial in the place of the one before.
func (c *Cache) Set(k sluice.DenyKey, d *sluice.Denial) { c.denials.Set(k, d) }

// Len is about how many denials there are.
func (c *Cache) Len() int { return c.denials.EstimatedSize() }
