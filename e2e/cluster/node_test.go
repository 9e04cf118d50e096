package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// nodeModeObjects is an application in two namespaces in node mode. In `shared`, all pods of a node share one process; in
// `alone`, each pod has its own. Nothing else in its manifests refers to the mesh.
func nodeModeObjects() string {
	var text strings.Builder
	for namespace, share := range map[string]string{"shared": "node", "alone": "workload"} {
		fmt.Fprintf(&text, "---\napiVersion: v1\nkind: Namespace\nmetadata: {name: %s, labels: {leno.dev/inject: enabled}, "+
			"annotations: {leno.dev/mode: node, leno.dev/share: %s}}\n", namespace, share)
		for _, name := range []string{"server", "client"} {
			fmt.Fprintf(&text, "---\napiVersion: v1\nkind: ServiceAccount\nmetadata: {name: %s, namespace: %s}\n", name, namespace)
			text.WriteString(plainPod(namespace, name))
		}
		fmt.Fprintf(&text, "---\napiVersion: v1\nkind: Service\nmetadata: {name: server, namespace: %s}\nspec: {selector: {app: server}, ports: [{port: 80, targetPort: 8080}]}\n", namespace)
	}
	return text.String()
}

// plainPod is a pod on the first node. It serves HTTP, echoes lines on port 9000, and has probes. Its manifest does not refer
// to the mesh.
func plainPod(namespace, name string) string {
	return fmt.Sprintf(`---
apiVersion: v1
kind: Pod
metadata: {name: %[1]s, namespace: %[2]s, labels: {app: %[1]s}}
spec:
  nodeSelector: {kubernetes.io/hostname: n1}
  terminationGracePeriodSeconds: 1
  serviceAccountName: %[1]s
  containers:
  - {name: application, image: %[3]s, imagePullPolicy: Never, command: [sh, -c, "mkdir -p /tmp/www; echo served >/tmp/www/index.html; nc -ll -p 9000 -e cat & exec httpd -f -p 8080 -h /tmp/www"],
     readinessProbe: {httpGet: {path: /index.html, port: 8080}, periodSeconds: 1}, livenessProbe: {httpGet: {path: /index.html, port: 8080}, periodSeconds: 1, timeoutSeconds: 10}}
`, name, namespace, boxImage)
}

// TestNodeMode runs pods in node mode on a real cluster. It has the requirements of TestMesh.
func TestNodeMode(t *testing.T) {
	binaries := os.Getenv("CLUSTER_BIN")
	if binaries == "" {
		leaveOut(t, "needs CLUSTER_BIN: scripts/cluster.sh test")
	}
	m := mesh{startCluster(t), t}
	m.loadImages(binaries)
	m.installWith("node.reportServed=true")
	m.wait("rollout", "status", "daemonset/leno-node", "-n", "leno-system")
	m.stranger()
	m.must(m.apply(nodeModeObjects()))
	for _, namespace := range []string{"shared", "alone"} {
		m.wait("wait", "--for=condition=Ready", "pod/server", "pod/client", "-n", namespace)
	}
	m.runs([]part{
		{"pods are as their author wrote them, and talk with mTLS", mesh.nodeModeTalks},
		{"pods share a process as they say, which has no privilege", mesh.processesAreShared},
		{"the policy of a server is enforced", mesh.nodeModePolicy},
		{"a node proxy that is killed is back", mesh.nodeProxyIsKilled},
		{"a broker that is killed is back", mesh.brokerIsKilled},
		{"a busy pod gets a process of its own and goes back, and nothing is lost or cut", mesh.busyPodIsPromoted},
		{"the agent and the supervisor are replaced", mesh.supervisorIsReplaced},
		{"the supervisor is updated, and nothing is lost or cut", mesh.supervisorIsUpdated},
		{"running pods share other processes when their annotations change, and nothing is lost or cut", mesh.shareChanges},
		{"a running pod enters node mode, leaves it and enters it again, and nothing is lost or cut", mesh.runningPodEntersAndLeaves},
		{"a pod that ends leaves nothing", mesh.nodeModePodEnds},
		{"without the supervisor or the agent no pod in node mode starts", mesh.nothingStartsUnserved},
		{"a namespace changes its mode, and its pods when they are made again", mesh.modeChanges},
	})
}

// from sends a request from a pod in node mode.
func (m mesh) from(namespace, pod, url string) error {
	return run1(m.administer("exec", "-n", namespace, pod, "-c", "application", "--", "curl", "-sf", "-m", "5", "-o", "/dev/null", url))
}

// addressIn is the address of a pod in a namespace.
func (m mesh) addressIn(namespace, pod string) string {
	return m.output(m.t, "get", "pod", pod, "-n", namespace, "-o", "jsonpath={.status.podIP}")
}

func (m mesh) nodeModeTalks() {
	for _, namespace := range []string{"shared", "alone"} {
		m.until("an answer in "+namespace, func() error { return m.from(namespace, "client", "http://server") })
		var pod struct {
			Spec struct {
				Containers     []struct{ Name string }
				InitContainers []struct{ Name string }
				Volumes        []struct{ Name string }
			}
			Status struct {
				ContainerStatuses []struct{ RestartCount int }
			}
		}
		m.must(json.Unmarshal([]byte(m.output(m.t, "get", "pod", "server", "-n", namespace, "-o", "json")), &pod))
		// The API server adds the volume of the service account's token.
		if len(pod.Spec.Containers) != 1 || len(pod.Spec.InitContainers) != 0 || len(pod.Spec.Volumes) != 1 {
			m.t.Errorf("%s: the pod's spec was changed: %+v", namespace, pod.Spec)
		}
		for _, status := range pod.Status.ContainerStatuses {
			if status.RestartCount != 0 {
				m.t.Errorf("%s: the application was restarted %d times: its probes fail", namespace, status.RestartCount)
			}
		}
		address := m.addressIn(namespace, "server")
		seen := m.inside("stranger", "curl", "-s", "-m", "5", "http://"+address+":15020/metrics")
		edge := regexp.MustCompile(`leno_requests_total\{[^}]*direction="inbound"[^}]*client="client"[^}]*mtls="true"`)
		if !edge.MatchString(seen) {
			m.t.Errorf("%s: no request with mTLS:\n%s", namespace, grep(seen, "leno_requests_total"))
		}
		if err := m.fetch("stranger", address+":8080"); err == nil {
			m.t.Errorf("%s: a stranger was answered under strict mTLS", namespace)
		}
	}
	// From one namespace to the other, through two processes.
	m.until("an answer from alone to shared", func() error { return m.from("alone", "client", "http://server.shared") })
}

// startedAs returns the process ids of a program on a node whose first arguments are these.
func (m mesh) startedAs(number int, name string, arguments ...string) []int {
	m.t.Helper()
	all, err := processes(m.node(number).tree())
	m.must(err)
	var found []int
	for _, pid := range all {
		// The process may have ended.
		line, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		words := strings.Split(string(line), "\x00")
		if filepath.Base(words[0]) == name && slices.Equal(words[1:min(len(words), 1+len(arguments))], arguments) {
			found = append(found, pid)
		}
	}
	return found
}

func (m mesh) nodeProxies(number int) []int { return m.startedAs(number, "leno-proxy", "--node") }

// kill sends SIGKILL to processes.
func (m mesh) kill(pids []int) {
	m.t.Helper()
	for _, pid := range pids {
		m.must(syscall.Kill(pid, syscall.SIGKILL))
	}
}

func (m mesh) processesAreShared() {
	// One process for all pods of `shared`, and one for each pod of `alone`.
	pids := m.nodeProxies(1)
	if len(pids) != 3 {
		m.t.Errorf("node proxies: %v", pids)
	}
	if others := m.nodeProxies(2); len(others) != 0 {
		m.t.Errorf("node proxies of the other node: %v", others)
	}
	for _, pid := range pids {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
		m.must(err)
		status := string(text)
		for _, wanted := range []string{`Uid:\t2102\t2102\t2102\t2102`, `CapEff:\t0000000000000000`, `CapPrm:\t0000000000000000`, `CapBnd:\t00000000000000`, `NoNewPrivs:\t1`, `Seccomp:\t2`} {
			if !regexp.MustCompile(wanted).MatchString(status) {
				m.t.Errorf("node proxy %d is not %s:\n%s", pid, wanted, status)
			}
		}
	}
}

func (m mesh) nodeModePolicy() {
	const policy = `
apiVersion: leno.dev/v1alpha1
kind: AuthorizationPolicy
metadata: {name: no-client, namespace: shared}
spec:
  selector: {matchLabels: {app: server}}
  action: Deny
  rules: [{from: [{serviceAccounts: [client]}], to: [{paths: [{exact: /denied}]}]}]
`
	answered := func(wanted string) func() error {
		return func() error {
			output, _ := m.administer("exec", "-n", "shared", "client", "--", "curl", "-s", "-m", "5", "-o", "/dev/null", "-w", "%{http_code}", "http://server/denied").CombinedOutput()
			if string(output) != wanted {
				return fmt.Errorf("answered %s", output)
			}
			return nil
		}
	}
	m.must(m.apply(policy))
	m.until("the request is denied", answered("403"))
	m.must(m.from("shared", "client", "http://server/"))
	// The policy is removed, because with it the server rejects connections without HTTP, which other parts of the test open.
	m.must(run1(m.administer("delete", "authorizationpolicy", "no-client", "-n", "shared")))
	m.until("the request is allowed again", answered("404"))
}

func (m mesh) nodeProxyIsKilled() {
	before := m.nodeProxies(1)
	m.kill(before)
	m.until("the service is back", func() error { return m.from("shared", "client", "http://server") })
	m.until("the service is back", func() error { return m.from("alone", "client", "http://server") })
	after := m.nodeProxies(1)
	if len(after) != len(before) || slices.ContainsFunc(after, func(pid int) bool { return slices.Contains(before, pid) }) {
		m.t.Errorf("processes %v after %v", after, before)
	}
}

func (m mesh) brokerIsKilled() {
	brokers := m.startedAs(1, "leno-broker")
	m.kill(brokers)
	m.until("the service is back", func() error { return m.from("shared", "client", "http://server") })
	m.until("the service is back", func() error { return m.from("alone", "client", "http://server") })
	if len(brokers) != 4 {
		m.t.Errorf("brokers: %v", brokers)
	}
	// A proxy may still use sockets of a broker that was killed, so the service may work before the agent has counted its end.
	m.until("the ends of all brokers are counted", func() error {
		if ends := m.metric(1, `leno_agent_broker_ends_total`); ends < 4 {
			return fmt.Errorf("%v brokers of %v have ended", ends, brokers)
		}
		return nil
	})
}

func (m mesh) supervisorIsReplaced() {
	for _, daemonset := range []string{"leno-agent", "leno-node"} {
		m.must(run1(m.administer("rollout", "restart", "daemonset/"+daemonset, "-n", "leno-system")))
		m.wait("rollout", "status", "daemonset/"+daemonset, "-n", "leno-system")
		for _, namespace := range []string{"shared", "alone"} {
			m.until("an answer after "+daemonset+" was replaced", func() error { return m.from(namespace, "client", "http://server") })
			if err := m.fetch("stranger", m.addressIn(namespace, "server")+":8080"); err == nil {
				m.t.Errorf("%s: a stranger was answered under strict mTLS", namespace)
			}
		}
	}
	m.until("all pods are served", func() error {
		if served := m.metric(1, `leno_agent_node_pods_served`); served != 4 {
			return fmt.Errorf("%v are", served)
		}
		return nil
	})
}

// whileInUse calls work while clients in both namespaces send requests and have an open stream. The test fails if a request is
// lost or a stream is cut.
func (m mesh) whileInUse(work func()) {
	const requests = `rm -f /tmp/go; n=0 lost=0; while [ ! -e /tmp/go ]; do curl -sf -m 60 -o /dev/null http://server || lost=$((lost+1)); n=$((n+1)); done; echo "$n sent, $lost lost"`
	const stream = `rm -f /tmp/go /tmp/echoed; (while [ ! -e /tmp/go ]; do echo more; sleep 1; done; echo last) | nc "$0" 9000 >/tmp/echoed; cat /tmp/echoed`
	wanted := map[string]*regexp.Regexp{}
	outputs := map[string]*bytes.Buffer{}
	running := map[string]*exec.Cmd{}
	for _, namespace := range []string{"shared", "alone"} {
		for what, script := range map[string]string{"requests": requests, "stream": stream} {
			of := namespace + " " + what
			running[of] = m.administer("exec", "-n", namespace, "client", "-c", "application", "--", "sh", "-c", script, m.addressIn(namespace, "server"))
			outputs[of] = &bytes.Buffer{}
			running[of].Stdout, running[of].Stderr = outputs[of], outputs[of]
			m.must(running[of].Start())
			wanted[of] = regexp.MustCompile(`^[1-9]\d* sent, 0 lost\n$`)
			if what == "stream" {
				wanted[of] = regexp.MustCompile(`^(more\n)+last\n$`)
			}
		}
		m.until("lines of the stream in "+namespace, func() error {
			return run1(m.administer("exec", "-n", namespace, "client", "-c", "application", "--", "sh", "-c", "[ -s /tmp/echoed ]"))
		})
	}
	work()
	for _, namespace := range []string{"shared", "alone"} {
		m.must(m.from(namespace, "client", "http://server"))
		m.must(run1(m.administer("exec", "-n", namespace, "client", "-c", "application", "--", "sh", "-c", ": >/tmp/go")))
	}
	for of, command := range running {
		if err := command.Wait(); err != nil || !wanted[of].MatchString(outputs[of].String()) {
			m.t.Errorf("%s: %v: %s", of, err, outputs[of])
		} else {
			m.t.Logf("%s: %s", of, outputs[of])
		}
	}
}

// supervisorIsUpdated updates leno-node while requests and streams pass through its processes.
func (m mesh) supervisorIsUpdated() {
	before := m.nodeProxies(1)
	m.whileInUse(func() {
		m.must(run1(m.administer("rollout", "restart", "daemonset/leno-node", "-n", "leno-system")))
		m.until("both supervisors have their processes", func() error {
			// The earlier processes continue to serve the streams.
			after := m.nodeProxies(1)
			left := slices.DeleteFunc(slices.Clone(after), func(pid int) bool { return !slices.Contains(before, pid) })
			if len(after) != 2*len(before) || len(left) != len(before) {
				return fmt.Errorf("processes %v after %v", after, before)
			}
			return nil
		})
	})
	// The rollout is complete once the earlier pods have ended.
	m.wait("rollout", "status", "daemonset/leno-node", "-n", "leno-system")
	m.until("the processes of before end with what they had", func() error {
		after := m.nodeProxies(1)
		if len(after) != len(before) || slices.ContainsFunc(after, func(pid int) bool { return slices.Contains(before, pid) }) {
			return fmt.Errorf("processes %v after %v", after, before)
		}
		return nil
	})
}

// supervisor returns the metrics of the supervisor of the first node.
func (m mesh) supervisor() (text string, err error) {
	const running = "jsonpath={.items[?(@.spec.nodeName=='n1')].status.podIP}"
	address := m.output(m.t, "get", "pods", "-n", "leno-system", "-l", "app.kubernetes.io/name=leno-node", "--field-selector=status.phase=Running", "-o", running)
	if strings.Contains(address, " ") {
		return "", fmt.Errorf("two supervisors: %s", address)
	}
	return m.inside("stranger", "curl", "-s", "-m", "5", "http://"+address+":15025/metrics"), nil
}

// shareChanges moves running pods to separate processes and back by an annotation of their namespace, and one pod by its own
// annotation.
func (m mesh) shareChanges() {
	const identity = "jsonpath={range .items[*]}{.metadata.name} {.metadata.uid} {.status.containerStatuses[*].restartCount}\n{end}"
	pods := func() string { return m.output(m.t, "get", "pods", "-n", "shared", "-o", identity) }
	before := pods()
	annotate := func(what ...string) {
		m.must(run1(m.administer(append([]string{"annotate", "--overwrite", "-n", "shared"}, what...)...)))
	}
	sharedBy := func(groups ...string) {
		m.until("the processes that the annotations ask for", func() error {
			text, err := m.supervisor()
			if err != nil {
				return err
			}
			found := regexp.MustCompile(`leno_supervisor_group_pods\{group="((?:node|workload\.shared)[^"]*)"\} \d+`).FindAllStringSubmatch(text, -1)
			var names []string
			for _, one := range found {
				names = append(names, one[1])
			}
			slices.Sort(names)
			if !slices.Equal(names, groups) || !strings.Contains(text, "leno_supervisor_pods_serving 4") {
				return fmt.Errorf("%v: %s", names, grep(text, "leno_supervisor_pods"))
			}
			return nil
		})
	}
	m.whileInUse(func() {
		annotate("namespace", "shared", "leno.dev/share=workload")
		sharedBy("workload.shared.client", "workload.shared.server")
		annotate("pod", "server", "leno.dev/share=node")
		sharedBy("node", "workload.shared.client")
		annotate("namespace", "shared", "leno.dev/share=node")
		annotate("pod", "server", "leno.dev/share-")
		sharedBy("node")
	})
	if after := pods(); after != before {
		m.t.Errorf("pods were made again: %s after %s", after, before)
	}
	m.until("the processes that there are without load", func() error {
		if pids := m.nodeProxies(1); len(pids) != 3 {
			return fmt.Errorf("node proxies: %v", pids)
		}
		return nil
	})
}

// entering are the objects of a pod without a proxy, which accepts plaintext once it has one.
const entering = `---
apiVersion: v1
kind: Namespace
metadata: {name: entering, annotations: {leno.dev/mtls: permissive, leno.dev/mode: node, leno.dev/share: node}}
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: server, namespace: entering}
---
apiVersion: v1
kind: Service
metadata: {name: server, namespace: entering}
spec: {selector: {app: server}, ports: [{port: 80, targetPort: 8080}]}
`

// whileEntering calls work while a client in the mesh sends requests to the pod of `entering`, each with a connection of its own, and
// has a stream open. It fails if a request is lost or the stream is cut.
func (m mesh) whileEntering(work func()) {
	address := m.addressIn("entering", "server")
	inClient := func(script string) *exec.Cmd {
		return m.administer("exec", "-n", "alone", "client", "-c", "application", "--", "sh", "-c", script, address)
	}
	m.must(run1(inClient("rm -f /tmp/in /tmp/entered")))
	requests := inClient(`n=0 lost=0; while [ ! -e /tmp/in ]; do curl -sf -m 60 -o /dev/null http://server.entering || lost=$((lost+1)); n=$((n+1)); done; echo "$n sent, $lost lost"`)
	stream := inClient(`(while [ ! -e /tmp/in ]; do echo more; sleep 1; done; echo last) | nc "$0" 9000 >/tmp/entered; cat /tmp/entered`)
	outputs := map[*exec.Cmd]*bytes.Buffer{requests: {}, stream: {}}
	for command, output := range outputs {
		command.Stdout, command.Stderr = output, output
		m.must(command.Start())
	}
	m.until("lines of the stream", func() error { return run1(inClient("[ -s /tmp/entered ]")) })
	work()
	m.must(m.from("alone", "client", "http://server.entering"))
	m.must(run1(inClient(": >/tmp/in")))
	for command, wanted := range map[*exec.Cmd]string{requests: `^[1-9]\d* sent, 0 lost\n$`, stream: `^(more\n)+last\n$`} {
		if err := command.Wait(); err != nil || !regexp.MustCompile(wanted).MatchString(outputs[command].String()) {
			m.t.Errorf("%v: %s", err, outputs[command])
		} else {
			m.t.Logf("%s", outputs[command])
		}
	}
}

// reportsServed waits until the status of the pod of `entering` reports whether it is served.
func (m mesh) reportsServed(wanted string) {
	m.until("the pod reports "+wanted, func() error {
		const served = `jsonpath={.status.conditions[?(@.type=="leno.dev/Served")].status}`
		if reported := m.output(m.t, "get", "pod", "server", "-n", "entering", "-o", served); reported != wanted {
			return fmt.Errorf("%q", reported)
		}
		return nil
	})
}

// proxied fails unless the proxy of the pod of `entering` has counted requests of the client with mTLS.
func (m mesh) proxied() error {
	seen := m.inside("stranger", "curl", "-s", "-m", "5", "http://"+m.addressIn("entering", "server")+":15020/metrics")
	edge := regexp.MustCompile(`leno_requests_total\{[^}]*direction="inbound"[^}]*client="client"[^}]*mtls="true"`)
	if !edge.MatchString(seen) {
		return errors.New(grep(seen, "leno_requests_total"))
	}
	return nil
}

// runningPodEntersAndLeaves has a pod without a proxy enter node mode by its namespace, leave it, and enter it again.
func (m mesh) runningPodEntersAndLeaves() {
	const identity = "jsonpath={.metadata.uid} {.status.containerStatuses[*].restartCount}"
	pod := func() string { return m.output(m.t, "get", "pod", "server", "-n", "entering", "-o", identity) }
	label := func(what string) {
		m.must(run1(m.administer("label", "namespace", "entering", what)))
	}
	m.must(m.apply(entering + plainPod("entering", "server")))
	m.wait("wait", "--for=condition=Ready", "pod/server", "-n", "entering")
	m.until("an answer without a proxy", func() error { return m.from("alone", "client", "http://server.entering") })
	m.reportsServed("")
	before := pod()
	uid, _, _ := strings.Cut(before, " ")
	m.whileEntering(func() {
		label("leno.dev/inject=enabled")
		m.reportsServed("True")
		m.until("other proxies connect to it with mTLS", m.proxied)
	})
	m.whileEntering(func() {
		label("leno.dev/inject-")
		m.reportsServed("False")
		m.until("its node proxy only finishes what is open", func() error {
			if pods := m.metric(1, `leno_agent_node_pods`); pods != 4 {
				return fmt.Errorf("%v pods have a broker", pods)
			}
			return nil
		})
		m.until("its capture is gone", func() error {
			if left := m.command(1, "ls", "/run/leno/pods", "/sys/fs/bpf/leno"); strings.Contains(left, uid) {
				return errors.New(left)
			}
			return nil
		})
	})
	m.until("its broker is gone", func() error {
		if brokers := m.startedAs(1, "leno-broker"); len(brokers) != 4 {
			return fmt.Errorf("brokers: %v", brokers)
		}
		return nil
	})
	m.whileEntering(func() {
		label("leno.dev/inject=enabled")
		m.reportsServed("True")
		m.until("other proxies connect to it with mTLS again", m.proxied)
	})
	if after := pod(); after != before {
		m.t.Errorf("the pod was made again: %s after %s", after, before)
	}
	m.startsReported()
	m.must(run1(m.administer("delete", "namespace", "entering")))
	m.until("the pods that there were before", func() error {
		if pods := m.metric(1, `leno_agent_node_pods`); pods != 4 {
			return fmt.Errorf("%v pods have a broker", pods)
		}
		return nil
	})
}

// startsReported makes the pod of `entering` again. It has to report that it is served before it has an address, so that no proxy
// sends it plaintext.
func (m mesh) startsReported() {
	const both = `jsonpath={.status.podIP} {.status.conditions[?(@.type=="leno.dev/Served")].status}`
	m.must(run1(m.administer("delete", "pod", "server", "-n", "entering")))
	m.must(m.apply(plainPod("entering", "server")))
	m.until("the next pod has an address", func() error {
		address, reported, _ := strings.Cut(m.output(m.t, "get", "pod", "server", "-n", "entering", "-o", both), " ")
		if address == "" {
			return errors.New("none")
		}
		if reported != "True" {
			m.t.Errorf("a pod that was made in node mode has the address %s and reports %q", address, reported)
		}
		return nil
	})
}

// promoted are the pods that the supervisor of the first node has in processes of their own.
func (m mesh) promoted() (pods []string, err error) {
	text, err := m.supervisor()
	if err != nil {
		return nil, err
	}
	if !strings.Contains(text, "leno_supervisor_pods_serving 4") {
		return nil, fmt.Errorf("not all pods are served: %s", grep(text, "leno_supervisor_pods"))
	}
	for _, found := range regexp.MustCompile(`leno_supervisor_pod_promoted\{namespace="shared",pod="(\w+)"\} 1`).FindAllStringSubmatch(text, -1) {
		pods = append(pods, found[1])
	}
	return pods, nil
}

// busyPodIsPromoted lowers the limits above which a pod is promoted, because the load of a test is small, and restores them
// afterwards.
func (m mesh) busyPodIsPromoted() {
	bound := func(after, above string) {
		m.must(run1(m.administer("set", "env", "daemonset/leno-node", "-n", "leno-system", "LENO_PROMOTE_AFTER="+after, "LENO_PROMOTE_ABOVE="+above)))
		m.wait("rollout", "status", "daemonset/leno-node", "-n", "leno-system")
		m.until("one supervisor", func() error {
			_, err := m.promoted()
			return err
		})
	}
	bound("2", "4")
	inClient := func(script string) *exec.Cmd {
		return m.administer("exec", "-n", "shared", "client", "-c", "application", "--", "sh", "-c", script, m.addressIn("shared", "server"))
	}
	stream := inClient(`(while [ ! -e /tmp/over ]; do echo more; sleep 1; done; echo last) | nc "$0" 9000`)
	// Each command sends a hundred requests. With one command per request, the rate would be too low.
	load := inClient(`n=0; lost=0; while [ ! -e /tmp/enough ]; do curl -sf --fail-early -m 60 -o /dev/null "http://server/?[1-100]" || lost=$((lost+1)); n=$((n+100)); done; echo "$n sent, $lost lost"`)
	outputs := map[*exec.Cmd]*bytes.Buffer{stream: {}, load: {}}
	for command, output := range outputs {
		command.Stdout, command.Stderr = output, output
		m.must(command.Start())
	}
	m.until("a pod has a process of its own", func() error {
		pods, err := m.promoted()
		if err == nil && len(pods) == 0 {
			err = errors.New("none is promoted")
		}
		return err
	})
	m.until("leno stat shows it", func() error {
		return m.shows([]string{"stat", "-n", "shared", "-o", "json"}, `"mode":"node"`, `"promoted":true`)
	})
	m.must(run1(inClient(": >/tmp/enough")))
	m.until("it shares the process again", func() error {
		pods, err := m.promoted()
		if err == nil && len(pods) > 0 {
			err = fmt.Errorf("%v", pods)
		}
		return err
	})
	m.must(m.from("shared", "client", "http://server"))
	m.must(run1(inClient(": >/tmp/over")))
	for command, wanted := range map[*exec.Cmd]string{stream: `^(more\n)+last\n$`, load: `^[1-9]\d* sent, 0 lost\n$`} {
		if err := command.Wait(); err != nil || !regexp.MustCompile(wanted).MatchString(outputs[command].String()) {
			m.t.Errorf("%v: %s", err, outputs[command])
		}
	}
	bound("60", "50")
	m.until("the processes that there are without load", func() error {
		if pids := m.nodeProxies(1); len(pids) != 3 {
			return fmt.Errorf("node proxies: %v", pids)
		}
		return nil
	})
}

func (m mesh) nodeModePodEnds() {
	uid := m.output(m.t, "get", "pod", "client", "-n", "alone", "-o", "jsonpath={.metadata.uid}")
	m.must(run1(m.administer("delete", "pod", "client", "-n", "alone")))
	m.until("its capture, its broker and its process are gone", func() error {
		if left := m.command(1, "ls", "/run/leno/pods", "/sys/fs/bpf/leno"); strings.Contains(left, uid) {
			return errors.New(left)
		}
		if pids := m.nodeProxies(1); len(pids) != 2 {
			return fmt.Errorf("node proxies: %v", pids)
		}
		if pods := m.metric(1, `leno_agent_node_pods`); pods != 3 {
			return fmt.Errorf("%v pods have a broker", pods)
		}
		return nil
	})
	m.must(m.from("shared", "client", "http://server"))
}

func (m mesh) nothingStartsUnserved() {
	for _, part := range [][2]string{
		{"leno-node", "no supervisor of node proxies on this node serves it"},
		{"leno-agent", "agent of this node does not answer"},
	} {
		daemonset, why := part[0], part[1]
		m.must(run1(m.administer("delete", "daemonset", daemonset, "-n", "leno-system", "--cascade=foreground")))
		m.must(run1(m.administer("delete", "pod", "client", "-n", "shared")))
		m.must(m.apply(plainPod("shared", "client")))
		m.until("the reason is told", func() error {
			if events := m.output(m.t, "events", "-n", "shared", "--for", "pod/client"); !strings.Contains(events, why) {
				return errors.New(events)
			}
			return nil
		})
		m.startAgent()
		m.wait("wait", "--for=condition=Ready", "pod/client", "-n", "shared")
		m.until("an answer", func() error { return m.from("shared", "client", "http://server") })
	}
}

func (m mesh) modeChanges() {
	for _, mode := range []string{"sidecar", "node"} {
		m.must(run1(m.administer("annotate", "namespace", "shared", "--overwrite", "leno.dev/mode="+mode)))
		// The webhook learns of the change by a watch, so it may be late.
		m.until("the server has its proxy where its namespace says", func() error {
			m.must(run1(m.administer("delete", "pod", "server", "-n", "shared", "--ignore-not-found")))
			m.must(m.apply(plainPod("shared", "server")))
			containers := m.output(m.t, "get", "pod", "server", "-n", "shared", "-o", "jsonpath={.spec.initContainers[*].name}")
			if strings.Contains(containers, "leno-proxy") != (mode == "sidecar") {
				return fmt.Errorf("%s: init containers: %q", mode, containers)
			}
			return nil
		})
		m.wait("wait", "--for=condition=Ready", "pod/server", "-n", "shared")
		// The client keeps the proxy that it has.
		m.until("an answer of a "+mode, func() error { return m.from("shared", "client", "http://server") })
		if err := m.fetch("stranger", m.addressIn("shared", "server")+":8080"); err == nil {
			m.t.Errorf("%s: a stranger was answered under strict mTLS", mode)
		}
	}
}
