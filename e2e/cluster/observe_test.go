package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"strings"
)

// reader is an account with the rights that the commands need in the namespace `default`, and none in `shop`. It may connect to
// the observer.
var reader = account("default", "reader", `
- {apiGroups: [""], resources: [pods, services], verbs: [get, list]}
- {apiGroups: [""], resources: [pods/portforward], verbs: [get, create]}
`) + `
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: reader, namespace: leno-system}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: leno-observer-reader}
subjects: [{kind: ServiceAccount, name: reader, namespace: default}]
`

// account is a service account, and a Role of the same name with its rights in its namespace.
func account(namespace, name, rules string) string {
	return fmt.Sprintf(`
apiVersion: v1
kind: ServiceAccount
metadata: {name: %[2]s, namespace: %[1]s}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: %[2]s, namespace: %[1]s}
rules:%[3]s---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: %[2]s, namespace: %[1]s}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: %[2]s}
subjects: [{kind: ServiceAccount, name: %[2]s, namespace: %[1]s}]
---`, namespace, name, rules)
}

// identity is what the workloads of namespace `shop` prove.
const identity = "spiffe://cluster.local/ns/shop/sa/default"

// observes checks that the commands show the live mesh: its edges, routes and single requests, also by MCP. The workloads are those
// of [mesh.commands].
func (m mesh) observes() {
	m.must(m.apply(routes))
	m.wait("wait", "--for=condition=Established", "customresourcedefinition/httproutes.gateway.networking.k8s.io")
	m.must(m.apply(till))
	m.until("the edge has identities", func() error {
		return m.shows([]string{"edges", "-n", "shop", "--window", "2s", "-o", "json"},
			`"client":"shopper"`, `"server":"till"`, `"client_identity":"`+identity, `"server_identity":"`+identity)
	})
	m.until("top shows the edge", func() error {
		return m.shows([]string{"top", "-n", "shop", "--once", "--sort", "p99", "-o", "json"}, `"client":"shopper"`, `"server":"till"`)
	})
	m.until("the rule is followed", func() error {
		return m.shows([]string{"routes", "-n", "shop", "--window", "2s", "-o", "json"}, `"route":"HTTPRoute shop/till"`)
	})
	m.must(m.kubectl("delete", "customresourcedefinition/httproutes.gateway.networking.k8s.io"))
	m.until("live requests", func() error {
		return m.shows([]string{"tap", "-n", "shop", "deploy/shopper", "--to", "till", "--count", "3", "--for", "30s", "--headers", "-o", "json"},
			`"method":"GET"`, `"mtls":true`, `"client_identity":"`+identity, `"status":200`, "(masked)")
	})
	m.until("one request over its hop", func() error {
		return m.shows([]string{"trace-request", "-n", "shop", "deploy/shopper", "--to", "till", "--for", "30s", "-o", "json"},
			`"client_identity":"`+identity, `"server_identity":"`+identity, "goes to shop/till-", "server proxy")
	})
	m.remembers()
	m.asksByMCP()
	m.showsNothingToOthers()
}

// remembers checks the observer's history of the live mesh. The administrator has a certificate and no token, and therefore gets a
// token of the observer's account.
func (m mesh) remembers() {
	m.wait("rollout", "status", "statefulset/leno-observer", "-n", "leno-system")
	edge := []string{`"client":"shopper"`, `"server":"till"`, `"client_identity":"` + identity}
	m.until("the history has the edge", func() error {
		return m.shows([]string{"edges", "-n", "shop", "--since", "5m", "-o", "json"}, edge...)
	})
	m.until("the history has the workload", func() error {
		return m.shows([]string{"stat", "-n", "shop", "--since", "5m", "-o", "json"}, `"name":"till"`, `"ready":1`)
	})
	// An application that fails every request is the culprit.
	m.must(m.apply(broken))
	m.until("leno why names the culprit", func() error {
		output, err := m.leno("why", "-n", "shop", "-o", "json").Output()
		var exit *exec.ExitError
		if !errors.As(err, &exit) || exit.ExitCode() != 1 {
			return fmt.Errorf("leno why: %w%s\n%s", err, problem(err), output)
		}
		return has(string(output), `% of the requests from shop/baker to shop/oven fail`, `"culprit":"the application of shop/oven`)
	})
	m.until("the page has the edge", func() error {
		page, err := m.dashboard(m.leno("dashboard", "--cluster", "--listen", "127.0.0.1:0"))
		return errors.Join(err, has(page, edge...))
	})
	m.must(m.kubectl("delete", "-n", "shop", "deployment/oven", "deployment/baker", "service/oven"))
}

// broken is a service that fails every request, and its client.
var broken = `
apiVersion: v1
kind: Service
metadata: {name: oven, namespace: shop}
spec: {selector: {app: oven}, ports: [{port: 80, targetPort: 8080, appProtocol: http}]}
` + ofShop("oven", `'mkdir -p /tmp/www/cgi-bin; printf "#!/bin/sh\nprintf \"Status: 500 cold\\\\r\\\\n\\\\r\\\\n\"\n" >/tmp/www/cgi-bin/index.cgi; chmod +x /tmp/www/cgi-bin/index.cgi; exec httpd -f -p 8080 -h /tmp/www'`) +
	ofShop("baker", `"while :; do curl -s -m 5 -o /dev/null http://oven/; sleep 0.1; done"`)

// ofShop is a Deployment in the namespace `shop` that runs a script, which must be quoted for YAML.
func ofShop(name, script string) string {
	return fmt.Sprintf(`---
apiVersion: apps/v1
kind: Deployment
metadata: {name: %[1]s, namespace: shop}
spec:
  selector: {matchLabels: {app: %[1]s}}
  template:
    metadata: {labels: {app: %[1]s}}
    spec:
      terminationGracePeriodSeconds: 1
      containers:
      - name: application
        image: %[2]s
        imagePullPolicy: Never
        command: [sh, -c, %[3]s]
`, name, boxImage, script)
}

// dashboard starts `leno dashboard`, and returns the topology that its page shows.
func (m mesh) dashboard(command *exec.Cmd) (string, error) {
	output, err := command.StdoutPipe()
	if err != nil {
		return "", err
	}
	var notes strings.Builder
	command.Stderr = &notes
	if err := command.Start(); err != nil {
		return "", err
	}
	defer command.Wait()
	defer command.Process.Kill()
	line, _ := bufio.NewReader(output).ReadString('\n')
	found := regexp.MustCompile(`(http://127\.0\.0\.1:\d+/)#token=(\w+)`).FindStringSubmatch(line)
	if found == nil {
		return "", fmt.Errorf("leno dashboard prints %q\n%s", line, notes.String())
	}
	request, err := http.NewRequestWithContext(m.t.Context(), "GET", found[1]+"api/v1/topology?window=300000", nil)
	if err != nil {
		return "", err
	}
	for _, token := range []string{"", found[2]} {
		request.Header.Set("Authorization", "Bearer "+token)
		answer, err := http.DefaultClient.Do(request)
		if err != nil {
			return "", err
		}
		page, err := io.ReadAll(answer.Body)
		answer.Body.Close()
		if wanted := map[bool]int{true: 401, false: 200}[token == ""]; err != nil || answer.StatusCode != wanted {
			return "", fmt.Errorf("%s, %w: %s", answer.Status, err, page)
		}
		if token != "" {
			return string(page), nil
		}
	}
	return "", nil
}

// shows runs a command as the administrator. Its output must contain each of these texts, and no secret.
func (m mesh) shows(arguments []string, wanted ...string) error {
	output, err := m.leno(arguments...).Output()
	if err != nil {
		return fmt.Errorf("leno %v: %w%s", arguments, err, problem(err))
	}
	return has(string(output), wanted...)
}

func has(output string, wanted ...string) error {
	compact := strings.ReplaceAll(output, `": `, `":`)
	for _, text := range wanted {
		if !strings.Contains(compact, text) {
			return fmt.Errorf("%s is not in\n%s", text, output)
		}
	}
	if strings.Contains(output, planted) {
		return fmt.Errorf("a secret is in\n%s", output)
	}
	return nil
}

// asksByMCP calls tools of the MCP server over the standard input and output of the program.
func (m mesh) asksByMCP() {
	for tool, wanted := range map[string][]string{
		`"stat","arguments":{"namespace":"shop"}`: {`"name":"till"`, `"isError":false`},
		`"why","arguments":{"namespace":"shop"}`:  {`"problems":`, `"isError":false`},
		`"tap","arguments":{"workloads":["deploy/shopper"],"namespace":"shop","to":"till","count":1,"for":30}`: {
			`"method":"GET"`, identity, `"isError":false`},
	} {
		m.until("the tool answers", func() error {
			answer, err := callTool(m.leno("mcp", "--cluster"), tool)
			if err != nil {
				return err
			}
			return has(strings.ReplaceAll(answer, `\"`, `"`), wanted...)
		})
	}
}

// callTool starts an MCP server, calls one of its tools, and returns the answer.
func callTool(command *exec.Cmd, tool string) (string, error) {
	input, err := command.StdinPipe()
	if err != nil {
		return "", err
	}
	output, err := command.StdoutPipe()
	if err != nil {
		return "", err
	}
	if err := command.Start(); err != nil {
		return "", err
	}
	// The server ends when its input does.
	defer command.Wait()
	defer input.Close()
	for _, message := range []string{
		`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"test","version":"1"}}}`,
		`{"jsonrpc":"2.0","method":"notifications/initialized"}`,
		`{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":` + tool + `}}`,
	} {
		if _, err := fmt.Fprintln(input, message); err != nil {
			return "", err
		}
	}
	lines := bufio.NewScanner(output)
	lines.Buffer(nil, 4<<20)
	for lines.Scan() {
		var answer struct{ ID int }
		if json.Unmarshal(lines.Bytes(), &answer) == nil && answer.ID == 2 {
			return lines.Text(), nil
		}
	}
	return "", errors.Join(errors.New("the server of MCP gave no answer"), lines.Err())
}

// showsNothingToOthers checks that no command shows a namespace to a user without rights in it.
func (m mesh) showsNothingToOthers() {
	m.must(m.apply(reader))
	token := strings.TrimSpace(m.output(m.t, "create", "token", "reader", "-n", "default"))
	file := m.t.TempDir() + "/kubeconfig"
	text, err := os.ReadFile(m.file("kubeconfig"))
	m.must(err)
	m.must(os.WriteFile(file, text, 0o600))
	for _, change := range [][]string{
		{"set-credentials", "reader", "--token=" + token},
		{"set-context", "--current", "--user=reader", "--namespace=default"},
	} {
		m.must(run1(exec.CommandContext(m.t.Context(), m.kube, append([]string{"kubectl", "--kubeconfig", file, "config"}, change...)...)))
	}
	as := func(arguments ...string) *exec.Cmd {
		command := m.leno(arguments...)
		command.Env = append(command.Env, "KUBECONFIG="+file)
		return command
	}
	for _, arguments := range [][]string{
		{"stat", "-n", "shop", "-o", "json"},
		{"stat", "-o", "json"},
		{"edges", "-n", "shop", "-o", "json"},
		{"routes", "-n", "shop", "-o", "json"},
		{"top", "-n", "shop", "--once", "-o", "json"},
		{"tap", "-n", "shop", "deploy/shopper", "--count", "1", "--for", "5s", "-o", "json"},
		{"trace-request", "-n", "shop", "deploy/shopper", "--for", "5s", "-o", "json"},
		{"diagnostics", "proxy", "-n", "shop", "deploy/shopper"},
	} {
		output, err := as(arguments...).Output()
		var exit *exec.ExitError
		if !errors.As(err, &exit) || !strings.Contains(string(exit.Stderr), "forbidden") {
			m.t.Errorf("leno %v as a reader of default: %v%s", arguments, err, problem(err))
		}
		for _, name := range []string{"till", "shopper-", "10.244."} {
			if strings.Contains(string(output), name) {
				m.t.Errorf("leno %v shows a reader of default %s", arguments, output)
			}
		}
	}
	for _, tool := range []string{
		`"stat","arguments":{"namespace":"shop"}`,
		`"tap","arguments":{"workloads":["deploy/shopper"],"namespace":"shop","count":1,"for":5}`,
	} {
		answer, err := callTool(as("mcp", "--cluster"), tool)
		if err != nil || !strings.Contains(answer, "forbidden") || strings.Contains(answer, "till-") ||
			!strings.Contains(strings.ReplaceAll(answer, " ", ""), `"isError":true`) {
			m.t.Errorf("MCP tells a reader of default %s, %v", answer, err)
		}
	}
	// The observer shows it only the namespaces that it may see.
	for _, arguments := range [][]string{
		{"stat", "-n", "shop", "--since", "5m", "-o", "json"},
		{"edges", "-n", "shop", "--since", "5m", "-o", "json"},
		{"why", "-n", "shop", "-o", "json"},
	} {
		output, err := as(arguments...).Output()
		if err == nil || !strings.Contains(problem(err), "forbidden") || strings.Contains(string(output), "till") {
			m.t.Errorf("leno %v as a reader of default: %v%s\n%s", arguments, err, problem(err), output)
		}
	}
	for _, arguments := range [][]string{
		{"stat", "--since", "5m", "-o", "json"},
		{"routes", "--since", "5m", "-o", "json"},
		{"why", "-o", "json"},
	} {
		output, err := as(arguments...).Output()
		var exit *exec.ExitError
		if err != nil && !(arguments[0] == "why" && errors.As(err, &exit) && exit.ExitCode() == 1) {
			m.t.Errorf("leno %v as a reader of default: %v%s", arguments, err, problem(err))
		}
		for _, name := range []string{"till", "shopper", "oven", `"shop"`} {
			if strings.Contains(string(output), name) {
				m.t.Errorf("leno %v shows a reader of default %s", arguments, output)
			}
		}
	}
	page, err := m.dashboard(as("dashboard", "--cluster", "--listen", "127.0.0.1:0"))
	if err != nil || strings.Contains(page, "till") || strings.Contains(page, `"shop"`) || !strings.Contains(page, `"default"`) {
		m.t.Errorf("the page shows a reader of default %s, %v", page, err)
	}
	// It sees the namespace for which it has rights.
	if output, err := as("stat", "-n", "default", "-o", "json").Output(); err != nil {
		m.t.Errorf("leno stat as a reader of its own namespace: %v%s\n%s", err, problem(err), output)
	}
}
