package main

import (
	"context"
	"fmt"
	"net/http/httptrace"
	"strings"
	"sync"
	"time"
)

// failure is why a request failed, and how far it had come.
type failure struct{ reason, way string }

func (f failure) Error() string { return f.reason }

// way is how far a request has come, with the time of each step since it began.
type way struct {
	begun time.Time
	mutex sync.Mutex
	steps []string
}

func (w *way) step(format string, arguments ...any) {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	w.steps = append(w.steps, fmt.Sprintf("%d ms ", time.Since(w.begun).Milliseconds())+fmt.Sprintf(format, arguments...))
}

// String returns the steps.
func (w *way) String() string {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	return strings.Join(w.steps, ", ")
}

// traced returns a context with which an HTTP client records its steps.
func (w *way) traced() context.Context {
	return httptrace.WithClientTrace(context.Background(), &httptrace.ClientTrace{
		DNSStart:     func(asked httptrace.DNSStartInfo) { w.step("asks for %s", asked.Host) },
		DNSDone:      func(found httptrace.DNSDoneInfo) { w.step("has %v %v", found.Addrs, found.Err) },
		ConnectStart: func(_, address string) { w.step("connects to %s", address) },
		ConnectDone:  func(_, address string, err error) { w.step("connected to %s %v", address, err) },
		GotConn: func(got httptrace.GotConnInfo) {
			w.step("sends from %s, reused %t", got.Conn.LocalAddr(), got.Reused)
		},
		WroteRequest:         func(wrote httptrace.WroteRequestInfo) { w.step("has sent %v", wrote.Err) },
		GotFirstResponseByte: func() { w.step("has the first byte") },
	})
}
