"""What the vectors can't ask of sluice.py.

REDIS_ADDR=127.0.0.1:6379 SLUICE_SCRIPTS=../../scripts python3 sluice_test.py
"""

import array
import asyncio
import dataclasses
import os
import unittest
import uuid
from enum import Enum, IntEnum

import redis
import redis.asyncio
import redis.asyncio.cluster
from redis.backoff import NoBackoff
from redis.retry import Retry

import sluice
from sluice import ArgumentError, AsyncLimiter, Limiter

SCRIPTS = os.environ["SLUICE_SCRIPTS"]
PREFIX = f"test{uuid.uuid4().hex}"  # this run's own
FIVE = sluice.sliding_log(5, 60_000)
NO_NUMBERS = ("5", b"5", 5.0, 5.5, float("nan"), True, None, [5], -1, 10**9 + 1, 10**5000)


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

    def test_tasks_do_not_share_a_connection(self):
        host, port = os.environ["REDIS_ADDR"].rsplit(":", 1)
        retry = Retry(NoBackoff(), 0)
        single = redis.asyncio.Redis(host=host, port=int(port), retry=retry, single_connection_client=True)
        for client in (single, connect(redis.asyncio).client()):
            with self.assertRaisesRegex(ArgumentError, "a connection for each task"):
                AsyncLimiter(client, SCRIPTS)

    def test_costs_are_integers(self):
        limiter = Limiter(connect(redis), SCRIPTS, prefix=PREFIX)
        asynchronous = AsyncLimiter(connect(redis.asyncio), SCRIPTS, prefix=PREFIX)
        result = limiter.take("costs", FIVE)
        for cost in NO_NUMBERS:
            for verb, call in (
                ("cost", lambda limiter: limiter.take("costs", FIVE, cost)),
                ("cost", lambda limiter: limiter.peek("costs", FIVE, cost)),
                ("actual", lambda limiter: limiter.settle(result, cost)),
            ):
                with self.subTest(verb=verb):
                    with self.assertRaisesRegex(ArgumentError, f"^{verb} must be an int from 0 to 1000000000$"):
                        call(limiter)
                    with self.assertRaisesRegex(ArgumentError, f"^{verb} must be an int from 0 to 1000000000$"):
                        asyncio.run(call(asynchronous))
        peeked = limiter.peek("costs", FIVE)
        self.assertEqual(peeked.remaining, 4)
        for other in (peeked, None, 5):
            with self.assertRaisesRegex(ArgumentError, "^result must be of a take that was allowed"):
                limiter.settle(other, 1)
            with self.assertRaisesRegex(ArgumentError, "^result must be of a take that was allowed"):
                asyncio.run(asynchronous.settle(other, 1))

    def test_a_result_that_comes_back_is_checked(self):
        limiter = Limiter(connect(redis), SCRIPTS, prefix=PREFIX)
        asynchronous = AsyncLimiter(connect(redis.asyncio), SCRIPTS, prefix=PREFIX)
        result = limiter.take("settled", FIVE)
        for field, values in {
            "charged": ("3", True, 3.0, -1, 10**9 + 1),
            "server_time_us": ("1", None, True, -1, 2**53),
            "key": (5, None, b"k", {}),
            "policy": (None, "log:5/1m", {}, dataclasses.asdict(FIVE)),
        }.items():
            for value in values:
                forged = dataclasses.replace(result, **{field: value})
                with self.subTest(field=field, value=value):
                    with self.assertRaisesRegex(ArgumentError, f"^{field} must be"):
                        limiter.settle(forged, 1)
                    with self.assertRaisesRegex(ArgumentError, f"^{field} must be"):
                        asyncio.run(asynchronous.settle(forged, 1))
        self.assertEqual(limiter.settle(result, 0).remaining, 5)

    def test_numbers_of_policies_are_integers(self):
        for number in (*NO_NUMBERS, 0, 31_622_400_001):
            with self.subTest(number=type(number)):
                with self.assertRaisesRegex(ArgumentError, "^limit must be an int from 1 to 1000000000$"):
                    sluice.sliding_log(number, 1000)
                with self.assertRaisesRegex(ArgumentError, "^capacity"):
                    sluice.token_bucket(number, 1, 1000)
                with self.assertRaisesRegex(ArgumentError, "^refill"):
                    sluice.token_bucket(5, number, 1000)
                if number == 10**9 + 1:
                    continue
                with self.assertRaisesRegex(ArgumentError, "^window_ms must be an int from 1 to 31622400000$"):
                    sluice.sliding_counter(5, number)
                with self.assertRaisesRegex(ArgumentError, "^period_ms"):
                    sluice.token_bucket(5, 1, number)
        for made in (("log", (5,)), ("leaky", (5, 1000)), ("bucket", (5, 1000)), (["log"], (5, 5)), ("log", 5), ("log", None), ("log", {5, 6})):
            with self.assertRaisesRegex(ArgumentError, "^policy must be made by"):
                sluice.Policy(*made)
        for policy in (None, "log:5/1m", 5):
            with self.assertRaisesRegex(ArgumentError, "^policy must be made by"):
                Limiter(connect(redis), SCRIPTS).take("a", policy)
            with self.assertRaisesRegex(ArgumentError, "^policy must be made by"):
                asyncio.run(AsyncLimiter(connect(redis.asyncio), SCRIPTS).take("a", policy))

    def test_enums_are_their_values(self):
        class Numbers(IntEnum):
            FIVE = 5

        class Names(str, Enum):
            LOGIN = "login"

        policy = sluice.sliding_log(Numbers.FIVE, 60_000, name=Names.LOGIN)
        named = Limiter(connect(redis), SCRIPTS, prefix=Names.LOGIN)
        self.assertRegex(named.redis_key(Names.LOGIN, policy), r"^login:\{[0-9a-f]{32}\}:login$")
        limiter = Limiter(connect(redis), SCRIPTS, prefix=PREFIX)
        self.assertEqual(limiter.take(Names.LOGIN, policy, Numbers.FIVE).remaining, 0)

    def test_only_text_and_bytes_make_a_key(self):
        limiter = Limiter(connect(redis), SCRIPTS)
        for subject in ("\ud800", 5, 5.0, None, True, ["a"], array.array("i", [97])):
            with self.subTest(subject=subject):
                with self.assertRaises(ArgumentError):
                    limiter.redis_key(subject, FIVE)
                with self.assertRaises(ArgumentError):
                    sluice.key("api", subject)
        for subject in (bytearray(b"a"), memoryview(b"a")):
            self.assertEqual(limiter.redis_key(subject, FIVE), limiter.redis_key("a", FIVE))
        for limiter, module in ((Limiter, redis), (AsyncLimiter, redis.asyncio)):
            for secret in ("sixteen letters.", [1] * 16, b"", 0, 16, True):
                with self.subTest(secret=secret):
                    with self.assertRaisesRegex(ArgumentError, "^secret"):
                        limiter(connect(module), SCRIPTS, secret=secret)
            for prefix in (None, 5, 5.0, True, b"p", ["p"], "", "p\n"):
                with self.subTest(prefix=prefix):
                    with self.assertRaisesRegex(ArgumentError, "^prefix"):
                        limiter(connect(module), SCRIPTS, prefix=prefix)
        for name in (5, 5.0, True, b"n", ["n"], "", "n\n"):
            with self.subTest(name=name):
                with self.assertRaisesRegex(ArgumentError, "^name"):
                    sluice.sliding_log(5, 1000, name)

    def test_a_transaction_that_was_opened_by_hand(self):
        client = connect(redis).client()  # one connection
        limiter = Limiter(client, SCRIPTS, prefix=PREFIX)
        client.execute_command("MULTI")
        for call in (limiter.take, limiter.reset):
            with self.assertRaisesRegex((sluice.ReplyError, ValueError), "QUEUED"):  # redis-py 4 itself says so of an UNLINK
                call("queued", FIVE)
        client.execute_command("DISCARD")
        self.assertEqual(limiter.peek("queued", FIVE).remaining, 5)

        async def asynchronous():
            client = connect(redis.asyncio)  # which keeps to one connection while it is asked by one task
            limiter = AsyncLimiter(client, SCRIPTS, prefix=PREFIX)
            await client.execute_command("MULTI")
            for call in (limiter.take, limiter.reset):
                with self.assertRaisesRegex((sluice.ReplyError, ValueError), "QUEUED"):
                    await call("queued", FIVE)
            await client.execute_command("DISCARD")
            self.assertEqual((await limiter.peek("queued", FIVE)).remaining, 5)
            await client.close()

        asyncio.run(asynchronous())

    def test_a_script_that_is_not_there(self):
        with self.assertRaisesRegex(FileNotFoundError, r"no leaky_bucket\.lua in "):
            Limiter(connect(redis), SCRIPTS).call("leaky_bucket", ["k"], [])


unittest.main()
