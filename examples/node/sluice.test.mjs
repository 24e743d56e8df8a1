// What the vectors can't ask of sluice.mjs: REDIS_ADDR=127.0.0.1:6379 SLUICE_SCRIPTS=../../scripts node sluice.test.mjs

import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import test, { after } from 'node:test'
import { Cluster, Redis } from 'ioredis'
import { createClient, createClientPool, createCluster, createSentinel, RESP_TYPES } from 'redis'
import { ArgumentError, key, Limiter, ReplyError, slidingCounter, slidingLog, tokenBucket } from './sluice.mjs'

const url = `redis://${process.env.REDIS_ADDR}`
const scripts = process.env.SLUICE_SCRIPTS
const prefix = `test${randomUUID()}` // this run's own
const careful = { lazyConnect: true, maxRetriesPerRequest: 0, enableOfflineQueue: false }
const five = slidingLog(5, 60_000)

const nodeRedis = await createClient({ url, disableOfflineQueue: true }).connect()
const ioredis = new Redis(url, { ...careful, stringNumbers: true })
await ioredis.connect()
after(() => nodeRedis.destroy())
after(() => ioredis.disconnect())

const refused = (call, message) => assert.throws(call, (err) => err instanceof ArgumentError && message.test(err.message))

test('a client that sends again, or later, is refused', () => {
  const node = [{ host: '127.0.0.1', port: 1 }]
  for (const [client, message] of [
    [new Cluster(node, { ...careful, redisOptions: careful }), /cluster/],
    [createCluster({ rootNodes: [{ url }], disableOfflineQueue: true, defaults: { disableOfflineQueue: true } }), /cluster/],
    [createClient({ url }), /disableOfflineQueue/],
    [createClientPool({ url, disableOfflineQueue: true }), /pool/],
    [new Redis(url, { ...careful, maxRetriesPerRequest: 20 }), /maxRetriesPerRequest/],
    [new Redis(url, { ...careful, enableOfflineQueue: true }), /enableOfflineQueue/],
    [new Redis(url, { ...careful, keyPrefix: 'x:' }), /keyPrefix/],
    [new Redis(url, careful).pipeline(), /pipeline/],
    [new Redis(url, careful).multi(), /pipeline/],
    [nodeRedis.multi(), /disableOfflineQueue/],
    [createSentinel({ name: 'a', sentinelRootNodes: node, nodeClientOptions: { disableOfflineQueue: true } }), /disableOfflineQueue/],
    ...[undefined, null, 5, 'redis', {}].map((other) => [other, /node-redis or of ioredis/]),
  ]) {
    refused(() => new Limiter(client, { scripts }), message)
  }
})

test('numbers that the client makes strings of', async () => {
  const typed = nodeRedis.withTypeMapping({ [RESP_TYPES.NUMBER]: String })
  for (const [name, client] of Object.entries({ typed, ioredis })) {
    const { allowed, remaining, retryAfterMs } = await new Limiter(client, { scripts, prefix }).take(name, five)
    assert.deepEqual({ allowed, remaining, retryAfterMs }, { allowed: true, remaining: 4, retryAfterMs: 0 })
  }
})

// Neither client can tell beforehand that it is within a transaction: the answer tells.
test('a transaction that was opened by hand', async () => {
  for (const [name, client, send] of [
    ['in node-redis', nodeRedis, (word) => nodeRedis.sendCommand([word])],
    ['in ioredis', ioredis, (word) => ioredis.call(word)],
  ]) {
    const limiter = new Limiter(client, { scripts, prefix })
    await send('MULTI')
    await assert.rejects(limiter.take(name, five), (err) => err instanceof ReplyError && /QUEUED/.test(err.message))
    await assert.rejects(limiter.reset(name, five), (err) => err instanceof ReplyError && /QUEUED/.test(err.message))
    await send('DISCARD')
    assert.equal((await limiter.peek(name, five)).remaining, 5)
  }
})

const noNumbers = ['5', 5n, 5.5, NaN, Infinity, -1, 2 ** 53, 1e21, true, null, [5], new Number(5), Symbol('5'), { valueOf: () => 5 }]

test('only integers make a policy', () => {
  for (const policy of [undefined, null, 'log:5/1m', {}, { ...five }]) {
    refused(() => new Limiter(nodeRedis, { scripts }).redisKey('a', policy), /^policy must be made by/)
  }
  for (const number of [...noNumbers, undefined, 0]) {
    refused(() => slidingLog(number, 1000), /^limit must be a Number, an integer from 1 to 1000000000$/)
    refused(() => slidingCounter(5, number), /^windowMs must be a Number, an integer from 1 to 31622400000$/)
    refused(() => tokenBucket(number, 1, 1000), /^capacity/)
    refused(() => tokenBucket(5, number, 1000), /^refill/)
    refused(() => tokenBucket(5, 1, number), /^periodMs/)
  }
  for (const timeoutMs of [...noNumbers, 0, 2 ** 31]) refused(() => new Limiter(nodeRedis, { scripts, timeoutMs }), /^timeoutMs/)
})

test('only text and bytes make a key, only integers a cost', async () => {
  const limiter = new Limiter(nodeRedis, { scripts, prefix })
  for (const subject of [['a'], [97], { length: 20_000_000 }, new Uint16Array([353]), 5, null, undefined, Symbol('a'), '\ud800', 'a\udc00b']) {
    refused(() => limiter.redisKey(subject, five), /^subject/)
    refused(() => limiter.redisKey('a', five, subject ?? 5), /^tag/)
    refused(() => key('api', subject), /^part/)
  }
  assert.equal(limiter.redisKey(new Uint8Array([97]), five), limiter.redisKey('a', five))
  assert.equal(String(key('😀', Buffer.from('b'))), '4:😀1:b')
  const result = await limiter.take('costs', five)
  const rejected = (call, message) => assert.rejects(call, (err) => err instanceof ArgumentError && message.test(err.message))
  for (const number of noNumbers) {
    await rejected(limiter.take('costs', five, number), /^cost/)
    await rejected(limiter.peek('costs', five, number), /^cost/)
    await rejected(limiter.settle(result, number), /^actual/)
    await rejected(limiter.settle({ ...result, charged: number }, 1), /^charged/)
    await rejected(limiter.settle({ ...result, serverTimeUs: number }, 1), /^serverTimeUs/)
  }
  for (const [name, client] of Object.entries({ nodeRedis, ioredis })) {
    const limiter = new Limiter(client, { scripts, prefix })
    for (const other of [{}, 5, null, undefined, Buffer.from('k')]) await rejected(limiter.settle({ ...result, key: other }, 1), /^key/)
    for (const other of [undefined, null, {}, { ...five }]) await rejected(limiter.settle({ ...result, policy: other }, 1), /^policy/)
    assert.equal((await limiter.call('sliding_log', [`${prefix}:${name}`], ['take', 2, 5, Buffer.from('1000')]))[1], 3)
    for (const other of [5.5, true, null, {}, ['a']]) {
      await rejected(limiter.call('sliding_log', [other], ['take', 1, 5, 1000]), /^key/)
      await rejected(limiter.call('sliding_log', ['k'], ['take', other, 5, 1000]), /^argument/)
    }
  }
  await rejected(limiter.settle(undefined, 1), /only a result that charged/)
  const peeked = await limiter.peek('costs', five)
  assert.equal(peeked.remaining, 4)
  await assert.rejects(limiter.settle(peeked, 1), ArgumentError)
  for (const name of [true, 5, null, ['a'], 'a\n', '', Symbol('a'), Buffer.from('a')]) refused(() => slidingLog(5, 1000, name), /^name/)
  for (const prefix of [5, null, ['a'], 'a\n', '', Symbol('a'), Buffer.from('a')]) refused(() => new Limiter(nodeRedis, { scripts, prefix }), /^prefix/)
  for (const secret of ['0123456789abcdef', 16, null, new Uint16Array(16), new Uint8Array(15)]) {
    refused(() => new Limiter(nodeRedis, { scripts, secret }), /Uint8Array/)
  }
})

test('a script that is not there', async () => {
  await assert.rejects(new Limiter(nodeRedis, { scripts }).call('leaky_bucket', ['k'], []), /no leaky_bucket\.lua in /)
})

test('no answer in time', async () => {
  let sent = 0
  const deaf = { options: careful, call: () => new Promise(() => sent++), unlink: () => new Promise(() => {}) }
  const limiter = new Limiter(deaf, { scripts, timeoutMs: 20 })
  await assert.rejects(limiter.take('a', five), /no answer in 20 ms/)
  await assert.rejects(limiter.reset('a', five), /no answer in 20 ms/)
  assert.equal(sent, 1)
})
