package sluice

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"hash"
	"strconv"
	"sync"
)

// Every key is
//
//	prefix:{digest}:policy             sluice:{3f9c0b5e…}:log/60000    sluice:{3f9c0b5e…}:login
//	prefix:{digest of the tag}:digest:policy                           for a request with a tag of its own
//	prefix:{digest*3}:policy*8         sluice:{3f9c0b5e…*3}:login*8    the third shard of 8, in a slot of its own
//
// where the digest is that of the subject: the first 128 bits of its SHA-256, or of its HMAC-SHA-256 under
// Config.Secret, in lower-case hex. Hex because every language and every shell makes it without a thought about
// alphabets and padding, and because no byte of it means anything to Redis. A cluster places a key by what stands
// between the braces, so all limits of one subject (or one tag) share a slot.
//
// No two limits share a key: a prefix has no brace and so ends at the first one; what follows the closing brace has no colon
// but those shown, since neither a digest nor a policy has any, and what a shard adds begins with an asterisk, of which the policy
// has none either. Config.PlainKeys writes the subject itself, escaped, in the
// place of a digest; it may have colons, but then the policy is what follows the last one. One that would be longer than
// 256 bytes is %sha256- and its digest, which no escaped subject is, as a % in those is followed by two digits of hex.

const (
	defaultPrefix = "sluice"
	maxPrefix     = 64      // bytes
	minSecret     = 16      // bytes: a shorter secret can be found by trying
	digestSize    = 16      // bytes: 128 of SHA-256's 256 bits
	maxKept       = 1 << 16 // bytes of a buffer that go back to the pool
	maxPlain      = 256     // bytes of an escaped subject: who chooses subjects must not choose how large commands get
	longSubject   = "%sha256-"
)

// Key joins the parts of a subject: a route and an address, a tenant and a user. Different parts never give the same
// key, and neither do the same bytes cut differently: Key("a", "b:c") and Key("a:b", "c") differ.
//
// Each part is written as its length in bytes, a colon and the part: Key("api", "203.0.113.7") is
// "3:api11:203.0.113.7". So Key("a") is "1:a", another subject than the bare string "a": use one of the two ways
// throughout, most of all where users choose the strings. If no part has a byte in it there is no subject, and Key is
// empty, which every call refuses.
func Key(parts ...string) string {
	size, bytes := 0, 0
	for _, part := range parts {
		size += len(part) + len("1048576:")
		bytes += len(part)
	}
	if bytes == 0 {
		return ""
	}
	b := make([]byte, 0, size)
	for _, part := range parts {
		b = strconv.AppendInt(b, int64(len(part)), 10)
		b = append(b, ':')
		b = append(b, part...)
	}
	return string(b)
}

// keyspace makes the keys of one limiter.
type keyspace struct {
	prefix string
	plain  bool
	macs   *sync.Pool // of *mac; nil without a secret
}

// mac is an HMAC with a buffer to bring it the bytes of a string.
type mac struct {
	hash hash.Hash
	buf  []byte
}

func newKeyspace(cfg Config) (keyspace, error) {
	k := keyspace{prefix: cfg.Prefix, plain: cfg.PlainKeys}
	if k.prefix == "" {
		k.prefix = defaultPrefix
	}
	if !validPrefix(k.prefix) {
		const want = "1 to 64 printable ASCII characters without space, { and }"
		return keyspace{}, &InputError{Field: "Prefix", Value: strconv.Quote(clip(k.prefix)), Want: want, fault: ErrInvalidConfig}
	}
	if cfg.Secret == nil {
		return k, nil
	}
	// An empty secret is most likely one that failed to load. To take it for none would publish what it should have hidden.
	if len(cfg.Secret) < minSecret {
		size := strconv.Itoa(len(cfg.Secret)) + " bytes"
		return keyspace{}, &InputError{Field: "Secret", Value: size, Want: "nil, or at least 16 bytes", fault: ErrInvalidConfig}
	}
	if k.plain {
		return keyspace{}, &InputError{Field: "PlainKeys", Value: "true", Want: "false where there is a Secret", fault: ErrInvalidConfig}
	}
	secret := append([]byte(nil), cfg.Secret...)
	k.macs = &sync.Pool{New: func() any { return &mac{hash: hmac.New(sha256.New, secret)} }}
	return k, nil
}

func validPrefix(s string) bool {
	for _, c := range []byte(s) {
		if c <= ' ' || c > '~' || c == '{' || c == '}' {
			return false
		}
	}
	return len(s) <= maxPrefix
}

// key is the Redis key of a policy on a subject. A tag puts it into the tag's slot; none, or the subject itself, is the
// subject's.
func (k *keyspace) key(subject, tag string, p Policy) string {
	var room [160]byte // enough for hashed keys with usual prefixes and names: no allocation but the string
	b := append(room[:0], k.prefix...)
	b = append(b, ":{"...)
	tagged := tag != "" && tag != subject
	if tagged {
		b = k.appendSubject(b, tag)
	} else {
		b = k.appendSubject(b, subject)
	}
	if p.shards > 0 {
		b = strconv.AppendInt(append(b, '*'), int64(p.shard), 10)
	}
	b = append(b, "}:"...)
	if tagged {
		b = append(k.appendSubject(b, subject), ':')
	}
	return string(p.appendKey(b))
}

func (k *keyspace) appendSubject(b []byte, subject string) []byte {
	if k.plain {
		if len(subject) <= maxPlain {
			if escaped := appendEscaped(b, subject); len(escaped)-len(b) <= maxPlain {
				return escaped
			}
		}
		b = append(b, longSubject...)
	}
	digest := k.digest(subject)
	return hex.AppendEncode(b, digest[:])
}

// digest is the digest of a subject: what stands for it in hashed keys.
func (k *keyspace) digest(subject string) (digest [digestSize]byte) {
	if k.macs == nil {
		sum := sha256.Sum256([]byte(subject))
		copy(digest[:], sum[:])
		return digest
	}
	m := k.macs.Get().(*mac)
	m.hash.Reset()
	m.buf = append(m.buf[:0], subject...)
	m.hash.Write(m.buf)
	m.buf = m.hash.Sum(m.buf[:0])
	copy(digest[:], m.buf)
	if cap(m.buf) <= maxKept {
		k.macs.Put(m)
	}
	return digest
}

// appendEscaped writes printable ASCII as it is, but for % { and }, and every other byte as % and two hex digits.
func appendEscaped(b []byte, s string) []byte {
	const digits = "0123456789ABCDEF"
	for _, c := range []byte(s) {
		if c <= ' ' || c > '~' || c == '%' || c == '{' || c == '}' {
			b = append(b, '%', digits[c>>4], digits[c&15])
		} else {
			b = append(b, c)
		}
	}
	return b
}
