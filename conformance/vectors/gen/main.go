// Command gen writes the vector files anew: go generate ./vectors, in the module conformance.
package main

import (
	"fmt"
	"os"

	"github.com/sluicego/sluice/conformance/model"
	"github.com/sluicego/sluice/conformance/vectors"
)

func main() {
	for _, k := range []model.Kind{model.Log, model.Counter, model.Bucket, model.Multi} {
		f := vectors.Make(k)
		if err := os.WriteFile(vectors.Path(k), f.Encode(), 0o644); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		fmt.Printf("%s: %d vectors\n", vectors.Path(k), len(f.Vectors))
	}
}
