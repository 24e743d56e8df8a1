// Package sluice limits rates with a shared Redis or Valkey, and needs no server module.
//
// A [Policy] is a limit: "5 units a minute, exactly" or "a bucket of 50 that gains 10 a second". A subject is whoever the limit
// is for: an address, a tenant, a route and a user (see [Key]). A [Limiter] asks the server for each decision. One Lua script
// makes it there, atomically and by the server's own clock, so any number of processes share one limit and none of their clocks
// matter.
//
//	limiter, err := sluice.New(client, sluice.Config{})
//	res, err := limiter.Allow(ctx, "203.0.113.7", sluice.SlidingLog(5, time.Minute))
//	if err == nil && !res.Allowed {
//		// come back in res.RetryAfter; one millisecond sooner is too soon
//	}
//
// # Algorithms
//
// [SlidingLog] is exact: never more than the limit in any window. It stores one entry per admitted call.
// [SlidingCounter] estimates from two counts: a state of fixed size, a limit that may be off by the unevenness of the traffic
// in the window before. [TokenBucket] allows a burst of its capacity and a steady rate after it, in a state of fixed size.
//
// # Failures
//
// Errors fall into three groups, each a sentinel for [errors.Is]. The caller's: [ErrInvalidConfig], [ErrInvalidPolicy],
// [ErrInvalidKey], [ErrInvalidCost], [ErrInvalidRequests], [ErrCrossSlot], [ErrNotCharged]; nothing was sent. The limit's:
// [ErrLimited], only from [Limiter.Wait]. Redis': [ErrBackend], and [ErrReply] as a part of it. A context of the caller's
// that ended is none of these: the error is the context's own.
//
// A call that charges is sent once. If the answer is lost (a timeout, a broken connection) nobody knows whether the
// server charged before; repeating the call might charge twice, so neither this package nor, by default, rueidis
// repeats it. The error then says so: [CallError.Unknown]. A command is sent again only where the server has said that
// it did not run: for an unknown script (NOSCRIPT, answered by sending the script itself) and for a redirection (MOVED,
// ASK, Valkey's REDIRECT). rueidis has one exception of its own, ClientOption.ConnLifetime: see [New].
package sluice
