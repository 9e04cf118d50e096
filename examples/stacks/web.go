// A server of HTTP/1.1, and one of HTTP/2 without TLS.
package main

import (
	"fmt"
	"log"
	"net"
	"net/http"
)

func main() {
	answer := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		host, _, _ := net.SplitHostPort(r.RemoteAddr)
		fmt.Fprintln(w, host, r.Proto)
	})
	h2c := &http.Server{Addr: ":8081", Handler: answer, Protocols: new(http.Protocols)}
	h2c.Protocols.SetUnencryptedHTTP2(true)
	go func() { log.Fatal(http.ListenAndServe(":8080", answer)) }()
	log.Fatal(h2c.ListenAndServe())
}
