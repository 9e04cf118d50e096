module leno.dev/testkit/mixture

go 1.26.0
