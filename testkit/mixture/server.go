package main

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"io"
	"net/http"
	"sync/atomic"
	"time"
)

// How long the work of a request to /work takes: longer than any client waits.
const work = 10 * time.Minute

// The content that belongs to a text.
func content(of string, length int) []byte {
	sum := sha256.Sum256([]byte(of))
	var all bytes.Buffer
	for all.Len() < length {
		all.Write(sum[:])
		sum = sha256.Sum256(sum[:])
	}
	return all.Bytes()[:length]
}

func protocols(http1, http2 bool) *http.Protocols {
	var protocols http.Protocols
	protocols.SetHTTP1(http1)
	protocols.SetUnencryptedHTTP2(http2)
	return &protocols
}

func serve(port string) error {
	var working atomic.Int64
	http.HandleFunc("/get", get)
	http.HandleFunc("/put", put)
	http.HandleFunc("/both", both)
	http.HandleFunc("/work", func(_ http.ResponseWriter, request *http.Request) {
		working.Add(1)
		defer working.Add(-1)
		select {
		case <-request.Context().Done():
		case <-time.After(work):
		}
	})
	http.HandleFunc("/working", func(response http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(response, working.Load())
	})
	server := http.Server{Addr: ":" + port, Protocols: protocols(true, true)}
	return server.ListenAndServe()
}

// Responds with the content of the request's text, in three parts.
func get(response http.ResponseWriter, request *http.Request) {
	query := request.URL.Query()
	text, rest := query.Get("text"), int(number(query.Get("length")))
	response.Header().Set("x-text", text)
	if query.Has("hints") {
		response.Header().Set("link", text)
		response.WriteHeader(http.StatusEarlyHints)
	}
	if query.Has("trailers") {
		response.Header().Set("trailer", "x-end")
	}
	for all := content(text, rest); len(all) > 0; {
		part := min(rest/3+1, len(all))
		if _, err := response.Write(all[:part]); err != nil {
			return
		}
		all = all[part:]
		if query.Has("flush") {
			response.(http.Flusher).Flush()
			time.Sleep(time.Millisecond)
		}
		if query.Has("abort") {
			panic(http.ErrAbortHandler)
		}
	}
	if query.Has("trailers") {
		response.Header().Set("x-end", text)
	}
}

// Responds with the length, the checksum and the trailer of the request's content, or responds before reading any
// of it.
func put(response http.ResponseWriter, request *http.Request) {
	response.Header().Set("x-text", request.URL.Query().Get("text"))
	if request.URL.Query().Has("early") {
		response.WriteHeader(http.StatusForbidden)
		return
	}
	sum := sha256.New()
	length, err := io.Copy(sum, request.Body)
	if err == nil {
		fmt.Fprintf(response, "%d %x %s", length, sum.Sum(nil), request.Trailer.Get("x-end"))
	}
}

// Sends back the bytes that it reads, while it is still reading.
func both(response http.ResponseWriter, request *http.Request) {
	control := http.NewResponseController(response)
	// Without this, a response in HTTP/1 ends the request.
	_ = control.EnableFullDuplex()
	response.WriteHeader(http.StatusOK)
	buffer := make([]byte, 4096)
	for {
		_ = control.Flush()
		length, err := request.Body.Read(buffer)
		_, _ = response.Write(buffer[:length])
		if err != nil {
			return
		}
	}
}
