package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"time"
)

// validity of certificates: longer than any test cluster lives.
const validity = 30 * 24 * time.Hour

// authority signs the certificates of the cluster.
type authority struct {
	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
}

// makePKI writes the certificates and kubeconfigs of all components.
func (b *bed) makePKI(context.Context) error {
	if err := os.MkdirAll(b.file("pki"), 0o700); err != nil {
		return err
	}
	ca, err := b.authority("ca", "kubernetes")
	if err != nil {
		return err
	}
	front, err := b.authority("front-proxy-ca", "front-proxy")
	if err != nil {
		return err
	}
	first := b.node(1)
	type leaf struct {
		file, user, group string
		names             []string
		addresses         []string
	}
	leaves := []leaf{
		{
			file: "apiserver", user: "kube-apiserver",
			names: []string{"kubernetes", "kubernetes.default", "kubernetes.default.svc", "localhost"},
			addresses: []string{
				"127.0.0.1", apiAddress, first.address().String(), first.address6().String(),
			},
		},
		{file: "kubelet-client", user: "kube-apiserver-kubelet-client", group: "system:masters"},
		{file: "admin", user: "kubernetes-admin", group: "system:masters"},
		{file: "controller-manager", user: "system:kube-controller-manager"},
		{file: "scheduler", user: "system:kube-scheduler"},
		{file: "proxy", user: "system:kube-proxy"},
	}
	for _, n := range b.nodes {
		leaves = append(leaves, leaf{
			file: n.name(), user: "system:node:" + n.name(), group: "system:nodes",
			names: []string{n.name()}, addresses: []string{n.address().String(), n.address6().String()},
		})
	}
	server := fmt.Sprintf("https://%s:%d", first.address(), apiPort)
	for _, l := range leaves {
		if err := b.issue(ca, l.file, l.user, l.group, l.names, l.addresses); err != nil {
			return err
		}
		if err := b.writeKubeconfig(b.file("pki", l.file+".kubeconfig"), l.file, server); err != nil {
			return err
		}
	}
	if err := b.issue(front, "front-proxy-client", "front-proxy-client", "", nil, nil); err != nil {
		return err
	}
	return b.makeTokenKey()
}

func (b *bed) authority(file, commonName string) (*authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	fresh := blank(pkix.Name{CommonName: commonName})
	fresh.IsCA, fresh.BasicConstraintsValid = true, true
	fresh.KeyUsage |= x509.KeyUsageCertSign
	der, err := x509.CreateCertificate(rand.Reader, fresh, fresh, &key.PublicKey, key)
	if err != nil {
		return nil, err
	}
	certificate, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, err
	}
	return &authority{certificate, key}, b.writePair(file, der, key)
}

func (b *bed) issue(ca *authority, file, user, group string, names, addresses []string) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	subject := pkix.Name{CommonName: user}
	if group != "" {
		subject.Organization = []string{group}
	}
	fresh := blank(subject)
	fresh.DNSNames = names
	for _, address := range addresses {
		fresh.IPAddresses = append(fresh.IPAddresses, net.ParseIP(address))
	}
	der, err := x509.CreateCertificate(rand.Reader, fresh, ca.certificate, &key.PublicKey, ca.key)
	if err != nil {
		return err
	}
	return b.writePair(file, der, key)
}

func blank(subject pkix.Name) *x509.Certificate {
	// 64 random bits (RFC 5280, section 4.1.2.2: positive, unique for an issuer).
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 64))
	if err != nil {
		panic("the system's randomness has failed: " + err.Error())
	}
	now := time.Now()
	return &x509.Certificate{
		SerialNumber: serial.Add(serial, big.NewInt(1)),
		Subject:      subject,
		NotBefore:    now.Add(-time.Minute),
		NotAfter:     now.Add(validity),
		KeyUsage:     x509.KeyUsageDigitalSignature | x509.KeyUsageKeyEncipherment,
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
	}
}

func (b *bed) writePair(file string, certificate []byte, key *ecdsa.PrivateKey) error {
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return err
	}
	if err := b.writePEM(file+".crt", "CERTIFICATE", certificate); err != nil {
		return err
	}
	return b.writePEM(file+".key", "PRIVATE KEY", der)
}

func (b *bed) writePEM(file, kind string, der []byte) error {
	return os.WriteFile(b.file("pki", file), pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600)
}

// makeTokenKey makes the key that signs service account tokens: RSA, which every verifier of their
// OpenID configuration supports.
func (b *bed) makeTokenKey() error {
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		return err
	}
	public, err := x509.MarshalPKIXPublicKey(&key.PublicKey)
	if err != nil {
		return err
	}
	if err := b.writePEM("tokens.pub", "PUBLIC KEY", public); err != nil {
		return err
	}
	return b.writePEM("tokens.key", "RSA PRIVATE KEY", x509.MarshalPKCS1PrivateKey(key))
}

// writeKubeconfig writes a kubeconfig that authenticates to the API server with a certificate.
func (b *bed) writeKubeconfig(path, pair, server string) error {
	var encoded [3]string
	for nth, file := range []string{"ca.crt", pair + ".crt", pair + ".key"} {
		content, err := os.ReadFile(b.file("pki", file))
		if err != nil {
			return err
		}
		encoded[nth] = base64.StdEncoding.EncodeToString(content)
	}
	text := fmt.Sprintf(`apiVersion: v1
kind: Config
clusters: [{name: %[1]s, cluster: {server: %[2]q, certificate-authority-data: %[3]s}}]
users: [{name: %[4]s, user: {client-certificate-data: %[5]s, client-key-data: %[6]s}}]
contexts: [{name: %[1]s, context: {cluster: %[1]s, user: %[4]s}}]
current-context: %[1]s
`, name, server, encoded[0], pair, encoded[1], encoded[2])
	return os.WriteFile(path, []byte(text), 0o600)
}
