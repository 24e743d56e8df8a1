// Puts sluice.mjs under the tests: node agent.mjs node-redis|ioredis. The protocol is told in docs/porting.md.

import { createInterface } from 'node:readline'
import { Redis } from 'ioredis'
import { createClient } from 'redis'
import * as sluice from './sluice.mjs'

const url = `redis://${process.env.REDIS_ADDR}/${process.env.SLUICE_DB}`
const scripts = process.env.SLUICE_SCRIPTS
const timeoutMs = 1000 * process.env.SLUICE_TIMEOUT
const quiet = () => {} // a lost connection is told by the command that it fails
const client =
  process.argv[2] === 'ioredis'
    ? new Redis(url, { lazyConnect: true, maxRetriesPerRequest: 0, enableOfflineQueue: false }).on('error', quiet)
    : createClient({ url, disableOfflineQueue: true }).on('error', quiet)
await client.connect()

let limiter = new sluice.Limiter(client, { scripts, timeoutMs })
let last

const unhex = (word) => Buffer.from(word.slice(1), 'hex')

function policy([script, ...words]) {
  const make = { sliding_log: sluice.slidingLog, sliding_counter: sluice.slidingCounter, token_bucket: sluice.tokenBucket }
  const count = script === 'token_bucket' ? 3 : 2
  return make[script](...words.slice(0, count).map(Number), ...words.slice(count))
}

function told({ allowed, remaining, retryAfterMs, resetAfterMs, serverTimeUs }) {
  const retry = retryAfterMs === Infinity ? -1 : retryAfterMs
  return ['reply', allowed ? 1 : 0, remaining, retry, resetAfterMs, serverTimeUs].join(' ')
}

const verbs = {
  limiter(prefix, secret) {
    const options = { scripts, prefix: unhex(prefix).toString(), secret: secret === '-' ? undefined : unhex(secret) }
    limiter = new sluice.Limiter(client, { ...options, timeoutMs })
    return 'ok'
  },
  retrying() {
    const careless = process.argv[2] === 'ioredis' ? new Redis(url, { lazyConnect: true }) : createClient({ url })
    return new sluice.Limiter(careless, { scripts }) && 'ok'
  },
  join: (...parts) => `bytes x${sluice.key(...parts.map(unhex)).toString('hex')}`,
  key: (subject, tag, ...words) => `text ${limiter.redisKey(unhex(subject), policy(words), unhex(tag))}`,
  async call(script, count, ...words) {
    const args = words.map(unhex)
    return `reply ${(await limiter.call(script, args.slice(0, count), args.slice(count))).join(' ')}`
  },
  async take(subject, cost, ...words) {
    return told((last = await limiter.take(unhex(subject), policy(words), Number(cost))))
  },
  async peek(subject, cost, ...words) {
    return told(await limiter.peek(unhex(subject), policy(words), Number(cost)))
  },
  async settle(actual) {
    return told(await limiter.settle(last, Number(actual)))
  },
  async reset(subject, ...words) {
    await limiter.reset(unhex(subject), policy(words))
    return 'ok'
  },
}

for await (const line of createInterface({ input: process.stdin })) {
  const [verb, ...words] = line.split(' ')
  let answer
  try {
    answer = await verbs[verb](...words)
  } catch (err) {
    const kinds = { argument: sluice.ArgumentError, state: sluice.StateError, reply: sluice.ReplyError, other: Error }
    const kind = Object.keys(kinds).find((kind) => err instanceof kinds[kind])
    answer = `error ${kind} ${err.message.replaceAll('\n', ' ')}`
  }
  console.log(answer)
}
process.exit()
