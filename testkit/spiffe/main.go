// Command spiffe-peer contains clients and a server of the SPIFFE Workload API for tests, with SPIFFE's own Go module: a client as
// applications use it, and a server that issues certificates as SPIRE does.
//
//	spiffe-peer watch COUNT     prints a line of JSON for each of the first COUNT certificates
//	spiffe-peer svid            prints a certificate, its key and the roots, in PEM, as JSON
//	spiffe-peer bundles         prints the trust domains whose bundles it receives
//	spiffe-peer jwt             prints the error of a request for a JWT-SVID
//	spiffe-peer serve ADDRESS   answers each client with its identity, over mTLS
//	spiffe-peer call ADDRESS ID prints the answer of a server that must have the identity ID
//
//	spiffe-peer fetch DOMAIN URL [ID FILE]
//	                            prints the roots of the bundle at an endpoint, and how often it should be fetched; the server
//	                            authenticates by its DNS name, or by the SPIFFE ID and the roots in FILE (PEM)
//	spiffe-peer publish ID FILE serves the bundle of the ID's trust domain over HTTPS, authenticates by that ID, and writes the
//	                            bundle into FILE; it prints its address as the first line; SIGHUP replaces the roots by steps
//
//	spiffe-peer issue DIRECTORY LIFETIME NAME=ID...
//	                            serves certificates of ID at DIRECTORY/NAME.sock; SIGHUP replaces the roots by steps. With the
//	                            NAME istio it serves Istio's certificate service over TLS, whose root is in
//	                            DIRECTORY/istio.pem, and signs each identity of the ID's trust domain
//	spiffe-peer forward ADDRESS PATH
//	                            forwards connections to ADDRESS to the socket at PATH
//
// Clients connect to the socket in SPIFFE_ENDPOINT_SOCKET.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"strconv"
	"syscall"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"github.com/spiffe/go-spiffe/v2/spiffetls"
	"github.com/spiffe/go-spiffe/v2/spiffetls/tlsconfig"
	"github.com/spiffe/go-spiffe/v2/svid/jwtsvid"
	"github.com/spiffe/go-spiffe/v2/workloadapi"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	if len(args) == 0 {
		return errors.New("no command")
	}
	switch {
	case args[0] == "watch" && len(args) == 2:
		count, err := strconv.Atoi(args[1])
		if err != nil {
			return err
		}
		return watch(ctx, count)
	case args[0] == "svid":
		return written(ctx)
	case args[0] == "bundles":
		return bundles(ctx)
	case args[0] == "jwt":
		_, err := workloadapi.FetchJWTSVID(ctx, jwtsvid.Params{Audience: "test"})
		return err
	case args[0] == "serve" && len(args) == 2:
		return serve(ctx, args[1])
	case args[0] == "issue" && len(args) > 3:
		lifetime, err := time.ParseDuration(args[2])
		if err != nil {
			return err
		}
		return issue(ctx, args[1], lifetime, args[3:])
	case args[0] == "forward" && len(args) == 3:
		return forward(ctx, args[1], args[2])
	case args[0] == "fetch" && (len(args) == 3 || len(args) == 5):
		return fetch(ctx, args[1], args[2], args[3:])
	case args[0] == "publish" && len(args) == 3:
		return publish(ctx, args[1], args[2])
	case args[0] == "call" && len(args) == 3:
		return call(ctx, args[1], args[2])
	}
	return fmt.Errorf("not a command: %q", args)
}

// A certificate in the form that the test reads.
type svid struct {
	ID      string    `json:"id"`
	Serial  string    `json:"serial"`
	Ends    time.Time `json:"ends"`
	Roots   int       `json:"roots"`
	Domains []string  `json:"domains"`
}

type watcher struct {
	left int
	done chan error
}

func (w *watcher) OnX509ContextUpdate(update *workloadapi.X509Context) {
	if w.left == 0 {
		return
	}
	first := update.DefaultSVID()
	one := svid{ID: first.ID.String(), Serial: first.Certificates[0].SerialNumber.String(), Ends: first.Certificates[0].NotAfter}
	for _, bundle := range update.Bundles.Bundles() {
		one.Domains = append(one.Domains, bundle.TrustDomain().Name())
		if bundle.TrustDomain() == first.ID.TrustDomain() {
			one.Roots = len(bundle.X509Authorities())
		}
	}
	if err := json.NewEncoder(os.Stdout).Encode(one); err != nil {
		w.end(err)
	}
	if w.left--; w.left == 0 {
		w.end(nil)
	}
}

func (w *watcher) OnX509ContextWatchError(err error) {
	w.end(err)
}

func (w *watcher) end(err error) {
	select {
	case w.done <- err:
	default:
	}
}

// Prints certificates as they are replaced. Ends with the first error.
func watch(ctx context.Context, count int) error {
	client, err := workloadapi.New(ctx)
	if err != nil {
		return err
	}
	defer client.Close()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	w := &watcher{left: count, done: make(chan error, 1)}
	go func() { w.end(client.WatchX509Context(ctx, w)) }()
	return <-w.done
}

func written(ctx context.Context) error {
	update, err := workloadapi.FetchX509Context(ctx)
	if err != nil {
		return err
	}
	own := update.DefaultSVID()
	chain, key, err := own.Marshal()
	if err != nil {
		return err
	}
	bundle, err := update.Bundles.GetX509BundleForTrustDomain(own.ID.TrustDomain())
	if err != nil {
		return err
	}
	roots, err := bundle.Marshal()
	if err != nil {
		return err
	}
	files := map[string]string{"chain": string(chain), "key": string(key), "roots": string(roots)}
	return json.NewEncoder(os.Stdout).Encode(files)
}

func bundles(ctx context.Context) error {
	set, err := workloadapi.FetchX509Bundles(ctx)
	if err != nil {
		return err
	}
	for _, bundle := range set.Bundles() {
		fmt.Println(bundle.TrustDomain().Name(), len(bundle.X509Authorities()))
	}
	return nil
}

// Answers each client with the client's identity, until the context ends. Certificates are replaced meanwhile.
func serve(ctx context.Context, address string) error {
	source, err := workloadapi.NewX509Source(ctx)
	if err != nil {
		return err
	}
	defer source.Close()
	mode := spiffetls.MTLSServerWithSource(tlsconfig.AuthorizeAny(), source)
	listener, err := spiffetls.ListenWithMode(ctx, "tcp", address, mode)
	if err != nil {
		return err
	}
	go func() {
		<-ctx.Done()
		listener.Close()
	}()
	for {
		connection, err := listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return nil
		} else if err != nil {
			return err
		}
		go answer(connection)
	}
}

func answer(connection net.Conn) {
	defer connection.Close()
	id, err := spiffetls.PeerIDFromConn(connection)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return
	}
	fmt.Fprintln(connection, id)
}

func call(ctx context.Context, address, id string) error {
	server, err := spiffeid.FromString(id)
	if err != nil {
		return err
	}
	connection, err := spiffetls.Dial(ctx, "tcp", address, tlsconfig.AuthorizeID(server))
	if err != nil {
		return err
	}
	defer connection.Close()
	_, err = io.Copy(os.Stdout, connection)
	return err
}
