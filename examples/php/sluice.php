<?php

declare(strict_types=1);

/**
 * Rate limits in Redis or Valkey, decided by the scripts of Sluice. One file to copy; it needs PHP 8.1 and phpredis
 * (tested with PHP 8.2 and phpredis 5.3.7, those of Debian 12):
 *
 *   apt install php-redis    # or: pecl install redis
 *
 *   require 'sluice.php';
 *
 *   $redis = new Redis();
 *   $redis->connect('127.0.0.1', 6379, 0.5);
 *   $redis->setOption(Redis::OPT_READ_TIMEOUT, 0.5); // the 0.5 above is for connecting alone
 *   $limiter = new Sluice\Limiter($redis, 'scripts'); // the folder of the .lua files; default: that of this file
 *   $login = Sluice\Policy::slidingLog(5, 60_000, 'login'); // 5 in any 60 000 ms
 *
 *   $verdict = $limiter->take('203.0.113.7', $login);
 *   if (!$verdict->allowed) {
 *       echo "try again in {$verdict->retryAfterMs} ms\n";
 *   }
 *
 * What may be given (units, milliseconds) and what comes back is told in the .lua files. A Go service with the same
 * prefix and secret shares its limits with this, except sharded policies.
 *
 * Numbers are ints and text is strings: nothing is made of a 5.5, a '5' or a true, whether the caller has strict types or not.
 *
 * Errors: ArgumentException, StateException, ReplyException, and RedisException for all else. After a lost connection or a
 * time-out nobody knows whether a take or a settle was charged, so it is sent once and never again. A RedisCluster is not
 * taken, since nobody has tried whether it does so too, and neither is a Redis in multi or pipeline mode.
 *
 * Give it a Redis of its own. After a time-out phpredis keeps the connection, on which the late answer would be the next
 * command's: the limiter closes it, and is back in its database with its next call, but only with that. What others leave
 * unanswered on the same Redis it can't know of. A connection that the server closed while it was idle is made anew.
 */

namespace Sluice;

/** An argument is out of its range: nothing was read or written. */
final class ArgumentException extends \InvalidArgumentException
{
}

/** The key holds something that is not this policy's: nothing was written. */
final class StateException extends \RuntimeException
{
}

/** The answer is not what the script gives: something between changes it. Nobody knows whether a call was charged. */
final class ReplyException extends \RuntimeException
{
}

/** @internal A caller without strict types would have PHP make an int or a string of other things. */
final class Check
{
    public const UNITS = 1_000_000_000;
    public const WINDOW_MS = 31_622_400_000; // 366 days

    public static function integer(string $what, mixed $value, int $least, int $most): int
    {
        if (!is_int($value) || $value < $least || $value > $most) {
            throw new ArgumentException("$what must be an integer from $least to $most");
        }
        return $value;
    }

    public static function text(string $what, mixed $value): string
    {
        return is_string($value) ? $value : throw new ArgumentException("$what must be a string");
    }

    public static function policy(mixed $value): Policy
    {
        return $value instanceof Policy ? $value
            : throw new ArgumentException('policy must be made by slidingLog, slidingCounter or tokenBucket');
    }
}

/** One limit. */
final class Policy
{
    /** @param int[] $numbers as the script takes them; part is the policy's part of a key */
    private function __construct(
        public readonly string $script,
        public readonly array $numbers,
        public readonly string $part,
    ) {
    }

    /**
     * At most limit units in any window, exactly.
     *
     * @param int $limit
     * @param int $windowMs
     * @param ?string $name
     */
    public static function slidingLog(mixed $limit, mixed $windowMs, mixed $name = null): self
    {
        return self::make('log', 'sliding_log', ['limit' => $limit, 'windowMs' => $windowMs], $name);
    }

    /**
     * About limit units in any window, in constant memory.
     *
     * @param int $limit
     * @param int $windowMs
     * @param ?string $name
     */
    public static function slidingCounter(mixed $limit, mixed $windowMs, mixed $name = null): self
    {
        return self::make('counter', 'sliding_counter', ['limit' => $limit, 'windowMs' => $windowMs], $name);
    }

    /**
     * A burst of capacity units, then refill units each period.
     *
     * @param int $capacity
     * @param int $refill
     * @param int $periodMs
     * @param ?string $name
     */
    public static function tokenBucket(mixed $capacity, mixed $refill, mixed $periodMs, mixed $name = null): self
    {
        $numbers = ['capacity' => $capacity, 'refill' => $refill, 'periodMs' => $periodMs];
        return self::make('bucket', 'token_bucket', $numbers, $name);
    }

    /** @param array<string, mixed> $numbers */
    private static function make(string $kind, string $script, array $numbers, mixed $name): self
    {
        foreach ($numbers as $what => $number) {
            Check::integer($what, $number, 1, str_ends_with($what, 'Ms') ? Check::WINDOW_MS : Check::UNITS);
        }
        if ($name !== null && !preg_match('/^[A-Za-z0-9._-]{1,64}$/D', Check::text('name', $name))) {
            throw new ArgumentException('name must be 1 to 64 of the characters A-Z a-z 0-9 . _ -');
        }
        return new self($script, array_values($numbers), $name ?? $kind . '/' . end($numbers));
    }
}

/** What a script answered. */
final class Result
{
    private function __construct(
        public readonly bool $allowed,
        /** Units free after this call. */
        public readonly int $remaining,
        /** 0 if allowed; null: never, the cost is above the limit. */
        public readonly ?int $retryAfterMs,
        /** Until the whole limit is free. */
        public readonly int $resetAfterMs,
        /** Of the decision; the receipt for settle. */
        public readonly int $serverTimeUs,
        public readonly string $key,
        public readonly Policy $policy,
        /** Units; null: nothing that could be settled. */
        public readonly ?int $charged,
    ) {
    }

    /**
     * @internal
     *
     * @param int[] $reply
     * @param ?int $charged
     */
    public static function of(array $reply, string $key, Policy $policy, mixed $charged): self
    {
        [$allowed, $remaining, $retry, $reset, $time] = $reply;
        $charged = $allowed === 1 ? $charged : null;
        return new self($allowed === 1, $remaining, $retry < 0 ? null : $retry, $reset, $time, $key, $policy, $charged);
    }
}

/**
 * Joins the parts of a subject (a route and an address, say) so that different parts never give the same one.
 *
 * @param string ...$parts
 */
function key(mixed ...$parts): string
{
    $parts = array_map(static fn (mixed $part): string => Check::text('part', $part), $parts);
    $framed = array_map(static fn (string $part): string => strlen($part) . ':' . $part, $parts);
    return implode('', $parts) === '' ? '' : implode('', $framed);
}

/** Decides by the scripts, through a \Redis of phpredis (not a \RedisCluster). */
final class Limiter
{
    /** @var array<string, array{string, string}> texts and digests */
    private array $texts = [];

    /** @var ?\WeakMap<\Redis, true> clients that were closed, and will be in database 0 when they are connected again */
    private static ?\WeakMap $closed = null;

    /**
     * @param string $prefix
     * @param ?string $secret at least 16 bytes
     */
    public function __construct(
        private readonly \Redis $redis,
        private readonly string $scripts = __DIR__,
        private readonly mixed $prefix = 'sluice',
        private readonly mixed $secret = null,
    ) {
        if (!preg_match('/^[!-z|~]{1,64}$/D', Check::text('prefix', $prefix))) {
            throw new ArgumentException('prefix must be 1 to 64 printable ASCII characters without space, { and }');
        }
        if ($secret !== null && strlen(Check::text('secret', $secret)) < 16) {
            throw new ArgumentException('secret must be null, or at least 16 bytes');
        }
        foreach (is_dir($scripts) ? scandir($scripts) : [] as $file) {
            if (str_ends_with($file, '.lua')) {
                $text = file_get_contents("$scripts/$file");
                $this->texts[basename($file, '.lua')] = [$text, sha1($text)];
            }
        }
        if (!$this->texts) {
            throw new \RuntimeException("no .lua files in $scripts");
        }
    }

    /**
     * Asks for cost units and charges all of them, or none if they are not free.
     *
     * @param string $subject
     * @param Policy $policy
     * @param int $cost
     */
    public function take(mixed $subject, mixed $policy, mixed $cost = 1): Result
    {
        $cost = Check::integer('cost', $cost, 0, Check::UNITS);
        return $this->decide('take', $this->redisKey($subject, $policy), $policy, $cost);
    }

    /**
     * Tells whether take would be allowed, and what is free now. Charges nothing.
     *
     * @param string $subject
     * @param Policy $policy
     * @param int $cost
     */
    public function peek(mixed $subject, mixed $policy, mixed $cost = 1): Result
    {
        $cost = Check::integer('cost', $cost, 0, Check::UNITS);
        return $this->decide('peek', $this->redisKey($subject, $policy), $policy, $cost);
    }

    /**
     * Corrects a charge, once, now that its true cost is known.
     *
     * @param Result $result
     * @param int $actual
     */
    public function settle(mixed $result, mixed $actual): Result
    {
        $actual = Check::integer('actual', $actual, 0, Check::UNITS);
        if (!$result instanceof Result || $result->charged === null) {
            throw new ArgumentException('only a result that charged can be settled');
        }
        $difference = $actual - Check::integer('charged', $result->charged, 0, Check::UNITS); // it may come from a session
        $receipt = Check::integer('serverTimeUs', $result->serverTimeUs, 0, 2 ** 53 - 1);
        return $this->decide('settle', $result->key, $result->policy, $difference, $receipt);
    }

    /**
     * Forgets what was used.
     *
     * @param string $subject
     * @param Policy $policy
     */
    public function reset(mixed $subject, mixed $policy): void
    {
        $reply = $this->command('UNLINK', $this->redisKey($subject, $policy));
        if (!is_int($reply)) {
            throw new ReplyException('the reply must be an integer: ' . self::shown($reply));
        }
    }

    /**
     * The Redis key of a policy on a subject: prefix:{digest}:policy. A tag puts it into the tag's cluster slot.
     *
     * @param string $subject
     * @param Policy $policy
     * @param string $tag
     */
    public function redisKey(mixed $subject, mixed $policy, mixed $tag = ''): string
    {
        $part = Check::policy($policy)->part;
        Check::text('tag', $tag);
        if (Check::text('subject', $subject) === '') {
            throw new ArgumentException('subject must not be empty');
        }
        $own = $this->digest($subject);
        if ($tag === '' || $tag === $subject) {
            return "$this->prefix:{{$own}}:$part";
        }
        return "$this->prefix:{{$this->digest($tag)}}:$own:$part";
    }

    /**
     * Calls a script ('token_bucket', 'multi') by its digest, and by its text if the server does not know it.
     *
     * @param string[] $keys
     * @param array<int|string> $args
     * @return int[]
     */
    public function call(string $script, array $keys, array $args): array
    {
        [$text, $sha1] = $this->texts[$script] ?? throw new \RuntimeException("no $script.lua in $this->scripts");
        $words = [count($keys), ...array_values($keys), ...array_values($args)]; // names in an array would be others' places
        if ($words !== array_filter($words, static fn (mixed $word): bool => is_string($word) || is_int($word))) {
            throw new ArgumentException('keys and args must be strings or ints');
        }
        try {
            try {
                $reply = $this->command('EVALSHA', $sha1, ...$words);
            } catch (\RedisException $e) {
                if (!str_starts_with($e->getMessage(), 'NOSCRIPT ')) {
                    throw $e;
                }
                $reply = $this->command('EVAL', $text, ...$words); // nothing ran before
            }
        } catch (\RedisException $e) {
            throw match (explode(' ', $e->getMessage(), 2)[0]) {
                'SLUICEARG' => new ArgumentException($e->getMessage(), 0, $e),
                'SLUICESTATE' => new StateException($e->getMessage(), 0, $e),
                default => $e,
            };
        }
        $count = $script === 'multi' ? 2 + 5 * count($keys) : 5;
        if (!is_array($reply) || count($reply) !== $count || $reply !== array_filter($reply, 'is_int')) {
            throw new ReplyException("the reply must be $count integers: " . self::shown($reply));
        }
        return $reply;
    }

    /**
     * rawCommand leaves the key as it is, where evalSha puts OPT_PREFIX before it. phpredis throws some error replies and
     * returns others as false.
     */
    private function command(string|int ...$words): mixed
    {
        if ($this->redis->getMode() !== \Redis::ATOMIC) {
            throw new ArgumentException('the client must not be in multi or pipeline mode: there is no answer then');
        }
        self::$closed ??= new \WeakMap();
        $this->redis->clearLastError();
        try {
            $reply = false;
            if (!isset(self::$closed[$this->redis]) || $this->redis->select($this->redis->getDbNum())) {
                unset(self::$closed[$this->redis]);
                $reply = $this->redis->rawCommand(...$words);
            }
        } catch (\RedisException $e) {
            if ($this->redis->getLastError() === null) { // no answer: it may still come, and be taken for that of the next
                $this->redis->close();
                self::$closed[$this->redis] = true;
            }
            throw $e;
        }
        $error = $this->redis->getLastError();
        return $error === null ? $reply : throw new \RedisException($error);
    }

    private function decide(string $operation, string $key, Policy $policy, int $cost, int ...$receipt): Result
    {
        $reply = $this->call($policy->script, [$key], [$operation, $cost, ...$policy->numbers, ...$receipt]);
        return Result::of($reply, $key, $policy, $operation === 'take' ? $cost : null);
    }

    private static function shown(mixed $reply): string
    {
        return substr((string) json_encode($reply, JSON_PARTIAL_OUTPUT_ON_ERROR), 0, 64);
    }

    private function digest(string $subject): string
    {
        $hex = $this->secret === null ? hash('sha256', $subject) : hash_hmac('sha256', $subject, $this->secret);
        return substr($hex, 0, 32);
    }
}
