// Command prometheus is a limiter that Prometheus scrapes: a web server with a limit per address, and its metrics at
// /metrics.
//
//	go run ./examples/prometheus          # serves on localhost:8080
//	go run ./examples/prometheus -once    # makes a few requests, prints the metrics, and ends
//
// REDIS_ADDR is the Redis to use; without it the program brings a small one along, in its own process. prometheus.yml
// and alerts.yml, beside this file, are what Prometheus needs.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/redis/rueidis"
	exporter "go.opentelemetry.io/otel/exporters/prometheus"
	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/trace/noop"

	"github.com/sluicego/sluice"
	"github.com/sluicego/sluice/otelsluice"
)

func main() {
	listen := flag.String("listen", "localhost:8080", "the address to serve on")
	once := flag.Bool("once", false, "make a few requests, print the metrics, and end")
	flag.Parse()
	if err := run(*listen, *once, os.Stdout); err != nil {
		log.Fatal(err)
	}
}

func run(listen string, once bool, out io.Writer) error {
	addr := os.Getenv("REDIS_ADDR")
	if addr == "" {
		small, err := miniredis.Run()
		if err != nil {
			return err
		}
		defer small.Close()
		addr = small.Addr()
	}
	client, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{addr}, DisableCache: true})
	if err != nil {
		return err
	}
	defer client.Close()

	handler, err := newHandler(client)
	if err != nil {
		return err
	}
	if once {
		for range 5 {
			get(handler, "/")
		}
		_, err := io.WriteString(out, ours(get(handler, "/metrics")))
		return err
	}
	fmt.Fprintf(out, "http://%s/ is limited, http://%s/metrics is for Prometheus\n", listen, listen)
	server := http.Server{Addr: listen, Handler: handler, ReadHeaderTimeout: 5 * time.Second}
	return server.ListenAndServe()
}

// newHandler is a limited site and its metrics.
func newHandler(client rueidis.Client) (http.Handler, error) {
	registry := prometheus.NewRegistry()
	reader, err := exporter.New(exporter.WithRegisterer(registry), exporter.WithoutScopeInfo())
	if err != nil {
		return nil, err
	}
	provider := metric.NewMeterProvider(metric.WithReader(reader))
	observe, err := otelsluice.Observe(otelsluice.Options{MeterProvider: provider, TracerProvider: noop.NewTracerProvider()})
	if err != nil {
		return nil, err
	}
	limiter, err := sluice.New(client, sluice.Config{Observe: observe, OnFailure: sluice.FailOpen, Timeout: 50 * time.Millisecond})
	if err != nil {
		return nil, err
	}

	perAddress := sluice.SlidingLog(3, time.Minute).Named("per-address")
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	mux.HandleFunc("GET /", func(w http.ResponseWriter, r *http.Request) {
		host, _, err := net.SplitHostPort(r.RemoteAddr)
		if err != nil {
			host = r.RemoteAddr
		}
		res, err := limiter.Allow(r.Context(), host, perAddress)
		switch {
		case err != nil:
			http.Error(w, "try again", http.StatusServiceUnavailable)
		case !res.Allowed:
			w.Header().Set("Retry-After", fmt.Sprint(int64((res.RetryAfter+time.Second-1)/time.Second)))
			http.Error(w, "too many requests", http.StatusTooManyRequests)
		default:
			fmt.Fprintf(w, "hello, %d left\n", res.Remaining)
		}
	})
	return mux, nil
}

// get makes a request without a network.
func get(handler http.Handler, path string) string {
	r := httptest.NewRequestWithContext(context.Background(), http.MethodGet, path, http.NoBody)
	w := httptest.NewRecorder()
	handler.ServeHTTP(w, r)
	return w.Body.String()
}

// ours are the lines of the metrics that do not change from run to run: the counters.
func ours(metrics string) string {
	var out strings.Builder
	for line := range strings.Lines(metrics) {
		name, _, _ := strings.Cut(line, "{")
		if strings.HasSuffix(name, "_total") || strings.HasSuffix(name, "_seconds_count") {
			out.WriteString(line)
		}
	}
	return out.String()
}
