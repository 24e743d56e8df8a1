package otelsluice_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	"go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/sluicego/sluice"
	"github.com/sluicego/sluice/otelsluice"
)

// recording is an observer with what it recorded.
type recording struct {
	observe func(context.Context, sluice.Event)
	reader  *metric.ManualReader
	spans   *tracetest.SpanRecorder
}

func record(t *testing.T) recording {
	t.Helper()
	r := recording{reader: metric.NewManualReader(), spans: tracetest.NewSpanRecorder()}
	var err error
	if r.observe, err = otelsluice.Observe(otelsluice.Options{
		MeterProvider:  metric.NewMeterProvider(metric.WithReader(r.reader)),
		TracerProvider: trace.NewTracerProvider(trace.WithSpanProcessor(r.spans)),
	}); err != nil {
		t.Fatal(err)
	}
	return r
}

// points are the data points: name, attributes and what was recorded, as text.
func (r recording) points(t *testing.T) []string {
	t.Helper()
	var all metricdata.ResourceMetrics
	if err := r.reader.Collect(t.Context(), &all); err != nil {
		t.Fatal(err)
	}
	var points []string
	add := func(name, unit string, set attribute.Set, value any) {
		var attributes []string
		for _, a := range set.ToSlice() {
			attributes = append(attributes, fmt.Sprintf("%s=%s", a.Key, a.Value.String()))
		}
		points = append(points, fmt.Sprintf("%s [%s] {%s} %v", name, unit, strings.Join(attributes, " "), value))
	}
	for _, scope := range all.ScopeMetrics {
		for _, m := range scope.Metrics {
			switch data := m.Data.(type) {
			case metricdata.Histogram[float64]:
				for _, p := range data.DataPoints {
					add(m.Name, m.Unit, p.Attributes, fmt.Sprint(p.Count, " ", p.Sum))
				}
			case metricdata.Sum[int64]:
				for _, p := range data.DataPoints {
					add(m.Name, m.Unit, p.Attributes, p.Value)
				}
			case metricdata.Gauge[float64]:
				for _, p := range data.DataPoints {
					add(m.Name, m.Unit, p.Attributes, p.Value)
				}
			default:
				t.Fatalf("%s is a %T", m.Name, data)
			}
		}
	}
	slices.Sort(points)
	return points
}

var login = sluice.SlidingLog(5, time.Minute).Named("login")

func TestMetrics(t *testing.T) {
	r := record(t)
	ctx := t.Context()
	sent := sluice.Event{
		Op: "take", Policy: login, Cost: 1, Of: 1, Sent: true, Command: "EVALSHA", Commands: 1, First: true, Allowed: true, Elapsed: 2 * time.Millisecond,
		ServerTime: time.UnixMicro(1), Skew: -time.Second,
	}
	r.observe(ctx, sent)
	denied := sent
	denied.Allowed, denied.Wait, denied.Reloaded = false, 30*time.Second, true
	r.observe(ctx, denied)
	shadowed := denied
	shadowed.Allowed, shadowed.Shadowed, shadowed.First, shadowed.Reloaded = true, true, false, false // the second of a batch
	r.observe(ctx, shadowed)
	candidate := denied
	candidate.Candidate, candidate.First, candidate.Reloaded, candidate.Policy = true, false, false, sluice.TokenBucket(5, 1, time.Second)
	r.observe(ctx, candidate)
	r.observe(ctx, sluice.Event{Op: "take", Policy: login, Of: 1, Cached: true, Wait: time.Second})
	r.observe(ctx, sluice.Event{
		Op: "take", Policy: login, Of: 1, Allowed: true, Degraded: true, Sent: true, Command: "EVALSHA", Commands: 1, First: true, Elapsed: 50 * time.Millisecond,
		Err: errors.New("x"), Class: sluice.ClassTimeout,
	})
	r.observe(ctx, sluice.Event{Op: "take", Policy: login, Of: 1, Err: errors.New("x"), Class: sluice.ClassInput})
	r.observe(ctx, sluice.Event{Op: "take", Policy: login, Of: 1, Err: errors.New("x"), Class: sluice.ClassLimited, Wait: time.Second})
	r.observe(ctx, sluice.Event{Op: "take", Policy: login.Named("bad\xff"), Of: 1, Err: errors.New("x"), Class: sluice.ClassInput})
	r.observe(ctx, sluice.Event{Op: "take", Policy: sluice.Policy{}, Of: 1, Err: errors.New("x"), Class: sluice.ClassInput})
	r.observe(ctx, sluice.Event{Op: "settle", Policy: login, Of: 1, Allowed: true, Sent: true, Command: "EVALSHA", Commands: 1, First: true, Elapsed: time.Millisecond})
	r.observe(ctx, sluice.Event{Op: "reset", Policy: login, Of: 1, Allowed: true, Sent: true, Command: "UNLINK", Commands: 3, First: true, Elapsed: time.Millisecond})
	three := sluice.Event{Op: "peek", Policy: login, Of: 3, Allowed: true, Sent: true, Command: "FCALL_RO", Commands: 1, First: true, Elapsed: time.Millisecond, Reloaded: true}
	for range 3 { // one round trip
		r.observe(ctx, three)
		three.First = false
	}
	r.observe(ctx, sluice.Event{
		Op: "settle", Policy: login, Of: 1, Sent: true, Command: "FCALL", Commands: 1, First: true, Elapsed: time.Millisecond,
		Err: errors.New("x"), Class: sluice.ClassUnavailable, Status: "OOM",
	})

	want := []string{
		`db.client.operation.duration [s] {db.operation.name=EVALSHA db.system.name=redis error.type=timeout sluice.operation=take} 1 0.05`,
		`db.client.operation.duration [s] {db.operation.name=EVALSHA db.system.name=redis sluice.operation=settle} 1 0.001`,
		`db.client.operation.duration [s] {db.operation.name=EVALSHA db.system.name=redis sluice.operation=take} 2 0.004`,
		`db.client.operation.duration [s] {db.operation.name=FCALL db.response.status_code=OOM db.system.name=redis error.type=unavailable sluice.operation=settle} 1 0.001`,
		`db.client.operation.duration [s] {db.operation.name=FCALL_RO db.system.name=redis sluice.operation=peek} 1 0.001`,
		`db.client.operation.duration [s] {db.operation.name=PIPELINE UNLINK db.system.name=redis sluice.operation=reset} 1 0.001`,
		`sluice.decisions [{decision}] {error.type=input sluice.candidate=false sluice.operation=take sluice.outcome=error sluice.policy=invalid sluice.source=caller} 2`,
		`sluice.decisions [{decision}] {error.type=input sluice.candidate=false sluice.operation=take sluice.outcome=error sluice.policy=login sluice.source=caller} 1`,
		`sluice.decisions [{decision}] {error.type=limited sluice.candidate=false sluice.operation=take sluice.outcome=denied sluice.policy=login sluice.source=caller} 1`,
		`sluice.decisions [{decision}] {error.type=timeout sluice.candidate=false sluice.operation=take sluice.outcome=allowed sluice.policy=login sluice.source=failure_policy} 1`,
		`sluice.decisions [{decision}] {sluice.candidate=false sluice.operation=peek sluice.outcome=allowed sluice.policy=login sluice.source=redis} 3`,
		`sluice.decisions [{decision}] {sluice.candidate=false sluice.operation=take sluice.outcome=allowed sluice.policy=login sluice.source=redis} 1`,
		`sluice.decisions [{decision}] {sluice.candidate=false sluice.operation=take sluice.outcome=denied sluice.policy=login sluice.source=cache} 1`,
		`sluice.decisions [{decision}] {sluice.candidate=false sluice.operation=take sluice.outcome=denied sluice.policy=login sluice.source=redis} 1`,
		`sluice.decisions [{decision}] {sluice.candidate=false sluice.operation=take sluice.outcome=shadowed sluice.policy=login sluice.source=redis} 1`,
		`sluice.decisions [{decision}] {sluice.candidate=true sluice.operation=take sluice.outcome=denied sluice.policy=bucket:5+1/1s sluice.source=redis} 1`,
		`sluice.script.reloads [{reload}] {sluice.policy=login} 2`,
		`sluice.server.skew [s] {} -1`,
		`sluice.wait [s] {sluice.policy=bucket:5+1/1s} 1 30`,
		`sluice.wait [s] {sluice.policy=login} 4 62`,
	}
	if got := r.points(t); !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func TestSpans(t *testing.T) {
	r := record(t)
	provider := trace.NewTracerProvider(trace.WithSpanProcessor(r.spans))
	ctx, parent := provider.Tracer("test").Start(t.Context(), "request")
	r.observe(ctx, sluice.Event{Op: "take", Policy: login, Of: 3, Sent: true, Command: "EVALSHA", Commands: 3, Procedure: "sliding_log", First: true, Allowed: true, Elapsed: 20 * time.Millisecond})
	r.observe(ctx, sluice.Event{Op: "take", Policy: login, Index: 1, Of: 3, Sent: true, Command: "EVALSHA", Elapsed: 20 * time.Millisecond}) // the same call
	r.observe(ctx, sluice.Event{Op: "take", Policy: login, Of: 1, Cached: true})                                                             // no call
	r.observe(ctx, sluice.Event{
		Op: "load", Of: 1, Sent: true, Command: "SCRIPT LOAD", Commands: 1, First: true, Elapsed: time.Millisecond,
		Err: errors.New("sluice:{secret}"), Class: sluice.ClassConnection,
	})
	r.observe(ctx, sluice.Event{
		Op: "peek", Policy: login, Of: 1, Sent: true, Command: "FCALL_RO", Commands: 1, Procedure: "sluice_v1_sliding_log_peek", First: true,
		Err: errors.New("x"), Class: sluice.ClassUnavailable, Status: "LOADING",
	})
	spans := r.spans.Ended()
	if len(spans) != 3 {
		t.Fatalf("%d spans, want 3", len(spans))
	}
	take, load, peek := spans[0], spans[1], spans[2]
	if take.Name() != "PIPELINE EVALSHA" || take.SpanKind().String() != "client" || take.Parent().SpanID() != parent.SpanContext().SpanID() ||
		take.EndTime().Sub(take.StartTime()) != 20*time.Millisecond || take.Status().Code != codes.Unset {
		t.Errorf("got %s %s of %v, status %v", take.SpanKind(), take.Name(), take.EndTime().Sub(take.StartTime()), take.Status())
	}
	for _, tt := range []struct {
		span trace.ReadOnlySpan
		want map[string]string
	}{
		{take, map[string]string{
			"db.system.name": "redis", "db.operation.name": "PIPELINE EVALSHA", "db.operation.batch.size": "3", "sluice.operation": "take",
			"sluice.policy": "login", "sluice.outcome": "allowed", "sluice.source": "redis", "sluice.candidate": "false", "sluice.decisions": "3",
		}},
		{peek, map[string]string{
			"db.system.name": "redis", "db.operation.name": "FCALL_RO", "db.stored_procedure.name": "sluice_v1_sliding_log_peek",
			"db.response.status_code": "LOADING", "error.type": "unavailable", "sluice.operation": "peek", "sluice.policy": "login",
			"sluice.outcome": "error", "sluice.source": "redis", "sluice.candidate": "false", "sluice.decisions": "1",
		}},
	} {
		got := map[string]string{}
		for _, a := range tt.span.Attributes() {
			got[string(a.Key)] = a.Value.String()
		}
		if !maps.Equal(got, tt.want) {
			t.Errorf("attributes %v, want %v", got, tt.want)
		}
	}
	if load.Name() != "SCRIPT LOAD" || load.Status().Code != codes.Error || load.Status().Description != "connection" || len(load.Events()) != 0 {
		t.Errorf("got %s, status %v", load.Name(), load.Status())
	}
}

func TestGlobalProviders(t *testing.T) {
	observe, err := otelsluice.Observe(otelsluice.Options{})
	if err != nil {
		t.Fatal(err)
	}
	observe(t.Context(), sluice.Event{Op: "take", Policy: login, Of: 1, Sent: true, First: true}) // to nobody
}
