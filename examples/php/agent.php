<?php

// Puts sluice.php under the tests: php agent.php. The protocol is told in docs/porting.md.

declare(strict_types=1);

require __DIR__ . '/sluice.php';

use Sluice\Limiter;
use Sluice\Policy;
use Sluice\Result;

[$host, $port] = explode(':', getenv('REDIS_ADDR'));
$redis = new Redis();
$redis->connect($host, (int) $port, 5, null, 0, (float) getenv('SLUICE_TIMEOUT'));
$redis->select((int) getenv('SLUICE_DB'));
$scripts = getenv('SLUICE_SCRIPTS');
$limiter = new Limiter($redis, $scripts);
$last = null;

function unhex(string $word): string
{
    return hex2bin(substr($word, 1));
}

/** @param string[] $words */
function policy(array $words): Policy
{
    $script = array_shift($words);
    $make = ['sliding_log' => 'slidingLog', 'sliding_counter' => 'slidingCounter', 'token_bucket' => 'tokenBucket'][$script];
    $numbers = array_map('intval', array_splice($words, 0, $script === 'token_bucket' ? 3 : 2));
    return Policy::$make(...$numbers, ...$words);
}

function told(Result $r): string
{
    return implode(' ', ['reply', (int) $r->allowed, $r->remaining, $r->retryAfterMs ?? -1, $r->resetAfterMs, $r->serverTimeUs]);
}

while (($line = fgets(STDIN)) !== false) {
    $words = explode(' ', rtrim($line, "\n"));
    $verb = array_shift($words);
    try {
        switch ($verb) {
            case 'limiter':
                $limiter = new Limiter($redis, $scripts, unhex($words[0]), $words[1] === '-' ? null : unhex($words[1]));
                $answer = 'ok';
                break;
            case 'join':
                $answer = 'bytes x' . bin2hex(Sluice\key(...array_map('unhex', $words)));
                break;
            case 'key':
                $answer = 'text ' . $limiter->redisKey(unhex($words[0]), policy(array_slice($words, 2)), unhex($words[1]));
                break;
            case 'call':
                $args = array_map('unhex', array_slice($words, 2));
                $keys = array_splice($args, 0, (int) $words[1]);
                $answer = 'reply ' . implode(' ', $limiter->call($words[0], $keys, $args));
                break;
            case 'take':
                $last = $limiter->take(unhex($words[0]), policy(array_slice($words, 2)), (int) $words[1]);
                $answer = told($last);
                break;
            case 'peek':
                $answer = told($limiter->peek(unhex($words[0]), policy(array_slice($words, 2)), (int) $words[1]));
                break;
            case 'settle':
                $answer = told($limiter->settle($last, (int) $words[0]));
                break;
            case 'reset':
                $limiter->reset(unhex($words[0]), policy(array_slice($words, 1)));
                $answer = 'ok';
                break;
            default:
                throw new LogicException("unknown verb $verb");
        }
    } catch (Sluice\ArgumentException $e) {
        $answer = 'error argument ' . $e->getMessage();
    } catch (Sluice\StateException $e) {
        $answer = 'error state ' . $e->getMessage();
    } catch (Sluice\ReplyException $e) {
        $answer = 'error reply ' . $e->getMessage();
    } catch (Throwable $e) {
        $answer = 'error other ' . json_encode($e->getMessage());
    }
    echo $answer, "\n";
}
