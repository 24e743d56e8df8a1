# frozen_string_literal: true

# Rate limits in Redis or Valkey, decided by the scripts of Sluice. One file to copy; it needs redis-rb
# (4 or 5; tested with Ruby 3.1 and redis-rb 4.8.0).
#
#   require "redis"
#   require_relative "sluice"
#
#   redis = Redis.new(timeout: 0.5)
#   limiter = Sluice::Limiter.new(redis, scripts: "scripts") # the folder of the .lua files; default: that of this file
#   login = Sluice.sliding_log(5, 60_000, name: "login")     # 5 in any 60 000 ms
#
#   verdict = limiter.take("203.0.113.7", login)
#   puts "try again in #{verdict.retry_after_ms} ms" unless verdict.allowed?
#
# What may be given (units, milliseconds) and what comes back is told in the .lua files. A Go service with the same
# prefix and secret shares its limits with this, except sharded policies.
#
# Errors: Sluice::ArgumentError, Sluice::StateError, Sluice::ReplyError, and whatever redis-rb raises. After a lost
# connection or a time-out nobody knows whether a take or a settle was charged, so it is sent once and never again. That
# can't be had of a client of a whole cluster, Redis.new(cluster: ...) or Redis::Cluster, which is refused: give it the
# client of one node.

require "digest"
require "openssl"
require "redis"

module Sluice
  # An argument is out of its range: nothing was read or written.
  class ArgumentError < ::ArgumentError; end

  # The key holds something that is not this policy's: nothing was written.
  class StateError < StandardError; end

  # The answer is not what the script gives: something between changes it. Nobody knows whether a call was charged.
  class ReplyError < StandardError; end

  # One limit; made by sliding_log, sliding_counter and token_bucket. The part is the policy's part of a key: its name,
  # or else its kind and its window.
  Policy = Struct.new(:script, :numbers, :part)

  # What a script answered. retry_after_ms is 0 if allowed, nil if the cost is above the limit. charged is what settle
  # can correct, nil if there is nothing.
  Result = Struct.new(:allowed, :remaining, :retry_after_ms, :reset_after_ms, :server_time_us, :key, :policy, :charged) do
    alias_method :allowed?, :allowed
  end

  class << self
    # At most limit units in any window, exactly.
    def sliding_log(limit, window_ms, name: nil) = policy("log", "sliding_log", [limit, window_ms], name)

    # About limit units in any window, in constant memory.
    def sliding_counter(limit, window_ms, name: nil) = policy("counter", "sliding_counter", [limit, window_ms], name)

    # A burst of capacity units, then refill units each period.
    def token_bucket(capacity, refill, period_ms, name: nil)
      policy("bucket", "token_bucket", [capacity, refill, period_ms], name)
    end

    # Joins the parts of a subject (a route and an address, say) so that different parts never give the same one.
    def key(*parts)
      parts.all?(&:empty?) ? "" : parts.map { |part| "#{part.bytesize}:".b + part.b }.join
    end

    private

    def policy(kind, script, numbers, name)
      unless name.nil? || name.match?(/\A[A-Za-z0-9._-]{1,64}\z/)
        raise ArgumentError, "name must be 1 to 64 of the characters A-Z a-z 0-9 . _ -"
      end
      Policy.new(script, numbers, name || "#{kind}/#{numbers.last}").freeze
    end
  end

  # Decides by the scripts, through a Redis of redis-rb. It may be shared between threads, as the client may. The bytes
  # of a subject count, whatever its encoding.
  class Limiter
    def initialize(redis, scripts: __dir__, prefix: "sluice", secret: nil)
      unless prefix.match?(/\A[!-z|~]{1,64}\z/)
        raise ArgumentError, "prefix must be 1 to 64 printable ASCII characters without space, { and }"
      end
      raise ArgumentError, "secret must be nil, or at least 16 bytes" unless secret.nil? || secret.bytesize >= 16

      # In redis-rb 4 the cluster's client is inside of a Redis, in 5 it is a Redis of another gem. Both send again.
      if defined?(Redis::Cluster) && [redis, redis._client].any?(Redis::Cluster)
        raise ArgumentError, "redis must be the client of one node and not of a cluster, which sends a charge again"
      end

      @redis = redis
      @prefix = prefix
      @secret = secret
      @folder = scripts
      @scripts = Dir.glob("*.lua", base: scripts).to_h do |file|
        text = File.binread(File.join(scripts, file))
        [File.basename(file, ".lua"), [text, Digest::SHA1.hexdigest(text)]]
      end
      raise Errno::ENOENT, "no .lua files in #{scripts}" if @scripts.empty?
    end

    # Asks for cost units and charges all of them, or none if they are not free.
    def take(subject, policy, cost = 1) = decide("take", redis_key(subject, policy), policy, cost)

    # Tells whether take would be allowed, and what is free now. Charges nothing.
    def peek(subject, policy, cost = 1) = decide("peek", redis_key(subject, policy), policy, cost)

    # Corrects a charge, once, now that its true cost is known.
    def settle(result, actual)
      raise ArgumentError, "only a result that charged can be settled" if result.charged.nil?

      difference = integer("actual", actual) - result.charged
      decide("settle", result.key, result.policy, difference, result.server_time_us)
    end

    # Forgets what was used.
    def reset(subject, policy)
      @redis.unlink(redis_key(subject, policy))
      nil
    end

    # The Redis key of a policy on a subject: prefix:{digest}:policy. A tag puts it into the tag's cluster slot.
    def redis_key(subject, policy, tag = "")
      raise ArgumentError, "subject must not be empty" if subject.empty?

      own = digest(subject)
      return "#{@prefix}:{#{own}}:#{policy.part}" if tag.empty? || tag.b == subject.b

      "#{@prefix}:{#{digest(tag)}}:#{own}:#{policy.part}"
    end

    # Calls a script ("token_bucket", "multi") by its digest, and by its text if the server does not know it.
    def call(script, keys, args)
      text, sha1 = @scripts.fetch(script) { raise Errno::ENOENT, "no #{script}.lua in #{@folder}" }
      # redis-rb sends a command again after a lost connection, by default, which charges twice.
      reply = @redis.without_reconnect do
        @redis.evalsha(sha1, keys, args)
      rescue Redis::CommandError => e
        raise unless e.message.start_with?("NOSCRIPT ") # nothing ran; after any other error it might have

        @redis.eval(text, keys, args)
      end
      numbers(reply, script == "multi" ? 2 + 5 * keys.size : 5)
    rescue Redis::CommandError => e
      raise ArgumentError, e.message if e.message.start_with?("SLUICEARG ")
      raise StateError, e.message if e.message.start_with?("SLUICESTATE ")

      raise
    end

    private

    def integer(what, number)
      number.is_a?(Integer) ? number : raise(ArgumentError, "#{what} must be an integer")
    end

    def numbers(reply, count)
      return reply if reply.is_a?(Array) && reply.size == count && reply.all?(Integer)

      raise ReplyError, "the reply must be #{count} integers: #{reply.inspect}"
    end

    def decide(operation, key, policy, cost, *receipt)
      reply = call(policy.script, [key], [operation, integer("cost", cost), *policy.numbers, *receipt])
      allowed, remaining, retry_after_ms, reset_after_ms, server_time_us = reply
      allowed = allowed == 1
      Result.new(allowed, remaining, retry_after_ms.negative? ? nil : retry_after_ms, reset_after_ms, server_time_us,
                 key, policy, allowed && operation == "take" ? cost : nil).freeze
    end

    def digest(subject)
      hex = @secret ? OpenSSL::HMAC.hexdigest("SHA256", @secret, subject) : Digest::SHA256.hexdigest(subject)
      hex[0, 32]
    end
  end
end
