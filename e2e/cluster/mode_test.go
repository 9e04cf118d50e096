package main

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
)

// nodeShare is the value of leno.dev/share for the namespaces of TestMesh, which are then in node mode; empty for sidecars.
var nodeShare = os.Getenv("CLUSTER_SHARE")

func inNodeMode() bool { return nodeShare != "" }

// checkShare fails a test if the share is invalid, because its pods would not be in the mesh.
func checkShare(t *testing.T) {
	if shares := []string{"", "workload", "service-account", "namespace", "node"}; !slices.Contains(shares, nodeShare) {
		t.Fatalf("CLUSTER_SHARE=%s is not known: %s", nodeShare, strings.Join(shares[1:], ", "))
	}
}

// meshed is a namespace of the mesh, which is in node mode if CLUSTER_SHARE is set.
func meshed(namespace string) string {
	annotations := ""
	if inNodeMode() {
		annotations = fmt.Sprintf(", annotations: {leno.dev/mode: node, leno.dev/share: %s}", nodeShare)
	}
	return fmt.Sprintf("apiVersion: v1\nkind: Namespace\nmetadata: {name: %s, labels: {leno.dev/inject: enabled}%s}\n", namespace, annotations)
}

// hasProxyAsSaid checks that a pod has a sidecar, or that it has none in node mode.
func (m mesh) hasProxyAsSaid(namespace, pod string) {
	m.t.Helper()
	containers := m.output(m.t, "get", "pod", pod, "-n", namespace, "-o", "jsonpath={.spec.initContainers[*].name}")
	if strings.Contains(containers, "leno-proxy") == inNodeMode() {
		m.t.Errorf("share %q, and the init containers of %s/%s are %q", nodeShare, namespace, pod, containers)
	}
}
