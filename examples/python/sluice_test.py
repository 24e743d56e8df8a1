"""What the vectors can't ask of sluice.py.

REDIS_ADDR=127.0.0.1:6379 SLUICE_SCRIPTS=../../scripts python3 sluice_test.py
"""

import asyncio
import os
import unittest

import redis
import redis.asyncio
import redis.asyncio.cluster
from redis.backoff import NoBackoff
from redis.retry import Retry

import sluice
from sluice import ArgumentError, AsyncLimiter, Limiter

SCRIPTS = os.environ["SLUICE_SCRIPTS"]
FIVE = sluice.sliding_log(5, 60_000)


def connect(module):
    host, port = os.environ["REDIS_ADDR"].rsplit(":", 1)
    return module.Redis(host=host, port=int(port), socket_timeout=5, retry=Retry(NoBackoff(), 0))


class Test(unittest.TestCase):
    def test_other_clients_are_refused(self):
        client, asynchronous = connect(redis), connect(redis.asyncio)
        cluster = redis.RedisCluster.__new__(redis.RedisCluster)  # not connected: there is none here
        async_cluster = redis.asyncio.cluster.RedisCluster.__new__(redis.asyncio.cluster.RedisCluster)
        for limiter, others in (
            (Limiter, (asynchronous, client.pipeline(), cluster, None)),
            (AsyncLimiter, (client, asynchronous.pipeline(), async_cluster, None)),
        ):
            for other in others:
                with self.subTest(limiter=limiter, other=type(other)):
                    with self.assertRaisesRegex(ArgumentError, "needs a redis"):
                        limiter(other, SCRIPTS)

    def test_costs_are_integers(self):
        limiter = Limiter(connect(redis), SCRIPTS)
        result = limiter.take("costs", FIVE)
        for cost in ("1", b"1", 1.0, True, None):
            with self.subTest(cost=cost):
                with self.assertRaisesRegex(ArgumentError, "^cost"):
                    limiter.take("costs", FIVE, cost)
                with self.assertRaisesRegex(ArgumentError, "^actual"):
                    limiter.settle(result, cost)
                with self.assertRaisesRegex(ArgumentError, "^cost"):
                    asyncio.run(AsyncLimiter(connect(redis.asyncio), SCRIPTS).take("costs", FIVE, cost))
        peeked = limiter.peek("costs", FIVE)
        self.assertEqual(peeked.remaining, 4)
        with self.assertRaisesRegex(ArgumentError, "only a result that charged"):
            limiter.settle(peeked, 1)

    def test_only_text_and_bytes_make_a_key(self):
        limiter = Limiter(connect(redis), SCRIPTS)
        for subject in ("\ud800", 5, None, True, ["a"]):
            with self.subTest(subject=subject):
                with self.assertRaises(ArgumentError):
                    limiter.redis_key(subject, FIVE)
                with self.assertRaises(ArgumentError):
                    sluice.key("api", subject)
        self.assertEqual(limiter.redis_key(bytearray(b"a"), FIVE), limiter.redis_key("a", FIVE))
        for secret in ("sixteen letters.", [1] * 16, b"", 0):
            with self.subTest(secret=secret):
                with self.assertRaisesRegex(ArgumentError, "^secret"):
                    Limiter(connect(redis), SCRIPTS, secret=secret)

    def test_a_script_that_is_not_there(self):
        with self.assertRaisesRegex(FileNotFoundError, r"no leaky_bucket\.lua in "):
            Limiter(connect(redis), SCRIPTS).call("leaky_bucket", ["k"], [])


unittest.main()
