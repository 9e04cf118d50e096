package main

import (
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"
)

// behindWaypoint is an application of pods without a proxy whose service has a waypoint, and clients with a proxy each. Its policy
// permits only the service account of one client.
func behindWaypoint() string {
	var text strings.Builder
	text.WriteString("apiVersion: v1\nkind: Namespace\nmetadata: {name: plain}\n---\n")
	text.WriteString("apiVersion: v1\nkind: Namespace\nmetadata: {name: meshed, labels: {leno.dev/inject: enabled}}\n")
	for _, one := range []struct{ namespace, name string }{{"plain", "server"}, {"meshed", "client"}, {"meshed", "other"}} {
		fmt.Fprintf(&text, "---\napiVersion: v1\nkind: ServiceAccount\nmetadata: {name: %s, namespace: %s}\n", one.name, one.namespace)
		text.WriteString(plainPod(one.namespace, one.name))
	}
	text.WriteString(`---
apiVersion: v1
kind: Service
metadata: {name: server, namespace: plain, labels: {leno.dev/use-waypoint: edge}}
spec: {selector: {app: server}, ports: [{name: http, port: 80, targetPort: 8080, appProtocol: http}]}
---
apiVersion: leno.dev/v1alpha1
kind: AuthorizationPolicy
metadata: {name: clients, namespace: plain}
spec:
  targetRefs: [{group: '', kind: Service, name: server}]
  rules: [{from: [{serviceAccounts: [meshed/client]}]}]
---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: edge, namespace: plain}
spec:
  gatewayClassName: leno-waypoint
  listeners: [{name: mesh, port: 15008, protocol: HBONE}]
`)
	return text.String()
}

// gateways is a definition of Gateway with any spec and status.
const gateways = `apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata:
  name: gateways.gateway.networking.k8s.io
  annotations: {api-approved.kubernetes.io: "https://github.com/kubernetes-sigs/gateway-api"}
spec:
  group: gateway.networking.k8s.io
  names: {kind: Gateway, plural: gateways}
  scope: Namespaced
  versions:
  - name: v1
    served: true
    storage: true
    subresources: {status: {}}
    schema:
      openAPIV3Schema:
        type: object
        properties:
          spec: {type: object, x-kubernetes-preserve-unknown-fields: true}
          status: {type: object, x-kubernetes-preserve-unknown-fields: true}
`

// TestWaypoint makes a waypoint from a Gateway on a real cluster. It has the requirements of TestMesh.
func TestWaypoint(t *testing.T) {
	binaries := os.Getenv("CLUSTER_BIN")
	if binaries == "" {
		leaveOut(t, "needs CLUSTER_BIN: scripts/cluster.sh test")
	}
	m := mesh{startCluster(t), t}
	m.loadImages(binaries)
	m.must(m.apply(gateways))
	m.wait("wait", "--for=condition=Established", "customresourcedefinition/gateways.gateway.networking.k8s.io")
	m.installWith("waypoints.enabled=true")
	m.stranger()
	m.must(m.apply(behindWaypoint()))
	m.wait("wait", "--for=condition=Ready", "pod/server", "-n", "plain")
	m.wait("wait", "--for=condition=Ready", "pod/client", "pod/other", "-n", "meshed")
	m.runs([]part{
		{"a Gateway becomes a Deployment whose pods serve", mesh.waypointServes},
		{"the waypoint enforces the policy of the service", mesh.waypointEnforces},
		{"it is scaled by its Deployment", mesh.waypointIsScaled},
		{"it goes with its Gateway, and no way leads around it", mesh.waypointGoes},
	})
}

func (m mesh) waypointServes() {
	m.wait("wait", "--for=condition=Programmed", "gateway/edge", "-n", "plain")
	m.until("an answer through the waypoint", func() error { return m.from("meshed", "client", "http://server.plain") })
	pod := m.output(m.t, "get", "pod", "-n", "plain", "-l", "leno.dev/waypoint=edge", "-o", "jsonpath={.items[0].status.podIP}")
	seen := m.inside("stranger", "curl", "-s", "-m", "5", "http://"+pod+":15020/metrics")
	edge := regexp.MustCompile(`leno_requests_total\{[^}]*direction="inbound"[^}]*client="client"[^}]*server="server"[^}]*mtls="true"`)
	if !edge.MatchString(seen) {
		m.t.Errorf("no request of the client with mTLS:\n%s", grep(seen, "leno_requests_total"))
	}
	if err := m.fetch("stranger", pod+":15008"); err == nil {
		m.t.Error("a stranger was answered by the waypoint")
	}
}

func (m mesh) waypointEnforces() {
	status := func() string {
		output, _ := m.administer("exec", "-n", "meshed", "other", "-c", "application", "--",
			"curl", "-s", "-m", "5", "-o", "/dev/null", "-w", "%{http_code}", "http://server.plain").Output()
		return string(output)
	}
	m.until("a refusal of the other client", func() error {
		if code := status(); code != "403" {
			return fmt.Errorf("status %q", code)
		}
		return nil
	})
}

func (m mesh) waypointIsScaled() {
	m.must(m.kubectl("scale", "deployment/edge", "-n", "plain", "--replicas=2"))
	m.until("two pods", func() error {
		ready := m.output(m.t, "get", "deployment/edge", "-n", "plain", "-o", "jsonpath={.status.availableReplicas}")
		if ready != "2" {
			return fmt.Errorf("%q are available", ready)
		}
		return nil
	})
	for range 10 {
		m.must(m.from("meshed", "client", "http://server.plain"))
	}
}

func (m mesh) waypointGoes() {
	m.must(m.kubectl("delete", "gateway/edge", "-n", "plain"))
	m.until("the end of its Deployment", func() error {
		if m.administer("get", "deployment/edge", "-n", "plain").Run() == nil {
			return fmt.Errorf("it is there")
		}
		return nil
	})
	m.until("a refusal without the waypoint", func() error {
		if m.from("meshed", "client", "http://server.plain") == nil {
			return fmt.Errorf("the client is answered")
		}
		return nil
	})
}
