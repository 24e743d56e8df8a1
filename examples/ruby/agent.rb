# frozen_string_literal: true

# Puts sluice.rb under the tests: ruby agent.rb. The protocol is told in docs/porting.md.

require_relative "sluice"

REDIS = Redis.new(url: "redis://#{ENV.fetch('REDIS_ADDR')}/#{ENV.fetch('SLUICE_DB')}", timeout: ENV.fetch("SLUICE_TIMEOUT").to_f)
$stdout.sync = true

def limiter(**settings) = Sluice::Limiter.new(REDIS, scripts: ENV.fetch("SLUICE_SCRIPTS"), **settings)

def unhex(word) = [word[1..]].pack("H*")

def hex(bytes) = "x#{bytes.unpack1('H*')}"

def policy(words)
  count = words[0] == "token_bucket" ? 3 : 2
  Sluice.public_send(words[0], *words[1..count].map(&:to_i), name: words[count + 1])
end

def told(result)
  retry_after_ms = result.retry_after_ms || -1
  "reply #{result.allowed? ? 1 : 0} #{result.remaining} #{retry_after_ms} #{result.reset_after_ms} #{result.server_time_us}"
end

def answer(verb, words)
  case verb
  when "limiter"
    @limiter = limiter(prefix: unhex(words[0]), secret: words[1] == "-" ? nil : unhex(words[1]))
    "ok"
  when "join" then "bytes #{hex(Sluice.key(*words.map { |word| unhex(word) }))}"
  when "key" then "text #{@limiter.redis_key(unhex(words[0]), policy(words[2..]), unhex(words[1]))}"
  when "call"
    args = words[2..].map { |word| unhex(word) }
    "reply #{@limiter.call(words[0], args.shift(words[1].to_i), args).join(' ')}"
  when "take" then told(@last = @limiter.take(unhex(words[0]), policy(words[2..]), words[1].to_i))
  when "peek" then told(@limiter.peek(unhex(words[0]), policy(words[2..]), words[1].to_i))
  when "settle" then told(@limiter.settle(@last, words[0].to_i))
  when "reset"
    @limiter.reset(unhex(words[0]), policy(words[1..]))
    "ok"
  else raise "unknown verb #{verb}"
  end
rescue Sluice::ArgumentError => e
  "error argument #{e.message}"
rescue Sluice::StateError => e
  "error state #{e.message}"
rescue Sluice::ReplyError => e
  "error reply #{e.message}"
rescue StandardError => e
  "error other #{e.message.inspect}"
end

@limiter = limiter
$stdin.each_line(chomp: true) do |line|
  verb, *words = line.split
  puts answer(verb, words)
end
