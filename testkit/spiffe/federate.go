package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/spiffe/go-spiffe/v2/bundle/spiffebundle"
	"github.com/spiffe/go-spiffe/v2/bundle/x509bundle"
	"github.com/spiffe/go-spiffe/v2/federation"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"github.com/spiffe/go-spiffe/v2/spiffetls/tlsconfig"
	"github.com/spiffe/go-spiffe/v2/svid/x509svid"
)

// How often clients should fetch the published bundle.
const refresh = time.Second

// Prints the bundle from an endpoint. `server` is empty, or contains an ID and the file of a bundle.
func fetch(ctx context.Context, domain, url string, server []string) error {
	of, err := spiffeid.TrustDomainFromString(domain)
	if err != nil {
		return err
	}
	var options []federation.FetchOption
	if len(server) == 2 {
		id, err := spiffeid.FromString(server[0])
		if err != nil {
			return err
		}
		bundle, err := x509bundle.Load(id.TrustDomain(), server[1])
		if err != nil {
			return err
		}
		options = append(options, federation.WithSPIFFEAuth(bundle, id))
	}
	bundle, err := federation.FetchBundle(ctx, of, url, options...)
	if err != nil {
		return err
	}
	hint, _ := bundle.RefreshHint()
	shown := struct {
		Roots   [][]byte      `json:"roots"`
		Refresh time.Duration `json:"refresh_s"`
	}{Refresh: hint / time.Second}
	for _, root := range bundle.X509Authorities() {
		shown.Roots = append(shown.Roots, root.Raw)
	}
	return json.NewEncoder(os.Stdout).Encode(shown)
}

// The present certificate and bundle of an authority.
type published struct {
	issuer *issuer
	id     spiffeid.ID
}

func (p published) GetX509SVID() (*x509svid.SVID, error) {
	p.issuer.mutex.Lock()
	defer p.issuer.mutex.Unlock()
	above := p.issuer.authorities[p.id.TrustDomain()].below
	leaf, err := certify(p.id.String(), above, time.Hour, false)
	if err != nil {
		return nil, err
	}
	key, err := x509.MarshalPKCS8PrivateKey(leaf.key)
	if err != nil {
		return nil, err
	}
	return x509svid.ParseRaw(append(append([]byte{}, leaf.certificate.Raw...), above.certificate.Raw...), key)
}

func (p published) GetBundleForTrustDomain(domain spiffeid.TrustDomain) (*spiffebundle.Bundle, error) {
	p.issuer.mutex.Lock()
	defer p.issuer.mutex.Unlock()
	bundle := spiffebundle.New(domain)
	for _, root := range p.issuer.authorities[domain].roots {
		bundle.AddX509Authority(root.certificate)
	}
	bundle.SetRefreshHint(refresh)
	bundle.SetSequenceNumber(uint64(p.issuer.stage))
	return bundle, nil
}

// Serves the bundle until the context ends.
func publish(ctx context.Context, text, file string) error {
	id, err := spiffeid.FromString(text)
	if err != nil {
		return err
	}
	one := published{&issuer{authorities: map[spiffeid.TrustDomain]*authority{}, changed: make(chan struct{})}, id}
	if err := one.issuer.add(id.TrustDomain()); err != nil {
		return err
	}
	bundle, err := one.GetBundleForTrustDomain(id.TrustDomain())
	if err != nil {
		return err
	}
	written, err := bundle.Marshal()
	if err != nil {
		return err
	}
	if err := os.WriteFile(file, written, 0o644); err != nil {
		return err
	}
	handler, err := federation.NewHandler(id.TrustDomain(), one)
	if err != nil {
		return err
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	steps := make(chan os.Signal, 1)
	signal.Notify(steps, syscall.SIGHUP)
	fmt.Println(listener.Addr())
	ended := make(chan error, 1)
	config := tlsconfig.TLSServerConfig(one)
	server := &http.Server{Handler: handler, ReadHeaderTimeout: time.Minute}
	go func() { ended <- server.Serve(tls.NewListener(listener, config)) }()
	for {
		select {
		case <-ctx.Done():
			return nil
		case err := <-ended:
			return err
		case <-steps:
			if err := one.issuer.step(); err != nil {
				return err
			}
			fmt.Println("the next step is taken")
		}
	}
}
