"""Rate limits in Redis or Valkey, decided by the scripts of Sluice. One file to copy; it needs Python 3.9 and
redis-py 4.3 (tested with Python 3.11 and redis-py 4.3.4 and 6.1.0, those of Debian 12 and 13):

    apt install python3-redis    # or: pip install 'redis>=4.3'

    import redis, sluice
    from redis.backoff import NoBackoff
    from redis.retry import Retry

    client = redis.Redis(retry=Retry(NoBackoff(), 0), socket_timeout=0.5)
    limiter = sluice.Limiter(client, "scripts")          # the folder of the .lua files; default: that of this file
    login = sluice.sliding_log(5, 60_000, name="login")  # 5 in any 60 000 ms

    verdict = limiter.take("203.0.113.7", login)
    if not verdict:
        print(f"try again in {verdict.retry_after_ms} ms")

AsyncLimiter is the same for redis.asyncio, with await. Neither takes a RedisCluster, which sends commands again on its
own and can't be told not to in every version: give it the client of one node. AsyncLimiter takes no client of a single
connection either, which some versions give to several tasks at once. What may be given (units, milliseconds)
and what comes back is told in the .lua files. A Go service with the same prefix and secret shares its limits with this,
except sharded policies. A subject is bytes, or a str of well-formed Unicode, whose UTF-8 counts.

Errors: ArgumentError, StateError, ReplyError, and whatever redis-py raises. After a ConnectionError or a TimeoutError
nobody knows whether a take or a settle was charged, so it is sent once and never again. A connection that the
server closed while it was idle is made anew.

For asyncio from PyPI take redis>=4.5.5: versions before may keep a connection whose command was cancelled, and give its late
answer to the next (CVE-2023-28858, CVE-2023-28859). Debian 12 has not patched its 4.3.4. That closes the connection, by its
source, and in some hundred cancellations at random moments no answer went astray.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import re
from dataclasses import dataclass
from pathlib import Path

import redis
import redis.asyncio
from redis.exceptions import NoScriptError, ResponseError

__all__ = ["ArgumentError", "AsyncLimiter", "Limiter", "Policy", "ReplyError", "Result", "StateError", "key",
           "sliding_counter", "sliding_log", "token_bucket"]


class ArgumentError(ValueError):
    """An argument is out of its range: nothing was read or written."""


class StateError(RuntimeError):
    """The key holds something that is not this policy's: nothing was written."""


class ReplyError(RuntimeError):
    """The answer is not what the script gives: something between changes it. Nobody knows whether it was charged."""


_UNITS = 1_000_000_000
_WINDOW_MS = 31_622_400_000  # 366 days
_NUMBERS = {  # of each kind, and the most that each can be
    "log": (("limit", _UNITS), ("window_ms", _WINDOW_MS)),
    "counter": (("limit", _UNITS), ("window_ms", _WINDOW_MS)),
    "bucket": (("capacity", _UNITS), ("refill", _UNITS), ("period_ms", _WINDOW_MS)),
}


def _integer(what: str, number: int, least: int, most: int) -> int:
    # A bool would be sent as no number. Of an IntEnum the number is taken.
    if not isinstance(number, int) or isinstance(number, bool) or not least <= number <= most:
        raise ArgumentError(f"{what} must be an int from {least} to {most}")
    return int(number)


def _text(what: str, text: str) -> str:
    if not isinstance(text, str):
        raise ArgumentError(f"{what} must be a str")
    return str.__str__(text)  # of an Enum of str its value, where str() and f"" have the name of the member


@dataclass(frozen=True)
class Policy:
    """One limit; made by sliding_log, sliding_counter and token_bucket."""

    kind: str  # log, counter, bucket
    numbers: tuple  # as the script takes them; the window or period is the last
    name: str | None = None

    def __post_init__(self):
        names = _NUMBERS.get(self.kind, ()) if isinstance(self.kind, str) else ()
        if not names or not isinstance(self.numbers, (tuple, list)) or len(self.numbers) != len(names):
            raise ArgumentError("policy must be made by sliding_log, sliding_counter or token_bucket")
        numbers = tuple(_integer(what, number, 1, most) for (what, most), number in zip(names, self.numbers))
        object.__setattr__(self, "numbers", numbers)
        if self.name is not None:
            object.__setattr__(self, "name", _text("name", self.name))
            if not re.fullmatch(r"[A-Za-z0-9._-]{1,64}", self.name):
                raise ArgumentError("name must be 1 to 64 of the characters A-Z a-z 0-9 . _ -")

    @property
    def script(self) -> str:
        return {"log": "sliding_log", "counter": "sliding_counter", "bucket": "token_bucket"}[self.kind]

    @property
    def part(self) -> str:
        """The policy's part of a key."""
        return self.name if self.name is not None else f"{self.kind}/{self.numbers[-1]}"


def sliding_log(limit: int, window_ms: int, name: str | None = None) -> Policy:
    """At most limit units in any window, exactly."""
    return Policy("log", (limit, window_ms), name)


def sliding_counter(limit: int, window_ms: int, name: str | None = None) -> Policy:
    """About limit units in any window, in constant memory."""
    return Policy("counter", (limit, window_ms), name)


def token_bucket(capacity: int, refill: int, period_ms: int, name: str | None = None) -> Policy:
    """A burst of capacity units, then refill units each period."""
    return Policy("bucket", (capacity, refill, period_ms), name)


@dataclass(frozen=True)
class Result:
    """What a script answered. It is true if the call was allowed."""

    allowed: bool
    remaining: int  # units free after this call
    retry_after_ms: int | None  # 0 if allowed; None: never, the cost is above the limit
    reset_after_ms: int  # until the whole limit is free
    server_time_us: int  # of the decision; the receipt for settle
    key: str
    policy: Policy
    charged: int | None  # units; None: nothing that could be settled

    def __bool__(self) -> bool:
        return self.allowed


def key(*parts: str | bytes) -> bytes:
    """Joins the parts of a subject (a route and an address, say) so that different parts never give the same one."""
    parts = [_bytes(part) for part in parts]
    return b"".join(b"%d:%s" % (len(part), part) for part in parts) if any(parts) else b""


def _bytes(text: str | bytes) -> bytes:
    try:
        if isinstance(text, (str, bytes, bytearray, memoryview)):
            return text.encode() if isinstance(text, str) else bytes(text)
    except UnicodeEncodeError:  # a lone surrogate has no UTF-8
        pass
    raise ArgumentError("subject, tag and parts must be bytes, or a str of well-formed Unicode")


def _policy(policy: Policy) -> Policy:
    if not isinstance(policy, Policy):
        raise ArgumentError("policy must be made by sliding_log, sliding_counter or token_bucket")
    return policy


def _args(operation: str, cost: int, policy: Policy) -> list:
    return [operation, _integer("cost", cost, 0, _UNITS), *policy.numbers]


class _Limiter:
    """All but the sending."""

    _kinds: tuple  # the client's class, and that of its pipelines

    def __init__(self, client, scripts=Path(__file__).parent, *, prefix: str = "sluice", secret: bytes | None = None):
        prefix = _text("prefix", prefix)
        if not re.fullmatch(r"[!-z|~]{1,64}", prefix):
            raise ArgumentError("prefix must be 1 to 64 printable ASCII characters without space, { and }")
        if secret is not None and not (isinstance(secret, (bytes, bytearray)) and len(secret) >= 16):
            raise ArgumentError("secret must be None, or at least 16 bytes")
        wanted, pipeline = self._kinds
        if not isinstance(client, wanted) or isinstance(client, pipeline):
            wanted, given = wanted.__module__.removesuffix(".client"), type(client)
            raise ArgumentError(f"{type(self).__name__} needs a {wanted}.Redis, no pipeline and no cluster:"
                                f" this is a {given.__module__}.{given.__name__}")
        pool = client.connection_pool
        # redis-py sends a command again after a lost connection, by default since 6.0: it would charge twice.
        if getattr(pool.connection_class(**pool.connection_kwargs).retry, "_retries", 0) != 0:
            raise ArgumentError("the client must not retry: redis.Redis(retry=Retry(NoBackoff(), 0))")
        self._client, self._prefix, self._secret = client, prefix, secret and bytes(secret)
        self._folder, self._scripts = scripts, {}
        for path in Path(scripts).glob("*.lua"):
            text = path.read_bytes()
            self._scripts[path.stem] = text, hashlib.sha1(text, usedforsecurity=False).hexdigest()
        if not self._scripts:
            raise FileNotFoundError(f"no .lua files in {scripts}")

    def redis_key(self, subject: str | bytes, policy: Policy, tag: str | bytes = b"") -> str:
        """The Redis key of a policy on a subject: prefix:{digest}:policy. A tag puts it into the tag's cluster slot."""
        _policy(policy)
        subject, tag = _bytes(subject), _bytes(tag)
        if not subject:
            raise ArgumentError("subject must not be empty")
        if tag and tag != subject:
            return f"{self._prefix}:{{{self._digest(tag)}}}:{self._digest(subject)}:{policy.part}"
        return f"{self._prefix}:{{{self._digest(subject)}}}:{policy.part}"

    def _script(self, name: str) -> tuple[bytes, str]:
        if name not in self._scripts:
            raise FileNotFoundError(f"no {name}.lua in {self._folder}")
        return self._scripts[name]

    def _digest(self, subject: bytes) -> str:
        digest = hmac.new(self._secret, subject, "sha256") if self._secret else hashlib.sha256(subject)
        return digest.hexdigest()[:32]


def _numbers(reply, script: str, keys: list) -> list[int]:
    count = 2 + 5 * len(keys) if script == "multi" else 5
    if not isinstance(reply, list) or len(reply) != count or not all(type(number) is int for number in reply):
        raise ReplyError(f"the reply must be {count} integers: {reply!r:.64}")
    return reply


def _count(reply) -> None:
    if type(reply) is not int:
        raise ReplyError(f"the reply must be an integer: {reply!r:.64}")


def _result(reply, key: str, policy: Policy, charged: int | None) -> Result:
    allowed, remaining, retry, reset, time = reply
    retry = None if retry < 0 else retry
    return Result(allowed == 1, remaining, retry, reset, time, key, policy, charged if allowed == 1 else None)


def _settling(result: Result, actual: int) -> tuple[str, Policy, list]:
    if not isinstance(result, Result) or result.charged is None:
        raise ArgumentError("result must be of a take that was allowed: nothing else can be settled")
    difference = _integer("actual", actual, 0, _UNITS) - _integer("charged", result.charged, 0, _UNITS)
    receipt = _integer("server_time_us", result.server_time_us, 0, 2**53 - 1)
    policy = _policy(result.policy)
    return _text("key", result.key), policy, ["settle", difference, *policy.numbers, receipt]


@contextlib.contextmanager
def _typed_errors():
    try:
        yield
    except ResponseError as err:
        text = str(err)
        if text.startswith("SLUICEARG "):
            raise ArgumentError(text) from err
        if text.startswith("SLUICESTATE "):
            raise StateError(text) from err
        raise


class Limiter(_Limiter):
    """Decides by the scripts, through a redis.Redis. It may be shared between threads, as the client may."""

    _kinds = redis.Redis, redis.client.Pipeline

    def take(self, subject, policy: Policy, cost: int = 1) -> Result:
        """Asks for cost units and charges all of them, or none if they are not free."""
        key = self.redis_key(subject, policy)
        return _result(self.call(policy.script, [key], _args("take", cost, policy)), key, policy, cost)

    def peek(self, subject, policy: Policy, cost: int = 1) -> Result:
        """Tells whether take would be allowed, and what is free now. Charges nothing."""
        key = self.redis_key(subject, policy)
        return _result(self.call(policy.script, [key], _args("peek", cost, policy)), key, policy, None)

    def settle(self, result: Result, actual: int) -> Result:
        """Corrects a charge, once, now that its true cost is known."""
        key, policy, args = _settling(result, actual)
        return _result(self.call(policy.script, [key], args), key, policy, None)

    def reset(self, subject, policy: Policy) -> None:
        """Forgets what was used."""
        _count(self._client.unlink(self.redis_key(subject, policy)))

    def call(self, script: str, keys: list, args: list) -> list[int]:
        """Calls a script ("token_bucket", "multi") by its digest, and by its text if the server does not know it."""
        text, sha1 = self._script(script)
        with _typed_errors():
            try:
                reply = self._client.evalsha(sha1, len(keys), *keys, *args)
            except NoScriptError:  # nothing ran; after any other error it might have
                reply = self._client.eval(text, len(keys), *keys, *args)
        return _numbers(reply, script, keys)


class AsyncLimiter(_Limiter):
    """Limiter for a redis.asyncio.Redis."""

    _kinds = redis.asyncio.Redis, redis.asyncio.client.Pipeline

    def __init__(self, client, *args, **options):
        super().__init__(client, *args, **options)
        # Of tasks that share one, redis-py 4.3 gives the late answer to a cancelled command to another.
        if client.single_connection_client:
            raise ArgumentError("the client must have a connection for each task: no client(), no single_connection_client")

    async def take(self, subject, policy: Policy, cost: int = 1) -> Result:
        key = self.redis_key(subject, policy)
        return _result(await self.call(policy.script, [key], _args("take", cost, policy)), key, policy, cost)

    async def peek(self, subject, policy: Policy, cost: int = 1) -> Result:
        key = self.redis_key(subject, policy)
        return _result(await self.call(policy.script, [key], _args("peek", cost, policy)), key, policy, None)

    async def settle(self, result: Result, actual: int) -> Result:
        key, policy, args = _settling(result, actual)
        return _result(await self.call(policy.script, [key], args), key, policy, None)

    async def reset(self, subject, policy: Policy) -> None:
        _count(await self._client.unlink(self.redis_key(subject, policy)))

    async def call(self, script: str, keys: list, args: list) -> list[int]:
        text, sha1 = self._script(script)
        with _typed_errors():
            try:
                reply = await self._client.evalsha(sha1, len(keys), *keys, *args)
            except NoScriptError:
                reply = await self._client.eval(text, len(keys), *keys, *args)
        return _numbers(reply, script, keys)
