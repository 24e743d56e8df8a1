// Two log-ins a minute, and the third: REDIS_ADDR=127.0.0.1:6379 node demo.mjs [node-redis | ioredis], after npm ci here

import { Redis } from 'ioredis'
import { createClient } from 'redis'
import { fileURLToPath } from 'node:url'
import { Limiter, slidingLog } from './sluice.mjs'

const url = `redis://${process.env.REDIS_ADDR}`
const client =
  process.argv[2] === 'ioredis'
    ? new Redis(url, { lazyConnect: true, maxRetriesPerRequest: 0, enableOfflineQueue: false })
    : createClient({ url, disableOfflineQueue: true })
await client.on('error', console.error).connect()
const limiter = new Limiter(client, { scripts: fileURLToPath(new URL('../../scripts', import.meta.url)), timeoutMs: 5000 })
const login = slidingLog(2, 60_000, 'login')

for (let i = 0; i < 3; i++) {
  const verdict = await limiter.take('203.0.113.7', login)
  if (verdict.allowed) {
    console.log(`allowed, ${verdict.remaining} left`)
  } else {
    console.log(`denied, try again in ${verdict.retryAfterMs} ms`)
  }
}
client.destroy ? client.destroy() : client.disconnect()
