package sluice_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/redis/rueidis"

	"github.com/sluicego/sluice"
)

func Example() {
	addr := server() // "127.0.0.1:6379"

	client, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{addr}})
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	limiter, err := sluice.New(client, sluice.Config{})
	if err != nil {
		log.Fatal(err)
	}
	perMinute := sluice.SlidingLog(2, time.Minute)
	for range 3 {
		res, err := limiter.Allow(context.Background(), "203.0.113.7", perMinute)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(res.Allowed, res.Remaining, res.RetryAfter)
	}
	// Output:
	// true 1 0s
	// true 0 0s
	// false 0 59.998s
}

func ExampleKey() {
	fmt.Println(sluice.Key("api", "203.0.113.7"))
	fmt.Println(sluice.Key("a", "b:c") == sluice.Key("a:b", "c"))
	// Output:
	// 3:api11:203.0.113.7
	// false
}

func ExampleParsePolicy() {
	p, err := sluice.ParsePolicy("login=log:5/1m")
	fmt.Println(p, err)
	fmt.Println(p == sluice.SlidingLog(5, time.Minute).Named("login"))

	_, err = sluice.ParsePolicy("log:0/1m")
	fmt.Println(err, errors.Is(err, sluice.ErrInvalidPolicy))
	// Output:
	// login=log:5/1m <nil>
	// true
	// sluice: limit is 0, want 1 to 1000000000 true
}

// server answers as Redis would, one millisecond after the other, to a limit of two a minute.
func server() (addr string) {
	replies := []string{
		sluice.FiveReply(1, 1, 0, 60_000, 1_700_000_000_000_000),
		sluice.FiveReply(1, 0, 0, 60_000, 1_700_000_000_001_000),
		sluice.FiveReply(0, 0, 59_998, 59_999, 1_700_000_000_002_000),
	}
	return sluice.Serve(exampleT{}, func(words []string) string {
		if words[0] == "CLUSTER" {
			return "-ERR This instance has cluster support disabled\r\n"
		}
		reply := replies[0]
		replies = replies[1:]
		return reply
	})
}

// exampleT stands in for a *testing.T, which examples have none of. The server ends with the test's process.
type exampleT struct{}

func (exampleT) Fatal(args ...any) { log.Fatal(args...) }
func (exampleT) Cleanup(func())    {}
