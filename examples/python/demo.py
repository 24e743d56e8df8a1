"""Two log-ins a minute, and the third: REDIS_ADDR=127.0.0.1:6379 python3 demo.py (what it needs is told in sluice.py)"""

import os
from pathlib import Path

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

import sluice

host, port = os.environ["REDIS_ADDR"].rsplit(":", 1)
client = redis.Redis(host=host, port=int(port), retry=Retry(NoBackoff(), 0), socket_timeout=5)
limiter = sluice.Limiter(client, Path(__file__).parent.parent.parent / "scripts")
login = sluice.sliding_log(2, 60_000, name="login")

for _ in range(3):
    verdict = limiter.take("203.0.113.7", login)
    if verdict:
        print(f"allowed, {verdict.remaining} left")
    else:
        print(f"denied, try again in {verdict.retry_after_ms} ms")
