module github.com/sluicego/sluice/conformance

go 1.25.0

require (
	github.com/alicebob/miniredis/v2 v2.40.0
	github.com/google/go-cmp v0.7.0
	github.com/redis/rueidis v1.0.79
	github.com/sluicego/sluice/breaker v0.0.0-00010101000000-000000000000
	github.com/sluicego/sluice/denycache v0.0.0-00010101000000-000000000000
	github.com/yuin/gopher-lua v1.1.1
	pgregory.net/rapid v1.3.0
)

require (
	github.com/maypok86/otter/v2 v2.4.0 // indirect
	github.com/sony/gobreaker/v2 v2.4.0 // indirect
)

require (
	github.com/sluicego/sluice v0.0.0
	github.com/sluicego/sluice/plan v0.0.0
	go.yaml.in/yaml/v4 v4.0.0 // indirect
	golang.org/x/sys v0.47.0 // indirect
)

replace github.com/sluicego/sluice => ../

replace github.com/sluicego/sluice/plan => ../plan

replace github.com/sluicego/sluice/breaker => ../breaker

replace github.com/sluicego/sluice/denycache => ../denycache
