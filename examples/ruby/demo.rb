# frozen_string_literal: true

# Two log-ins a minute, and the third: REDIS_ADDR=127.0.0.1:6379 ruby demo.rb (what it needs is told in sluice.rb)

require_relative "sluice"

redis = Redis.new(url: "redis://#{ENV.fetch('REDIS_ADDR')}", timeout: 5)
limiter = Sluice::Limiter.new(redis, scripts: File.join(__dir__, "../../scripts"))
login = Sluice.sliding_log(2, 60_000, name: "login")

3.times do
  verdict = limiter.take("203.0.113.7", login)
  if verdict.allowed?
    puts "allowed, #{verdict.remaining} left"
  else
    puts "denied, try again in #{verdict.retry_after_ms} ms"
  end
end
