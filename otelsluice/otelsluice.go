// Package otelsluice turns the events of a limiter into OpenTelemetry metrics and spans.
//
//	observe, err := otelsluice.Observe(otelsluice.Options{})
//	...
//	limiter, err := sluice.New(client, sluice.Config{Observe: observe})
//
// # Metrics
//
//	db.client.operation.duration   histogram, s           each call to Redis, by the semantic conventions for database clients
//	sluice.decisions               counter, {decision}    each decision, allowed or not
//	sluice.wait                    histogram, s           the waits that denials told
//	sluice.script.reloads          counter, {reload}      calls that had to send the script: restarts, failovers, flushes
//	sluice.server.skew             gauge, s               how far the server's clock is ahead of this process'
//
// # Attributes
//
//	db.system.name            redis
//	db.operation.name         EVALSHA, FCALL, FCALL_RO, UNLINK, SCRIPT LOAD or FUNCTION LOAD; several in one pipeline are PIPELINE EVALSHA
//	db.response.status_code   the code of an error reply: OOM, READONLY, NOPERM, SLUICESTATE; ERR where it has none
//	db.operation.batch.size   on a span, of how many commands a pipeline was
//	db.stored_procedure.name  on a span of one command, the script (sliding_log) or function (sluice_v1_sliding_log)
//	error.type                the sluice.ErrorClass: timeout, connection, unavailable, breaker, canceled, limited, input, state, reply, refused
//	sluice.operation          take, peek, settle, reset or load
//	sluice.policy             the policy's name, or without one its text: log:5/1m; invalid if it was refused as one
//	sluice.outcome            allowed, denied, shadowed (denied, but only tried out) or error
//	sluice.source             redis, cache, failure_policy (Redis failed, and Config.OnFailure decided) or caller (nothing was sent)
//	sluice.candidate          true for a policy that is tried out beside another
//
// db.system.name, db.operation.name, db.response.status_code and error.type are on db.client.operation.duration, with
// sluice.operation. sluice.decisions has error.type and all that start with sluice; sluice.wait and sluice.script.reloads have the
// policy. No attribute holds a subject or a key. Where policies are made at run time, without names, sluice.policy has as many values
// as there are policies: name them.
//
// # Spans
//
// Each call to Redis is a span of kind client, a child of the span in the call's context. Its name is db.operation.name,
// and it has the attributes above and sluice.decisions, the number of decisions it was for. A denial is no error. A call of Wait is a
// span for each time that it asked.
package otelsluice

import (
	"context"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/metric"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"

	"github.com/sluicego/sluice"
)

const scope = "github.com/sluicego/sluice/otelsluice"

// Options say where metrics and spans go. The zero Options are the global providers.
type Options struct {
	MeterProvider  metric.MeterProvider // nil: otel.GetMeterProvider()
	TracerProvider trace.TracerProvider // nil: otel.GetTracerProvider(); noop.NewTracerProvider() for no spans
}

// observer holds the instruments.
type observer struct {
	tracer    trace.Tracer
	duration  metric.Float64Histogram
	decisions metric.Int64Counter
	wait      metric.Float64Histogram
	reloads   metric.Int64Counter
	skew      metric.Float64Gauge
}

// Observe makes a function for sluice.Config.Observe. The error is the meter's.
func Observe(o Options) (func(ctx context.Context, e sluice.Event), error) {
	if o.MeterProvider == nil {
		o.MeterProvider = otel.GetMeterProvider()
	}
	if o.TracerProvider == nil {
		o.TracerProvider = otel.GetTracerProvider()
	}
	meter := o.MeterProvider.Meter(scope, metric.WithSchemaURL(semconv.SchemaURL))
	ob := &observer{tracer: o.TracerProvider.Tracer(scope, trace.WithSchemaURL(semconv.SchemaURL))}
	var err error
	if ob.duration, err = meter.Float64Histogram("db.client.operation.duration", metric.WithUnit("s"),
		metric.WithDescription("Duration of database client operations."),
		metric.WithExplicitBucketBoundaries(.001, .005, .01, .05, .1, .5, 1, 5, 10)); err != nil { // those of the conventions
		return nil, err
	}
	if ob.decisions, err = meter.Int64Counter("sluice.decisions", metric.WithUnit("{decision}"),
		metric.WithDescription("Decisions of the limiter.")); err != nil {
		return nil, err
	}
	if ob.wait, err = meter.Float64Histogram("sluice.wait", metric.WithUnit("s"),
		metric.WithDescription("Waits that denials told."),
		metric.WithExplicitBucketBoundaries(.01, .1, 1, 10, 60, 600, 3600, 86400)); err != nil {
		return nil, err
	}
	if ob.reloads, err = meter.Int64Counter("sluice.script.reloads", metric.WithUnit("{reload}"),
		metric.WithDescription("Calls for which the server had to be sent the script.")); err != nil {
		return nil, err
	}
	if ob.skew, err = meter.Float64Gauge("sluice.server.skew", metric.WithUnit("s"),
		metric.WithDescription("How far the server's clock is ahead of this process' clock.")); err != nil {
		return nil, err
	}
	return ob.observe, nil
}

func (ob *observer) observe(ctx context.Context, e sluice.Event) {
	call := []attribute.KeyValue{
		semconv.DBSystemNameRedis,
		semconv.DBOperationName(operation(&e)),
		attribute.String("sluice.operation", e.Op),
	}
	policy := attribute.String("sluice.policy", name(&e))
	decision := []attribute.KeyValue{
		attribute.String("sluice.operation", e.Op),
		policy,
		attribute.String("sluice.outcome", outcome(&e)),
		attribute.String("sluice.source", source(&e)),
		attribute.Bool("sluice.candidate", e.Candidate),
	}
	if e.Class != sluice.ClassNone {
		failed := semconv.ErrorTypeKey.String(string(e.Class))
		call, decision = append(call, failed), append(decision, failed)
	}
	if e.Status != "" {
		call = append(call, semconv.DBResponseStatusCode(e.Status))
	}

	if e.First {
		ob.duration.Record(ctx, e.Elapsed.Seconds(), metric.WithAttributes(call...))
		ob.span(ctx, &e, append(call, decision[1:]...))
	}
	switch e.Op {
	case "take", "peek":
		ob.decisions.Add(ctx, 1, metric.WithAttributes(decision...))
		if e.Wait > 0 {
			ob.wait.Record(ctx, e.Wait.Seconds(), metric.WithAttributes(policy))
		}
	}
	if e.Reloaded && e.First { // one script, whatever it decided
		ob.reloads.Add(ctx, 1, metric.WithAttributes(policy))
	}
	if !e.ServerTime.IsZero() {
		ob.skew.Record(ctx, e.Skew.Seconds())
	}
}

// span records a call that is over.
func (ob *observer) span(ctx context.Context, e *sluice.Event, attributes []attribute.KeyValue) {
	end := time.Now()
	_, span := ob.tracer.Start(ctx, operation(e), trace.WithSpanKind(trace.SpanKindClient),
		trace.WithTimestamp(end.Add(-e.Elapsed)), trace.WithAttributes(attributes...))
	span.SetAttributes(attribute.Int("sluice.decisions", e.Of))
	if e.Commands > 1 {
		span.SetAttributes(semconv.DBOperationBatchSize(e.Commands))
	} else if e.Procedure != "" {
		span.SetAttributes(semconv.DBStoredProcedureName(e.Procedure))
	}
	if e.Class != sluice.ClassNone {
		span.SetStatus(codes.Error, string(e.Class)) // the error's text may name a key
	}
	span.End(trace.WithTimestamp(end))
}

// operation is what was sent, as the conventions for Redis spell it.
func operation(e *sluice.Event) string {
	if e.Commands > 1 {
		return "PIPELINE " + e.Command
	}
	return e.Command
}

// name is the policy's. What was refused may hold anything, text that no label can hold included.
func name(e *sluice.Event) string {
	if e.Class == sluice.ClassInput {
		if _, err := e.Policy.MarshalText(); err != nil {
			return "invalid"
		}
	}
	if n := e.Policy.Name(); n != "" {
		return n
	}
	return e.Policy.String()
}

func outcome(e *sluice.Event) string {
	switch {
	case e.Shadowed:
		return "shadowed"
	case e.Err != nil && !e.Degraded && e.Class != sluice.ClassLimited:
		return "error"
	case e.Allowed:
		return "allowed"
	}
	return "denied"
}

func source(e *sluice.Event) string {
	switch {
	case e.Cached:
		return "cache"
	case e.Degraded:
		return "failure_policy"
	case e.Sent:
		return "redis"
	}
	return "caller"
}
