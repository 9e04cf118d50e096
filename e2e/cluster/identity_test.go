package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"math/big"
	"net/url"
	"strings"
	"testing"
	"time"
)

// phaseHold is how long each phase of a rotation lasts at least in this test. No proxy restarts within its pod here, so
// that it need not be as long as kubelets take to renew mounted ConfigMaps.
const phaseHold = "controller.phaseHold=20s"

// rotationLimit is how long a rotation may take in a cluster of debug builds.
const rotationLimit = "10m"

// identityReport contains the fields of `leno identity --cluster -o json` that the test checks.
type identityReport struct {
	Phase   string `json:"phase"`
	OwnRoot bool   `json:"own_root"`
	Issuer  string `json:"issuer"`
	Roots   []struct {
		SHA256 string `json:"sha256"`
	} `json:"roots"`
	Proxies struct {
		Connected int `json:"connected"`
		Current   int `json:"current"`
	} `json:"proxies"`
	Revoked []string `json:"revoked"`
	Problem string   `json:"problem"`
}

// TestIdentity issues certificates to applications, replaces the root of a mesh under load, revokes certificates, and changes to
// an external issuer. It has the requirements of TestMesh.
func TestIdentity(t *testing.T) {
	m := withLoad(t)
	m.installWith(phaseHold)
	m.must(m.apply(operated()))
	m.operates()
	m.runs([]part{
		{"applications have certificates of their own from the Workload API of their proxies", mesh.applicationsHaveCertificates},
		{"the root is replaced under load, and applications follow it", mesh.applicationsFollowTheRoot},
		{"certificates of a service account are revoked", mesh.accountIsRevoked},
		{"an edit of the certificate alone is reported", mesh.editIsReported},
		{"an issuer takes over under load", mesh.issuerTakesOver},
	})
}

// installWith installs the whole mesh with these settings, and waits until it is ready.
func (m mesh) installWith(settings ...string) {
	m.t.Helper()
	m.must(m.apply(m.installation(func(string) bool { return true }, settings...)))
	m.wait("rollout", "status", "deployment/leno-controller", "-n", "leno-system")
	m.agentIsThere()
	m.injectorIsTrusted()
}

// identity returns the report of `leno identity`.
func (m mesh) identity() (report identityReport, err error) {
	output, err := m.leno("identity", "--cluster", "-o", "json").Output()
	if err != nil {
		return report, fmt.Errorf("%w%s", err, problem(err))
	}
	return report, json.Unmarshal(output, &report)
}

// stable waits until no rotation is in progress and the certificates of all proxies are from the control plane's present issuer.
func (m mesh) stable() (report identityReport) {
	m.t.Helper()
	m.until("all proxies use what the control plane signs with", func() (err error) {
		report, err = m.identity()
		if err == nil && (report.Phase != "stable" || report.Proxies.Connected == 0 || report.Proxies.Current != report.Proxies.Connected) {
			err = fmt.Errorf("%+v", report)
		}
		return err
	})
	return report
}

func (m mesh) rootIsReplaced() {
	before := m.stable()
	if !before.OwnRoot || len(before.Roots) != 1 || before.Problem != "" {
		m.t.Fatalf("%+v", before)
	}
	m.underLoad(func() {
		said, err := m.leno("identity", "rotate-root", "--cluster", "--wait", "--timeout", rotationLimit).CombinedOutput()
		m.t.Logf("%s", said)
		m.must(err)
	})
	after := m.stable()
	if len(after.Roots) != 1 || after.Roots[0] == before.Roots[0] || after.Issuer == before.Issuer {
		m.t.Errorf("%+v after %+v", after, before)
	}
	// For a pod that starts now, the API server verifies the injector, and the proxy verifies the control plane, with the new root.
	m.underLoad(func() { m.restart("load", "deployment/patient") })
}

func (m mesh) accountIsRevoked() {
	said, err := m.leno("identity", "revoke", "--cluster", "strict/default").CombinedOutput()
	if err != nil || !strings.Contains(string(said), "spiffe://cluster.local/ns/strict/sa/default") {
		m.t.Fatalf("%v: %s", err, said)
	}
	report := m.stable()
	if len(report.Revoked) != 1 || !strings.Contains(report.Revoked[0], "ns/strict/sa/default") {
		m.t.Errorf("%+v", report)
	}
	// Workloads of that identity have new certificates by now.
	m.underLoad(func() {})
}

func (m mesh) editIsReported() {
	const secret = "secret/leno-ca"
	pem := m.output(m.t, "get", secret, "-n", "leno-system", "-o", `jsonpath={.data.ca\.pem}`)
	patch := func(encoded string) {
		m.must(run1(m.administer("patch", secret, "-n", "leno-system", "--type=merge", "-p", `{"data":{"ca.pem":"`+encoded+`"}}`)))
	}
	problem := func(wanted bool) {
		m.until("leno identity reports the edit", func() error {
			report, err := m.identity()
			if err == nil && strings.Contains(report.Problem, "ca.pem") != wanted {
				err = fmt.Errorf("%+v", report)
			}
			return err
		})
	}
	patch(base64.StdEncoding.EncodeToString([]byte("edited")))
	problem(true)
	patch(pem)
	problem(false)
}

// issuerTakesOver configures an issuer in a Secret in the form of cert-manager.
func (m mesh) issuerTakesOver() {
	before := m.stable()
	certificate, key, root := issuer(m)
	m.must(m.apply(fmt.Sprintf("apiVersion: v1\nkind: Secret\nmetadata: {name: mesh-issuer, namespace: leno-system}\ntype: kubernetes.io/tls\n"+
		"data: {tls.crt: %s, tls.key: %s, ca.crt: %s}\n", certificate, key, root)))
	m.underLoad(func() {
		// The control plane maintains the webhooks, so only the objects that change are applied.
		deployment := func(kind string) bool { return kind == "Deployment" }
		m.must(m.apply(m.installation(deployment, phaseHold, "controller.issuerSecret=mesh-issuer")))
		m.wait("rollout", "status", "deployment/leno-controller", "-n", "leno-system")
		limit, err := time.ParseDuration(rotationLimit)
		m.must(err)
		err = until(m.t.Context(), "the issuer signs", limit, func() error {
			report, err := m.identity()
			if err == nil && (report.OwnRoot || report.Phase != "stable" || report.Issuer == before.Issuer) {
				err = fmt.Errorf("%+v", report)
			}
			return err
		})
		m.must(err)
	})
	m.stable()
}

// issuer is an issuer below a separate root. Its fields are base64-encoded PEM: its certificate, its key, the root.
func issuer(m mesh) (certificate, key, root string) {
	encoded := func(kind string, der []byte) string {
		return base64.StdEncoding.EncodeToString(pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}))
	}
	made := func(name string, above *x509.Certificate, by *ecdsa.PrivateKey) (*x509.Certificate, *ecdsa.PrivateKey) {
		own, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		m.must(err)
		template := &x509.Certificate{
			SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name},
			NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(validity),
			IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
			URIs: []*url.URL{{Scheme: "spiffe", Host: "cluster.local"}},
		}
		if above == nil {
			above, by = template, own
		}
		der, err := x509.CreateCertificate(rand.Reader, template, above, own.Public(), by)
		m.must(err)
		parsed, err := x509.ParseCertificate(der)
		m.must(err)
		return parsed, own
	}
	top, topKey := made("test root", nil, nil)
	below, belowKey := made("test issuer", top, topKey)
	der, err := x509.MarshalPKCS8PrivateKey(belowKey)
	m.must(err)
	return encoded("CERTIFICATE", below.Raw), encoded("PRIVATE KEY", der), encoded("CERTIFICATE", top.Raw)
}
