package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// spiffeImage contains a client and a server of the SPIFFE Workload API that use SPIFFE's own Go module.
const spiffeImage = "registry.local/spiffe:1"

// bank is a namespace whose proxies serve the Workload API, with three accounts: `ledger` answers each client with its identity
// over the application's own mTLS, `teller` calls it, and `guard` has declined the Workload API.
var bank = `
apiVersion: v1
kind: Namespace
metadata: {name: bank, labels: {leno.dev/inject: enabled}, annotations: {leno.dev/workload-api: enabled}}
---
apiVersion: v1
kind: Service
metadata: {name: ledger, namespace: bank}
spec: {selector: {app: ledger}, ports: [{port: 8443, appProtocol: tls}]}
` + ofBank("ledger", "", `[serve, "0.0.0.0:8443"]`) + ofBank("teller", "", `[watch, "1000"]`) +
	ofBank("guard", "leno.dev/workload-api: disabled", `[forward, "127.0.0.1:8443", /nothing]`)

// ofBank is a pod with the service account of the same name. Its program is restarted until the proxy has a certificate for it.
func ofBank(name, annotation, arguments string) string {
	return fmt.Sprintf(`---
apiVersion: v1
kind: ServiceAccount
metadata: {name: %[1]s, namespace: bank}
---
apiVersion: v1
kind: Pod
metadata: {name: %[1]s, namespace: bank, labels: {app: %[1]s}, annotations: {%[2]s}}
spec:
  serviceAccountName: %[1]s
  terminationGracePeriodSeconds: 1
  containers: [{name: application, image: %[3]s, imagePullPolicy: Never, args: %[4]s}]
`, name, annotation, spiffeImage, arguments)
}

// loadSpiffe builds the image of the client and the server, and imports it on the nodes.
func (m mesh) loadSpiffe() {
	program, file := filepath.Join(m.t.TempDir(), "spiffe"), filepath.Join(m.t.TempDir(), "spiffe.tar")
	build := exec.CommandContext(m.t.Context(), "go", "build", "-o", program, ".")
	build.Dir, build.Env = "../../testkit/spiffe", append(os.Environ(), "CGO_ENABLED=0")
	m.must(run1(build))
	made := image{name: spiffeImage, entrypoint: []string{"/spiffe"}, files: map[string]string{"/spiffe": program}}
	m.must(made.write(file))
	m.must(m.load([]string{file}))
}

// applicationsHaveCertificates starts the pods of [bank]. Two of them authenticate each other with certificates from the Workload API
// of their proxies.
func (m mesh) applicationsHaveCertificates() {
	m.loadSpiffe()
	m.must(m.apply(bank))
	m.until("teller calls ledger", m.tellerCallsLedger)
	declined := m.output(m.t, "get", "pod", "guard", "-n", "bank", "-o", "json")
	if !strings.Contains(declined, `"leno-proxy"`) || strings.Contains(declined, "SPIFFE_ENDPOINT_SOCKET") {
		m.t.Errorf("guard has declined the Workload API of its namespace, and is\n%s", declined)
	}
}

// tellerCallsLedger checks that both applications authenticate each other with their certificates.
func (m mesh) tellerCallsLedger() error {
	const id = "spiffe://cluster.local/ns/bank/sa/"
	output, err := m.administer("exec", "-n", "bank", "teller", "-c", "application", "--", "/spiffe", "call", "ledger:8443", id+"ledger").Output()
	if err != nil {
		return fmt.Errorf("%w%s", err, problem(err))
	}
	if answer := strings.TrimSpace(string(output)); answer != id+"teller" {
		return fmt.Errorf("ledger answers %q", answer)
	}
	return nil
}

// applicationsFollowTheRoot replaces the root. Running applications must get certificates below the new root, and trust only that
// root.
func (m mesh) applicationsFollowTheRoot() {
	before := m.rootsOfTeller()
	m.rootIsReplaced()
	m.until("the application has the next root alone", func() error {
		if after := m.rootsOfTeller(); after == before || strings.Count(after, "BEGIN CERTIFICATE") != 1 {
			return fmt.Errorf("%s\nafter\n%s", after, before)
		}
		return nil
	})
	m.until("teller calls ledger", m.tellerCallsLedger)
}

// rootsOfTeller returns the roots that the proxy of `teller` provides to its application now.
func (m mesh) rootsOfTeller() string {
	var svid struct{ Roots string }
	output := m.output(m.t, "exec", "-n", "bank", "teller", "-c", "application", "--", "/spiffe", "svid")
	m.must(json.Unmarshal([]byte(output), &svid))
	return svid.Roots
}
