package main

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
	"testing"
)

// withDatagrams is an application that uses UDP, in each mode. Its namespace lets proxies carry datagrams, and its Service sets
// the port. The client runs on another node than the server.
func withDatagrams() string {
	var text strings.Builder
	for _, mode := range []string{"sidecar", "node"} {
		fmt.Fprintf(&text, "---\napiVersion: v1\nkind: Namespace\nmetadata: {name: %[1]s, labels: {leno.dev/inject: enabled}, annotations: {leno.dev/mode: %[1]s, leno.dev/share: node, leno.dev/udp: enabled}}\n", mode)
		for node, name := range []string{"server", "client"} {
			fmt.Fprintf(&text, "---\napiVersion: v1\nkind: ServiceAccount\nmetadata: {name: %s, namespace: %s}\n", name, mode)
			text.WriteString(podOfDatagrams(mode, name, node+1, ""))
		}
		fmt.Fprintf(&text, "---\napiVersion: v1\nkind: Service\nmetadata: {name: server, namespace: %s}\nspec: {selector: {app: server}, ports: [{port: 70, targetPort: 7000, protocol: UDP, appProtocol: leno.dev/udp}]}\n", mode)
	}
	return text.String()
}

func podOfDatagrams(namespace, name string, node int, annotations string) string {
	return fmt.Sprintf(`---
apiVersion: v1
kind: Pod
metadata: {name: %[2]s, namespace: %[1]s, labels: {app: %[2]s}, annotations: {%[5]s}}
spec:
  nodeSelector: {kubernetes.io/hostname: n%[3]d}
  terminationGracePeriodSeconds: 1
  serviceAccountName: %[2]s
  containers: [{name: application, image: %[4]s, imagePullPolicy: Never, args: [datagrams]}]
`, namespace, name, node, loadImage, annotations)
}

// TestDatagrams sends UDP between pods through their proxies. It has the requirements of TestMesh.
func TestDatagrams(t *testing.T) {
	m := withLoad(t)
	m.installWith()
	m.wait("rollout", "status", "daemonset/leno-node", "-n", "leno-system")
	m.stranger()
	m.must(m.apply(withDatagrams()))
	m.must(m.apply("apiVersion: v1\nkind: ServiceAccount\nmetadata: {name: plain, namespace: default}\n" + podOfDatagrams("default", "plain", 2, "leno.dev/inject: disabled")))
	for _, namespace := range []string{"sidecar", "node"} {
		m.wait("wait", "--for=condition=Ready", "pod/server", "pod/client", "-n", namespace)
	}
	m.wait("wait", "--for=condition=Ready", "pod/plain", "-n", "default")
	m.runs([]part{
		{"datagrams of sidecars and of node proxies come back", mesh.datagramsComeBack},
		{"a stranger's datagrams are dropped", mesh.strangersDatagramsAreDropped},
		{"the policy of a server is enforced for datagrams", mesh.policyOfDatagrams},
		{"a pod that no kernel program captures does not start", mesh.datagramsNeedPrograms},
	})
}

// sends sends ten datagrams from a pod, and returns how many came back.
func (m mesh) sends(namespace, pod, to string) (came int, err error) {
	output, err := m.administer("exec", "-n", namespace, pod, "-c", "application", "--", "/load", "send", "10", to).Output()
	if err != nil {
		return 0, fmt.Errorf("%w%s", err, problem(err))
	}
	_, err = fmt.Sscan(string(output), &came)
	return came, err
}

// answered returns an error unless a pod gets an answer.
func (m mesh) answered(namespace, pod, to string) func() error {
	return func() error {
		came, err := m.sends(namespace, pod, to)
		if err == nil && came == 0 {
			err = fmt.Errorf("no datagram from %s/%s to %s came back", namespace, pod, to)
		}
		return err
	}
}

func (m mesh) datagramsComeBack() {
	for _, from := range []string{"sidecar", "node"} {
		for _, to := range []string{"sidecar", "node"} {
			for _, server := range []string{"server." + to + ":70", m.addressIn(to, "server") + ":7000"} {
				m.until("an answer", m.answered(from, "client", server))
				if came, err := m.sends(from, "client", server); err != nil || came < 8 {
					m.t.Errorf("%s to %s: %d of 10 came back: %v", from, server, came, err)
				}
			}
		}
		seen := m.inside("stranger", "curl", "-s", "-m", "5", "http://"+m.addressIn(from, "server")+":15020/metrics")
		if !regexp.MustCompile(`leno_datagrams_total\{direction="inbound",to="server"\} [1-9]`).MatchString(seen) {
			m.t.Errorf("%s: the proxy has carried none:\n%s", from, grep(seen, "leno_datagram"))
		}
	}
}

func (m mesh) strangersDatagramsAreDropped() {
	for _, namespace := range []string{"sidecar", "node"} {
		if came, err := m.sends("default", "plain", m.addressIn(namespace, "server")+":7000"); err != nil || came != 0 {
			m.t.Errorf("%s: a stranger got %d answers: %v", namespace, came, err)
		}
	}
}

func (m mesh) policyOfDatagrams() {
	const policy = `
apiVersion: leno.dev/v1alpha1
kind: AuthorizationPolicy
metadata: {name: no-client, namespace: %s}
spec:
  selector: {matchLabels: {app: server}}
  action: Deny
  rules: [{from: [{serviceAccounts: [client]}]}]
`
	for _, namespace := range []string{"sidecar", "node"} {
		m.must(m.apply(fmt.Sprintf(policy, namespace)))
		m.until("datagrams are denied", func() error {
			came, err := m.sends(namespace, "client", "server:70")
			if err == nil && came > 0 {
				err = fmt.Errorf("%d came back", came)
			}
			return err
		})
		m.must(run1(m.administer("delete", "authorizationpolicy", "no-client", "-n", namespace)))
		m.until("they are permitted again", m.answered(namespace, "client", "server:70"))
	}
}

func (m mesh) datagramsNeedPrograms() {
	m.must(m.apply("apiVersion: v1\nkind: ServiceAccount\nmetadata: {name: late, namespace: sidecar}\n" + podOfDatagrams("sidecar", "late", 1, "leno.dev/capture: nftables")))
	m.until("the reason is told", func() error {
		if events := m.output(m.t, "events", "-n", "sidecar", "--for", "pod/late"); !strings.Contains(events, "cannot capture datagrams") {
			return errors.New(events)
		}
		return nil
	})
	m.must(run1(m.administer("delete", "pod", "late", "-n", "sidecar")))
}
