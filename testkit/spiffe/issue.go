package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"math/big"
	"net"
	"net/url"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/spiffe/go-spiffe/v2/proto/spiffe/workload"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// The authority of a trust domain. It has roots; the root at index `signing` signs an intermediate certificate,
// which signs those of workloads.
type authority struct {
	domain  spiffeid.TrustDomain
	roots   []pair
	signing int
	below   pair
}

type pair struct {
	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
}

// All authorities, and a channel that is closed when one of them changes.
type issuer struct {
	mutex       sync.Mutex
	authorities map[spiffeid.TrustDomain]*authority
	changed     chan struct{}
	stage       int
	lifetime    time.Duration
}

// The Workload API on one socket. SPIRE's agent finds out which process calls; here the socket determines the
// identity.
type server struct {
	workload.UnimplementedSpiffeWorkloadAPIServer
	issuer *issuer
	id     spiffeid.ID
}

// Serves certificates of the identity ID at DIRECTORY/NAME.sock until the context ends. Each SIGHUP takes the next
// of these steps: a second root is added, the second root signs, the first root is removed.
func issue(ctx context.Context, directory string, lifetime time.Duration, names []string) error {
	one := &issuer{authorities: map[spiffeid.TrustDomain]*authority{}, changed: make(chan struct{}), lifetime: lifetime}
	ended := make(chan error, len(names))
	for _, name := range names {
		name, text, _ := strings.Cut(name, "=")
		id, err := spiffeid.FromString(text)
		if err != nil {
			return err
		}
		if err := one.add(id.TrustDomain()); err != nil {
			return err
		}
		path := filepath.Join(directory, name+".sock")
		if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
		listener, err := net.Listen("unix", path)
		if err != nil {
			return err
		}
		if err := os.Chmod(path, 0o666); err != nil {
			return err
		}
		served := grpc.NewServer()
		if name == istio {
			if served, err = certificates(one, id, directory); err != nil {
				return err
			}
		} else {
			workload.RegisterSpiffeWorkloadAPIServer(served, &server{issuer: one, id: id})
		}
		go func() { ended <- served.Serve(listener) }()
		defer served.Stop()
	}
	fmt.Println("serving")
	steps := make(chan os.Signal, 1)
	signal.Notify(steps, syscall.SIGHUP)
	for {
		select {
		case <-ctx.Done():
			return nil
		case err := <-ended:
			return err
		case <-steps:
			if err := one.step(); err != nil {
				return err
			}
		}
	}
}

func (i *issuer) add(domain spiffeid.TrustDomain) error {
	if i.authorities[domain] != nil {
		return nil
	}
	root, err := certify(domain.IDString(), pair{}, 24*time.Hour, true)
	if err != nil {
		return err
	}
	one := &authority{domain: domain, roots: []pair{root}}
	i.authorities[domain] = one
	return one.sign(0)
}

// Makes the root with this index sign from now on.
func (a *authority) sign(index int) (err error) {
	a.signing = index
	a.below, err = certify(a.domain.IDString(), a.roots[index], 12*time.Hour, true)
	return err
}

func (i *issuer) step() error {
	i.mutex.Lock()
	defer i.mutex.Unlock()
	for _, one := range i.authorities {
		switch i.stage % 3 {
		case 0:
			root, err := certify(one.domain.IDString(), pair{}, 24*time.Hour, true)
			if err != nil {
				return err
			}
			one.roots = append(one.roots, root)
		case 1:
			if err := one.sign(len(one.roots) - 1); err != nil {
				return err
			}
		case 2:
			one.roots, one.signing = one.roots[1:], 0
		}
	}
	i.stage++
	close(i.changed)
	i.changed = make(chan struct{})
	return nil
}

// The certificate of an identity, the roots of all trust domains, and a channel that is closed when either
// changes.
func (i *issuer) issued(id spiffeid.ID) (*workload.X509SVID, map[string][]byte, <-chan struct{}, error) {
	i.mutex.Lock()
	defer i.mutex.Unlock()
	bundles := map[string][]byte{}
	for domain, one := range i.authorities {
		for _, root := range one.roots {
			bundles[domain.IDString()] = append(bundles[domain.IDString()], root.certificate.Raw...)
		}
	}
	own := i.authorities[id.TrustDomain()]
	leaf, err := certify(id.String(), own.below, i.lifetime, false)
	if err != nil {
		return nil, nil, nil, err
	}
	key, err := x509.MarshalPKCS8PrivateKey(leaf.key)
	if err != nil {
		return nil, nil, nil, err
	}
	svid := &workload.X509SVID{
		SpiffeId:    id.String(),
		X509Svid:    append(append([]byte{}, leaf.certificate.Raw...), own.below.certificate.Raw...),
		X509SvidKey: key,
		Bundle:      bundles[id.TrustDomain().IDString()],
	}
	return svid, bundles, i.changed, nil
}

func (s *server) FetchX509SVID(_ *workload.X509SVIDRequest, stream workload.SpiffeWorkloadAPI_FetchX509SVIDServer) error {
	return s.follow(stream.Context(), func(svid *workload.X509SVID, _ map[string][]byte) error {
		return stream.Send(&workload.X509SVIDResponse{Svids: []*workload.X509SVID{svid}})
	})
}

func (s *server) FetchX509Bundles(_ *workload.X509BundlesRequest, stream workload.SpiffeWorkloadAPI_FetchX509BundlesServer) error {
	return s.follow(stream.Context(), func(_ *workload.X509SVID, bundles map[string][]byte) error {
		return stream.Send(&workload.X509BundlesResponse{Bundles: bundles})
	})
}

// Sends the present state now, after half of the certificate's lifetime, and when roots have changed.
func (s *server) follow(ctx context.Context, send func(*workload.X509SVID, map[string][]byte) error) error {
	header, _ := metadata.FromIncomingContext(ctx)
	if said := header.Get("workload.spiffe.io"); len(said) != 1 || said[0] != "true" {
		return status.Error(codes.InvalidArgument, "security header missing from request")
	}
	for {
		svid, bundles, changed, err := s.issuer.issued(s.id)
		if err != nil {
			return err
		}
		if err := send(svid, bundles); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(s.issuer.lifetime / 2):
		case <-changed:
		}
	}
}

// A certificate with its own key. `above` signs it; without `above`, it signs itself.
func certify(id string, above pair, lifetime time.Duration, isAuthority bool) (pair, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return pair{}, err
	}
	name, err := url.Parse(id)
	if err != nil {
		return pair{}, err
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 100))
	if err != nil {
		return pair{}, err
	}
	template := &x509.Certificate{
		SerialNumber:          serial,
		Subject:               pkix.Name{Country: []string{"US"}, Organization: []string{"SPIFFE"}},
		URIs:                  []*url.URL{name},
		NotBefore:             time.Now().Add(-10 * time.Second),
		NotAfter:              time.Now().Add(lifetime),
		BasicConstraintsValid: true,
		IsCA:                  isAuthority,
		KeyUsage:              x509.KeyUsageDigitalSignature,
		ExtKeyUsage:           []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	if isAuthority {
		template.KeyUsage, template.ExtKeyUsage = x509.KeyUsageCertSign|x509.KeyUsageCRLSign, nil
	}
	parent, signer := template, key
	if above.certificate != nil {
		parent, signer = above.certificate, above.key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, signer)
	if err != nil {
		return pair{}, err
	}
	certificate, err := x509.ParseCertificate(der)
	return pair{certificate, key}, err
}
