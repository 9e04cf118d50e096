package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// podLimit is how long pods may take to reach a state that a test waits for.
const podLimit = 2 * time.Minute

// boxImage contains curl, and the HTTP server, netcat and shell of busybox.
const boxImage = "registry.local/box:1"

const application = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 2
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      terminationGracePeriodSeconds: 0
      topologySpreadConstraints:
      - {maxSkew: 1, topologyKey: kubernetes.io/hostname, whenUnsatisfiable: DoNotSchedule, labelSelector: {matchLabels: {app: web}}}
      initContainers:
      - {name: page, image: registry.local/box:1, imagePullPolicy: Never, command: [sh, -c, "hostname >/www/index.html"], volumeMounts: [{name: www, mountPath: /www}]}
      containers:
      - {name: web, image: registry.local/box:1, imagePullPolicy: Never, command: [httpd, -f, -p, "[::]:8080", -h, /www], volumeMounts: [{name: www, mountPath: /www}], readinessProbe: {tcpSocket: {port: 8080}, periodSeconds: 1}}
      volumes: [{name: www, emptyDir: {}}]
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {selector: {app: web}, ipFamilyPolicy: RequireDualStack, ports: [{port: 80, targetPort: 8080}]}
---
apiVersion: v1
kind: Pod
metadata: {name: client}
spec:
  terminationGracePeriodSeconds: 0
  initContainers:
  - {name: sidecar, image: registry.local/box:1, imagePullPolicy: Never, restartPolicy: Always, command: [sleep, infinity]}
  containers:
  - {name: client, image: registry.local/box:1, imagePullPolicy: Never, command: [sleep, infinity], volumeMounts: [{name: token, mountPath: /token}]}
  volumes:
  - {name: token, projected: {sources: [{serviceAccountToken: {path: mesh, audience: mesh, expirationSeconds: 600}}]}}
---
apiVersion: batch/v1
kind: Job
metadata: {name: once}
spec:
  template:
    spec:
      restartPolicy: Never
      containers: [{name: once, image: registry.local/box:1, imagePullPolicy: Never, command: ["true"]}]
`

// TestCluster checks the features of a cluster that a mesh needs.
func TestCluster(t *testing.T) {
	b := startCluster(t)
	if err := b.apply(application); err != nil {
		t.Fatal(err)
	}
	waits := [][]string{
		{"rollout", "status", "deployment/web", "--timeout=1s"},
		{"wait", "--for=condition=Ready", "pod/client", "--timeout=1s"},
		{"wait", "--for=condition=Complete", "job/once", "--timeout=1s"},
	}
	for _, wait := range waits {
		if err := until(t.Context(), strings.Join(wait, " "), podLimit, func() error {
			return run1(b.administer(wait...))
		}); err != nil {
			t.Fatal(err, "\n", b.output(t, "describe", "pods"))
		}
	}
	t.Run("a service answers by name and by either family, from every replica", func(t *testing.T) {
		addresses := strings.Fields(b.output(t, "get", "service", "web", "-o", "jsonpath={.spec.clusterIPs[*]}"))
		if len(addresses) != 2 {
			t.Fatalf("addresses of the service: %v", addresses)
		}
		for _, host := range []string{"web", "web.default.svc.cluster.local", addresses[0], "[" + addresses[1] + "]"} {
			seen := map[string]bool{}
			err := until(t.Context(), "both replicas at "+host, podLimit, func() error {
				page, err := b.administer("exec", "client", "-c", "client", "--",
					"curl", "-sS", "--fail", "-g", "-m", "5", "http://"+host).CombinedOutput()
				if err != nil {
					return fmt.Errorf("%w: %s", err, page)
				}
				seen[strings.TrimSpace(string(page))] = true
				if len(seen) < 2 {
					return fmt.Errorf("only %v has answered", seen)
				}
				return nil
			})
			if err != nil {
				t.Error(err)
			}
		}
	})
	t.Run("a token for an audience is reviewed", func(t *testing.T) {
		token := b.output(t, "exec", "client", "-c", "client", "--", "cat", "/token/mesh")
		review := b.administer("create", "-o", "jsonpath={.status.authenticated} {.status.user.username}", "-f", "-")
		review.Stdin = strings.NewReader(fmt.Sprintf(
			`{"apiVersion":"authentication.k8s.io/v1","kind":"TokenReview","spec":{"token":%q,"audiences":["mesh"]}}`, token))
		output, err := review.CombinedOutput()
		if err != nil || string(output) != "true system:serviceaccount:default:default" {
			t.Errorf("%s: %v", output, err)
		}
	})
	t.Run("the API server answers on this machine's loopback", func(t *testing.T) {
		local := exec.Command(b.kube, "kubectl", "--kubeconfig", b.file("kubeconfig"), "get", "nodes", "-o", "name")
		output, err := local.CombinedOutput()
		if err != nil || string(output) != "node/n1\nnode/n2\n" {
			t.Errorf("%s: %v", output, err)
		}
	})
}

// leaveOut skips a test because something is missing; it fails the test if LENO_REQUIRE has
// cluster.
func leaveOut(t *testing.T, lacks string) {
	t.Helper()
	leaveOutOf(t, "cluster", lacks)
}

// leaveOutOf skips a test because something is missing; it fails the test if LENO_REQUIRE has part.
func leaveOutOf(t *testing.T, part, lacks string) {
	t.Helper()
	if slices.Contains(strings.Split(os.Getenv("LENO_REQUIRE"), ","), part) {
		t.Fatalf("LENO_REQUIRE has %s, and the test %s", part, lacks)
	}
	t.Skip("SKIPPED: " + lacks)
}

// startCluster starts two nodes with the image of the tests' applications, and checks at the end of
// the test that nothing of them is left. It needs root and CLUSTER_KUBE, the binary with the
// components.
func startCluster(t *testing.T) *bed {
	t.Helper()
	kube := os.Getenv("CLUSTER_KUBE")
	if kube == "" || os.Geteuid() != 0 {
		leaveOut(t, "needs root and CLUSTER_KUBE: scripts/cluster.sh test")
	}
	b, err := newBed(filepath.Join(t.TempDir(), "state"), kube)
	if err != nil {
		t.Fatal(err)
	}
	// The nodes' processes need the cluster command, not the test binary, so it is built here.
	b.self = filepath.Join(t.TempDir(), "cluster")
	build := exec.Command("go", "build", "-o", b.self, ".")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if err := run1(build); err != nil {
		t.Fatal(err)
	}
	if err := b.up(t.Context(), 2); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.down(); err != nil {
			t.Error(err)
		}
		nothingIsLeft(t, b)
	})
	box := filepath.Join(t.TempDir(), "box.tar")
	made := image{name: boxImage, files: map[string]string{"/usr/bin/curl": "/usr/bin/curl"}}
	for _, applet := range []string{"cat", "hostname", "httpd", "mkdir", "nc", "sh", "sleep", "true"} {
		made.files["/bin/"+applet] = "/bin/busybox"
	}
	if err := made.write(box); err != nil {
		t.Fatal(err)
	}
	if err := b.load([]string{box}); err != nil {
		t.Fatal(err)
	}
	return b
}

func (b *bed) output(t *testing.T, arguments ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), podLimit)
	defer cancel()
	command := b.administer(arguments...)
	bounded := exec.CommandContext(ctx, command.Path, command.Args[1:]...)
	output, err := bounded.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %v: %s", arguments, err, output)
	}
	return string(output)
}

func nothingIsLeft(t *testing.T, b *bed) {
	t.Helper()
	patterns := []string{filepath.Join(namespaces, name+"*"), filepath.Join(cgroups, "*", name), filepath.Join(cgroups, name)}
	for _, pattern := range patterns {
		if found, err := filepath.Glob(pattern); err != nil || len(found) > 0 {
			t.Errorf("left behind: %v, %v", found, err)
		}
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil || strings.Contains(string(mounts), b.state) {
		t.Errorf("mounts of %s are left, %v", b.state, err)
	}
}
