// Command load is what runs in the pods of the tests that put a mesh under load: a server, and a client that
// asks at a constant rate whatever becomes of the answers, and counts what fails and why.
//
//	load serve                      HTTP/1 and HTTP/2 on port 8080, lines of bytes come back on 8081
//	load ask RATE NAME=KIND:TARGET  asks for ever; KIND is http1, http2, connect (HTTP/1, a connection for each),
//	                                lines (all over one connection) or dial (a line, and a connection for each)
//	load counts                     prints what the client of this pod has counted, as JSON
//	load face | smiley | color      a part of Faces on port 8000: a page that asks the other two
package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/signal"
	"slices"
	"syscall"
	"time"
)

// countsAddress is where a client shows what it has counted, to its own pod.
const countsAddress = "127.0.0.1:9090"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context, arguments []string) error {
	switch {
	case len(arguments) == 1 && arguments[0] == "serve":
		return serve(ctx)
	case len(arguments) == 1 && arguments[0] == "counts":
		return printCounts()
	case len(arguments) > 2 && arguments[0] == "ask":
		return ask(ctx, arguments[1], arguments[2:])
	case len(arguments) == 1 && slices.Contains([]string{"face", "smiley", "color"}, arguments[0]):
		return faces(ctx, arguments[0])
	}
	return fmt.Errorf("serve, counts, face, smiley, color, or ask RATE NAME=KIND:TARGET...")
}

func printCounts() error {
	client := http.Client{Timeout: 5 * time.Second}
	answer, err := client.Get("http://" + countsAddress)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	_, err = io.Copy(os.Stdout, answer.Body)
	return err
}
