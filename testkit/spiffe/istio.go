package main

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/protobuf/encoding/protowire"
)

// The name of a socket that serves Istio's certificate service, which ztunnel uses, instead of the Workload API.
const istio = "istio"

// Messages of Istio's certificate service, in their encoded form.
type message []byte

type messages struct{}

func (messages) Marshal(value any) ([]byte, error) { return *value.(*message), nil }
func (messages) Unmarshal(data []byte, value any) error {
	*value.(*message) = append(message(nil), data...)
	return nil
}
func (messages) Name() string { return "proto" }

// Signs what callers request, in the trust domain of `id`, until the issuer ends. The server's own certificate,
// for 127.0.0.1, is in DIRECTORY/istio.pem.
func certificates(one *issuer, id spiffeid.ID, directory string) (*grpc.Server, error) {
	own, err := certify("https://127.0.0.1", pair{}, 24*time.Hour, false)
	if err != nil {
		return nil, err
	}
	// Signed again with an IP address, which certificates of workloads do not contain.
	template := *own.certificate
	template.URIs, template.IPAddresses = nil, []net.IP{net.IPv4(127, 0, 0, 1)}
	der, err := x509.CreateCertificate(rand.Reader, &template, &template, own.key.Public(), own.key)
	if err != nil {
		return nil, err
	}
	written := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	if err := os.WriteFile(filepath.Join(directory, istio+".pem"), written, 0o644); err != nil {
		return nil, err
	}
	certificate := tls.Certificate{Certificate: [][]byte{der}, PrivateKey: own.key}
	config := &tls.Config{Certificates: []tls.Certificate{certificate}, NextProtos: []string{"h2"}}
	served := grpc.NewServer(grpc.Creds(credentials.NewTLS(config)), grpc.ForceServerCodec(messages{}))
	handler := func(_ any, _ context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
		var asked message
		if err := decode(&asked); err != nil {
			return nil, err
		}
		answer, err := one.sign(id.TrustDomain(), asked)
		return &answer, err
	}
	served.RegisterService(&grpc.ServiceDesc{
		ServiceName: "istio.v1.auth.IstioCertificateService",
		HandlerType: (*any)(nil),
		Methods:     []grpc.MethodDesc{{MethodName: "CreateCertificate", Handler: handler}},
	}, nil)
	return served, nil
}

// The answer to an IstioCertificateRequest, whose field 1 is a certificate request. Field 1 of the answer contains
// the certificate, the certificate that signed it, and the root.
func (i *issuer) sign(domain spiffeid.TrustDomain, asked message) (message, error) {
	var csr *x509.CertificateRequest
	for len(asked) > 0 {
		number, kind, n := protowire.ConsumeTag(asked)
		if n < 0 {
			return nil, protowire.ParseError(n)
		}
		asked = asked[n:]
		if n = protowire.ConsumeFieldValue(number, kind, asked); n < 0 {
			return nil, protowire.ParseError(n)
		}
		if number == 1 {
			text, _ := protowire.ConsumeBytes(asked)
			block, _ := pem.Decode(text)
			if block == nil {
				return nil, errors.New("no PEM")
			}
			var err error
			if csr, err = x509.ParseCertificateRequest(block.Bytes); err != nil {
				return nil, err
			}
		}
		asked = asked[n:]
	}
	if csr == nil {
		return nil, errors.New("no request for a certificate")
	}
	if len(csr.URIs) != 1 || csr.URIs[0].Host != domain.Name() {
		return nil, fmt.Errorf("not a request for one identity of %s: %v", domain, csr.URIs)
	}
	if err := csr.CheckSignature(); err != nil {
		return nil, err
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 100))
	if err != nil {
		return nil, err
	}
	i.mutex.Lock()
	defer i.mutex.Unlock()
	own := i.authorities[domain]
	template := &x509.Certificate{
		SerialNumber: serial,
		Subject:      pkix.Name{Organization: []string{domain.Name()}},
		URIs:         csr.URIs,
		NotBefore:    time.Now().Add(-10 * time.Second),
		NotAfter:     time.Now().Add(i.lifetime),
		KeyUsage:     x509.KeyUsageDigitalSignature,
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, own.below.certificate, csr.PublicKey, own.below.key)
	if err != nil {
		return nil, err
	}
	fmt.Println("signed", csr.URIs[0])
	var answer message
	for _, der := range [][]byte{der, own.below.certificate.Raw, own.roots[own.signing].certificate.Raw} {
		answer = protowire.AppendTag(answer, 1, protowire.BytesType)
		answer = protowire.AppendBytes(answer, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
	}
	return answer, nil
}

// Forwards connections to ADDRESS to the socket at PATH. This works across network namespaces, which do not
// separate sockets in the file system.
func forward(ctx context.Context, address, path string) error {
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	go func() {
		<-ctx.Done()
		listener.Close()
	}()
	for {
		client, err := listener.Accept()
		if err != nil {
			return err
		}
		server, err := net.Dial("unix", path)
		if err != nil {
			return err
		}
		pass := func(to, from net.Conn) {
			_, _ = io.Copy(to, from)
			to.Close()
		}
		go pass(server, client)
		go pass(client, server)
	}
}
