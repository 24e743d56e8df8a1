<?php

// What the vectors can't ask of sluice.php: REDIS_ADDR=127.0.0.1:6379 SLUICE_SCRIPTS=../../scripts php sluice_test.php
// It has no strict types, as many callers have none: PHP makes ints of floats and text of numbers then.

require __DIR__ . '/sluice.php';

use Sluice\ArgumentException;
use Sluice\Limiter;
use Sluice\Policy;
use Sluice\ReplyException;

[$host, $port] = explode(':', getenv('REDIS_ADDR'));
$redis = new Redis();
$redis->connect($host, (int) $port, 5, null, 0, 5);
$scripts = getenv('SLUICE_SCRIPTS');
$prefix = uniqid('test'); // this run's own
$limiter = new Limiter($redis, $scripts, $prefix);
$five = Policy::slidingLog(5, 60_000);

/** @param class-string<Throwable> $class */
function throws(string $class, string $pattern, callable $call): void
{
    try {
        $call();
    } catch (Throwable $e) {
        if ($e instanceof $class && preg_match($pattern, $e->getMessage())) {
            return;
        }
        throw $e;
    }
    throw new LogicException("no $class");
}

// What is queued is not answered, and is charged when nobody looks.
foreach ([Redis::PIPELINE, Redis::MULTI] as $mode) {
    $redis->multi($mode);
    throws(ArgumentException::class, '/pipeline/', fn () => $limiter->take('queued', $five));
    throws(ArgumentException::class, '/pipeline/', fn () => $limiter->reset('queued', $five));
    $redis->exec();
    if ($limiter->peek('queued', $five)->remaining !== 5) {
        throw new LogicException('it was charged');
    }
}

// Numbers and text are not made of anything else.
$result = $limiter->take('numbers', $five);
foreach ([5.0, 5.5, '5', true, null, [5], new ArrayObject([5]), NAN, -1, PHP_INT_MAX, PHP_INT_MIN] as $number) {
    throws(ArgumentException::class, '/^limit must be an integer from 1 to 1000000000$/D', fn () => Policy::slidingLog($number, 1000));
    throws(ArgumentException::class, '/^windowMs/', fn () => Policy::slidingCounter(5, $number));
    throws(ArgumentException::class, '/^capacity/', fn () => Policy::tokenBucket($number, 1, 1000));
    throws(ArgumentException::class, '/^refill/', fn () => Policy::tokenBucket(5, $number, 1000));
    throws(ArgumentException::class, '/^periodMs must be an integer from 1 to 31622400000$/D', fn () => Policy::tokenBucket(5, 1, $number));
    throws(ArgumentException::class, '/^cost/', fn () => $limiter->take('numbers', $five, $number));
    throws(ArgumentException::class, '/^cost/', fn () => $limiter->peek('numbers', $five, $number));
    throws(ArgumentException::class, '/^actual/', fn () => $limiter->settle($result, $number));
}
if ($limiter->peek('numbers', $five)->remaining !== 4) {
    throw new LogicException('it was charged');
}
foreach ([5, 5.0, true, null, ['a'], new ArrayIterator(['a']), new Exception('a')] as $text) {
    throws(ArgumentException::class, '/^subject/', fn () => $limiter->take($text, $five));
    throws(ArgumentException::class, '/^subject/', fn () => $limiter->reset($text, $five));
    throws(ArgumentException::class, '/^tag/', fn () => $limiter->redisKey('a', $five, $text));
    throws(ArgumentException::class, '/^part/', fn () => Sluice\key('a', $text));
    throws(ArgumentException::class, '/^prefix/', fn () => new Limiter($redis, $scripts, $text));
    if ($text !== null) {
        throws(ArgumentException::class, '/^name/', fn () => Policy::slidingLog(5, 1000, $text));
        throws(ArgumentException::class, '/^secret/', fn () => new Limiter($redis, $scripts, 'p', $text));
    }
}
throws(ArgumentException::class, '/^secret/', fn () => new Limiter($redis, $scripts, 'p', 1234567890123456));

// A MULTI that was sent by hand shows in the answer alone.
$redis->rawCommand('MULTI');
throws(ReplyException::class, '/^the reply must be 5 integers/', fn () => $limiter->take('by hand', $five));
throws(ReplyException::class, '/^the reply must be an integer/', fn () => $limiter->reset('by hand', $five));
$redis->rawCommand('DISCARD');

// Keys and arguments may have names, which PHP would take for those of parameters.
$named = $limiter->call('sliding_log', ['key' => "$prefix:named"], ['operation' => 'take', 'cost' => 2, 'limit' => 5, 'window' => 1000]);
if (array_slice($named, 0, 2) !== [1, 3]) {
    throw new LogicException('got ' . json_encode($named));
}

foreach ([true, null, 5.5, ['a']] as $word) {
    throws(ArgumentException::class, '/^keys and args must be/', fn () => $limiter->call('sliding_log', [$word], ['take', 1, 5, 1000]));
    throws(ArgumentException::class, '/^keys and args must be/', fn () => $limiter->call('sliding_log', ['k'], ['take', $word, 5, 1000]));
}

// A result is the limiter's, and may have been kept somewhere.
foreach ([$limiter->peek('a', $five), null, 5, (object) ['charged' => 5]] as $other) {
    throws(ArgumentException::class, '/^only a result that charged/', fn () => $limiter->settle($other, 1));
}
throws(Error::class, '/private/', fn () => new Sluice\Result(true, 4, 0, 60_000, 1, 'k', $five, '3'));
foreach (['"charged";i:1;' => '"charged";i:-3;', "\"serverTimeUs\";i:$result->serverTimeUs;" => '"serverTimeUs";i:-1;'] as $made => $forged) {
    $kept = str_replace($made, $forged, serialize($result));
    throws(ArgumentException::class, '/^(charged|serverTimeUs) must be an integer/', fn () => $limiter->settle(unserialize($kept), 1));
}
if ($limiter->settle(unserialize(serialize($result)), 0)->remaining !== 5) {
    throw new LogicException('it was not given back');
}
foreach ([null, 5, 'log:5/1m', (object) (array) $five] as $policy) {
    foreach (['take', 'peek', 'reset', 'redisKey'] as $verb) {
        throws(ArgumentException::class, '/^policy must be made by/', fn () => $limiter->$verb('a', $policy));
    }
}

// strtok has one state for all.
strtok('a b', ' ');
throws(ArgumentException::class, '/^SLUICEARG /', fn () => $limiter->call('sliding_log', ['k'], ['leak', 1, 5, 1000]));
if (strtok(' ') !== 'b') {
    throw new LogicException('the caller\'s strtok has lost its place');
}

// The folder's name is a name and no pattern.
$folder = sys_get_temp_dir() . '/' . uniqid('sluice') . '[1]';
mkdir($folder);
copy("$scripts/sliding_log.lua", "$folder/sliding_log.lua");
if (!(new Limiter($redis, $folder, $prefix))->take('folder', $five)->allowed) {
    throw new LogicException('it was denied');
}
throws(RuntimeException::class, '/^no multi\.lua in /', fn () => (new Limiter($redis, $folder))->call('multi', ['k'], []));
unlink("$folder/sliding_log.lua");
throws(RuntimeException::class, '/^no \.lua files in /', fn () => new Limiter($redis, $folder));
rmdir($folder);
throws(RuntimeException::class, '/^no \.lua files in /', fn () => new Limiter($redis, $folder));
