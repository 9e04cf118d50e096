package main

import (
	"fmt"
	"strings"
	"testing"
)

// TestPodCertificates lets kubelets request the certificates of proxies, and replaces the root under load. A kubelet does not renew
// certificates because of a new root. It has the requirements of TestMesh.
func TestPodCertificates(t *testing.T) {
	m := withLoad(t)
	m.installWith(phaseHold, "identity.podCertificates=true", "proxy.log=info")
	m.must(m.apply(operated()))
	m.operates()
	m.runs([]part{
		{"proxies start with the certificates of their kubelets", mesh.kubeletsRequest},
		{"the root is replaced under load", mesh.rootIsReplaced},
		{"a pod that starts later has a certificate of the next root", mesh.kubeletsRequestAgain},
	})
}

// kubeletsRequest checks that a certificate was issued for each pod with a proxy by request of its kubelet, and that the proxy uses
// it.
func (m mesh) kubeletsRequest() {
	const columns = `jsonpath={range .items[*]}{.spec.podName} {.status.conditions[0].type}{"\n"}{end}`
	for _, namespace := range []string{"load", "strict"} {
		requests := m.output(m.t, "get", "podcertificaterequests", "-n", namespace, "-o", columns)
		for _, pod := range strings.Fields(m.output(m.t, "get", "pods", "-n", namespace, "-o", "jsonpath={.items[*].metadata.name}")) {
			if !strings.Contains(requests, pod+" Issued") {
				m.t.Errorf("%s/%s has no certificate of its kubelet:\n%s", namespace, pod, requests)
			}
			m.until("a proxy uses the certificate of its kubelet", func() error { return m.ofKubelet(namespace, pod) })
		}
	}
}

// kubeletsRequestAgain restarts a workload under load. Its proxies need no token.
func (m mesh) kubeletsRequestAgain() {
	m.underLoad(func() { m.restart("load", "deployment/server") })
	m.until("the new pods of the server use the certificates of their kubelets", func() error {
		for _, pod := range strings.Fields(m.output(m.t, "get", "pods", "-n", "load", "-l", "app=server", "-o", "jsonpath={.items[*].metadata.name}")) {
			if err := m.ofKubelet("load", pod); err != nil {
				return err
			}
		}
		return nil
	})
}

// ofKubelet returns an error if the last certificate of a proxy is not the one that its kubelet requested. The proxy may have used
// its token before its files contained the roots.
func (m mesh) ofKubelet(namespace, pod string) error {
	log := m.output(m.t, "logs", pod, "-n", namespace, "-c", "leno-proxy")
	taken := strings.LastIndex(log, "certificate taken from the kubelet's files")
	if taken < 0 || strings.LastIndex(log, "certificate issued") > taken {
		return fmt.Errorf("%s/%s:\n%s", namespace, pod, log)
	}
	return nil
}
