package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
)

// facesAddress is the address on which each part of Faces listens, as the original programs do.
const facesAddress = ":8000"

// color is a gRPC message with the string blue as its first field, after the prefix: no compression, and the length.
var color = []byte("\x00\x00\x00\x00\x06\x0a\x04blue")

// faces serves a part of Faces: smiley over HTTP, color over gRPC, or face, a page that requests the other two and
// fails if one of them does.
func faces(ctx context.Context, part string) error {
	handler := map[string]http.HandlerFunc{"face": face, "smiley": smiley, "color": colour}[part]
	server := http.Server{Addr: facesAddress, Handler: handler, Protocols: new(http.Protocols)}
	server.Protocols.SetHTTP1(part != "color")
	server.Protocols.SetUnencryptedHTTP2(part == "color")
	context.AfterFunc(ctx, func() { server.Close() })
	if err := server.ListenAndServe(); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

func smiley(response http.ResponseWriter, request *http.Request) {
	if request.URL.Path != "/center/" {
		http.NotFound(response, request)
		return
	}
	_ = json.NewEncoder(response).Encode(map[string]string{"smiley": "grinning"}) // fails only if the client has left
}

func colour(response http.ResponseWriter, request *http.Request) {
	if _, err := io.Copy(io.Discard, request.Body); err != nil || request.URL.Path != "/ColorService/Center" {
		response.Header().Set("Grpc-Status", "12") // unimplemented
		return
	}
	response.Header().Set("Content-Type", "application/grpc")
	response.Header().Set("Trailer", "Grpc-Status")
	_, _ = response.Write(color) // fails only if the client has left
	response.Header().Set("Grpc-Status", "0")
}

// The clients of the page are shared by all of its requests, so that connections are reused.
var httpClient, grpcClient = clientOfPage("http1"), clientOfPage("http2")

func clientOfPage(kind string) *http.Client {
	client, err := clientOf(kind)
	if err != nil {
		panic(err) // both kinds are known
	}
	return client
}

func face(response http.ResponseWriter, request *http.Request) {
	found := make(chan error, 2)
	go func() { found <- askSmiley(request.URL.Path) }()
	go func() { found <- askColor() }()
	if err := errors.Join(<-found, <-found); err != nil {
		http.Error(response, err.Error(), http.StatusBadGateway)
		return
	}
	_ = json.NewEncoder(response).Encode(map[string]string{"smiley": "grinning", "color": "blue"}) // as above
}

func askSmiley(path string) error {
	answer, err := httpClient.Get("http://" + os.Getenv("SMILEY_SERVICE") + path)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	var page map[string]string
	if err := json.NewDecoder(answer.Body).Decode(&page); err != nil || page["smiley"] == "" {
		return fmt.Errorf("no smiley: %d %v", answer.StatusCode, err)
	}
	return nil
}

func askColor() error {
	question := bytes.NewReader(make([]byte, 5)) // an empty message
	address := "http://" + os.Getenv("COLOR_SERVICE") + "/ColorService/Center"
	answer, err := grpcClient.Post(address, "application/grpc", question)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	said, err := io.ReadAll(answer.Body)
	if status := answer.Trailer.Get("Grpc-Status"); err != nil || status != "0" || !bytes.Equal(said, color) {
		return fmt.Errorf("no colour: status %q, %v", status, err)
	}
	return nil
}
