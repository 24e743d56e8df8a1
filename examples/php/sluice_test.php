<?php

// What the vectors can't ask of sluice.php: REDIS_ADDR=127.0.0.1:6379 SLUICE_SCRIPTS=../../scripts php sluice_test.php

declare(strict_types=1);

require __DIR__ . '/sluice.php';

use Sluice\ArgumentException;
use Sluice\Limiter;
use Sluice\Policy;

[$host, $port] = explode(':', getenv('REDIS_ADDR'));
$redis = new Redis();
$redis->connect($host, (int) $port, 5, null, 0, 5);
$scripts = getenv('SLUICE_SCRIPTS');
$limiter = new Limiter($redis, $scripts);
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

throws(ArgumentException::class, '/only a result that charged/', fn () => $limiter->settle($limiter->peek('a', $five), 1));

// The folder's name is a name and no pattern.
$folder = sys_get_temp_dir() . '/' . uniqid('sluice') . '[1]';
mkdir($folder);
copy("$scripts/sliding_log.lua", "$folder/sliding_log.lua");
if (!(new Limiter($redis, $folder))->take('folder', $five)->allowed) {
    throw new LogicException('it was denied');
}
throws(RuntimeException::class, '/^no multi\.lua in /', fn () => (new Limiter($redis, $folder))->call('multi', ['k'], []));
unlink("$folder/sliding_log.lua");
throws(RuntimeException::class, '/^no \.lua files in /', fn () => new Limiter($redis, $folder));
rmdir($folder);
throws(RuntimeException::class, '/^no \.lua files in /', fn () => new Limiter($redis, $folder));
