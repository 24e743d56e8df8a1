// Rate limits in Redis or Valkey, decided by the scripts of Sluice. One file to copy; it needs Node 18, and node-redis or
// ioredis (tested with Node 20, node-redis 5.9.0 and 6.3.1 and ioredis 5.9.3 and 6.0.0):
//
//   npm install redis    # or: npm install ioredis
//
//   import { createClient } from 'redis'
//   const client = await createClient({ disableOfflineQueue: true }).on('error', console.error).connect()
//   // or: import { Redis } from 'ioredis'
//   // const client = new Redis({ lazyConnect: true, maxRetriesPerRequest: 0, enableOfflineQueue: false })
//   // await client.on('error', console.error).connect()
//
//   // scripts: the folder of the .lua files; default: that of this file
//   const limiter = new Limiter(client, { scripts: 'scripts', timeoutMs: 500 })
//   const login = slidingLog(5, 60_000, 'login') // 5 in any 60 000 ms
//
//   const verdict = await limiter.take('203.0.113.7', login)
//   if (!verdict.allowed) console.log(`try again in ${verdict.retryAfterMs} ms`)
//
// What may be given (units, milliseconds) and what comes back is told in the .lua files. A Go service with the same
// prefix and secret shares its limits with this, except sharded policies.
//
// Errors: ArgumentError, StateError, ReplyError, and whatever the client throws. After a lost connection or a time-out
// nobody knows whether a take or a settle was charged, so it is sent once and never again. A client that would send it
// again, or keep it to send it later, is refused, and so are clients of a whole cluster: that of ioredis charges up to 17
// times, whatever its options say. Give it the client of one node. It connects again on its own, after an idle connection
// was closed, say; until it has, a call fails at once.

import { createHash, createHmac } from 'node:crypto'
import { readdirSync, readFileSync } from 'node:fs'
import { basename, dirname, join } from 'node:path'
import { fileURLToPath } from 'node:url'

/** An argument is out of its range: nothing was read or written. */
export class ArgumentError extends RangeError {}

/** The key holds something that is not this policy's: nothing was written. */
export class StateError extends Error {}

/** The answer is not what the script gives: something between changes it. Nobody knows whether a call was charged. */
export class ReplyError extends Error {}

/** At most limit units in any window, exactly. */
export const slidingLog = (limit, windowMs, name) => policy('log', 'sliding_log', { limit, windowMs }, name)

/** About limit units in any window, in constant memory. */
export const slidingCounter = (limit, windowMs, name) => policy('counter', 'sliding_counter', { limit, windowMs }, name)

/** A burst of capacity units, then refill units each period. */
export const tokenBucket = (capacity, refill, periodMs, name) =>
  policy('bucket', 'token_bucket', { capacity, refill, periodMs }, name)

const UNITS = 1_000_000_000
const WINDOW_MS = 31_622_400_000 // 366 days

// One that came as JSON, from who knows where, is none: its part would go into a key as it is.
class Policy {}

// A policy's part of a key is its name, or else its kind and its window.
function policy(kind, script, numbers, name) {
  for (const [what, number] of Object.entries(numbers)) integer(what, number, 1, what.endsWith('Ms') ? WINDOW_MS : UNITS)
  if (name !== undefined && !(typeof name === 'string' && /^[A-Za-z0-9._-]{1,64}$/.test(name))) {
    throw new ArgumentError('name must be 1 to 64 of the characters A-Z a-z 0-9 . _ -')
  }
  numbers = Object.freeze(Object.values(numbers).map(String))
  return Object.freeze(Object.assign(new Policy(), { script, numbers, part: name ?? `${kind}/${numbers.at(-1)}` }))
}

function made(policy) {
  if (policy instanceof Policy) return policy
  throw new ArgumentError('policy must be made by slidingLog, slidingCounter or tokenBucket')
}

/** Joins the parts of a subject (a route and an address, say) so that different parts never give the same one. */
export function key(...parts) {
  const bytes = parts.map((part) => bytesOf('part', part))
  if (bytes.every((part) => part.length === 0)) return Buffer.alloc(0)
  return Buffer.concat(bytes.flatMap((part) => [Buffer.from(`${part.length}:`), part]))
}

// Anything else that Buffer.from takes would make the same key of different subjects: { length: 1 } and [0], say. A lone
// surrogate has no UTF-8.
function bytesOf(what, text) {
  if (text instanceof Uint8Array) return Buffer.from(text)
  if (typeof text === 'string' && !/\p{Surrogate}/u.test(text)) return Buffer.from(text)
  throw new ArgumentError(`${what} must be a string of well-formed Unicode, or a Uint8Array`)
}

// A BigInt is none: what comes back are Numbers, and the two don't mix.
function integer(what, number, least, most) {
  if (Number.isInteger(number) && least <= number && number <= most) return number
  throw new ArgumentError(`${what} must be a Number, an integer from ${least} to ${most}`)
}

// The numbers of a reply. A client may have been told to make strings of them.
function numbersOf(reply, count) {
  const integer = (value) => (typeof value !== 'object' && /^-?\d+$/.test(value) ? Number(value) : NaN)
  const numbers = [reply].flat().map(integer)
  if (numbers.length !== count || !numbers.every(Number.isSafeInteger)) {
    throw new ReplyError(`the reply must be ${count} integer${count > 1 ? 's' : ''}: ${JSON.stringify(reply)?.slice(0, 64)}`)
  }
  return numbers
}

/** Decides by the scripts. Subjects are strings of well-formed Unicode (their UTF-8 counts) or bytes. */
export class Limiter {
  #send
  #unlink
  #prefix
  #secret
  #timeoutMs
  #folder
  #scripts = new Map()

  /**
   * @param client of node-redis (createClient) or ioredis (Redis), connected
   * @param {{ scripts?: string, prefix?: string, secret?: Uint8Array, timeoutMs?: number }} options
   *   secret: at least 16 bytes. timeoutMs: how long to wait for an answer; undefined: as long as the client does.
   */
  constructor(client, { scripts = dirname(fileURLToPath(import.meta.url)), prefix = 'sluice', secret, timeoutMs } = {}) {
    if (!(typeof prefix === 'string' && /^[!-z|~]{1,64}$/.test(prefix))) {
      throw new ArgumentError('prefix must be 1 to 64 printable ASCII characters without space, { and }')
    }
    if (secret !== undefined && !(secret instanceof Uint8Array && secret.length >= 16)) {
      throw new ArgumentError('secret must be undefined, or a Uint8Array of at least 16 bytes')
    }
    if (timeoutMs !== undefined) integer('timeoutMs', timeoutMs, 1, 2 ** 31 - 1) // setTimeout makes 1 ms of any other
    this.#prefix = prefix
    this.#secret = secret && Buffer.from(secret)
    this.#timeoutMs = timeoutMs
    this.#folder = scripts
    for (const file of readdirSync(scripts).filter((file) => file.endsWith('.lua'))) {
      const text = readFileSync(join(scripts, file))
      const sha1 = createHash('sha1').update(text).digest('hex')
      this.#scripts.set(basename(file, '.lua'), { text: text.toString(), sha1 })
    }
    if (this.#scripts.size === 0) throw new Error(`no .lua files in ${scripts}`)
    if (!(client?.evalSha || client?.call)) throw new ArgumentError('the client must be of node-redis or of ioredis')
    if (client.isCluster || client.nodeClient) {
      // That of ioredis sends again after a lost connection, 16 times, whatever its options say.
      throw new ArgumentError('the client must be of one node and not of a cluster, which may send a charge again')
    }
    if (client.isPipeline) throw new ArgumentError('the client must not be a pipeline, which charges later')
    if (client.evalSha) {
      // node-redis never sends again what it has sent, but keeps what it could not send, to charge it when nobody waits.
      if (!client.options?.disableOfflineQueue) {
        throw new ArgumentError('the client must be of createClient({ disableOfflineQueue: true }), and no pool')
      }
      this.#send = (how, script, keys, args) =>
        client[how === 'EVALSHA' ? 'evalSha' : 'eval'](script, { keys, arguments: args })
    } else {
      // ioredis, by default, sends again after a lost connection, which charges twice, and keeps what it could not send.
      if (client.options?.maxRetriesPerRequest !== 0) throw new ArgumentError('the client needs maxRetriesPerRequest: 0')
      if (client.options.enableOfflineQueue !== false) throw new ArgumentError('the client needs enableOfflineQueue: false')
      if (client.options.keyPrefix) throw new ArgumentError('the client must have no keyPrefix: it makes other keys')
      this.#send = (how, script, keys, args) => client.call(how, script, keys.length, ...keys, ...args)
    }
    this.#unlink = (key) => client.unlink(key)
  }

  /** Asks for cost units and charges all of them, or none if they are not free. */
  async take(subject, policy, cost = 1) {
    return this.#decide('take', this.redisKey(subject, policy), policy, integer('cost', cost, 0, UNITS))
  }

  /** Tells whether take would be allowed, and what is free now. Charges nothing. */
  async peek(subject, policy, cost = 1) {
    return this.#decide('peek', this.redisKey(subject, policy), policy, integer('cost', cost, 0, UNITS))
  }

  /** Corrects a charge, once, now that its true cost is known. */
  async settle(result, actual) {
    if (result?.charged === undefined) throw new ArgumentError('only a result that charged can be settled')
    const difference = integer('actual', actual, 0, UNITS) - integer('charged', result.charged, 0, UNITS)
    const receipt = integer('serverTimeUs', result.serverTimeUs, 0, Number.MAX_SAFE_INTEGER)
    if (typeof result.key !== 'string') throw new ArgumentError('key must be that of a result of take')
    return this.#decide('settle', result.key, made(result.policy), difference, receipt)
  }

  /** Forgets what was used. */
  async reset(subject, policy) {
    numbersOf(await this.#inTime(this.#unlink(this.redisKey(subject, policy))), 1)
  }

  /** The Redis key of a policy on a subject: prefix:{digest}:policy. A tag puts it into the tag's cluster slot. */
  redisKey(subject, policy, tag = '') {
    const { part } = made(policy)
    subject = bytesOf('subject', subject)
    tag = bytesOf('tag', tag)
    if (subject.length === 0) throw new ArgumentError('subject must not be empty')
    const own = this.#digest(subject)
    if (tag.length === 0 || tag.equals(subject)) return `${this.#prefix}:{${own}}:${part}`
    return `${this.#prefix}:{${this.#digest(tag)}}:${own}:${part}`
  }

  /**
   * Calls a script ('token_bucket', 'multi') by its digest, and by its text if the server does not know it.
   * @param {string} script
   * @param {(string | Uint8Array | number)[]} keys
   * @param {(string | Uint8Array | number)[]} args
   */
  async call(script, keys, args) {
    const { text, sha1 } = this.#scripts.get(script) ?? {}
    if (text === undefined) throw new Error(`no ${script}.lua in ${this.#folder}`)
    const word = (what) => (value) => (Number.isSafeInteger(value) ? String(value) : bytesOf(what, value)) // node-redis takes no number
    keys = keys.map(word('key'))
    args = args.map(word('argument'))
    try {
      const reply = await this.#inTime(this.#send('EVALSHA', sha1, keys, args)).catch((err) => {
        if (!err.message.startsWith('NOSCRIPT ')) throw err
        return this.#inTime(this.#send('EVAL', text, keys, args)) // nothing ran; after any other error it might have
      })
      return numbersOf(reply, script === 'multi' ? 2 + 5 * keys.length : 5)
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

  // node-redis has no time-out for what it has sent.
  #inTime(answer) {
    if (this.#timeoutMs === undefined) return answer
    let timer
    const late = new Promise((_, reject) => {
      timer = setTimeout(() => reject(new Error(`no answer in ${this.#timeoutMs} ms`)), this.#timeoutMs)
    })
    return Promise.race([answer, late]).finally(() => clearTimeout(timer))
  }

  #digest(subject) {
    const hash = this.#secret ? createHmac('sha256', this.#secret) : createHash('sha256')
    return hash.update(subject).digest('hex').slice(0, 32)
  }
}
