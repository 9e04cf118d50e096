module leno.dev/e2e/cluster

go 1.26.0

require golang.org/x/sys v0.43.0
