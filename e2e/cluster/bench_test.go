package main

import (
	"context"
	"encoding/csv"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// benchImage contains leno-bench, with which `leno bench` measures.
const benchImage = "registry.local/leno-bench:1"

// benchLimit is how long a run of the bench may take: each of its measurements starts its own pods.
const benchLimit = 20 * time.Minute

// TestBench measures no mesh and Leno with `leno bench`, which must leave the cluster as it found it. It has the
// requirements of TestMesh.
func TestBench(t *testing.T) {
	binaries := os.Getenv("CLUSTER_BIN")
	if binaries == "" {
		leaveOut(t, "needs CLUSTER_BIN: scripts/cluster.sh test")
	}
	m := mesh{startCluster(t), t}
	m.loadImages(binaries)
	file := filepath.Join(t.TempDir(), "leno.tar")
	made := image{name: benchImage, entrypoint: []string{"/leno-bench"}, user: "65532:65532",
		files: map[string]string{"/leno-bench": filepath.Join(binaries, "leno-bench")}}
	m.must(made.write(file))
	m.must(m.load([]string{file}))
	m.runs([]part{
		{"a mesh is measured, and the cluster is as it was", mesh.isMeasured},
		{"a mesh is disturbed under load, and the cluster is as it was", mesh.isDisturbed},
		{"a mesh is killed under load, is there again, and the cluster is as it was", mesh.isKilled},
		{"after a run that was killed the cluster is cleaned", mesh.isCleaned},
		{"an installed mesh is measured as it is", mesh.isMeasuredAsItIs},
		{"a real application is measured in place of the bench's own", mesh.realIsMeasured},
	})
}

// measured holds the fields of a bench record that the tests check.
type measured struct {
	Scenario, Mesh string
	MeshVersion    string `json:"mesh_version"`
	Requests       uint64
	Errors         uint64
	Proxies        uint32
	Revisions      uint64
	Arrived        *uint64            `json:"revisions_arrived"`
	LeftOut        string             `json:"left_out"`
	CPU            map[string]float64 `json:"cpu_ms"`
	User           float64            `json:"cpu_user_us_per_request"`
	System         float64            `json:"cpu_system_us_per_request"`
	Idle           float64            `json:"idle_proxies_cpus"`
	Switches       map[string]uint64  `json:"context_switches"`
	Programs       map[string]float64 `json:"kernel_programs"`
	Connections    uint64             `json:"crossing_connections"`
	StartUp        float64            `json:"start_up_ms"`
	Binary         uint64             `json:"binary_bytes"`
	Memory         map[string]uint64  `json:"rss_kib"`
	Control        map[string]uint64  `json:"control_rss_kib"`
	Latency        map[string]float64 `json:"latency_us"`
	Marks          []struct{ Kind, Why string }
	Cluster        struct {
		Nodes     []struct{ Name, Kubelet string }
		Placement map[string]string
		Found     bool
		// Application comes from the file of images.
		Application struct {
			Services map[string]struct{ Image string }
		}
	}
}

// bench is a `leno bench run` in this cluster that writes its records to a folder.
func (m mesh) bench(out string, more ...string) *exec.Cmd {
	ctx, cancel := context.WithTimeout(m.t.Context(), benchLimit)
	m.t.Cleanup(cancel)
	words := append([]string{"bench", "run", "--cluster", "--image", benchImage, "--warm-up", "1s", "--scale", "0.02",
		"--out", out}, more...)
	if !slices.Contains(more, "--duration") {
		words = append(words, "--duration", "5s")
	}
	command := exec.CommandContext(ctx, m.leno().Path, words...)
	command.Env = append(os.Environ(), "KUBECONFIG="+m.file("kubeconfig"))
	return command
}

func (m mesh) isMeasured() {
	out := m.t.TempDir()
	said, err := m.bench(out, "http-1k", "--mesh", "none,leno,leno-node", "--rounds", "2").CombinedOutput()
	m.t.Logf("leno bench run:\n%s", said)
	if err != nil {
		m.t.Fatal(err)
	}
	m.benchLeavesNothing()
	records := m.records(out)
	if len(records) != 6 {
		m.t.Fatalf("%d records", len(records))
	}
	for _, one := range records {
		m.isGood(one)
		if one.Cluster.Found || one.Cluster.Placement["client"] != "n1" || one.Cluster.Placement["s0"] != "n2" {
			m.t.Errorf("%s was measured in %+v", one.Mesh, one.Cluster)
		}
	}
	report, err := m.leno("bench", "report", out).CombinedOutput()
	m.t.Logf("leno bench report:\n%s", report)
	if err != nil || !strings.Contains(string(report), "2 nodes") || strings.Contains(string(report), "not measured") {
		m.t.Errorf("leno bench report: %v", err)
	}
}

// isGood checks that figures exist; their size means nothing in a cluster on two cores.
func (m mesh) isGood(one measured) {
	if one.LeftOut != "" || one.Requests != 1000 || one.Errors > 10 {
		m.t.Errorf("%s: %d requests, %d errors, %q", one.Mesh, one.Requests, one.Errors, one.LeftOut)
		return
	}
	for _, mark := range one.Marks {
		if slices.Contains([]string{"restarted", "watcher-silent", "figures-missing"}, mark.Kind) {
			m.t.Errorf("%s: nothing was restarted, and everything was watched: %s: %s", one.Mesh, mark.Kind, mark.Why)
		}
	}
	// The application takes 10 ms for a response.
	if one.Latency["p50"] < 10_000 || one.CPU["application"] <= 0 || one.CPU["generator"] <= 0 {
		m.t.Errorf("%s: %v, CPU %v", one.Mesh, one.Latency, one.CPU)
	}
	// Both nodes are the same machine, which counts once, for little more than the five seconds of the load.
	if one.CPU["machine"] <= 0 || one.CPU["machine"] > float64(runtime.NumCPU())*10_000 || one.Connections == 0 {
		m.t.Errorf("%s: CPU %v, %d connections", one.Mesh, one.CPU, one.Connections)
	}
	if one.Mesh == "none" {
		if one.Binary != 0 || one.StartUp != 0 || one.Switches["voluntary"] != 0 || one.User != 0 {
			m.t.Errorf("the baseline has figures of proxies: %+v", one)
		}
		if one.Proxies != 0 || one.CPU["proxies"] != 0 || one.Memory["peak"] != 0 || one.CPU["control"] != 0 {
			m.t.Errorf("the baseline has proxies: %+v", one)
		}
		return
	}
	// In node mode each of the two nodes has one, in the image of agents, and its start is not measured.
	proxies, image, measuresStart := uint32(11), proxyImage, true
	if one.Mesh == "leno-node" {
		proxies, image, measuresStart = 2, strings.Replace(proxyImage, "leno-proxy", "leno-agent", 1), false
	}
	if one.Proxies != proxies || one.User <= 0 || one.System <= 0 || one.Memory["idle"] == 0 ||
		one.Memory["peak"] < one.Memory["load"] || one.Control["idle"] == 0 || one.CPU["control"] <= 0 || one.CPU["agent"] <= 0 {
		m.t.Errorf("figures of %s are missing: %+v", one.Mesh, one)
	}
	if one.Idle <= 0 || one.Switches["voluntary"] == 0 || (one.StartUp > 0) != measuresStart || one.Binary < 1_000_000 || one.Programs["runs"] <= 0 {
		m.t.Errorf("figures of %s are missing: %+v", one.Mesh, one)
	}
	if !strings.Contains(one.MeshVersion, image) {
		m.t.Errorf("the version is %q", one.MeshVersion)
	}
}

// routes is a definition of HTTPRoute with any spec and status. No mesh of the bench installs one.
const routes = `apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata:
  name: httproutes.gateway.networking.k8s.io
  annotations: {api-approved.kubernetes.io: "https://github.com/kubernetes-sigs/gateway-api"}
spec:
  group: gateway.networking.k8s.io
  names: {kind: HTTPRoute, plural: httproutes}
  scope: Namespaced
  versions:
  - name: v1
    served: true
    storage: true
    subresources: {status: {}}
    schema:
      openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}
`

func (m mesh) isDisturbed() {
	out := m.t.TempDir()
	// The pushed kind is not defined in the cluster.
	said, err := m.bench(out, "push", "--mesh", "none,leno", "--rounds", "1").CombinedOutput()
	m.t.Logf("leno bench run push:\n%s", said)
	m.must(err)
	for _, one := range m.records(out) {
		if lacks := strings.Contains(one.LeftOut, "no HTTPRoute"); lacks != (one.Mesh == "leno") {
			m.t.Errorf("%s without HTTPRoute: %q", one.Mesh, one.LeftOut)
		}
	}
	m.must(m.apply(routes))
	m.wait("wait", "--for=condition=Established", "customresourcedefinition/httproutes.gateway.networking.k8s.io")
	out = m.t.TempDir()
	said, err = m.bench(out, "push", "churn", "--mesh", "none,leno", "--rounds", "1").CombinedOutput()
	m.t.Logf("leno bench run push churn:\n%s", said)
	m.must(m.kubectl("delete", "customresourcedefinition/httproutes.gateway.networking.k8s.io"))
	m.must(err)
	m.benchLeavesNothing()
	records := m.records(out)
	if len(records) != 4 {
		m.t.Errorf("%d records", len(records))
	}
	for _, one := range records {
		m.isWellDisturbed(one)
	}
}

// isWellDisturbed checks that a mesh got updates under load, and that hardly any request failed.
func (m mesh) isWellDisturbed(one measured) {
	what := one.Scenario + " under " + one.Mesh
	if one.LeftOut != "" || one.Requests == 0 || one.Errors*100 > one.Requests {
		m.t.Errorf("%s: %d requests, %d errors, %q", what, one.Requests, one.Errors, one.LeftOut)
	}
	for _, mark := range one.Marks {
		if mark.Kind == "restarted" || mark.Kind == "disturbed-less" {
			m.t.Errorf("%s is marked %s: %s", what, mark.Kind, mark.Why)
		}
	}
	// Without a mesh no component receives a route; endpoints are sent to the nodes.
	pushed := one.Scenario == "push"
	if given := one.Revisions > 0; given != (!pushed || one.Mesh == "leno") {
		m.t.Errorf("%s: %d revisions", what, one.Revisions)
	}
	if arrived := one.Arrived != nil && *one.Arrived > 0; arrived != (pushed && one.Mesh == "leno") {
		m.t.Errorf("%s: %d revisions, arrived: %v", what, one.Revisions, one.Arrived)
	}
}

func (m mesh) isKilled() {
	out := m.t.TempDir()
	// Twice as long as its proxies may take to come back; churn, which needs the mesh, runs after it.
	said, err := m.bench(out, "restart", "churn", "--mesh", "none,leno", "--rounds", "1", "--duration", "30s").CombinedOutput()
	m.t.Logf("leno bench run restart churn:\n%s", said)
	m.must(err)
	m.benchLeavesNothing()
	m.samplesRise(out)
	records := m.records(out)
	if len(records) != 4 {
		m.t.Errorf("%d records", len(records))
	}
	for _, one := range records {
		if one.Scenario == "churn" {
			m.isWellDisturbed(one)
			continue
		}
		// Half of the requests were sent before the kill: if more were answered, some were answered after it.
		answered := one.Requests - one.Errors
		if one.LeftOut != "" || one.Requests != 600 || answered <= one.Requests/2 {
			m.t.Errorf("restart under %s: %d of %d answered, %q", one.Mesh, answered, one.Requests, one.LeftOut)
		}
		if one.Mesh == "none" && one.Errors > 0 {
			m.t.Errorf("there is nothing to kill without a mesh: %d errors", one.Errors)
		}
		if one.Mesh == "leno" && (one.User <= 0 || one.CPU["control"] <= 0 || one.StartUp != 0) {
			m.t.Errorf("figures of restart are missing: %+v", one)
		}
		for _, mark := range one.Marks {
			if slices.Contains([]string{"restarted", "figures-missing", "disturbed-less"}, mark.Kind) {
				m.t.Errorf("restart under %s is marked %s: %s", one.Mesh, mark.Kind, mark.Why)
			}
		}
	}
}

// samplesRise checks that CPU time never decreases in the samples of a run, even if proxies are killed.
func (m mesh) samplesRise(out string) {
	files, err := filepath.Glob(filepath.Join(out, "raw", "*.usage.csv"))
	m.must(err)
	if len(files) == 0 {
		m.t.Error("there is no file of samples")
	}
	for _, name := range files {
		file, err := os.Open(name)
		m.must(err)
		lines, err := csv.NewReader(file).ReadAll()
		m.must(err)
		m.must(file.Close())
		column := slices.Index(lines[0], "proxies_cpu_ms")
		last := 0.0
		for _, line := range lines[1:] {
			ms, err := strconv.ParseFloat(line[column], 64)
			m.must(err)
			if ms < last {
				m.t.Errorf("%s: CPU fell from %v ms: %v", filepath.Base(name), last, line)
			}
			last = ms
		}
		if len(lines) < 3 || (last > 0) != strings.Contains(name, ".leno.") {
			m.t.Errorf("%s: %d lines, and %v ms at the end", filepath.Base(name), len(lines), last)
		}
	}
}

func (m mesh) isCleaned() {
	out := m.t.TempDir()
	run := m.bench(out, "http-10k", "--mesh", "leno", "--rounds", "1")
	m.must(run.Start())
	m.until("a pod of the bench has a proxy", func() error {
		pods := m.output(m.t, "get", "pods", "-A", "-l", "app.kubernetes.io/managed-by=leno-bench", "-o",
			"jsonpath={.items[*].spec.initContainers[*].name}")
		if !strings.Contains(pods, "leno-proxy") {
			return fmt.Errorf("the pods have %q", pods)
		}
		return nil
	})
	m.must(run.Process.Signal(syscall.SIGKILL))
	_ = run.Wait() // it was killed
	said, err := m.leno("bench", "clean", out).CombinedOutput()
	m.t.Logf("leno bench clean:\n%s", said)
	m.must(err)
	m.benchLeavesNothing()
}

func (m mesh) isMeasuredAsItIs() {
	m.must(m.apply(m.installation(func(string) bool { return true })))
	m.wait("rollout", "status", "deployment/leno-controller", "-n", "leno-system")
	m.agentIsThere()
	m.injectorIsTrusted()
	out := m.t.TempDir()
	refused, err := m.bench(out, "http-10k", "--mesh", "leno", "--rounds", "1").CombinedOutput()
	if err == nil || !strings.Contains(string(refused), "leno is already installed") {
		m.t.Errorf("leno bench over a mesh that is there: %v\n%s", err, refused)
	}
	run := m.bench(out, "neighbour", "--mesh", "leno", "--rounds", "1", "--no-install")
	run.Env = append(run.Env, "KUBECONFIG="+m.limited())
	said, err := run.CombinedOutput()
	m.t.Logf("leno bench run --no-install:\n%s", said)
	if err != nil {
		m.t.Fatal(err)
	}
	for _, one := range m.records(out) {
		if one.LeftOut != "" || one.Requests == 0 || one.CPU["neighbour"] <= 0 || (one.Mesh == "leno") != one.Cluster.Found {
			m.t.Errorf("%+v", one)
		}
	}
	// The mesh is still installed and healthy.
	if said, err := m.leno("check", "--cluster").CombinedOutput(); err != nil {
		m.t.Errorf("leno check --cluster: %v\n%s", err, said)
	}
	if said, err := m.leno("uninstall", "--yes").CombinedOutput(); err != nil {
		m.t.Errorf("leno uninstall: %v\n%s", err, said)
	}
	m.must(m.kubectl("delete", "clusterrole/leno-bench", "clusterrolebinding/leno-bench", "serviceaccount/bench"))
	m.benchLeavesNothing()
}

// realIsMeasured measures Faces with the file that `leno bench list` prints for it. The images are made here, from
// ./load or from the real programs face, smiley and color in the folder that CLUSTER_FACES names.
func (m mesh) realIsMeasured() {
	text, err := m.leno("bench", "list", "--application", "faces").Output()
	m.must(err)
	images := strings.NewReplacer("ghcr.io/buoyantio", "registry.local", ":2.0.0", ":1").Replace(string(text))
	m.loadFaces()
	out := m.t.TempDir()
	said, err := m.bench(out, "faces@1200", "--mesh", "none,leno", "--rounds", "1",
		"--application", m.fileOf(images)).CombinedOutput()
	m.t.Logf("leno bench run --application:\n%s", said)
	if err != nil {
		m.t.Fatal(err)
	}
	records := m.records(out)
	if len(records) != 2 {
		m.t.Errorf("%d records", len(records))
	}
	for _, one := range records {
		services := one.Cluster.Application.Services
		if one.LeftOut != "" || one.Requests != 120 || one.Errors > 1 || one.CPU["application"] <= 0 ||
			services["color"].Image != "registry.local/faces-color:1" {
			m.t.Errorf("%+v", one)
		}
		if one.Mesh == "leno" && (one.Proxies != 4 || one.User+one.System <= 0) {
			m.t.Errorf("its proxies: %+v", one)
		}
	}
	report, err := m.leno("bench", "report", "--no-files", out).CombinedOutput()
	if err != nil || !strings.Contains(string(report), "faces is the real application (color registry.local/faces-color:1") {
		m.t.Errorf("leno bench report: %v\n%s", err, report)
	}
	// The report quotes the last output of a container that ends, because its namespace is removed by then.
	const color = "image: registry.local/faces-color:1"
	wrong := strings.Replace(images, color, color+"\n    privileges: image\n    args: [--nothing]", 1)
	out = m.t.TempDir()
	said, err = m.bench(out, "faces@1200", "--mesh", "none", "--rounds", "1",
		"--application", m.fileOf(wrong)).CombinedOutput()
	m.must(err)
	for _, one := range m.records(out) {
		if !strings.Contains(one.LeftOut, "container bench of pod color") || !strings.Contains(one.LeftOut, "it ended with code") ||
			strings.Contains(one.LeftOut, "and said: nothing") {
			m.t.Errorf("%+v\n%s", one, said)
		}
	}
	m.benchLeavesNothing()
}

// fileOf writes a file of images, and returns its path.
func (m mesh) fileOf(text string) string {
	file := filepath.Join(m.t.TempDir(), "images.yaml")
	m.must(os.WriteFile(file, []byte(text), 0o600))
	return file
}

// loadFaces makes the images of Faces, and imports them on the nodes.
func (m mesh) loadFaces() {
	programs, given := os.LookupEnv("CLUSTER_FACES")
	if !given {
		programs = m.t.TempDir()
		build := exec.CommandContext(m.t.Context(), "go", "build", "-o", filepath.Join(programs, "load"), "./load")
		build.Env = append(os.Environ(), "CGO_ENABLED=0")
		m.must(run1(build))
	}
	for _, name := range []string{"face", "smiley", "color"} {
		made := image{name: "registry.local/faces-" + name + ":1", entrypoint: []string{"/workload", name},
			files: map[string]string{"/workload": filepath.Join(programs, "load")}}
		if given {
			made.entrypoint = []string{"/workload"}
			made.files["/workload"] = filepath.Join(programs, name)
		}
		file := filepath.Join(m.t.TempDir(), name+".tar")
		m.must(made.write(file))
		m.must(m.load([]string{file}))
	}
}

// limited is the kubeconfig of an account with exactly the rights that the guide lists.
func (m mesh) limited() string {
	guide, err := os.ReadFile("../../docs/guide/bench.md")
	m.must(err)
	_, role, _ := strings.Cut(string(guide), "```yaml\n")
	role, _, _ = strings.Cut(role, "```")
	m.must(m.apply(role + `---
apiVersion: v1
kind: ServiceAccount
metadata: {name: bench, namespace: default}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: leno-bench}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: leno-bench}
subjects: [{kind: ServiceAccount, name: bench, namespace: default}]
`))
	token := strings.TrimSpace(m.output(m.t, "create", "token", "bench"))
	admin, err := os.ReadFile(m.file("kubeconfig"))
	m.must(err)
	file := filepath.Join(m.t.TempDir(), "kubeconfig")
	m.must(os.WriteFile(file, admin, 0o600))
	for _, change := range [][]string{
		{"set-credentials", "bench", "--token=" + token},
		{"set-context", "--current", "--user=bench"},
	} {
		words := append([]string{"kubectl", "--kubeconfig", file, "config"}, change...)
		m.must(run1(exec.CommandContext(m.t.Context(), m.kube, words...)))
	}
	return file
}

func (m mesh) records(out string) []measured {
	text, err := m.leno("bench", "report", "--no-files", "-o", "json", out).Output()
	if err != nil {
		m.t.Fatalf("leno bench report: %v%s", err, problem(err))
	}
	var records []measured
	m.must(json.Unmarshal(text, &records))
	return records
}

// benchLeavesNothing also checks for pods of the bench, whose namespaces have leno in their names.
func (m mesh) benchLeavesNothing() {
	m.nothingIsLeft()
	if left := grep(m.output(m.t, "get", "pods", "-A", "-o", "name"), "leno"); left != "" {
		m.t.Errorf("pods are left: %s", left)
	}
}
