"""Puts sluice.py under the tests: python3 agent.py sync|async. The protocol is told in docs/porting.md."""

import asyncio
import os
import sys

import redis
import redis.asyncio
from redis.backoff import NoBackoff
from redis.retry import Retry

import sluice

SCRIPTS = os.environ["SLUICE_SCRIPTS"]
MAKERS = {"sliding_log": sluice.sliding_log, "sliding_counter": sluice.sliding_counter, "token_bucket": sluice.token_bucket}


def connect(module, retries=0):
    host, port = os.environ["REDIS_ADDR"].rsplit(":", 1)
    db, timeout = int(os.environ["SLUICE_DB"]), float(os.environ["SLUICE_TIMEOUT"])
    retry = Retry(NoBackoff(), retries)
    return module.Redis(host=host, port=int(port), db=db, socket_timeout=timeout, retry=retry, retry_on_timeout=retries > 0)


def unhex(word):
    return bytes.fromhex(word[1:])


def policy(words):
    count = 3 if words[0] == "token_bucket" else 2
    return MAKERS[words[0]](*map(int, words[1 : count + 1]), *words[count + 1 :])


def told(result):
    retry = -1 if result.retry_after_ms is None else result.retry_after_ms
    return f"reply {int(result.allowed)} {result.remaining} {retry} {result.reset_after_ms} {result.server_time_us}"


class Agent:
    def __init__(self, module, limiter, run):
        self.module, self.make, self.run = module, limiter, run
        self.client = connect(module)
        self.limiter = limiter(self.client, SCRIPTS)
        self.last = None

    def answer(self, verb, words):
        if verb == "limiter":
            prefix, secret = unhex(words[0]).decode(), None if words[1] == "-" else unhex(words[1])
            self.limiter = self.make(self.client, SCRIPTS, prefix=prefix, secret=secret)
            return "ok"
        if verb == "retrying":
            self.make(connect(self.module, retries=1), SCRIPTS)
            return "ok"
        if verb == "join":
            return "bytes x" + sluice.key(*map(unhex, words)).hex()
        if verb == "key":
            return "text " + self.limiter.redis_key(unhex(words[0]), policy(words[2:]), unhex(words[1]))
        if verb == "call":
            count = int(words[1])
            args = [unhex(word) for word in words[2:]]
            return "reply " + " ".join(map(str, self.run(self.limiter.call(words[0], args[:count], args[count:]))))
        if verb == "take":
            self.last = self.run(self.limiter.take(unhex(words[0]), policy(words[2:]), int(words[1])))
            return told(self.last)
        if verb == "peek":
            return told(self.run(self.limiter.peek(unhex(words[0]), policy(words[2:]), int(words[1]))))
        if verb == "settle":
            return told(self.run(self.limiter.settle(self.last, int(words[0]))))
        if verb == "reset":
            self.run(self.limiter.reset(unhex(words[0]), policy(words[1:])))
            return "ok"
        raise ValueError(f"unknown verb {verb}")

    def serve(self):
        for line in sys.stdin:
            verb, *words = line.split()
            try:
                answer = self.answer(verb, words)
            except sluice.ArgumentError as err:
                answer = f"error argument {err}"
            except sluice.StateError as err:
                answer = f"error state {err}"
            except sluice.ReplyError as err:
                answer = f"error reply {err}"
            except Exception as err:  # whatever it is, the tests want to see it
                answer = f"error other {err!r}"
            print(answer, flush=True)


if sys.argv[1] == "sync":
    Agent(redis, sluice.Limiter, lambda result: result).serve()
else:
    Agent(redis.asyncio, sluice.AsyncLimiter, asyncio.new_event_loop().run_until_complete).serve()
