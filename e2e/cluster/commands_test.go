package main

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// planted is part of every secret of the pods below.
const planted = "hunter2"

// till is a service whose manifest and responses are full of secrets, and a client that calls it continuously.
var till = `
apiVersion: v1
kind: Service
metadata: {name: till, namespace: shop}
spec: {selector: {app: till}, ports: [{port: 80, targetPort: 8080, appProtocol: http}]}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: till, namespace: shop}
spec:
  selector: {matchLabels: {app: till}}
  template:
    metadata: {labels: {app: till}, annotations: {example.com/pin: hunter2-annotation}}
    spec:
      terminationGracePeriodSeconds: 1
      containers:
      - name: application
        image: ` + boxImage + `
        imagePullPolicy: Never
        command: [sh, -c, "mkdir -p /tmp/www; echo served >/tmp/www/index.html; exec httpd -f -p 8080 -h /tmp/www"]
        args: [--token=hunter2-argument]
        env: [{name: MODE, value: hunter2-environment}]
        ports: [{containerPort: 8080}]
        readinessProbe: {httpGet: {path: /, port: 8080, httpHeaders: [{name: Authorization, value: Bearer hunter2-probe}]}, periodSeconds: 1}
` + ofShop("shopper", `"while :; do curl -s -m 5 -o /dev/null -H 'Authorization: Bearer hunter2-sent' 'http://till/?token=hunter2-asked'; done"`) + `---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: till, namespace: shop}
spec:
  parentRefs: [{group: "", kind: Service, name: till, port: 80}]
  rules: [{backendRefs: [{name: till, port: 80}]}]
`

// commands checks that the commands of `leno` report the same about this mesh as about one on a single machine.
func (m mesh) commands() {
	objects := till
	if grep(m.output(m.t, "get", "customresourcedefinitions", "-o", "name"), "httproutes") == "" {
		objects = strings.Split(till, "---\napiVersion: gateway")[0]
	}
	m.must(m.apply(objects))
	for _, name := range []string{"till", "shopper"} {
		m.wait("rollout", "status", "deployment/"+name, "-n", "shop")
	}
	m.until("the edge is seen", m.stats)
	if inNodeMode() {
		m.until("workloads are served as their namespace says", func() error {
			return m.shows([]string{"stat", "-n", "shop", "-o", "json"}, `"mode":"node"`, `"share":"`+nodeShare+`"`)
		})
	}
	m.explains()
	m.diagnoses()
	m.diagnosesCapture()
	m.reports()
}

func (m mesh) stats() error {
	output, err := m.leno("stat", "-n", "shop", "--window", "1s", "-o", "json").Output()
	if err != nil {
		return fmt.Errorf("leno stat: %w%s", err, problem(err))
	}
	var report struct {
		Silent []string
		Edges  []struct {
			Client, Server string
			Mtls           bool
			SuccessRate    float64 `json:"success_rate"`
			RequestsPerS   float64 `json:"requests_per_s"`
		}
		Workloads []struct {
			Name             string
			Meshed           bool
			Instances, Ready int
		}
	}
	if err := json.Unmarshal(output, &report); err != nil {
		return fmt.Errorf("%w: %s", err, output)
	}
	if len(report.Silent) > 0 {
		return fmt.Errorf("no answer from %v", report.Silent)
	}
	for _, edge := range report.Edges {
		if edge.Client == "shopper" && edge.Server == "till" {
			if !edge.Mtls || edge.SuccessRate < 1 || edge.RequestsPerS == 0 {
				return fmt.Errorf("the edge is %+v", edge)
			}
			return nil
		}
	}
	return fmt.Errorf("shopper does not call till in %s", output)
}

func (m mesh) explains() {
	said := m.prints("explain", "-n", "shop", "deploy/shopper", "--", "GET", "http://till/")
	pod := m.output(m.t, "get", "pods", "-n", "shop", "-l", "app=till", "-o", "jsonpath={.items[0].metadata.name}")
	for _, wanted := range []string{"client       shop/shopper\n", pod, "mTLS, spiffe://cluster.local/ns/shop/sa/default"} {
		if !strings.Contains(said, wanted) {
			m.t.Errorf("%q is not in\n%s", wanted, said)
		}
	}
	m.prints("analyze", "shop")
}

func (m mesh) diagnoses() {
	output := m.prints("diagnostics", "proxy", "-n", "shop", "deploy/shopper", "-o", "json")
	var report struct {
		Pod    struct{ Node, Image string }
		Config struct {
			Version   string
			Listening []string
			Identity  struct{ Name string }
			Discovery struct{ Connected bool }
			Services  []struct {
				Name  string
				Ports []struct {
					FirstEndpoints []struct{ Identity string } `json:"first_endpoints"`
				}
			}
		}
	}
	m.must(json.Unmarshal([]byte(output), &report))
	config := report.Config
	image := proxyImage
	if inNodeMode() {
		image = "" // the pod has no container of the mesh
	}
	if report.Pod.Image != image || config.Identity.Name != "spiffe://cluster.local/ns/shop/sa/default" ||
		!config.Discovery.Connected || len(config.Listening) == 0 || config.Version == "" {
		m.t.Errorf("it says %s", output)
	}
	found := false
	for _, service := range config.Services {
		for _, port := range service.Ports {
			found = found || service.Name == "shop/till" && len(port.FirstEndpoints) == 1 &&
				port.FirstEndpoints[0].Identity == config.Identity.Name
		}
	}
	if !found {
		m.t.Errorf("the endpoint of till is not in %s", output)
	}
	// The list of services that a workload calls must not be readable from the network.
	outside := m.inside("stranger", "curl", "-s", "-m", "5", "http://"+m.output(m.t, "get", "pods", "-n", "shop",
		"-l", "app=shopper", "-o", "jsonpath={.items[0].status.podIP}")+":15020/config")
	if !strings.Contains(outside, "served only on loopback") {
		m.t.Errorf("a stranger is told %s", outside)
	}
	said, err := m.leno("diagnostics", "proxy", "-n", "default", "stranger").CombinedOutput()
	if err == nil || !strings.Contains(string(said), "default/stranger has no proxy") {
		m.t.Errorf("leno diagnostics proxy stranger: %v\n%s", err, said)
	}
}

// diagnosesCapture checks that the agent of a pod's node reports how the pod is captured, and only to clients on the
// node.
func (m mesh) diagnosesCapture() {
	output := m.prints("diagnostics", "capture", "-n", "shop", "deploy/shopper", "-o", "json")
	var report struct {
		Pod     struct{ Node string }
		Capture struct {
			State, Backend, Origin string
			Since                  float64 `json:"since_unix_s"`
			Connections            map[string]int
		}
		ProxyCaptured bool `json:"proxy_captured"`
	}
	m.must(json.Unmarshal([]byte(output), &report))
	capture := report.Capture
	// A node proxy is not in the pod's network namespace, so the report does not contain this.
	if capture.State != "captured" || capture.Backend != "ebpf" || capture.Origin == "" || capture.Since == 0 ||
		capture.Connections["outbound_captured"] == 0 || report.ProxyCaptured == inNodeMode() {
		m.t.Errorf("it says %s", output)
	}
	if said := m.prints("diagnostics", "capture", "--node", report.Pod.Node); !strings.Contains(said, "shop/shopper-") {
		m.t.Errorf("leno diagnostics capture --node: %s", said)
	}
	for _, command := range [][]string{{"flows", "shopper"}, {"flows", "--requests"}, {"ebpf", "status"}} {
		// The counts of a process for pods that it serves in addition appear within a minute.
		m.until(fmt.Sprintf("leno %v --node", command), func() error {
			said, err := m.leno(append(command, "--node", report.Pod.Node)...).CombinedOutput()
			if err != nil || !strings.Contains(string(said), "shopper") && command[0] == "flows" {
				return fmt.Errorf("%v\n%s", err, said)
			}
			return nil
		})
	}
	address := m.output(m.t, "get", "node", report.Pod.Node, "-o", "jsonpath={.status.addresses[0].address}")
	outside := m.inside("stranger", "curl", "-s", "-m", "5", "http://"+net.JoinHostPort(address, "15025")+"/captures")
	if !strings.Contains(outside, "this page is served only to the node itself") || strings.Contains(outside, "shopper") {
		m.t.Errorf("a stranger is told %s", outside)
	}
}

func (m mesh) reports() {
	folder := m.t.TempDir()
	file := filepath.Join(folder, "report.tar.gz")
	m.prints("bug-report", "--file", file)
	m.must(run1(exec.CommandContext(m.t.Context(), "tar", "-xzf", file, "-C", folder)))
	seen := map[string]int{}
	m.must(filepath.WalkDir(filepath.Join(folder, "report"), func(path string, entry os.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		text, err := os.ReadFile(path)
		for _, secret := range []string{planted, "PRIVATE KEY", "eyJ"} {
			if strings.Contains(string(text), secret) {
				m.t.Errorf("%s has %q", path, secret)
			}
		}
		relative, _ := filepath.Rel(filepath.Join(folder, "report"), path)
		seen[strings.Split(relative, string(filepath.Separator))[0]]++
		// The log of a supervisor is empty if there was no warning.
		if len(text) > 0 || filepath.Base(path) == "supervisor.log" {
			seen[filepath.Base(path)]++
		}
		return err
	}))
	log := "leno-proxy.log"
	if inNodeMode() {
		log = "supervisor.log"
	}
	for _, wanted := range []string{"report.json", "check.json", "logs", "states", "events", "objects", "system",
		log, "config", "metrics", "pods.json"} {
		if seen[wanted] == 0 {
			m.t.Errorf("the report has no %s: %v", wanted, seen)
		}
	}
}

// prints runs a command of `leno` until it succeeds, and returns its output. The API server of a busy machine may not answer in
// time.
func (m mesh) prints(arguments ...string) string {
	m.t.Helper()
	var output []byte
	m.until("leno "+strings.Join(arguments, " "), func() (err error) {
		if output, err = m.leno(arguments...).Output(); err != nil {
			return fmt.Errorf("%w%s\n%s", err, problem(err), output)
		}
		return nil
	})
	return string(output)
}

// problem is the standard error of a failed command.
func problem(err error) string {
	if exit, ok := err.(*exec.ExitError); ok {
		return ": " + string(exit.Stderr)
	}
	return ""
}
