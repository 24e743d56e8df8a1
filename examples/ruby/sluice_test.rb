# frozen_string_literal: true

# What the vectors can't ask of sluice.rb: REDIS_ADDR=127.0.0.1:6379 SLUICE_SCRIPTS=../../scripts ruby sluice_test.rb

require_relative "sluice"
require "redis/cluster" # of redis-rb 4, or of the gem redis-clustering

REDIS = Redis.new(url: "redis://#{ENV.fetch('REDIS_ADDR')}", timeout: 5)
SCRIPTS = ENV.fetch("SLUICE_SCRIPTS")

def raises(error, pattern)
  yield
rescue error => e
  raise "got #{e.message.inspect}, want #{pattern}" unless e.message.match?(pattern)
else
  raise "no #{error}, want #{pattern}"
end

# Neither is connected: there is no cluster here.
inner = Redis.allocate.tap { |redis| redis.instance_variable_set(:@client, Redis::Cluster.allocate) } # redis-rb 4
outer = Class.new(Redis::Cluster) { def _client = nil }.allocate                                     # 5
[inner, outer].each do |redis|
  raises(Sluice::ArgumentError, /cluster/) { Sluice::Limiter.new(redis, scripts: SCRIPTS) }
end

PREFIX = "test#{Process.clock_gettime(Process::CLOCK_REALTIME, :nanosecond)}" # this run's own
limiter = Sluice::Limiter.new(REDIS, scripts: SCRIPTS, prefix: PREFIX)
five = Sluice.sliding_log(5, 60_000)
result = limiter.take("costs", five)
["1", 1.0, 1r, true, nil, -1, 10**1000].each do |cost|
  raises(Sluice::ArgumentError, /^cost/) { limiter.take("costs", five, cost) }
  raises(Sluice::ArgumentError, /^actual/) { limiter.settle(result, cost) }
end
peeked = limiter.peek("costs", five)
raise "a cost was charged" unless peeked.remaining == 4

forged = result.dup
forged.server_time_us = 1.5
[nil, 5, peeked, forged].each { |other| raises(Sluice::ArgumentError, /^(result|server_time_us)/) { limiter.settle(other, 1) } }

{ key: [5, nil], policy: [nil, 5, five.to_a], charged: ["1", true, -1], server_time_us: [nil, "1", -1, 2**53] }.each do |field, values|
  values.each do |value|
    forged = result.dup
    forged[field] = value
    raises(Sluice::ArgumentError, /^#{field} must be/) { limiter.settle(forged, 1) }
  end
end

# A policy is made in one way, and stays as it was made.
[-> { Sluice::Policy.new("log", nil, nil) }, -> { Sluice::Policy["log", [5, 1000], "x}:{y"] }, -> { Sluice::Policy.allocate },
 -> { five.dup.part = "x}:{y" }, -> { five.dup[:part] = "x}:{y" }].each do |make|
  raises(NoMethodError, /private method|undefined method/, &make)
end
[five.numbers, five.part, five.script, Sluice.sliding_log(5, 1000, name: +"a").part].each { |field| raise "it may change" unless field.frozen? }
raise "policies are values" unless five == Sluice.sliding_log(5, 60_000)

[nil, true, 5.5, :a, ["a"]].each do |word|
  raises(Sluice::ArgumentError, /^keys and args must be/) { limiter.call("sliding_log", [word], ["take", 1, 5, 1000]) }
  raises(Sluice::ArgumentError, /^keys and args must be/) { limiter.call("sliding_log", ["k"], ["take", word, 5, 1000]) }
end
raises(Sluice::ArgumentError, /^keys and args must be/) { limiter.call("sliding_log", "k", []) }

# A forked process has a connection of its own with its first call, and the parent keeps its own.
limiter.take("forked", five)
_, status = Process.wait2(fork { exit!(limiter.take("forked", five).remaining == 3 ? 0 : 1) })
raise "the forked process failed" unless status.success? && limiter.take("forked", five).remaining == 2

# Numbers and text are not made of anything else.
["5", 5.0, 5r, nil, true, 0, 10**1000, Float::NAN].each do |number|
  raises(Sluice::ArgumentError, /^limit/) { Sluice.sliding_log(number, 1000) }
  raises(Sluice::ArgumentError, /^window_ms must be an integer from 1 to 31622400000$/) { Sluice.sliding_counter(5, number) }
  raises(Sluice::ArgumentError, /^capacity/) { Sluice.token_bucket(number, 1, 1000) }
  raises(Sluice::ArgumentError, /^refill must be an integer from 1 to 1000000000$/) { Sluice.token_bucket(5, number, 1000) }
  raises(Sluice::ArgumentError, /^period_ms/) { Sluice.token_bucket(5, 1, number) }
end
[nil, 5, :a, ["a"], { "a" => 1 }, Object.new, true, false].each do |other|
  raises(Sluice::ArgumentError, /^subject/) { limiter.take(other, five) }
  raises(Sluice::ArgumentError, /^subject/) { limiter.reset(other, five) }
  raises(Sluice::ArgumentError, /^tag/) { limiter.redis_key("a", five, other) }
  raises(Sluice::ArgumentError, /^part/) { Sluice.key("a", other) }
  raises(Sluice::ArgumentError, /^prefix/) { Sluice::Limiter.new(REDIS, scripts: SCRIPTS, prefix: other) }
  next if other.nil?

  raises(Sluice::ArgumentError, /^name/) { Sluice.sliding_log(5, 1000, name: other) }
  raises(Sluice::ArgumentError, /^secret/) { Sluice::Limiter.new(REDIS, scripts: SCRIPTS, secret: other) }
end
[nil, "log:5/1m", 5, [5, 1000]].each do |policy|
  raises(Sluice::ArgumentError, /^policy must be made by/) { limiter.take("a", policy) }
end
["a\n", "\xff", "a".encode("UTF-16LE")].each do |text|
  raises(Sluice::ArgumentError, /^name/) { Sluice.sliding_log(5, 1000, name: text) }
  raises(Sluice::ArgumentError, /^prefix/) { Sluice::Limiter.new(REDIS, scripts: SCRIPTS, prefix: text) }
end

# What was given may change afterwards.
name, prefix, secret = +"a", +"p", +"sixteen letters."
policy, keyed = Sluice.sliding_log(5, 1000, name:), Sluice::Limiter.new(REDIS, scripts: SCRIPTS, prefix:, secret:)
before = keyed.redis_key("a", policy)
[name, prefix, secret].each { |text| text << "b" }
raise "another key" unless keyed.redis_key("a", policy) == before

# What is queued is not answered, and is charged when nobody looks. redis-rb 4 queues what is called on the client itself
# within the block, 5 sends it.
$stderr = File.open(File::NULL, "w") # redis-rb 4 warns of such calls
%i[pipelined multi].each do |queue|
  REDIS.public_send(queue) do |pipeline|
    raises(Sluice::ArgumentError, /pipeline/) { Sluice::Limiter.new(pipeline, scripts: SCRIPTS) }
    next unless Redis::VERSION.start_with?("4.")

    raises(Sluice::ArgumentError, /pipeline/) { Sluice::Limiter.new(REDIS, scripts: SCRIPTS) }
    raises(Sluice::ArgumentError, /within pipelined or multi/) { limiter.take("queued", five) }
    raises(Sluice::ArgumentError, /within pipelined or multi/) { limiter.reset("queued", five) }
  end
  raise "it was charged" unless limiter.peek("queued", five).remaining == 5
end
$stderr = STDERR
REDIS.call("MULTI")
raises(Sluice::ReplyError, /QUEUED/) { limiter.take("queued", five) }
raises(Sluice::ReplyError, /QUEUED/) { limiter.reset("queued", five) }
REDIS.call("DISCARD")
[nil, "redis", Redis].each do |other|
  raises(Sluice::ArgumentError, /^redis must be/) { Sluice::Limiter.new(other, scripts: SCRIPTS) }
end

# Threads may share a limiter; what one does with the client is not left behind for the next.
20.times do
  Array.new(8) { Thread.new { 5.times { limiter.peek("threads", five) } } }.each(&:join)
  REDIS.close
  limiter.peek("threads", five)
end

raises(Errno::ENOENT, /no leaky_bucket\.lua in /) { limiter.call("leaky_bucket", ["k"], []) }
