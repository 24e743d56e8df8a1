package model

import (
	"math"
	"math/big"
)

// bucketUsage is the token bucket: how many tokens are missing, exactly.
type bucketUsage struct {
	periodMS int64
	at0US    int64 // the moment at which that many were missing
	deficit  *big.Rat
}

func (b bucketUsage) lastUS() int64 { return b.at0US }

func (b bucketUsage) at(us int64, p Policy) usage {
	deficit := new(big.Rat).Set(b.deficit)
	if b.periodMS != p.WindowMS {
		deficit.SetInt(ceil(deficit))
	}
	gained := big.NewRat(us-b.at0US, p.WindowMS*1000)
	gained.Mul(gained, new(big.Rat).SetInt64(p.Refill))
	deficit.Sub(deficit, gained)
	if deficit.Sign() < 0 {
		deficit.SetInt64(0)
	}
	return bucketUsage{periodMS: p.WindowMS, at0US: us, deficit: deficit}
}

func (b bucketUsage) used() int64 { return ceil(b.deficit).Int64() }

func (b bucketUsage) charge(units int64, p Policy) (usage, bool) {
	deepest := new(big.Rat).SetInt64(2 * p.Limit)
	if units == 0 || b.deficit.Cmp(deepest) >= 0 {
		return b, false
	}
	deficit := new(big.Rat).SetInt64(units)
	deficit.Add(deficit, b.deficit)
	if deficit.Cmp(deepest) > 0 {
		deficit = deepest
	}
	b.deficit = deficit
	return b, true
}

func (b bucketUsage) refund(units int64, receiptUS, nowUS int64, p Policy) (usage, bool) {
	if b.deficit.Sign() == 0 || !receiptCounts(receiptUS, nowUS, p) {
		return b, false
	}
	deficit := new(big.Rat).SetInt64(-units)
	deficit.Add(deficit, b.deficit)
	if deficit.Sign() < 0 {
		deficit.SetInt64(0)
	}
	b.deficit = deficit
	return b, true
}

func (b bucketUsage) none() bool { return b.deficit.Sign() == 0 }

func (b bucketUsage) needMS(p Policy) int64 {
	full := p.refillTime(b.deficit)
	if t := new(big.Rat).SetInt64(p.TimeToFullUS()); full.Cmp(t) < 0 {
		full = t
	}
	full.Add(full, new(big.Rat).SetInt64(b.at0US))
	ms := ceil(full.Quo(full, big.NewRat(1000, 1)))
	if !ms.IsInt64() { // a large debt under a policy that was lowered to a crawl; write bounds it
		return math.MaxInt64
	}
	return ms.Int64()
}
