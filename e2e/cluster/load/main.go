// Command load runs in the pods of tests that put a mesh under load. It is a server, and a client that sends
// requests at a constant rate, whatever their outcome, and counts failures by reason.
//
//	load serve                      HTTP/1 and HTTP/2 on port 8080 (/header/NAME answers with that header of the
//	                                request), a TCP echo on 8081
//	load ask RATE NAME=KIND:TARGET  sends requests until it is ended; KIND is http1, http2, connect (HTTP/1, a new
//	                                connection for each), lines (all over one connection) or dial (a line over a new
//	                                connection each)
//	load counts                     prints the outcomes that the client in this pod has counted, as JSON
//	load datagrams                  a UDP echo on port 7000
//	load send COUNT HOST:PORT       sends as many numbered datagrams from one socket, waits a second for each answer, and
//	                                prints how many came back
//	load face | smiley | color      a part of Faces on port 8000: face requests the other two
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

// countsAddress is where a client serves its counts, to its own pod only.
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
	case len(arguments) == 1 && arguments[0] == "datagrams":
		return echoDatagrams(ctx)
	case len(arguments) == 3 && arguments[0] == "send":
		return send(arguments[1], arguments[2])
	case len(arguments) > 2 && arguments[0] == "ask":
		return ask(ctx, arguments[1], arguments[2:])
	case len(arguments) == 1 && slices.Contains([]string{"face", "smiley", "color"}, arguments[0]):
		return faces(ctx, arguments[0])
	}
	return fmt.Errorf("serve, counts, datagrams, face, smiley, color, send COUNT HOST:PORT, or ask RATE NAME=KIND:TARGET...")
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
