module github.com/sluicego/sluice/denycache

go 1.25.0

replace github.com/sluicego/sluice => ../

require (
	github.com/maypok86/otter/v2 v2.4.0
	github.com/redis/rueidis v1.0.79
	github.com/sluicego/sluice v0.0.0
)

require golang.org/x/sys v0.47.0 // indirect
