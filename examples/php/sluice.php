<?php

declare(strict_types=1);

/**
 * Rate limits in Redis or Valkey, decided by the scripts of Sluice. One file to copy; it needs PHP 8.1 and phpredis
 * (tested with PHP 8.2 and phpredis 5.3.7).
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
 * Errors: ArgumentException, StateException, ReplyException, and RedisException for all else. After a lost connection or a
 * time-out nobody knows whether a take or a settle was charged, so it is sent once and never again. A RedisCluster is not
 * taken, since nobody has tried whether it does so too, and neither is a Redis in multi or pipeline mode.
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

    /** At most limit units in any window, exactly. */
    public static function slidingLog(int $limit, int $windowMs, ?string $name = null): self
    {
        return self::make('log', 'sliding_log', [$limit, $windowMs], $name);
    }

    /** About limit units in any window, in constant memory. */
    public static function slidingCounter(int $limit, int $windowMs, ?string $name = null): self
    {
        return self::make('counter', 'sliding_counter', [$limit, $windowMs], $name);
    }

    /** A burst of capacity units, then refill units each period. */
    public static function tokenBucket(int $capacity, int $refill, int $periodMs, ?string $name = null): self
    {
        return self::make('bucket', 'token_bucket', [$capacity, $refill, $periodMs], $name);
    }

    /** @param int[] $numbers */
    private static function make(string $kind, string $script, array $numbers, ?string $name): self
    {
        if ($name !== null && !preg_match('/^[A-Za-z0-9._-]{1,64}$/D', $name)) {
            throw new ArgumentException('name must be 1 to 64 of the characters A-Z a-z 0-9 . _ -');
        }
        return new self($script, $numbers, $name ?? $kind . '/' . end($numbers));
    }
}

/** What a script answered. */
final class Result
{
    public function __construct(
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
}

/**
 * Joins the parts of a subject (a route and an address, say) so that different parts never give the same one.
 */
function key(string ...$parts): string
{
    $framed = array_map(static fn (string $part): string => strlen($part) . ':' . $part, $parts);
    return implode('', $parts) === '' ? '' : implode('', $framed);
}

/** Decides by the scripts, through a \Redis of phpredis (not a \RedisCluster). */
final class Limiter
{
    /** @var array<string, array{string, string}> texts and digests */
    private array $texts = [];

    /** @param ?string $secret at least 16 bytes */
    public function __construct(
        private readonly \Redis $redis,
        private readonly string $scripts = __DIR__,
        private readonly string $prefix = 'sluice',
        private readonly ?string $secret = null,
    ) {
        if (!preg_match('/^[!-z|~]{1,64}$/D', $prefix)) {
            throw new ArgumentException('prefix must be 1 to 64 printable ASCII characters without space, { and }');
        }
        if ($secret !== null && strlen($secret) < 16) {
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

    /** Asks for cost units and charges all of them, or none if they are not free. */
    public function take(string $subject, Policy $policy, int $cost = 1): Result
    {
        return $this->decide('take', $this->redisKey($subject, $policy), $policy, $cost);
    }

    /** Tells whether take would be allowed, and what is free now. Charges nothing. */
    public function peek(string $subject, Policy $policy, int $cost = 1): Result
    {
        return $this->decide('peek', $this->redisKey($subject, $policy), $policy, $cost);
    }

    /** Corrects a charge, once, now that its true cost is known. */
    public function settle(Result $result, int $actual): Result
    {
        if ($result->charged === null) {
            throw new ArgumentException('only a result that charged can be settled');
        }
        return $this->decide('settle', $result->key, $result->policy, $actual - $result->charged, $result->serverTimeUs);
    }

    /** Forgets what was used. */
    public function reset(string $subject, Policy $policy): void
    {
        $reply = $this->command('UNLINK', $this->redisKey($subject, $policy));
        if (!is_int($reply)) {
            throw new ReplyException('the reply must be an integer: ' . json_encode($reply));
        }
    }

    /** The Redis key of a policy on a subject: prefix:{digest}:policy. A tag puts it into the tag's cluster slot. */
    public function redisKey(string $subject, Policy $policy, string $tag = ''): string
    {
        if ($subject === '') {
            throw new ArgumentException('subject must not be empty');
        }
        $own = $this->digest($subject);
        if ($tag === '' || $tag === $subject) {
            return "$this->prefix:{{$own}}:$policy->part";
        }
        return "$this->prefix:{{$this->digest($tag)}}:$own:$policy->part";
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
        try {
            try {
                $reply = $this->command('EVALSHA', $sha1, count($keys), ...$keys, ...$args);
            } catch (\RedisException $e) {
                if (!str_starts_with($e->getMessage(), 'NOSCRIPT ')) {
                    throw $e;
                }
                $reply = $this->command('EVAL', $text, count($keys), ...$keys, ...$args); // nothing ran before
            }
        } catch (\RedisException $e) {
            throw match (strtok($e->getMessage(), ' ')) {
                'SLUICEARG' => new ArgumentException($e->getMessage(), 0, $e),
                'SLUICESTATE' => new StateException($e->getMessage(), 0, $e),
                default => $e,
            };
        }
        $count = $script === 'multi' ? 2 + 5 * count($keys) : 5;
        if (!is_array($reply) || count($reply) !== $count || $reply !== array_filter($reply, 'is_int')) {
            throw new ReplyException("the reply must be $count integers: " . json_encode($reply));
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
        $this->redis->clearLastError();
        $reply = $this->redis->rawCommand(...$words);
        $error = $this->redis->getLastError();
        return $error === null ? $reply : throw new \RedisException($error);
    }

    private function decide(string $operation, string $key, Policy $policy, int $cost, int ...$receipt): Result
    {
        $reply = $this->call($policy->script, [$key], [$operation, $cost, ...$policy->numbers, ...$receipt]);
        [$allowed, $remaining, $retry, $reset, $time] = $reply;
        $charged = $allowed === 1 && $operation === 'take' ? $cost : null;
        return new Result($allowed === 1, $remaining, $retry < 0 ? null : $retry, $reset, $time, $key, $policy, $charged);
    }

    private function digest(string $subject): string
    {
        $hex = $this->secret === null ? hash('sha256', $subject) : hash_hmac('sha256', $subject, $this->secret);
        return substr($hex, 0, 32);
    }
}
