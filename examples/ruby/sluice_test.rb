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

limiter = Sluice::Limiter.new(REDIS, scripts: SCRIPTS)
five = Sluice.sliding_log(5, 60_000)
result = limiter.take("costs", five)
["1", 1.0, true, nil].each do |cost|
  raises(Sluice::ArgumentError, /^cost/) { limiter.take("costs", five, cost) }
  raises(Sluice::ArgumentError, /^actual/) { limiter.settle(result, cost) }
end
peeked = limiter.peek("costs", five)
raise "a cost was charged" unless peeked.remaining == 4

raises(Sluice::ArgumentError, /only a result that charged/) { limiter.settle(peeked, 1) }

raises(Errno::ENOENT, /no leaky_bucket\.lua in /) { limiter.call("leaky_bucket", ["k"], []) }
