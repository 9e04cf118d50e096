package main

import (
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// proxyImage is one of the mesh's images, made from the binaries in the folder that CLUSTER_BIN names.
const proxyImage = "registry.local/leno-proxy:1"

// mesh is a cluster with the mesh's control plane, used by one part of the test.
type mesh struct {
	*bed
	t *testing.T
}

// withLoad starts a cluster with the images of the mesh and of the load, in which no mesh is installed yet.
func withLoad(t *testing.T) mesh {
	binaries := os.Getenv("CLUSTER_BIN")
	if binaries == "" {
		leaveOut(t, "needs CLUSTER_BIN: scripts/cluster.sh test")
	}
	m := mesh{startCluster(t), t}
	m.loadImages(binaries)
	m.loadLoad()
	return m
}

// part is a part of a test that uses the mesh.
type part struct {
	name string
	run  func(mesh)
}

// runs runs the parts of a test in order, in the same mesh.
func (m mesh) runs(parts []part) {
	for _, part := range parts {
		m.t.Run(part.name, func(t *testing.T) { part.run(mesh{m.bed, t}) })
	}
}

// TestMesh runs pods with hand-written proxies on a real cluster, where the agents of the nodes capture their connections. With
// CLUSTER_SHARE the pods are in node mode. It needs root, CLUSTER_KUBE, and CLUSTER_BIN, a folder with the mesh's binaries.
func TestMesh(t *testing.T) {
	checkShare(t)
	binaries := os.Getenv("CLUSTER_BIN")
	if binaries == "" {
		leaveOut(t, "needs CLUSTER_BIN: scripts/cluster.sh test")
	}
	m := mesh{startCluster(t), t}
	m.loadImages(binaries)
	m.must(m.apply(m.installation(func(kind string) bool {
		return kind != "DaemonSet" && !strings.HasSuffix(kind, "WebhookConfiguration")
	})))
	m.wait("rollout", "status", "deployment/leno-controller", "-n", "leno-system")
	early := part{"a pod that starts before the agent waits for it, and is captured then", mesh.startsEarly}
	first := part{"init containers reach the mesh after the proxy, nothing before it, and Jobs end", mesh.initContainersAndJobs}
	if inNodeMode() {
		m.must(m.apply(meshed("default")))
		early = part{"a pod that runs before the agent is captured by it", mesh.runsEarly}
		first.name = "init containers reach the mesh from the first one on, and Jobs end"
	} else {
		m.copyRoots()
	}
	m.must(m.apply("apiVersion: v1\nkind: Namespace\nmetadata: {name: outside}\n"))
	m.stranger()
	m.runs([]part{
		early,
		{"two pods talk with mTLS under ebpf, and no stranger", func(m mesh) { m.talk("ebpf") }},
		{"two pods talk with mTLS under nftables, and no stranger", func(m mesh) { m.talk("nftables") }},
		first,
		{"an agent that is killed loses nothing, and the next one takes over", mesh.agentIsKilled},
		{"the annotation of a node sizes the table of flows of its agent", mesh.sizesOfFlows},
		{"a pod whose sandbox is made again, as after a reboot, is captured again", mesh.sandboxIsMadeAgain},
		{"without the agent only pods without a proxy start", mesh.agentIsAway},
		{"unmodified manifests are in the mesh of a namespace with the label", mesh.injects},
		{"the command line answers as on one machine", mesh.commands},
		{"edges, routes and single requests are shown to who may see them, and to no one else", mesh.observes},
		{"the page of the cluster in a browser shows a reader the namespaces that they may see", mesh.isOpenedInABrowser},
		{"uninstall leaves nothing of the mesh in the cluster and on its nodes", mesh.uninstall},
	})
}

// stranger starts a pod without a proxy, which sends requests that the mesh should refuse.
func (m mesh) stranger() {
	m.must(m.apply(fmt.Sprintf("apiVersion: v1\nkind: Pod\nmetadata: {name: stranger, labels: {leno.dev/inject: disabled}}\nspec: {terminationGracePeriodSeconds: 0, nodeSelector: {kubernetes.io/hostname: n1}, "+
		"containers: [{name: application, image: %s, imagePullPolicy: Never, %s}]}\n", boxImage, sleeps)))
	m.ready("stranger")
}

// startsEarly starts a pod before the agent, so that it is not captured before its containers
// start.
func (m mesh) startsEarly() {
	early := workload{name: "early", capture: "auto", node: 1, application: serves}
	m.must(m.apply(early.pod() + "---\n" + service("early")))
	m.until("the proxy of early waits", func() error {
		answer := m.inside("stranger", "curl", "-s", "-m", "5", "http://"+m.address("early")+":15020/ready")
		if !strings.Contains(answer, "not captured") {
			return fmt.Errorf("it says %q", answer)
		}
		return nil
	})
	if started := m.output(m.t, "get", "pod", "early", "-o", "jsonpath={.status.containerStatuses[0].started}"); started != "false" {
		m.t.Errorf("the application has started: %q", started)
	}
	m.startAgent()
	m.ready("early")
	if count := m.metric(1, `leno_agent_captures_total\{backend="ebpf",origin="reconciled"\}`); count != 1 {
		m.t.Errorf("%v pods were captured while they ran", count)
	}
}

// runsEarly starts a pod in node mode before the agent. No container of it waits for the agent, so it runs uncaptured until the
// agent captures it.
func (m mesh) runsEarly() {
	early := workload{name: "early", capture: "auto", node: 1, application: serves}
	m.must(m.apply(early.pod() + "---\n" + service("early")))
	m.until("early runs", func() error { return m.fetch("stranger", m.address("early")+":8080") })
	m.startAgent()
	m.ready("early")
	if err := m.fetch("stranger", m.address("early")+":8080"); err == nil {
		m.t.Error("a stranger was answered under strict mTLS")
	}
	if count := m.metric(1, `leno_agent_captures_total\{backend="ebpf",origin="reconciled"\}`); count != 1 {
		m.t.Errorf("%v pods were captured while they ran", count)
	}
}

func (m mesh) talk(backend string) {
	server, client := "server-"+backend, "client-"+backend
	for nth, w := range []workload{{name: server, application: serves}, {name: client, application: sleeps}} {
		w.capture, w.node = backend, nth+1
		m.must(m.apply(w.pod()))
	}
	m.must(m.apply(service(server)))
	m.ready(server, client)
	m.hasProxyAsSaid("default", server)
	m.until("an answer", func() error { return m.fetch(client, server) })
	seen := m.inside("stranger", "curl", "-s", "-m", "5", "http://"+m.address(server)+":15020/metrics")
	edge := regexp.MustCompile(`leno_requests_total\{[^}]*direction="inbound"[^}]*client="default"[^}]*mtls="true"`)
	if !edge.MatchString(seen) {
		m.t.Errorf("no request with mTLS:\n%s", grep(seen, "leno_requests_total"))
	}
	if err := m.fetch("stranger", m.address(server)+":8080"); err == nil {
		m.t.Error("a stranger was answered under strict mTLS")
	}
	for node := 1; node <= 2; node++ {
		if count := m.metric(node, `leno_agent_captures_total\{backend="`+backend+`",origin="cni"\}`); count != 1 {
			m.t.Errorf("%v pods of node %d were captured before they started", count, node)
		}
	}
}

func (m mesh) initContainersAndJobs() {
	const look = `command: [sh, -c, "curl -sf -m 5 http://server-ebpf"]`
	for _, backend := range []string{"ebpf", "nftables"} {
		// A client that is not captured would get a response from that port.
		before := `command: [sh, -c, "curl -s -m 5 http://` + m.address("server-ebpf") + `:15020/live; test $? = 7"]`
		if inNodeMode() {
			before = look
		}
		job := workload{name: "job-" + backend, capture: backend, node: 1, before: before, after: look, application: look, more: "restartPolicy: Never"}
		text := strings.ReplaceAll(job.template(), "\n", "\n    ")
		m.must(m.apply(fmt.Sprintf("apiVersion: batch/v1\nkind: Job\nmetadata: {name: %s}\nspec:\n  backoffLimit: 0\n  template:\n    %s\n", job.name, text)))
		m.wait("wait", "--for=condition=Complete", "job/"+job.name)
		m.until("its capture is released", func() error {
			if left := m.command(1, "ls", "/run/leno/pods", "/sys/fs/bpf/leno"); strings.Contains(left, m.output(m.t, "get", "pod", "-l", "app="+job.name, "-o", "jsonpath={.items[0].metadata.uid}")) {
				return fmt.Errorf("left: %s", left)
			}
			return nil
		})
	}
}

// requests is how many are sent while the agents are disturbed.
const requests = 400

func (m mesh) agentIsKilled() {
	for _, backend := range []string{"ebpf", "nftables"} {
		client := `namespace="default",workload="client-` + backend + `"`
		opened := m.flows(2, "leno_flow_connections_opened_total", client, `socket="application"`)
		done := make(chan string)
		go func() {
			script := fmt.Sprintf("n=0; while [ $n -lt %d ]; do curl -sf -m 5 -o /dev/null http://server-%s || echo failed; n=$((n+1)); done; echo end", requests, backend)
			output, err := m.administer("exec", "client-"+backend, "-c", "application", "--", "sh", "-c", script).CombinedOutput()
			if err != nil {
				output = append(output, err.Error()...)
			}
			done <- string(output)
		}()
		brokers := m.startedAs(1, "leno-broker")
		m.must(run1(m.administer("delete", "pod", "-n", "leno-system", "-l", "app.kubernetes.io/name=leno-agent", "--grace-period=0", "--force")))
		m.agentIsThere()
		if inNodeMode() == (len(brokers) == 0) {
			m.t.Errorf("%s: brokers %v", backend, brokers)
		}
		// If the earlier agent ends late, the next one starts another broker, which ends once the supervisor connects.
		m.until("the brokers of before alone", func() error {
			if after := m.startedAs(1, "leno-broker"); !slices.Equal(after, brokers) {
				return fmt.Errorf("%s: brokers %v after %v", backend, after, brokers)
			}
			return nil
		})
		if output := strings.TrimSpace(<-done); output != "end" {
			m.t.Errorf("%s: %s", backend, output)
		}
		for node := 1; node <= 2; node++ {
			if count := m.metric(node, `leno_agent_captures_total\{backend="`+backend+`",origin="taken_over"\}`); count < 1 {
				m.t.Errorf("%v pods of node %d were taken over", count, node)
			}
			if count := m.metric(node, `leno_agent_captures_total\{backend="`+backend+`",origin="reconciled"\}`); count != 0 {
				m.t.Errorf("%v pods of node %d were captured again", count, node)
			}
		}
		// Each request is one connection, and none may be missed while no agent ran. The last ones are counted with a delay.
		m.until("every connection is accounted for", func() error {
			if count := m.flows(2, "leno_flow_connections_opened_total", client, `socket="application"`) - opened; count != requests {
				return fmt.Errorf("%s: %v connections of %d are accounted for", backend, count, requests)
			}
			return nil
		})
		m.must(m.fetch("client-"+backend, "server-"+backend))
	}
}

// sandboxIsMadeAgain kills all processes of a pod, so that the kubelet makes another network
// namespace for it.
func (m mesh) sandboxIsMadeAgain() {
	for _, backend := range []string{"ebpf", "nftables"} {
		server := "server-" + backend
		uid := m.output(m.t, "get", "pod", server, "-o", "jsonpath={.metadata.uid}")
		before := m.address(server)
		m.command(1, "sh", "-c", "kill -9 $(cat $(find "+tracking()+" -path '*pod"+uid+"/*' -name cgroup.procs))")
		m.until("it has another address", func() error {
			if now := m.address(server); now == before || now == "" {
				return fmt.Errorf("%q", now)
			}
			return nil
		})
		m.ready(server)
		m.until("an answer", func() error { return m.fetch("client-"+backend, server) })
		if err := m.fetch("stranger", m.address(server)+":8080"); err == nil {
			m.t.Error("a stranger was answered under strict mTLS")
		}
		record := m.command(1, "cat", "/run/leno/pods/"+uid+".json")
		if !strings.Contains(record, `"backend":"`+backend+`"`) {
			m.t.Errorf("the record says %s", record)
		}
	}
}

func (m mesh) agentIsAway() {
	m.must(run1(m.administer("delete", "daemonset", "leno-agent", "-n", "leno-system", "--cascade=foreground")))
	late := workload{name: "late", capture: "auto", node: 1, application: serves}
	m.must(m.apply(late.pod()))
	m.must(m.apply(fmt.Sprintf("apiVersion: v1\nkind: Pod\nmetadata: {name: plain, namespace: outside}\nspec: {nodeSelector: {kubernetes.io/hostname: n1}, terminationGracePeriodSeconds: 0, "+
		"containers: [{name: application, image: %s, imagePullPolicy: Never, %s}]}\n", boxImage, sleeps)))
	m.wait("wait", "--for=condition=Ready", "pod/plain", "-n", "outside")
	m.until("the reason is told", func() error {
		if events := m.output(m.t, "events", "--for", "pod/late"); !strings.Contains(events, "agent of this node does not answer") {
			return errors.New(events)
		}
		return nil
	})
	m.must(m.fetch("client-ebpf", "server-ebpf"))
	m.startAgent()
	m.ready("late")
}

// shop is an ordinary application: nothing in its manifests but its namespace refers to the mesh.
const shop = `---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec: {selector: {app: web}, ports: [{port: 80, targetPort: web}]}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: shop}
spec:
  replicas: 2
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      terminationGracePeriodSeconds: 1
      containers:
      - name: application
        image: ` + boxImage + `
        imagePullPolicy: Never
        command: [sh, -c, "mkdir -p /tmp/www; echo served >/tmp/www/index.html; exec httpd -f -p 8080 -h /tmp/www"]
        ports: [{name: web, containerPort: 8080}]
        readinessProbe: {httpGet: {path: /, port: web}, periodSeconds: 1}
        livenessProbe: {tcpSocket: {port: web}, periodSeconds: 1}
`

const buyer = `
apiVersion: batch/v1
kind: Job
metadata: {name: buyer, namespace: shop}
spec:
  template:
    spec:
      restartPolicy: OnFailure
      containers:
      - {name: application, image: ` + boxImage + `, imagePullPolicy: Never, command: [curl, -sf, -m, "5", http://web]}
`

func (m mesh) injects() {
	m.must(m.apply(m.installation(func(kind string) bool { return strings.HasSuffix(kind, "WebhookConfiguration") })))
	m.until("the API server knows which certificates to trust", func() error {
		for _, kind := range []string{"mutatingwebhookconfiguration/leno-injector", "validatingwebhookconfiguration/leno-validator"} {
			if m.output(m.t, "get", kind, "-o", "jsonpath={.webhooks[*].clientConfig.caBundle}") == "" {
				return errors.New("caBundle is empty")
			}
		}
		return nil
	})
	m.must(m.apply(meshed("shop") + shop))
	m.wait("rollout", "status", "deployment/web", "-n", "shop")
	m.must(m.apply(buyer))
	m.wait("wait", "--for=condition=Complete", "job/buyer", "-n", "shop")
	pods := strings.Fields(m.output(m.t, "get", "pods", "-n", "shop", "-l", "app=web", "-o", "jsonpath={.items[*].status.podIP}"))
	if len(pods) != 2 {
		m.t.Fatalf("pods of web: %v", pods)
	}
	var served string
	for _, pod := range pods {
		served += m.inside("stranger", "curl", "-s", "-m", "5", "http://"+pod+":15020/metrics")
		if err := m.fetch("stranger", pod+":8080"); err == nil {
			m.t.Error("a stranger was answered under strict mTLS")
		}
	}
	if !regexp.MustCompile(`leno_requests_total\{[^}]*direction="inbound"[^}]*mtls="true"`).MatchString(served) {
		m.t.Errorf("the Job's request was not served with mTLS:\n%s", grep(served, "leno_requests_total"))
	}
	if said, err := m.leno("check", "--cluster").CombinedOutput(); err != nil {
		m.t.Errorf("leno check --cluster: %v\n%s", err, said)
	}
}

func (m mesh) uninstall() {
	programs := append(m.programs(1), m.programs(2)...)
	restarts := func() string {
		return m.output(m.t, "get", "pods", "-n", "shop", "-o", "jsonpath={range .items[*]}{.metadata.name} {.status.containerStatuses[0].restartCount} {end}")
	}
	before := restarts()
	begun := time.Now()
	if said, err := m.leno("uninstall", "--yes").CombinedOutput(); err != nil {
		m.t.Fatalf("leno uninstall: %v\n%s", err, said)
	}
	// The supervisors of node proxies would wait two minutes for an agent.
	if took := time.Since(begun); took > 100*time.Second {
		m.t.Errorf("leno uninstall took %s", took)
	}
	m.nothingIsLeft()
	m.areUnloaded(programs)
	// Running applications keep working, without their proxies; their probes did so all the time.
	if after := restarts(); after != before {
		m.t.Errorf("restarts of pods: %s before, %s after", before, after)
	}
	m.until("the shop answers without the mesh", func() error {
		return m.fetch("stranger", m.output(m.t, "get", "service", "web", "-n", "shop", "-o", "jsonpath={.spec.clusterIP}"))
	})
}

// nothingIsLeft checks that nothing of an installation is left on the nodes and in the cluster.
func (m mesh) nothingIsLeft() {
	for node := 1; node <= 2; node++ {
		left := m.command(node, "sh", "-c", "grep -l leno-cni /etc/cni/net.d/*; ls -d /opt/cni/bin/leno-cni /sys/fs/bpf/leno/* /run/leno/agent.sock /run/leno/pods/* 2>/dev/null; true")
		if left != "" {
			m.t.Errorf("node %d has %s", node, left)
		}
	}
	for node := 1; node <= 2; node++ {
		if brokers := m.startedAs(node, "leno-broker"); len(brokers) > 0 {
			m.t.Errorf("brokers are left on node %d: %v", node, brokers)
		}
		tables := m.command(node, "sh", "-c", "for n in /run/netns/cni-*; do [ ! -e $n ] || nsenter --net=$n nft list tables; done")
		if strings.Contains(tables, "leno") {
			m.t.Errorf("tables are left on node %d: %s", node, tables)
		}
	}
	for _, kind := range []string{"customresourcedefinitions", "clusterroles", "clusterrolebindings", "namespaces",
		"mutatingwebhookconfigurations", "validatingwebhookconfigurations", "configmaps"} {
		if left := grep(m.output(m.t, "get", kind, "-A", "-o", "name"), "leno"); left != "" {
			m.t.Errorf("%s are left: %s", kind, left)
		}
	}
}

// startAgent installs the agents and the supervisors of node proxies, and waits until they are ready.
func (m mesh) startAgent() {
	m.must(m.apply(m.agents()))
	m.agentIsThere()
	m.wait("rollout", "status", "daemonset/leno-node", "-n", "leno-system")
}

// agents is the manifest of the agents and the supervisors, as it is installed.
func (m mesh) agents() string {
	return m.installation(func(kind string) bool { return kind == "DaemonSet" })
}

// kindOf matches the kind of a document.
var kindOf = regexp.MustCompile(`(?m)^kind: (\S+)$`)

// installation is the output of `leno install` with these settings, with only the kinds that wanted accepts.
func (m mesh) installation(wanted func(kind string) bool, settings ...string) string {
	m.t.Helper()
	arguments := []string{"install", "--set=image.registry=registry.local", "--set=image.tag=1",
		"--set=image.pullPolicy=Never", "--set=mtls=strict"}
	for _, setting := range settings {
		arguments = append(arguments, "--set="+setting)
	}
	output, err := m.leno(arguments...).Output()
	m.must(err)
	var parts []string
	for part := range strings.SplitSeq(string(output), "\n---\n") {
		if kind := kindOf.FindStringSubmatch(part); kind != nil && wanted(kind[1]) {
			parts = append(parts, part)
		}
	}
	return strings.Join(parts, "\n---\n")
}

// leno is a command of `leno`, run as the cluster's administrator.
func (m mesh) leno(arguments ...string) *exec.Cmd {
	command := exec.CommandContext(m.t.Context(), filepath.Join(os.Getenv("CLUSTER_BIN"), "leno"), arguments...)
	command.Env = append(os.Environ(), "KUBECONFIG="+m.file("kubeconfig"))
	return command
}

func (m mesh) agentIsThere() {
	m.wait("rollout", "status", "daemonset/leno-agent", "-n", "leno-system")
}

func (m mesh) loadImages(binaries string) { m.loadImagesAs(binaries, "registry.local/", ":1") }

// loadImagesAs imports the mesh's images on the nodes, with a prefix and a suffix for their names.
func (m mesh) loadImagesAs(binaries, before, after string) {
	images := []image{
		{entrypoint: []string{"/leno-proxy"}, files: map[string]string{}},
		{entrypoint: []string{"/leno-controller"}, files: map[string]string{}},
		{entrypoint: []string{"/leno-agent"}, files: map[string]string{"/usr/sbin/nft": "/usr/sbin/nft"}},
	}
	var files []string
	for nth, program := range []string{"leno-proxy", "leno-controller", "leno-agent"} {
		images[nth].name = before + program + after
		images[nth].files["/"+program] = filepath.Join(binaries, program)
		if program == "leno-agent" {
			for _, beside := range []string{"leno-cni", "leno-proxy", "leno-broker"} {
				images[nth].files["/"+beside] = filepath.Join(binaries, beside)
			}
		}
		file := filepath.Join(m.t.TempDir(), program+".tar")
		m.must(images[nth].write(file))
		files = append(files, file)
	}
	m.must(m.load(files))
}

// copyRoots copies the mesh's roots into the ConfigMap that proxies read.
func (m mesh) copyRoots() {
	encoded := m.output(m.t, "get", "secret", "leno-ca", "-n", "leno-system", "-o", `jsonpath={.data.ca\.pem}`)
	roots, err := base64.StdEncoding.DecodeString(encoded)
	m.must(err)
	text := strings.ReplaceAll(strings.TrimSpace(string(roots)), "\n", "\n    ")
	m.must(m.apply("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: leno-roots}\ndata:\n  roots.pem: |\n    " + text + "\n"))
}

func (m mesh) address(pod string) string {
	return m.output(m.t, "get", "pod", pod, "-o", "jsonpath={.status.podIP}")
}

// inside runs a command in a pod, and returns its output even if it fails.
func (m mesh) inside(pod string, command ...string) string {
	output, _ := m.administer(append([]string{"exec", pod, "-c", "application", "--"}, command...)...).CombinedOutput()
	return string(output)
}

func (m mesh) fetch(pod, host string) error {
	return run1(m.administer("exec", pod, "-c", "application", "--", "curl", "-sf", "-m", "5", "-o", "/dev/null", "http://"+host))
}

// command runs a command on a node, and returns its output.
func (m mesh) command(node int, command ...string) string {
	output, err := m.node(node).command(command...).Output()
	m.must(err)
	return strings.TrimSpace(string(output))
}

// flows returns the sum of all series with these labels of a metric of a node's agent.
func (m mesh) flows(node int, family string, labels ...string) float64 {
	m.t.Helper()
	sum := 0.0
	for line := range strings.Lines(m.command(node, "curl", "-s", "-m", "5", "http://localhost:15025/metrics")) {
		has := strings.HasPrefix(line, family+"{")
		for _, label := range labels {
			has = has && strings.Contains(line, label)
		}
		if has {
			value, err := strconv.ParseFloat(strings.TrimSpace(line[strings.LastIndex(line, " "):]), 64)
			m.must(err)
			sum += value
		}
	}
	return sum
}

// metric returns a value from the metrics of a node's agent; 0 if the series is missing.
func (m mesh) metric(node int, series string) float64 {
	m.t.Helper()
	text := m.command(node, "curl", "-s", "-m", "5", "http://localhost:15025/metrics")
	found := regexp.MustCompile(`(?m)^` + series + ` (\S+)$`).FindStringSubmatch(text)
	if found == nil {
		return 0
	}
	value, err := strconv.ParseFloat(found[1], 64)
	m.must(err)
	return value
}

func (m mesh) ready(pods ...string) {
	m.t.Helper()
	for _, pod := range pods {
		m.wait("wait", "--for=condition=Ready", "pod/"+pod)
	}
}

func (m mesh) wait(arguments ...string) {
	m.t.Helper()
	m.until(strings.Join(arguments, " "), func() error {
		return run1(m.administer(append(arguments, "--timeout=1s")...))
	})
}

func (m mesh) until(what string, look func() error) {
	m.t.Helper()
	if err := until(m.t.Context(), what, podLimit, look); err != nil {
		m.t.Fatalf("%v\n%s", err, m.evidence())
	}
}

func (m mesh) must(err error) {
	m.t.Helper()
	if err != nil {
		m.t.Fatal(err)
	}
}

func grep(text, word string) string {
	var found []string
	for line := range strings.Lines(text) {
		if strings.Contains(line, word) {
			found = append(found, line)
		}
	}
	return strings.Join(found, "")
}
