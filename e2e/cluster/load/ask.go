package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"
)

const (
	// answerLimit is how long a response may take: much longer than any takes on a busy machine.
	answerLimit = 20 * time.Second
	// maxUnderWay is how many requests of one kind may be in progress; any further one counts as failed.
	maxUnderWay = 1000
	// maxExamples is how many failures are kept with their time: the newest ones.
	maxExamples = 20
	// firstLimit is how long an attempt to reach a target may take before anything is counted.
	firstLimit = time.Second
)

// count holds the outcomes of the requests of one kind.
type count struct {
	Answered int
	Failed   map[string]int
	Examples []example
}

// example is a request that failed: when, why, and how far it had come.
type example struct {
	At   time.Time
	Text string
}

// counts holds the outcomes of all kinds, by their names.
type counts struct {
	mutex sync.Mutex
	all   map[string]*count
}

func (c *counts) add(name string, err error) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	one := c.all[name]
	if err == nil {
		one.Answered++
		return
	}
	one.Failed[err.Error()]++
	latest := example{At: time.Now(), Text: err.Error()}
	var failed failure
	if errors.As(err, &failed) {
		latest.Text += ": " + failed.way
	}
	if len(one.Examples) == maxExamples {
		one.Examples = one.Examples[1:]
	}
	one.Examples = append(one.Examples, latest)
}

func (c *counts) ServeHTTP(response http.ResponseWriter, _ *http.Request) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	_ = json.NewEncoder(response).Encode(c.all) // fails only if the client has left
}

// ask sends requests to every target at a rate, in requests a second, until ctx is cancelled.
func ask(ctx context.Context, rate string, targets []string) error {
	perSecond, err := strconv.Atoi(rate)
	if err != nil || perSecond < 1 {
		return fmt.Errorf("%q is no rate", rate)
	}
	counted := &counts{all: map[string]*count{}}
	for _, target := range targets {
		name, rest, _ := strings.Cut(target, "=")
		kind, address, found := strings.Cut(rest, ":")
		if !found {
			return fmt.Errorf("%q is not NAME=KIND:TARGET", target)
		}
		counted.all[name] = &count{Failed: map[string]int{}}
		if kind == "lines" {
			go func() {
				reach(ctx, address)
				for ctx.Err() == nil {
					counted.add(name, talk(ctx, address, perSecond, func() { counted.add(name, nil) }))
					<-time.After(time.Second / time.Duration(perSecond)) // new connections are made at the rate, too
				}
			}()
			continue
		}
		question, err := questionOf(kind, address)
		if err != nil {
			return err
		}
		go func() {
			reach(ctx, address)
			every(ctx, perSecond, func(underWay int) {
				if underWay > maxUnderWay {
					counted.add(name, errors.New("too many under way"))
					return
				}
				counted.add(name, question())
			})
		}()
	}
	server := http.Server{Addr: countsAddress, Handler: counted}
	context.AfterFunc(ctx, func() { server.Close() })
	if err := server.ListenAndServe(); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// reach connects to a target, HOST:PORT or a URL, until it answers. Before kube-proxy has written rules for a Service, the SYN of a
// connection and its retransmissions go to the Service's own address, where no machine is. Such a connection would count as failed
// 20 seconds later.
func reach(ctx context.Context, target string) {
	address := target
	if parsed, err := url.Parse(target); err == nil && parsed.Host != "" {
		address = net.JoinHostPort(parsed.Hostname(), cmp.Or(parsed.Port(), "80"))
	}
	for ctx.Err() == nil {
		if connection, err := net.DialTimeout("tcp", address, firstLimit); err == nil {
			connection.Close()
			return
		}
		<-time.After(firstLimit / 10)
	}
}

// every calls begin at a rate, whether or not earlier calls have ended.
func every(ctx context.Context, perSecond int, begin func(underWay int)) {
	var mutex sync.Mutex
	underWay := 0
	change := func(by int) int {
		mutex.Lock()
		defer mutex.Unlock()
		underWay += by
		return underWay
	}
	ticker := time.NewTicker(time.Second / time.Duration(perSecond))
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			go func() {
				begin(change(1))
				change(-1)
			}()
		}
	}
}

// questionOf returns the function that makes one request.
func questionOf(kind, address string) (func() error, error) {
	if kind == "dial" {
		return func() error { return dial(address) }, nil
	}
	client, err := clientOf(kind)
	return func() error { return request(client, address, kind) }, err
}

func clientOf(kind string) (*http.Client, error) {
	transport := &http.Transport{Protocols: new(http.Protocols), MaxIdleConnsPerHost: maxUnderWay}
	switch kind {
	case "http1":
		transport.Protocols.SetHTTP1(true)
	case "connect":
		transport.Protocols.SetHTTP1(true)
		transport.DisableKeepAlives = true
	case "http2":
		transport.Protocols.SetUnencryptedHTTP2(true)
	default:
		return nil, fmt.Errorf("%q is no kind", kind)
	}
	return &http.Client{Transport: transport, Timeout: answerLimit}, nil
}

// request sends a POST, so that no proxy repeats a request that a server may have processed. The client itself
// retries as any client does: over HTTP/2 if the server reports that it has not processed the request (RFC 9113,
// 8.7); over HTTP/1 if the connection was closed without a response (RFC 9112, 9.3.1), because a server that closes
// an idle connection cannot prevent a request from crossing the close.
func request(client *http.Client, address, kind string) error {
	const words = "a few bytes"
	var body io.Reader = strings.NewReader(words)
	if kind == "connect" {
		body = io.NopCloser(body) // of a type that cannot be read twice
	}
	question, err := http.NewRequest(http.MethodPost, address, body)
	if err != nil {
		return err
	}
	question.ContentLength = int64(len(words))
	if kind == "http1" {
		question.Header["Idempotency-Key"] = nil // not sent; tells Go's client that the request may be retried
	}
	way := &way{begun: time.Now()}
	answer, err := client.Do(question.WithContext(way.traced()))
	if err != nil {
		return failure{withoutPorts(err), way.String()}
	}
	defer answer.Body.Close()
	if _, err := io.Copy(io.Discard, answer.Body); err != nil {
		return failure{"in the answer: " + withoutPorts(err), way.String()}
	}
	if answer.StatusCode != http.StatusOK {
		return failure{fmt.Sprintf("%d %s", answer.StatusCode, answer.Header.Get("leno-error")), way.String()}
	}
	return nil
}

// withoutPorts returns the text of an error without this side's address, which differs each time.
func withoutPorts(err error) string {
	text := err.Error()
	var of *net.OpError
	if errors.As(err, &of) && of.Source != nil {
		text = strings.ReplaceAll(text, of.Source.String(), "here")
	}
	return text
}

// talk sends lines over one connection and waits for each to come back. It returns why the connection ended.
func talk(ctx context.Context, address string, perSecond int, answered func()) error {
	connection, err := net.DialTimeout("tcp", address, answerLimit)
	if err != nil {
		return err
	}
	defer connection.Close()
	ticker := time.NewTicker(time.Second / time.Duration(perSecond))
	defer ticker.Stop()
	for ctx.Err() == nil {
		<-ticker.C
		if err := say(connection); err != nil {
			return err
		}
		answered()
	}
	return nil
}

// dial sends a line over a new connection.
func dial(address string) error {
	connection, err := net.DialTimeout("tcp", address, answerLimit)
	if err != nil {
		return errors.New(withoutPorts(err))
	}
	defer connection.Close()
	return say(connection)
}

// say sends a line and waits until it has come back.
func say(connection net.Conn) error {
	const line = "a line that comes back\n"
	if err := connection.SetDeadline(time.Now().Add(answerLimit)); err != nil {
		return err
	}
	if _, err := io.WriteString(connection, line); err != nil {
		return errors.New("writing: " + withoutPorts(err))
	}
	back := make([]byte, len(line))
	if _, err := io.ReadFull(connection, back); err != nil {
		return errors.New("reading: " + withoutPorts(err))
	}
	if string(back) != line {
		return fmt.Errorf("another line has come back: %q", back)
	}
	return nil
}
