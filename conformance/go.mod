module github.com/sluicego/sluice/conformance

go 1.25.0

require github.com/sluicego/sluice v0.0.0

replace github.com/sluicego/sluice => ../
