package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math/rand"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"
)

// How long a request, or the end of the server's work, may take.
const limit = time.Minute

var lengths = []int{0, 1, 100, 5_000, 70_000, 300_000, 1_500_000}

func transport(version int64) *http.Transport {
	return &http.Transport{
		Protocols:             protocols(version == 1, version == 2),
		DisableCompression:    true,
		ExpectContinueTimeout: limit,
	}
}

// How requests ended, and how many of them in which way.
type outcomes struct {
	sync.Mutex
	counts   map[string]int
	failures []string
}

type client struct {
	server, name string
	http         *http.Client
	random       *rand.Rand
	outcomes     *outcomes
}

func (o *outcomes) count(what string) {
	o.Lock()
	defer o.Unlock()
	o.counts[what]++
}

func (o *outcomes) fail(format string, values ...any) {
	o.Lock()
	defer o.Unlock()
	o.failures = append(o.failures, fmt.Sprintf(format, values...))
	if len(o.failures) <= 20 {
		fmt.Println(o.failures[len(o.failures)-1])
	}
}

func (o *outcomes) noWorkIsLeft(server string) {
	left := "unknown"
	for late := time.Now().Add(limit); time.Now().Before(late); time.Sleep(50 * time.Millisecond) {
		if response, err := http.Get(server + "/working"); err == nil {
			bytes, _ := io.ReadAll(response.Body)
			response.Body.Close()
			if left = string(bytes); left == "0" {
				return
			}
		}
	}
	o.fail("requests of clients that left that the server still works for: %s", left)
}

func (c *client) oneIn(n int) bool { return c.random.Intn(n) == 0 }

// Sends one request of a random kind.
func (c *client) request() {
	text := fmt.Sprintf("%s %x", c.name, c.random.Uint64())
	length := lengths[c.random.Intn(len(lengths))]
	within, leave := context.WithTimeout(context.Background(), limit)
	defer leave()
	switch c.random.Intn(10) {
	case 0, 1, 2, 3:
		c.get(within, leave, text, length)
	case 4, 5, 6:
		c.put(within, leave, text, length)
	case 7:
		c.both(within, text, min(length, 300_000))
	default:
		c.leave(within, leave)
	}
}

func (c *client) ask(within context.Context, method, path string, query url.Values, body io.Reader) *http.Request {
	request, err := http.NewRequestWithContext(within, method, c.server+path+"?"+query.Encode(), body)
	if err != nil {
		panic(err)
	}
	return request
}

func (c *client) get(within context.Context, leave func(), text string, length int) {
	query := url.Values{"text": {text}, "length": {fmt.Sprint(length)}}
	for _, option := range []string{"hints", "trailers", "flush"} {
		if c.oneIn(3) {
			query.Set(option, "")
		}
	}
	aborted := length > 3 && c.oneIn(12)
	if aborted {
		query.Set("abort", "")
		query.Set("flush", "")
	}
	request := c.ask(within, "GET", "/get", query, nil)
	if c.oneIn(4) {
		request.Header.Set("x-long", strings.Repeat("y", c.random.Intn(20_000)))
	}
	// If an application aborts such a response, the connection ends after a complete response.
	if !aborted && c.oneIn(8) {
		request.Method = "HEAD"
	}
	response, err := c.http.Do(request)
	if err != nil {
		if !aborted {
			c.outcomes.fail("%s %s: %v", text, request.URL, err)
		}
		return
	}
	defer response.Body.Close()
	if c.oneIn(10) {
		_, _ = io.CopyN(io.Discard, response.Body, int64(c.random.Intn(length+1)))
		leave()
		c.outcomes.count("left in the response")
		return
	}
	got, err := io.ReadAll(response.Body)
	if aborted {
		if err == nil && response.StatusCode == http.StatusOK {
			c.outcomes.fail("%s: an aborted response looks complete after %d of %d bytes", text, len(got), length)
		}
		c.outcomes.count("aborted")
		return
	}
	expected := content(text, length)
	if request.Method == "HEAD" {
		expected = nil
	}
	if trailer := response.Trailer.Get("x-end"); query.Has("trailers") && request.Method == "GET" && trailer != text {
		c.outcomes.fail("%s %s: the trailer is %q", text, request.URL, trailer)
	}
	if err != nil || !c.is(response, http.StatusOK, text) || !bytes.Equal(got, expected) {
		c.outcomes.fail("%s %s: %v, %v, %d of %d bytes", text, request.URL, err, response, len(got), length)
	}
	c.outcomes.count("got")
}

func (c *client) is(response *http.Response, status int, text string) bool {
	return response.StatusCode == status && response.Header.Get("x-text") == text
}

func (c *client) put(within context.Context, leave func(), text string, length int) {
	sent := content(text, length)
	query := url.Values{"text": {text}}
	early := c.oneIn(6)
	if early {
		query.Set("early", "")
	}
	var body io.Reader = bytes.NewReader(sent)
	if c.oneIn(2) {
		// This hides the length of the body.
		body = struct{ io.Reader }{body}
	}
	request := c.ask(within, "PUT", "/put", query, body)
	if c.oneIn(4) {
		request.Header.Set("expect", "100-continue")
	}
	end := ""
	// Go's server ends an HTTP/2 connection if a trailer arrives after it has answered.
	if !early && length > 0 && request.ContentLength <= 0 && c.oneIn(3) {
		end = text
		request.ContentLength = -1
		request.Trailer = http.Header{"X-End": {end}}
	}
	leaves := c.oneIn(10)
	if leaves {
		defer time.AfterFunc(time.Duration(c.random.Intn(20))*time.Millisecond, leave).Stop()
	}
	response, err := c.http.Do(request)
	var got []byte
	if err == nil {
		got, err = io.ReadAll(response.Body)
		response.Body.Close()
	}
	sum := sha256.Sum256(sent)
	switch {
	case leaves:
		c.outcomes.count("left in the request")
	// Before the client reads the answer, it may write to a connection that the server has closed.
	case early && (err != nil || c.is(response, http.StatusForbidden, text)):
		c.outcomes.count("answered early")
	case err != nil || early || !c.is(response, http.StatusOK, text),
		string(got) != fmt.Sprintf("%d %x %s", length, sum, end):
		c.outcomes.fail("%s %s of %d bytes: %v, %v, %q", text, request.URL, length, err, response, got)
	default:
		c.outcomes.count("put")
	}
}

func (c *client) both(within context.Context, text string, length int) {
	sent := content(text, length)
	reader, writer := io.Pipe()
	go func() {
		_, err := io.Copy(writer, bytes.NewReader(sent))
		writer.CloseWithError(err)
	}()
	defer reader.Close()
	response, err := c.http.Do(c.ask(within, "POST", "/both", nil, reader))
	if err != nil {
		c.outcomes.fail("%s: both directions: %v", text, err)
		return
	}
	got, err := io.ReadAll(response.Body)
	response.Body.Close()
	if err != nil || !bytes.Equal(got, sent) {
		c.outcomes.fail("%s: both directions: %v, %v, %d of %d bytes", text, err, response, len(got), length)
	}
	c.outcomes.count("both directions")
}

// Sends a request that takes long, and leaves while the server works on it.
func (c *client) leave(within context.Context, leave func()) {
	defer time.AfterFunc(time.Duration(1+c.random.Intn(50))*time.Millisecond, leave).Stop()
	response, err := c.http.Do(c.ask(within, "GET", "/work", nil, nil))
	if err == nil {
		response.Body.Close()
		c.outcomes.fail("a request for long work was answered: %v", response)
	} else if !errors.Is(err, context.Canceled) {
		c.outcomes.fail("a request for long work: %v", err)
	}
	c.outcomes.count("left before the response")
}
