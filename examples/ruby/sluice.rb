# frozen_string_literal: true

# Rate limits in Redis or Valkey, decided by the scripts of Sluice. One file to copy; it needs Ruby 3.1 and redis-rb
# (tested with Ruby 3.1 and redis-rb 4.8.0 and 5.3.0, those of Debian 12 and 13):
#
#   apt install ruby-redis    # or: gem install redis
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
# client of one node. So the first call after the server has closed an idle connection, or was restarted, raises a
# Redis::BaseConnectionError too; the next connects. In a forked process the first call connects anew.
#
# Within pipelined { } and multi { } a client gives no answer. What they hand to their block is refused, and so is a call
# through the client itself within them, as far as redis-rb queues it (4 does; 5 sends it at once, which is as good). After
# a multi without a block (of redis-rb 4) a call is a ReplyError, and is charged by the exec.

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

  UNITS = 1_000_000_000
  WINDOW_MS = 31_622_400_000 # 366 days
  private_constant :UNITS, :WINDOW_MS

  # What is no text, or no number, is not made into one: it would be the same as another.
  module Check
    module_function

    def text(what, value)
      value.is_a?(String) ? value.b.freeze : raise(ArgumentError, "#{what} must be a String")
    end

    def integer(what, value, range)
      return value if value.is_a?(Integer) && range.cover?(value)

      raise ArgumentError, "#{what} must be an integer from #{range.begin} to #{range.end}"
    end

    def policy(value)
      return value if value.is_a?(Policy)

      raise ArgumentError, "policy must be made by sliding_log, sliding_counter or token_bucket"
    end
  end
  private_constant :Check

  # One limit; made by sliding_log, sliding_counter and token_bucket. The part is the policy's part of a key: its name,
  # or else its kind and its window.
  Policy = Struct.new(:script, :numbers, :part) do
    private_class_method :new, :[], :allocate
    undef_method :script=, :numbers=, :part=, :[]=
  end

  # What a script answered. retry_after_ms is 0 if allowed, nil if the cost is above the limit. charged is what settle
  # can correct, nil if there is nothing.
  Result = Struct.new(:allowed, :remaining, :retry_after_ms, :reset_after_ms, :server_time_us, :key, :policy, :charged) do
    alias_method :allowed?, :allowed
  end

  class << self
    # At most limit units in any window, exactly.
    def sliding_log(limit, window_ms, name: nil) = policy("log", "sliding_log", { limit:, window_ms: }, name)

    # About limit units in any window, in constant memory.
    def sliding_counter(limit, window_ms, name: nil) = policy("counter", "sliding_counter", { limit:, window_ms: }, name)

    # A burst of capacity units, then refill units each period.
    def token_bucket(capacity, refill, period_ms, name: nil)
      policy("bucket", "token_bucket", { capacity:, refill:, period_ms: }, name)
    end

    # Joins the parts of a subject (a route and an address, say) so that different parts never give the same one.
    def key(*parts)
      parts = parts.map { |part| Check.text("part", part) }
      parts.all?(&:empty?) ? "" : parts.map { |part| "#{part.bytesize}:".b + part }.join
    end

    private

    def policy(kind, script, numbers, name)
      numbers.each { |what, number| Check.integer(what, number, 1..(what.end_with?("_ms") ? WINDOW_MS : UNITS)) }
      name = Check.text("name", name) unless name.nil?
      unless name.nil? || name.match?(/\A[A-Za-z0-9._-]{1,64}\z/)
        raise ArgumentError, "name must be 1 to 64 of the characters A-Z a-z 0-9 . _ -"
      end
      Policy.send(:new, script, numbers.values.freeze, name || "#{kind}/#{numbers.values.last}".freeze).freeze
    end
  end

  # Decides by the scripts, through a Redis of redis-rb. It may be shared between threads, as the client may. The bytes
  # of a subject count, whatever its encoding.
  class Limiter
    def initialize(redis, scripts: __dir__, prefix: "sluice", secret: nil)
      @prefix = Check.text("prefix", prefix)
      unless @prefix.match?(/\A[!-z|~]{1,64}\z/)
        raise ArgumentError, "prefix must be 1 to 64 printable ASCII characters without space, { and }"
      end
      @secret = Check.text("secret", secret) unless secret.nil?
      raise ArgumentError, "secret must be nil, or at least 16 bytes" unless secret.nil? || @secret.bytesize >= 16

      # The client of a cluster sends again: in redis-rb 4 it is inside of a Redis, in 5 it is a Redis of another gem. What
      # pipelined and multi hand to their block is no Redis.
      unless redis.is_a?(Redis) && redis._client.is_a?(Redis::Client)
        raise ArgumentError, "redis must be a Redis of one node, and no cluster and no pipeline"
      end
      @redis = redis
      @folder = scripts
      @scripts = Dir.glob("*.lua", base: scripts).to_h do |file|
        text = File.binread(File.join(scripts, file))
        [File.basename(file, ".lua"), [text, Digest::SHA1.hexdigest(text)]]
      end
      raise Errno::ENOENT, "no .lua files in #{scripts}" if @scripts.empty?
    end

    # Asks for cost units and charges all of them, or none if they are not free.
    def take(subject, policy, cost = 1) = decide("take", redis_key(subject, policy), policy, units("cost", cost))

    # Tells whether take would be allowed, and what is free now. Charges nothing.
    def peek(subject, policy, cost = 1) = decide("peek", redis_key(subject, policy), policy, units("cost", cost))

    # Corrects a charge, once, now that its true cost is known.
    def settle(result, actual)
      unless result.is_a?(Result) && result.charged
        raise ArgumentError, "result must be of a take that was allowed: nothing else can be settled"
      end

      difference = units("actual", actual) - units("charged", result.charged)
      receipt = Check.integer("server_time_us", result.server_time_us, 0..(2**53 - 1))
      decide("settle", Check.text("key", result.key), Check.policy(result.policy), difference, receipt)
    end

    # Forgets what was used.
    def reset(subject, policy)
      key = redis_key(subject, policy)
      reply = sent_once { @redis.unlink(key) }
      reply.is_a?(Integer) ? nil : raise(ReplyError, "the reply must be an integer: #{reply.inspect[0, 64]}")
    end

    # The Redis key of a policy on a subject: prefix:{digest}:policy. A tag puts it into the tag's cluster slot.
    def redis_key(subject, policy, tag = "")
      part = Check.policy(policy).part
      subject = Check.text("subject", subject)
      tag = Check.text("tag", tag)
      raise ArgumentError, "subject must not be empty" if subject.empty?

      own = digest(subject)
      return "#{@prefix}:{#{own}}:#{part}" if tag.empty? || tag == subject

      "#{@prefix}:{#{digest(tag)}}:#{own}:#{part}"
    end

    # Calls a script ("token_bucket", "multi") by its digest, and by its text if the server does not know it.
    def call(script, keys, args)
      text, sha1 = @scripts.fetch(script) { raise Errno::ENOENT, "no #{script}.lua in #{@folder}" }
      unless [keys, args].all? { |words| words.is_a?(Array) && words.all? { |word| word.is_a?(String) || word.is_a?(Integer) } }
        raise ArgumentError, "keys and args must be arrays of Strings and Integers"
      end

      reply = sent_once do
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

    def units(what, number) = Check.integer(what, number, 0..UNITS)

    # redis-rb sends a command again after a lost connection, by default, which charges twice. Whether it does is a switch
    # in the client, so nobody else may turn it meanwhile: the client's lock is held, which redis-rb 5 does not do here.
    def sent_once(&block)
      @redis.send(:synchronize) do |client|
        unless client.is_a?(Redis::Client)
          raise ArgumentError, "redis must not be within pipelined or multi: there is no answer then"
        end

        @redis.without_reconnect(&block)
      rescue Redis::InheritedError # redis-rb 4 in a forked process: nothing was sent, and the parent's socket is let go
        @redis.without_reconnect(&block)
      end
    end

    def numbers(reply, count)
      return reply if reply.is_a?(Array) && reply.size == count && reply.all?(Integer)

      raise ReplyError, "the reply must be #{count} integers: #{reply.inspect[0, 64]}"
    end

    def decide(operation, key, policy, cost, *receipt)
      reply = call(policy.script, [key], [operation, cost, *policy.numbers, *receipt])
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
