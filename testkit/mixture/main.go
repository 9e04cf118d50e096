// Command mixture sends a random mixture of requests over HTTP/1 and HTTP/2, many at a time, and checks every byte of the responses.
// Client and server are those of Go's standard library.
//
//	mixture serve PORT                   serves until it is killed
//	mixture call HOST:PORT SECONDS SEED  fails if any response does not belong to its request
//
// Each request has a text of its own, from which its content and that of its response are made, so that a byte of another one is
// detected. Some responses have interim heads and trailers, are flushed in parts, or are aborted. Some requests have trailers, expect
// 100, are answered before they have been read, transfer both directions at the same time, or are abandoned in the middle.
package main

import (
	"fmt"
	"math/rand"
	"net/http"
	"os"
	"strconv"
	"sync"
	"time"
)

// The number of clients of each version. Each has its own connections.
const clients = 16

func main() {
	switch {
	case len(os.Args) == 3 && os.Args[1] == "serve":
		fmt.Fprintln(os.Stderr, serve(os.Args[2]))
	case len(os.Args) == 5 && os.Args[1] == "call":
		if call("http://"+os.Args[2], number(os.Args[3]), number(os.Args[4])) {
			return
		}
	default:
		fmt.Fprintln(os.Stderr, "mixture serve PORT | mixture call HOST:PORT SECONDS SEED")
	}
	os.Exit(1)
}

func number(text string) int64 {
	value, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	return value
}

// Whether every request got its own response, and the server's work for clients that left has ended.
func call(server string, seconds, seed int64) bool {
	end := time.Now().Add(time.Duration(seconds) * time.Second)
	outcomes := &outcomes{counts: map[string]int{}}
	var all sync.WaitGroup
	for nth := range int64(clients) {
		for _, version := range []int64{1, 2} {
			all.Add(1)
			go func() {
				defer all.Done()
				c := client{
					server:   server,
					name:     fmt.Sprintf("HTTP/%d client %d", version, nth),
					http:     &http.Client{Transport: transport(version)},
					random:   rand.New(rand.NewSource(seed*1000 + nth*2 + version)),
					outcomes: outcomes,
				}
				for time.Now().Before(end) {
					c.request()
				}
				c.http.CloseIdleConnections()
			}()
		}
	}
	all.Wait()
	outcomes.noWorkIsLeft(server)
	fmt.Println(outcomes.counts)
	return len(outcomes.failures) == 0
}
