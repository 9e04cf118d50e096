package main

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"time"
)

const (
	// work is how long a response takes, so that requests are in progress when a pod or proxy ends.
	work = 5 * time.Millisecond
	// finish is how long requests in progress may take once the server is told to end.
	finish = 5 * time.Second
)

// serve ends as servers of most frameworks do: on a signal it stops accepting at once, and finishes
// the requests in progress.
func serve(ctx context.Context) error {
	hostname, err := os.Hostname()
	if err != nil {
		return err
	}
	answer := hostname + "\n" + strings.Repeat("x", 1024)
	mux := http.NewServeMux()
	mux.HandleFunc("/ready", func(http.ResponseWriter, *http.Request) {})
	mux.HandleFunc("/header/{name}", func(response http.ResponseWriter, request *http.Request) {
		_, _ = io.WriteString(response, request.Header.Get(request.PathValue("name"))) // as below
	})
	mux.HandleFunc("/", func(response http.ResponseWriter, request *http.Request) {
		_, _ = io.Copy(io.Discard, request.Body) // a client that has left gets no response
		time.Sleep(work)
		_, _ = io.WriteString(response, answer)
	})
	server := http.Server{Addr: ":8080", Handler: mux, Protocols: new(http.Protocols)}
	server.Protocols.SetHTTP1(true)
	server.Protocols.SetUnencryptedHTTP2(true)
	lines, err := net.Listen("tcp", ":8081")
	if err != nil {
		return err
	}
	go echo(lines)
	ended := make(chan error)
	context.AfterFunc(ctx, func() {
		lines.Close()
		bounded, cancel := context.WithTimeout(context.Background(), finish)
		defer cancel()
		ended <- server.Shutdown(bounded)
	})
	if err := server.ListenAndServe(); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return <-ended
}

// echo sends every client its bytes back, until the listener is closed.
func echo(listener net.Listener) {
	for {
		connection, err := listener.Accept()
		if err != nil {
			return
		}
		go func() {
			defer connection.Close()
			_, _ = io.Copy(connection, connection) // ends with the client's connection
		}()
	}
}
