package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// loadImage contains the server and the counting client of ./load.
const loadImage = "registry.local/load:1"

// perSecond is how many requests of each kind a client sends in a second: as many as debug builds of the proxies
// can serve on two cores that also run a whole cluster.
const perSecond = 30

// deployment is a Deployment of servers, and a Service of the same name.
func deployment(namespace, name, more string) string {
	return fmt.Sprintf(`---
apiVersion: v1
kind: Service
metadata: {name: %[1]s, namespace: %[4]s}
spec: {selector: {app: %[1]s}, ports: [{name: web, port: 80, targetPort: web}, {name: lines, port: 81, targetPort: 8081, appProtocol: tcp}]}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: %[1]s, namespace: %[4]s}
spec:
  replicas: 2
  selector: {matchLabels: {app: %[1]s}}
  strategy: {rollingUpdate: {maxUnavailable: 0, maxSurge: 1}}
  template:
    metadata: {labels: {app: %[1]s}}
    spec:
      containers:
      - name: application
        image: %[2]s
        imagePullPolicy: Never
        args: [serve]
        ports: [{name: web, containerPort: 8080}]
        readinessProbe: {httpGet: {path: /ready, port: web}, periodSeconds: 1}
        %[3]s
`, name, loadImage, more, namespace)
}

// client is a pod that sends requests as long as it runs.
func client(namespace string, targets ...string) string {
	return fmt.Sprintf(`---
apiVersion: v1
kind: Pod
metadata: {name: client, namespace: %s}
spec:
  nodeSelector: {kubernetes.io/hostname: n1}
  terminationGracePeriodSeconds: 1
  containers: [{name: application, image: %s, imagePullPolicy: Never, args: [ask, "%d", "%s"]}]
`, namespace, loadImage, perSecond, strings.Join(targets, `", "`))
}

// clients are the namespaces with a client.
var clients = []string{"load", "outside"}

// operated are the workloads under load: servers in namespaces of the mesh, a client beside them, and a client outside of the
// mesh. `server` ends as soon as it is signalled. `patient` waits until no new connections are routed to it, as servers with
// clients outside of a mesh must. `steady` is strict, and is not restarted under load.
func operated() string {
	const namespaces = `
apiVersion: v1
kind: Namespace
metadata: {name: load, labels: {leno.dev/inject: enabled}, annotations: {leno.dev/mtls: permissive}}
---
apiVersion: v1
kind: Namespace
metadata: {name: strict, labels: {leno.dev/inject: enabled}}
---
apiVersion: v1
kind: Namespace
metadata: {name: outside}
`
	return namespaces + deployment("load", "server", "") +
		deployment("load", "patient", "lifecycle: {preStop: {sleep: {seconds: 5}}}") +
		deployment("strict", "steady", "") +
		client("load", "http1=http1:http://server/", "http2=http2:http://server/", "connect=connect:http://server/",
			"patient=http1:http://patient/", "strict=http1:http://steady.strict/", "lines=lines:steady.strict:81", "dial=dial:steady.strict:81") +
		client("outside", "http1=http1:http://patient.load/", "http2=http2:http://patient.load/", "connect=connect:http://patient.load/")
}

// TestOperation performs the usual operations on a mesh under load; none may fail a request. It has the
// requirements of TestMesh.
func TestOperation(t *testing.T) {
	m := withLoad(t)
	m.install()
	m.stranger()
	m.must(m.apply(operated()))
	m.operates()
	m.runs([]part{
		{"every shape of service and workload is called with mTLS", mesh.takesShapes},
		{"servers are added and taken away", mesh.scales},
		{"servers are replaced", mesh.restartsServers},
		{"agents are replaced", mesh.restartsAgents},
		{"proxies are replaced", mesh.upgradesProxies},
		{"the control plane is replaced, of one replica and of three", mesh.restartsController},
		{"the control plane is away for minutes", mesh.controllerIsAway},
		{"a node starts again", mesh.nodeReboots},
		{"a removal is given up, and the mesh installed again", mesh.isKept},
		{"a mesh is removed", mesh.isRemoved},
	})
}

// operates waits until the servers and clients of operated() are ready.
func (m mesh) operates() {
	m.t.Helper()
	for _, name := range []string{"server", "patient"} {
		m.wait("rollout", "status", "deployment/"+name, "-n", "load")
	}
	m.wait("rollout", "status", "deployment/steady", "-n", "strict")
	for _, namespace := range clients {
		m.wait("wait", "--for=condition=Ready", "pod/client", "-n", namespace)
	}
}

// install installs the whole mesh, and waits until it is ready.
func (m mesh) install() { m.installWith() }

// loadLoad builds the image of server and client, and imports it on the nodes.
func (m mesh) loadLoad() {
	program := filepath.Join(m.t.TempDir(), "load")
	build := exec.Command("go", "build", "-o", program, "./load")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	m.must(run1(build))
	file := filepath.Join(m.t.TempDir(), "load.tar")
	made := image{name: loadImage, entrypoint: []string{"/load"}, files: map[string]string{"/load": program}}
	m.must(made.write(file))
	m.must(m.load([]string{file}))
}

func (m mesh) scales() {
	m.underLoad(func() {
		for _, replicas := range []int{5, 2, 4, 2} {
			m.scale("server", replicas)
			m.scale("patient", replicas)
			m.settled("load")
		}
	})
}

func (m mesh) restartsServers() {
	m.underLoad(func() {
		m.restart("load", "deployment/server")
		m.restart("load", "deployment/patient")
		m.settled("load")
	})
}

func (m mesh) restartsAgents() {
	m.underLoad(func() {
		m.restart("leno-system", "daemonset/leno-agent")
	})
}

// upgradesProxies installs another proxy image, and restarts pods to use it, as an operator would.
func (m mesh) upgradesProxies() {
	const other = "registry.local/leno-proxy:2"
	for _, n := range m.nodes {
		m.must(run1(n.command("ctr", "--namespace", "k8s.io", "images", "tag", proxyImage, other)))
	}
	m.underLoad(func() {
		m.injectsImage(other)
		m.restart("load", "deployment/server")
		m.restart("load", "deployment/patient")
		m.settled("load")
	})
	m.proxiesAre(other, "load", "app in (server, patient)")
}

// injectsImage sets the image of the proxies of new pods.
func (m mesh) injectsImage(image string) {
	m.t.Helper()
	m.must(run1(m.administer("set", "env", "-n", "leno-system", "deployment/leno-controller", "LENO_PROXY_IMAGE="+image)))
	m.wait("rollout", "status", "deployment/leno-controller", "-n", "leno-system")
	// Until it ends, the old replica answers the webhook with the old image.
	m.settled("leno-system")
}

// proxiesAre checks the image of the proxies of some pods.
func (m mesh) proxiesAre(wanted, namespace, selector string) {
	m.t.Helper()
	images := m.output(m.t, "get", "pods", "-n", namespace, "-l", selector, "-o",
		`jsonpath={.items[*].spec.initContainers[?(@.name=="leno-proxy")].image}`)
	if images == "" {
		m.t.Errorf("no pod of %s has a proxy", selector)
	}
	for image := range strings.FieldsSeq(images) {
		if image != wanted {
			m.t.Errorf("%s has a proxy of %s", selector, image)
		}
	}
}

func (m mesh) restartsController() {
	m.underLoad(func() { m.restart("leno-system", "deployment/leno-controller") })
	m.must(run1(m.administer("scale", "-n", "leno-system", "deployment/leno-controller", "--replicas=3")))
	m.wait("rollout", "status", "deployment/leno-controller", "-n", "leno-system")
	m.underLoad(func() {
		m.restart("leno-system", "deployment/leno-controller")
		m.restart("load", "deployment/server")
	})
	m.must(run1(m.administer("scale", "-n", "leno-system", "deployment/leno-controller", "--replicas=1")))
}

// scale sets the number of servers, and waits until they are ready.
func (m mesh) scale(deployment string, replicas int) {
	m.must(run1(m.administer("scale", "-n", "load", "deployment/"+deployment, fmt.Sprint("--replicas=", replicas))))
	m.wait("rollout", "status", "deployment/"+deployment, "-n", "load")
}

func (m mesh) restart(namespace, what string) {
	m.must(run1(m.administer("rollout", "restart", "-n", namespace, what)))
	m.wait("rollout", "status", what, "-n", namespace)
}

// settled waits until no pod in a namespace is ending.
func (m mesh) settled(namespace string) {
	m.until("no pod of "+namespace+" is ending", func() error {
		ending := strings.Fields(m.output(m.t, "get", "pods", "-n", namespace, "-o", "jsonpath={.items[*].metadata.deletionTimestamp}"))
		if len(ending) > 0 {
			return fmt.Errorf("%d are", len(ending))
		}
		return nil
	})
}

func (m mesh) injectorIsTrusted() {
	m.until("the API server knows which certificates to trust", func() error {
		for _, kind := range []string{"mutatingwebhookconfiguration/leno-injector", "validatingwebhookconfiguration/leno-validator"} {
			if m.output(m.t, "get", kind, "-o", "jsonpath={.webhooks[*].clientConfig.caBundle}") == "" {
				return fmt.Errorf("caBundle of %s is empty", kind)
			}
		}
		return nil
	})
}
