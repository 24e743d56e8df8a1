module github.com/sluicego/sluice/plan

go 1.25.0

require (
	github.com/sluicego/sluice v0.0.0
	go.yaml.in/yaml/v4 v4.0.0
)

require (
	github.com/redis/rueidis v1.0.79 // indirect
	golang.org/x/sys v0.47.0 // indirect
)

replace github.com/sluicego/sluice => ../
