<?php

// Two log-ins a minute, and the third: REDIS_ADDR=127.0.0.1:6379 php demo.php (what it needs is told in sluice.php)

declare(strict_types=1);

require __DIR__ . '/sluice.php';

[$host, $port] = explode(':', getenv('REDIS_ADDR'));
$redis = new Redis();
$redis->connect($host, (int) $port, 5, null, 0, 5);
$limiter = new Sluice\Limiter($redis, __DIR__ . '/../../scripts');
$login = Sluice\Policy::slidingLog(2, 60_000, 'login');

for ($i = 0; $i < 3; $i++) {
    $verdict = $limiter->take('203.0.113.7', $login);
    if ($verdict->allowed) {
        echo "allowed, $verdict->remaining left\n";
    } else {
        echo "denied, try again in $verdict->retryAfterMs ms\n";
    }
}
