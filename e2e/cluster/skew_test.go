package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// olderProxyImage contains the proxy of an earlier commit.
const olderProxyImage = "registry.local/leno-proxy:0"

// TestSkew runs proxies of an earlier release with the control plane, the agents and the proxies of this release, as it happens
// after an upgrade until pods are restarted (decision 132). It has the requirements of TestMesh, and CLUSTER_BEFORE: the program
// leno-proxy of the earlier release, which uses the same version of discovery but does not support AuthorizationPolicies.
func TestSkew(t *testing.T) {
	binaries, before := os.Getenv("CLUSTER_BIN"), os.Getenv("CLUSTER_BEFORE")
	if binaries == "" || before == "" {
		leaveOut(t, "needs CLUSTER_BIN and CLUSTER_BEFORE: scripts/cluster.sh test")
	}
	m := mesh{startCluster(t), t}
	m.loadImages(binaries)
	m.loadOlderProxy(before)
	m.loadLoad()
	m.install()
	m.stranger()
	m.injectsImage(olderProxyImage)
	m.must(m.apply(operated() + "---" + vault + caller("guest")))
	m.operates()
	m.wait("rollout", "status", "deployment/safe", "-n", "vault")
	m.wait("wait", "--for=condition=Ready", "pod/guest", "-n", "vault")
	for _, namespace := range []string{"load", "strict", "vault"} {
		m.proxiesAre(olderProxyImage, namespace, "app")
	}
	m.runs([]part{
		{"older proxies serve and call each other, also while the control plane is replaced", mesh.servesThroughRestart},
		{"a policy that older proxies do not enforce names them, and they keep their service", mesh.olderProxiesAreNamed},
		{"proxies of both releases call each other while pods get newer ones", mesh.proxiesAreMixed},
		{"a policy holds, and names no proxy, once its pods have newer ones", mesh.newerProxiesEnforce},
	})
}

// loadOlderProxy imports the image of an earlier proxy on the nodes.
func (m mesh) loadOlderProxy(program string) {
	file := filepath.Join(m.t.TempDir(), "older.tar")
	made := image{name: olderProxyImage, entrypoint: []string{"/leno-proxy"}, files: map[string]string{"/leno-proxy": program}}
	m.must(made.write(file))
	m.must(m.load([]string{file}))
}

// servesThroughRestart restarts the control plane, so that proxies connect to it again. No older proxy is ended under load, because
// this release cannot change how an older proxy ends.
func (m mesh) servesThroughRestart() {
	m.underLoad(func() { m.restart("leno-system", "deployment/leno-controller") })
}

func (m mesh) olderProxiesAreNamed() {
	m.checks(true, "all captured")
	m.unenforced(0)
	m.must(m.apply(policy("no-header", "  action: Deny\n  rules: [{to: [{paths: [{prefix: /header}], ports: [8080]}]}]\n")))
	m.status("no-header", "Accepted", "OlderProxies")
	m.unenforced(2)
	pods := strings.Fields(m.output(m.t, "get", "pods", "-n", "vault", "-l", "app=safe", "-o", "jsonpath={.items[*].metadata.name}"))
	for _, pod := range pods {
		m.checks(true, "vault/"+pod+" is of an earlier release (no authorization) and does not enforce vault/no-header")
	}
	m.answers("guest", "200", "http://safe/header/accept")
	m.answers("guest", "200")
}

// proxiesAreMixed replaces the proxies of some pods by newer ones, so that there are servers and clients of both releases.
func (m mesh) proxiesAreMixed() {
	m.injectsImage(proxyImage)
	m.restart("load", "deployment/patient")
	m.settled("load")
	m.servesThroughRestart()
	m.proxiesAre(proxyImage, "load", "app=patient")
	m.proxiesAre(olderProxyImage, "load", "app=server")
	m.proxiesAre(olderProxyImage, "strict", "app=steady")
	// A client with a newer proxy, for the servers with older ones.
	m.must(m.apply(caller("teller")))
	m.wait("wait", "--for=condition=Ready", "pod/teller", "-n", "vault")
	m.proxiesAre(proxyImage, "vault", "app=teller")
	m.proxiesAre(olderProxyImage, "vault", "app=safe")
	m.answers("teller", "200")
	m.answers("guest", "200")
}

func (m mesh) newerProxiesEnforce() {
	m.restart("vault", "deployment/safe")
	m.settled("vault")
	m.proxiesAre(proxyImage, "vault", "app=safe")
	m.proxiesAre(olderProxyImage, "vault", "app=guest")
	m.status("no-header", "Accepted", "Programmed")
	m.unenforced(0)
	for _, client := range []string{"guest", "teller"} {
		m.answers(client, "403 authorization-denied; policy=vault/no-header", "http://safe/header/accept")
		m.answers(client, "200")
	}
	if m.fetch("stranger", m.output(m.t, "get", "pods", "-n", "vault", "-l", "app=safe", "-o", "jsonpath={.items[0].status.podIP}")+":8080") == nil {
		m.t.Error("a stranger was answered")
	}
	m.checks(true, "all captured")
}

// unenforced waits until the control plane reports this number of workloads whose proxies do not enforce a policy.
func (m mesh) unenforced(count int) {
	m.t.Helper()
	wanted := fmt.Sprintf("leno_control_unenforced_workloads %d\n", count)
	m.until(strings.TrimSpace(wanted), func() error {
		address := m.output(m.t, "get", "pods", "-n", "leno-system", "-l", "app.kubernetes.io/name=leno-controller", "-o", "jsonpath={.items[0].status.podIP}")
		page := m.inside("stranger", "curl", "-s", "-m", "5", "http://"+address+":15020/metrics")
		if !strings.Contains(page, wanted) {
			return fmt.Errorf("%q", grep(page, "leno_control_unenforced_workloads "))
		}
		return nil
	})
}
