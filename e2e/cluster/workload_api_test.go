package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// spiffeImage is a client and a server of the SPIFFE Workload API, of SPIFFE's own module.
const spiffeImage = "registry.local/spiffe:1"

// bank is a namespace whose proxies serve the Workload API, and three accounts in it: `ledger` answers its clients' identities
// over mTLS of its own, `teller` calls it, and `guard` has declined.
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

// ofBank is a pod with an account of its name. Its program is restarted until its proxy has a certificate for it.
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

// applicationsHaveCertificates starts the pods of [bank], and has one authenticate another by certificates that both have from
// the Workload API of their proxies.
func (m mesh) applicationsHaveCertificates() {
	m.loadSpiffe()
	m.must(m.apply(bank))
	m.until("teller calls ledger", m.tellerCallsLedger)
	declined := m.output(m.t, "get", "pod", "guard", "-n", "bank", "-o", "json")
	if !strings.Contains(declined, `"leno-proxy"`) || strings.Contains(declined, "SPIFFE_ENDPOINT_SOCKET") {
		m.t.Errorf("guard has declined the Workload API of its namespace, and is\n%s", declined)
	}
}

// tellerCallsLedger authenticates both ends by the certificates of their applications.
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

// applicationsFollowTheRoot replaces the root: applications that run have certificates below the next one, and trust it alone.
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

// rootsOfTeller is what the application of `teller` trusts, as its proxy says now.
func (m mesh) rootsOfTeller() string {
	var svid struct{ Roots string }
	output := m.output(m.t, "exec", "-n", "bank", "teller", "-c", "application", "--", "/spiffe", "svid")
	m.must(json.Unmarshal([]byte(output), &svid))
	return svid.Roots
}
