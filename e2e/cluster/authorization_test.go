package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// authorizerImage contains an external authorizer: Envoy's protocol, and OPA's engine with a policy in Rego.
const authorizerImage = "registry.local/authorizer:1"

// vault is a server, and service accounts for two clients.
const vault = `
apiVersion: v1
kind: Namespace
metadata: {name: vault, labels: {leno.dev/inject: enabled}}
---
apiVersion: v1
kind: Service
metadata: {name: safe, namespace: vault}
spec: {selector: {app: safe}, ports: [{name: web, port: 80, targetPort: web, appProtocol: http}, {name: lines, port: 81, targetPort: 8081, appProtocol: tcp}]}
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: teller, namespace: vault}
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: guest, namespace: vault}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: safe, namespace: vault}
spec:
  replicas: 2
  selector: {matchLabels: {app: safe}}
  template:
    metadata: {labels: {app: safe}}
    spec:
      terminationGracePeriodSeconds: 1
      containers:
      - name: application
        image: ` + loadImage + `
        imagePullPolicy: Never
        args: [serve]
        ports: [{name: web, containerPort: 8080}]
        readinessProbe: {httpGet: {path: /ready, port: web}, periodSeconds: 1}
`

// judge is the authorizer of the vault.
const judge = `
---
apiVersion: v1
kind: Service
metadata: {name: judge, namespace: vault}
spec: {selector: {app: judge}, ports: [{name: grpc, port: 91, targetPort: 9191, appProtocol: grpc}]}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: judge, namespace: vault}
spec:
  selector: {matchLabels: {app: judge}}
  template:
    metadata: {labels: {app: judge}}
    spec:
      terminationGracePeriodSeconds: 1
      containers:
      - name: application
        image: ` + authorizerImage + `
        imagePullPolicy: Never
        args: ["[::]:9191", /policy.rego]
        ports: [{containerPort: 9191}]
        readinessProbe: {tcpSocket: {port: 9191}, periodSeconds: 1}
`

// rego is the policy of the authorizer: it permits only requests of the teller with a key, and adds a header with the client's
// name.
const rego = `package envoy.authz

default allow := false

allow := {"allowed": true, "headers": {"x-user": "ann"}} if {
	input.attributes.request.http.headers["x-key"] == "good"
	input.attributes.source.principal == "spiffe://cluster.local/ns/vault/sa/teller"
}
`

// caller is a client of the vault.
func caller(name string) string {
	return fmt.Sprintf("---\napiVersion: v1\nkind: Pod\nmetadata: {name: %[1]s, namespace: vault, labels: {app: %[1]s}}\nspec: {serviceAccountName: %[1]s, "+
		"terminationGracePeriodSeconds: 0, containers: [{name: application, image: %s, imagePullPolicy: Never, %s}]}\n", name, boxImage, sleeps)
}

// policy is an AuthorizationPolicy of the vault for its server.
func policy(name, rest string) string {
	return fmt.Sprintf("apiVersion: leno.dev/v1alpha1\nkind: AuthorizationPolicy\nmetadata: {name: %s, namespace: vault}\n"+
		"spec:\n  selector: {matchLabels: {app: safe}}\n%s", name, rest)
}

// TestAuthorization has policies decide between the pods of a real cluster: by identity, method and path, by tokens of
// users, and by an external authorizer; `kubectl get` and `leno` must say what holds. It has the requirements of TestMesh.
func TestAuthorization(t *testing.T) {
	m := withLoad(t)
	m.loadAuthorizer()
	m.install()
	m.stranger()
	m.must(m.apply(vault + judge + caller("teller") + caller("guest")))
	for _, name := range []string{"safe", "judge"} {
		m.wait("rollout", "status", "deployment/"+name, "-n", "vault")
	}
	for _, name := range []string{"teller", "guest"} {
		m.wait("wait", "--for=condition=Ready", "pod/"+name, "-n", "vault")
		m.answers(name, "200")
	}
	m.runs([]part{
		{"identity, method and path decide, and the policy's status says so", mesh.decidesByIdentity},
		{"leno authz and leno explain say what is decided", mesh.decisionsAreExplained},
		{"a policy with a mistake is refused, and one that selects nothing says so", mesh.mistakesAreTold},
		{"a connection that a changed policy denies ends", mesh.deniedConnectionEnds},
		{"tokens of users decide", mesh.decidesByToken},
		{"an external authorizer decides", mesh.asksAuthorizer},
	})
}

// loadAuthorizer builds the image of the authorizer, and imports it on the nodes.
func (m mesh) loadAuthorizer() {
	folder := m.t.TempDir()
	build := exec.Command("go", "build", "-buildvcs=false", "-trimpath", "-ldflags", "-s -w", "-o", folder+"/", ".")
	build.Dir = "../../testkit/authorizer"
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	m.must(run1(build))
	m.must(os.WriteFile(filepath.Join(folder, "policy.rego"), []byte(rego), 0o644))
	made := image{name: authorizerImage, entrypoint: []string{"/authorizer"}, files: map[string]string{
		"/authorizer": filepath.Join(folder, "authorizer"), "/policy.rego": filepath.Join(folder, "policy.rego"),
	}}
	file := filepath.Join(m.t.TempDir(), "authorizer.tar")
	m.must(made.write(file))
	m.must(m.load([]string{file}))
}

// ask sends a request from a client to the vault, and returns the status and leno-error of the answer.
func (m mesh) ask(client string, arguments ...string) string {
	m.t.Helper()
	all := append([]string{"exec", "-n", "vault", client, "-c", "application", "--", "curl", "-s", "-m", "5", "-o", "/dev/null",
		"-w", "%{http_code} %header{leno-error}", "--path-as-is"}, arguments...)
	output, err := m.administer(all...).Output()
	if err != nil {
		return fmt.Sprintf("%s %v%s", output, err, problem(err))
	}
	return strings.TrimSpace(string(output))
}

// answers waits until a client gets this answer to several requests in a row, because each server receives a policy
// separately.
func (m mesh) answers(client, wanted string, arguments ...string) {
	m.t.Helper()
	if len(arguments) == 0 {
		arguments = []string{"http://safe/"}
	}
	const row = 4
	m.until(fmt.Sprintf("%s is answered %q to %v", client, wanted, arguments), func() error {
		for range row {
			if said := m.ask(client, arguments...); said != wanted {
				return fmt.Errorf("%q", said)
			}
		}
		return nil
	})
}

// status waits until the status of a policy has these reasons: of Accepted, and of Programmed.
func (m mesh) status(policy, accepted, programmed string) {
	m.t.Helper()
	m.until("the status of "+policy, func() error {
		path := `jsonpath={range .status.ancestors[*]}{.conditions[?(@.type=="Accepted")].reason} {.conditions[?(@.type=="Programmed")].reason};{end}`
		said := m.output(m.t, "get", "authorizationpolicy", policy, "-n", "vault", "-o", path)
		if said != accepted+" "+programmed+";" {
			return fmt.Errorf("%q: %s", said, m.output(m.t, "get", "authorizationpolicy", policy, "-n", "vault", "-o", "jsonpath={.status}"))
		}
		return nil
	})
}

func (m mesh) decidesByIdentity() {
	m.must(m.apply(policy("tellers", "  rules:\n  - {from: [{serviceAccounts: [teller]}], to: [{methods: [GET, HEAD], ports: [8080]}]}\n"+
		"  - {from: [{serviceAccounts: [teller]}], to: [{ports: [8081]}]}\n") +
		"---\n" + policy("no-admin", "  action: Deny\n  rules: [{to: [{paths: [{prefix: /admin}], ports: [8080]}]}]\n")))
	m.status("tellers", "Accepted", "Programmed")
	m.status("no-admin", "Accepted", "Programmed")
	m.answers("guest", "403 authorization-denied")
	m.answers("teller", "200")
	m.answers("teller", "403 authorization-denied", "-X", "POST", "http://safe/")
	named := "403 authorization-denied; policy=vault/no-admin"
	for _, path := range []string{"/admin", "/admin/users?x=y", "/%61dmin/users"} {
		m.answers("teller", named, "http://safe"+path)
	}
	m.answers("teller", "403 authorization-denied; reason=ambiguous-path", "http://safe/x/..%2fadmin")
	if !m.linesAreEchoed("teller") {
		m.t.Error("the teller has no connection to port 81")
	}
	if m.linesAreEchoed("guest") {
		m.t.Error("the guest has a connection to port 81")
	}
	// Each request went to one of the two servers.
	var counted string
	servers := m.output(m.t, "get", "pods", "-n", "vault", "-l", "app=safe", "-o", "jsonpath={.items[*].status.podIP}")
	for server := range strings.FieldsSeq(servers) {
		if m.fetch("stranger", server+":8080") == nil {
			m.t.Error("a stranger was answered")
		}
		counted += m.inside("stranger", "curl", "-s", "-m", "5", "http://"+server+":15020/metrics")
	}
	for _, series := range []string{`decision="allow",policy="vault/tellers"`, `decision="deny",policy="vault/no-admin"`, `decision="deny",policy="not-allowed"`} {
		if !strings.Contains(counted, "leno_authorization_total{"+series+"}") {
			m.t.Errorf("%s is not in\n%s", series, grep(counted, "leno_authorization_total"))
		}
	}
	table := m.output(m.t, "get", "authorizationpolicies", "-n", "vault")
	if !regexp.MustCompile(`(?m)^no-admin +Deny +True +True +\S+$`).MatchString(table) {
		m.t.Errorf("kubectl get prints\n%s", table)
	}
}

// linesAreEchoed sends a few bytes to the server's port for opaque connections.
func (m mesh) linesAreEchoed(client string) bool {
	output, _ := m.administer("exec", "-n", "vault", client, "-c", "application", "--",
		"curl", "-s", "--http0.9", "-m", "2", "-d", "bytes", "http://safe:81/").CombinedOutput()
	return strings.HasPrefix(string(output), "POST / HTTP/1.1")
}

// says runs a command of `leno` and checks its exit code and output.
func (m mesh) says(well bool, wanted []string, arguments ...string) {
	m.t.Helper()
	said, err := m.leno(arguments...).CombinedOutput()
	if (err == nil) != well {
		m.t.Errorf("leno %s: %v", strings.Join(arguments, " "), err)
	}
	for _, one := range wanted {
		if !strings.Contains(string(said), one) {
			m.t.Errorf("leno %s does not say %q:\n%s", strings.Join(arguments, " "), one, said)
		}
	}
}

func (m mesh) decisionsAreExplained() {
	m.says(true, []string{
		"workload     vault/safe (mTLS strict, default all)\n", "Allow vault/tellers", "Deny vault/no-admin",
		"vault/teller", "requests", "vault/guest", "denied", "(anything else)",
	}, "authz", "--cluster", "-n", "vault", "safe")
	m.says(true, []string{"client       vault/teller (spiffe://cluster.local/ns/vault/sa/teller)\n", "permitted    yes: "},
		"authz", "--cluster", "-n", "vault", "deploy/safe", "--from", "teller", "--", "GET", "http://safe:8080/")
	m.says(false, []string{"permitted    no: AuthorizationPolicy vault/no-admin denies it"},
		"authz", "--cluster", "-n", "vault", "safe", "--from", "teller", "--", "GET", "http://safe:8080/admin")
	m.says(false, []string{"permitted    no: "},
		"authz", "--cluster", "-n", "vault", "safe", "--from", "sa/guest", "--", "GET", "http://safe:8080/")
	m.says(false, []string{"permitted    no: ", "no identity"},
		"authz", "--cluster", "-n", "vault", "safe", "--from", "anything", "--", "GET", "http://safe:8080/")
	m.says(true, []string{"client       vault/guest\n", "outcome      403: ", "leno-error: authorization-denied", "permitted    no: ", "no Allow vault/tellers"},
		"explain", "--cluster", "-n", "vault", "pod/guest", "--", "GET", "http://safe/")
	m.says(true, []string{"client       vault/teller\n", "permitted    yes: "},
		"explain", "--cluster", "-n", "vault", "teller", "--", "GET", "http://safe/")
	with := filepath.Join(m.t.TempDir(), "with.yaml")
	m.must(os.WriteFile(with, []byte(policy("guests", "  rules: [{from: [{serviceAccounts: [guest]}]}]\n")), 0o644))
	m.says(true, []string{"vault/guest -> vault/safe port 8080", "now   denied", "then  requests"},
		"authz", "--cluster", "-n", "vault", "--with", with)
	m.says(true, nil, "check", "--cluster")
}

func (m mesh) mistakesAreTold() {
	err := m.apply(policy("wrong", "  action: Deny\n  tokens: [{issuer: https://id.example.com, audiences: [safe], jwks: '{}'}]\n  rules: [{}]\n"))
	if err == nil || !strings.Contains(err.Error(), "tokens") {
		m.t.Errorf("a Deny policy with tokens: %v", err)
	}
	m.must(m.apply("apiVersion: leno.dev/v1alpha1\nkind: AuthorizationPolicy\nmetadata: {name: lost, namespace: vault}\n" +
		"spec: {selector: {matchLabels: {app: sfae}}, action: Deny, rules: [{}]}\n"))
	m.until("the policy selects nothing", func() error {
		said := m.output(m.t, "get", "authorizationpolicy", "lost", "-n", "vault", "-o", "jsonpath={.status.ancestors[*].conditions[*].status}")
		if !strings.Contains(said, "False") {
			return fmt.Errorf("%q", said)
		}
		return nil
	})
	m.says(false, []string{"vault/lost"}, "analyze", "--cluster", "vault")
	m.must(run1(m.administer("delete", "authorizationpolicy", "lost", "-n", "vault")))
}

// talker keeps an opaque connection to the server open, and opens another one when it ends.
const talker = `
apiVersion: v1
kind: Pod
metadata: {name: talker, namespace: vault}
spec:
  serviceAccountName: teller
  terminationGracePeriodSeconds: 0
  containers: [{name: application, image: ` + loadImage + `, imagePullPolicy: Never, args: [ask, "30", "lines=lines:safe:81"]}]
`

// deniedConnectionEnds changes the policy while an opaque connection is open.
func (m mesh) deniedConnectionEnds() {
	m.must(m.apply(talker))
	m.wait("wait", "--for=condition=Ready", "pod/talker", "-n", "vault")
	lines := func() (answered, failed int) {
		var all counts
		m.must(json.Unmarshal([]byte(m.output(m.t, "exec", "-n", "vault", "talker", "-c", "application", "--", "/load", "counts")), &all))
		for _, number := range all["lines"].Failed {
			failed += number
		}
		return all["lines"].Answered, failed
	}
	m.until("lines come back", func() error {
		if answered, failed := lines(); answered < 30 || failed > 0 {
			return fmt.Errorf("%d have, %d have not", answered, failed)
		}
		return nil
	})
	m.must(m.apply(policy("closed", "  action: Deny\n  rules: [{to: [{ports: [8081]}]}]\n")))
	answeredBefore, failedBefore := lines()
	m.until("the connection has ended, and there is no other", func() error {
		answered, failed := lines()
		defer func() { answeredBefore, failedBefore = answered, failed }()
		if answered > answeredBefore || failed == failedBefore {
			return fmt.Errorf("%d lines have come back, %d have not", answered, failed)
		}
		return nil
	})
	m.must(run1(m.administer("delete", "authorizationpolicy", "closed", "no-admin", "tellers", "-n", "vault")))
	m.answers("guest", "200")
}

func (m mesh) decidesByToken() {
	issuer, other := newSigner(m.t), newSigner(m.t)
	keys := func(of signer) string {
		return fmt.Sprintf("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: keys, namespace: vault}\ndata:\n  jwks.json: '%s'\n", of.keys(m.t))
	}
	m.must(m.apply(keys(issuer) + "---\n" + policy("users",
		"  tokens: [{issuer: 'https://id.example.com', audiences: [safe], jwksConfigMap: keys, claimHeaders: [{name: x-user, claim: sub}]}]\n"+
			"  rules:\n  - to: [{methods: [GET]}]\n  - claims: [{name: groups, values: [ops]}]\n")))
	m.status("users", "Accepted", "Programmed")
	later := time.Now().Add(time.Hour)
	m.answers("guest", "401 authorization-denied; reason=token-missing")
	for _, client := range []string{"guest", "teller"} {
		m.answers(client, "200", "-H", issuer.bearer(m.t, "safe", later), "http://safe/")
	}
	refused := "401 authorization-denied; reason=token-"
	m.answers("guest", refused+"audience", "-H", issuer.bearer(m.t, "till", later), "http://safe/")
	m.answers("guest", refused+"expired", "-H", issuer.bearer(m.t, "safe", time.Now().Add(-time.Hour)), "http://safe/")
	m.answers("guest", refused+"signature", "-H", other.bearer(m.t, "safe", later), "http://safe/")
	m.answers("guest", "403 authorization-denied", "-X", "POST", "-H", issuer.bearer(m.t, "safe", later, "dev"), "http://safe/")
	m.answers("guest", "200", "-X", "POST", "-H", issuer.bearer(m.t, "safe", later, "dev", "ops"), "http://safe/")
	m.sees("guest", "ann", "-H", issuer.bearer(m.t, "safe", later), "-H", "X_User: root", "http://safe/header/x-user")
	m.says(true, []string{"permitted    yes: "},
		"authz", "--cluster", "-n", "vault", "safe", "--from", "guest", "--claim", "groups=ops", "--", "POST", "http://safe:8080/")
	m.must(m.apply(keys(other)))
	m.answers("guest", refused+"signature", "-H", issuer.bearer(m.t, "safe", later), "http://safe/")
	m.answers("guest", "200", "-H", other.bearer(m.t, "safe", later), "http://safe/")
	m.must(run1(m.administer("delete", "authorizationpolicy", "users", "-n", "vault")))
	m.answers("guest", "200")
}

// sees waits until the server has seen this value of the header that the path names.
func (m mesh) sees(client, value string, arguments ...string) {
	m.t.Helper()
	m.until("the server sees "+value, func() error {
		output, _ := m.administer(append([]string{"exec", "-n", "vault", client, "-c", "application", "--", "curl", "-s", "-m", "5"}, arguments...)...).CombinedOutput()
		if string(output) != value {
			return fmt.Errorf("%q", output)
		}
		return nil
	})
}

func (m mesh) asksAuthorizer() {
	m.must(m.apply(policy("ask", "  action: External\n  rules: [{to: [{ports: [8080]}]}]\n  external:\n    backendRef: {name: judge, port: 91}\n"+
		"    timeout: 5s\n    headers: {onRequest: [x-user]}\n")))
	m.status("ask", "Accepted", "Programmed")
	denied := "403 authorization-denied; reason=external"
	m.answers("teller", denied)
	m.answers("teller", "200", "-H", "x-key: good", "http://safe/")
	m.answers("guest", denied, "-H", "x-key: good", "http://safe/")
	m.sees("teller", "ann", "-H", "x-key: good", "-H", "x-user: root", "http://safe/header/x-user")
	judge := m.output(m.t, "get", "pods", "-n", "vault", "-l", "app=judge", "-o", "jsonpath={.items[0].status.podIP}")
	asked := m.inside("stranger", "curl", "-s", "-m", "5", "http://"+judge+":15020/metrics")
	if !strings.Contains(grep(grep(grep(asked, "leno_requests_total{"), `client="default",client_namespace="vault"`), `mtls="true"`), "leno_requests_total") {
		m.t.Errorf("the server's proxy has not asked with mTLS:\n%s", grep(asked, "leno_requests_total"))
	}
	m.says(true, []string{"permitted    ", "vault/judge:91"}, "explain", "--cluster", "-n", "vault", "teller", "--", "GET", "http://safe/")

	// Without it, requests are denied, and the status of the policy has the reason.
	m.must(run1(m.administer("scale", "-n", "vault", "deployment/judge", "--replicas=0")))
	m.answers("teller", "503 authorizer-failed; reason=unavailable", "-H", "x-key: good", "http://safe/")
	m.must(run1(m.administer("delete", "service", "judge", "-n", "vault")))
	m.until("the policy says that its authorizer is not there", func() error {
		said := m.output(m.t, "get", "authorizationpolicy", "ask", "-n", "vault", "-o",
			`jsonpath={.status.ancestors[*].conditions[?(@.type=="ResolvedRefs")].reason}`)
		if said != "BackendNotFound" {
			return errors.New(said)
		}
		return nil
	})
}
