// Rate limits in Redis or Valkey, decided by the scripts of Sluice. One file to copy; it needs node-redis or ioredis.
//
//   import { createClient } from 'redis'
//   const client = await createClient({ disableOfflineQueue: true }).on('error', console.error).connect()
//   // or: import { Redis } from 'ioredis'
//   // const client = new Redis({ maxRetriesPerRequest: 0 })
//
//   const limiter = new Limiter(client, { scripts: 'scripts' }) // the folder of the .lua files; default: that of this file
//   const login = slidingLog(5, 60_000, 'login')                // 5 in any 60 000 ms
//
//   const verdict = await limiter.take('203.0.113.7', login)
//   if (!verdict.allowed) console.log(`try again in ${verdict.retryAfterMs} ms`)
//
// What may be given (units, milliseconds) and what comes back is told in the .lua files. A Go service with the same
// prefix and secret shares its limits with this.
//
// Errors: ArgumentError, StateError, and whatever the client throws. After a lost connection or a time-out nobody knows
// whether a take or a settle was charged, so it is sent once and never again.

import { createHash, createHmac } from 'node:crypto'
import { readdirSync, readFileSync } from 'node:fs'
import { basename, dirname, join } from 'node:path'
import { fileURLToPath } from 'node:url'

/** An argument is out of its range: nothing was read or written. */
export class ArgumentError extends RangeError {}

/** The key holds something that is not this policy's: nothing was written. */
export class StateError extends Error {}

/** At most limit units in any window, exactly. */
export const slidingLog = (limit, windowMs, name) => policy('log', 'sliding_log', [limit, windowMs], name)

/** About limit units in any window, in constant memory. */
export const slidingCounter = (limit, windowMs, name) => policy('counter', 'sliding_counter', [limit, windowMs], name)

/** A burst of capacity units, then refill units each period. */
export const tokenBucket = (capacity, refill, periodMs, name) =>
  policy('bucket', 'token_bucket', [capacity, refill, periodMs], name)

// A policy's part of a key is its name, or else its kind and its window.
function policy(kind, script, numbers, name) {
  if (name !== undefined && !/^[A-Za-z0-9._-]{1,64}$/.test(name)) {
    throw new ArgumentError('name must be 1 to 64 of the characters A-Z a-z 0-9 . _ -')
  }
  return Object.freeze({ script, numbers: numbers.map(String), part: name ?? `${kind}/${numbers.at(-1)}` })
}

/** Joins the parts of a subject (a route and an address, say) so that different parts never give the same one. */
export function key(...parts) {
  const bytes = parts.map((part) => Buffer.from(part))
  if (bytes.every((part) => part.length === 0)) return Buffer.alloc(0)
  return Buffer.concat(bytes.flatMap((part) => [Buffer.from(`${part.length}:`), part]))
}

/** Decides by the scripts. Subjects are strings (their UTF-8 counts) or bytes. */
export class Limiter {
  #send
  #unlink
  #prefix
  #secret
  #scripts = new Map()

  /**
   * @param client of node-redis or ioredis
   * @param {{ scripts?: string, prefix?: string, secret?: Uint8Array }} options  a secret has at least 16 bytes
   */
  constructor(client, { scripts = dirname(fileURLToPath(import.meta.url)), prefix = 'sluice', secret } = {}) {
    if (!/^[!-z|~]{1,64}$/.test(prefix)) {
      throw new ArgumentError('prefix must be 1 to 64 printable ASCII characters without space, { and }')
    }
    if (secret !== undefined && !(secret instanceof Uint8Array && secret.length >= 16)) {
      throw new ArgumentError('secret must be undefined, or at least 16 bytes')
    }
    this.#prefix = prefix
    this.#secret = secret
    for (const file of readdirSync(scripts).filter((file) => file.endsWith('.lua'))) {
      const text = readFileSync(join(scripts, file))
      const sha1 = createHash('sha1').update(text).digest('hex')
      this.#scripts.set(basename(file, '.lua'), { text: text.toString(), sha1 })
    }
    if (this.#scripts.size === 0) throw new Error(`no .lua files in ${scripts}`)
    if (client.evalSha) {
      // node-redis never sends again what it has sent, but keeps what it could not send, to charge it when nobody waits.
      if (!client.options?.disableOfflineQueue) throw new ArgumentError('the client needs disableOfflineQueue: true')
      this.#send = (how, script, keys, args) =>
        client[how === 'EVALSHA' ? 'evalSha' : 'eval'](script, { keys, arguments: args })
    } else {
      // ioredis sends again after a lost connection, by default, which charges twice.
      if (client.options.maxRetriesPerRequest !== 0) throw new ArgumentError('the client needs maxRetriesPerRequest: 0')
      if (client.options.keyPrefix) throw new ArgumentError('the client must have no keyPrefix: it makes other keys')
      this.#send = (how, script, keys, args) => client.call(how, script, keys.length, ...keys, ...args)
    }
    this.#unlink = (key) => client.unlink(key)
  }

  /** Asks for cost units and charges all of them, or none if they are not free. */
  async take(subject, policy, cost = 1) {
    return this.#decide('take', this.redisKey(subject, policy), policy, cost)
  }

  /** Tells whether take would be allowed, and what is free now. Charges nothing. */
  async peek(subject, policy, cost = 1) {
    return this.#decide('peek', this.redisKey(subject, policy), policy, cost)
  }

  /** Corrects a charge, once, now that its true cost is known. */
  async settle(result, actual) {
    if (result.charged === undefined) throw new ArgumentError('only a result that charged can be settled')
    return this.#decide('settle', result.key, result.policy, actual - result.charged, result.serverTimeUs)
  }

  /** Forgets what was used. */
  async reset(subject, policy) {
    await this.#unlink(this.redisKey(subject, policy))
  }

  /** The Redis key of a policy on a subject: prefix:{digest}:policy. A tag puts it into the tag's cluster slot. */
  redisKey(subject, policy, tag = '') {
    subject = Buffer.from(subject)
    tag = Buffer.from(tag)
    if (subject.length === 0) throw new ArgumentError('subject must not be empty')
    const own = this.#digest(subject)
    if (tag.length === 0 || tag.equals(subject)) return `${this.#prefix}:{${own}}:${policy.part}`
    return `${this.#prefix}:{${this.#digest(tag)}}:${own}:${policy.part}`
  }

  /** Calls a script ('token_bucket', 'multi') by its digest, and by its text if the server does not know it. */
  async call(script, keys, args) {
    const { text, sha1 } = this.#scripts.get(script)
    try {
      return await this.#send('EVALSHA', sha1, keys, args).catch((err) => {
        if (!err.message.startsWith('NOSCRIPT ')) throw err
        return this.#send('EVAL', text, keys, args) // nothing ran; after any other error it might have
      })
    } catch (err) {
      if (err.message.startsWith('SLUICEARG ')) throw new ArgumentError(err.message, { cause: err })
      if (err.message.startsWith('SLUICESTATE ')) throw new StateError(err.message, { cause: err })
      throw err
    }
  }

  // retryAfterMs is 0 if allowed, Infinity if the cost is above the limit. charged is what settle can correct.
  async #decide(operation, key, policy, cost, ...receipt) {
    const args = [operation, String(cost), ...policy.numbers, ...receipt.map(String)]
    const [allowed, remaining, retry, resetAfterMs, serverTimeUs] = await this.call(policy.script, [key], args)
    return {
      allowed: allowed === 1,
      remaining,
      retryAfterMs: retry < 0 ? Infinity : retry,
      resetAfterMs,
      serverTimeUs,
      key,
      policy,
      charged: allowed === 1 && operation === 'take' ? cost : undefined,
    }
  }

  #digest(subject) {
    const hash = this.#secret ? createHmac('sha256', this.#secret) : createHash('sha256')
    return hash.update(subject).digest('hex').slice(0, 32)
  }
}
