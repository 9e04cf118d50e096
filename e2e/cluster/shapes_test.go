package main

import (
	"fmt"
	"regexp"
	"strings"
)

// shapes are ordinary kinds of services and workloads; nothing in them refers to the mesh, which is strict.
const shapes = `
apiVersion: v1
kind: Namespace
metadata: {name: shapes, labels: {leno.dev/inject: enabled}}
---
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: db, namespace: shapes}
spec:
  replicas: 2
  serviceName: db
  selector: {matchLabels: {app: db}}
  podManagementPolicy: Parallel
  template:
    metadata: {labels: {app: db}}
    spec:
      containers:
      - name: application
        image: ` + loadImage + `
        imagePullPolicy: Never
        args: [serve]
        ports: [{name: web, containerPort: 8080}, {name: lines, containerPort: 8081}]
        readinessProbe: {httpGet: {path: /ready, port: web}, periodSeconds: 1}
---
apiVersion: v1
kind: Service
metadata: {name: db, namespace: shapes}
spec: {clusterIP: None, selector: {app: db}, ports: [{port: 8080}]}
---
apiVersion: v1
kind: Service
metadata: {name: many, namespace: shapes}
spec:
  selector: {app: db}
  ipFamilyPolicy: RequireDualStack
  ports:
  - {name: web, port: 80, targetPort: web, appProtocol: http}
  - {name: prior, port: 81, targetPort: 8080, appProtocol: kubernetes.io/h2c}
  - {name: unsaid, port: 82, targetPort: web}
  - {name: lines, port: 83, targetPort: lines, appProtocol: tcp}
---
apiVersion: v1
kind: Service
metadata: {name: sticky, namespace: shapes}
spec: {selector: {app: db}, sessionAffinity: ClientIP, ports: [{port: 80, targetPort: web}]}
---
apiVersion: v1
kind: Service
metadata: {name: alias, namespace: shapes}
spec: {type: ExternalName, externalName: many.shapes.svc.cluster.local}
---
apiVersion: batch/v1
kind: CronJob
metadata: {name: often, namespace: shapes}
spec:
  schedule: "* * * * *"
  jobTemplate:
    spec:
      template:
        spec:
          restartPolicy: Never
          containers: [{name: application, image: ` + boxImage + `, imagePullPolicy: Never, command: [curl, -sf, -m, "10", "http://many"]}]
---
apiVersion: v1
kind: Pod
metadata: {name: client, namespace: shapes}
spec:
  terminationGracePeriodSeconds: 1
  containers: [{name: application, image: ` + boxImage + `, imagePullPolicy: Never, command: [sleep, infinity]}]
`

// takesShapes calls every kind of service with mTLS, and checks that no plaintext crosses a link.
func (m mesh) takesShapes() {
	m.must(m.apply(shapes))
	m.wait("rollout", "status", "statefulset/db", "-n", "shapes")
	m.wait("wait", "--for=condition=Ready", "pod/client", "-n", "shapes")
	wires := []*wire{m.tap(m.node(1)), m.tap(m.node(2))}
	m.callsStatefulSet()
	m.callsPorts()
	m.callsFamilies()
	m.keepsSessions()
	m.isSeenInClear(wires)
	m.allIsMutual()
	m.until("a Job of the CronJob is complete", func() error {
		done := m.output(m.t, "get", "jobs", "-n", "shapes", "-o", "jsonpath={.items[*].status.succeeded}")
		if !strings.Contains(done, "1") {
			return fmt.Errorf("%q", done)
		}
		return nil
	})
}

// secret is part of every request, and must not be readable on any link.
const secret = "not-for-every-reader"

// call sends a request from the client of the shapes, and returns the name of the server that responded.
func (m mesh) call(arguments ...string) string {
	m.t.Helper()
	command := append([]string{"exec", "-n", "shapes", "client", "-c", "application", "--",
		"curl", "-sS", "-f", "-g", "-m", "10", "-d", secret}, arguments...)
	answer, err := m.administer(command...).CombinedOutput()
	if err != nil {
		m.t.Errorf("%v: %v: %s", arguments, err, answer)
		return ""
	}
	server, _, _ := strings.Cut(string(answer), "\n")
	return server
}

// callsStatefulSet calls each pod by its own name, and the headless service.
func (m mesh) callsStatefulSet() {
	for _, pod := range []string{"db-0", "db-1"} {
		for _, host := range []string{pod + ".db", pod + ".db.shapes.svc.cluster.local"} {
			if server := m.call("http://" + host + ":8080/"); server != pod {
				m.t.Errorf("%s was answered by %q", host, server)
			}
		}
	}
	m.call("http://db:8080/")
}

func (m mesh) callsPorts() {
	m.call("http://many/")
	m.call("--http2-prior-knowledge", "http://many:81/")
	m.call("http://many:82/")
	m.call("--http2-prior-knowledge", "http://many:82/")
	m.call("http://alias/")
	// Port 83 echoes every byte and keeps the connection open: curl reads its own request as an HTTP/0.9
	// response.
	echo, _ := m.administer("exec", "-n", "shapes", "client", "-c", "application", "--",
		"curl", "-s", "--http0.9", "-m", "2", "-d", secret, "http://many:83/").CombinedOutput()
	if !strings.HasPrefix(string(echo), "POST / HTTP/1.1") {
		m.t.Errorf("port 83 has not given the bytes back: %q", echo)
	}
}

// callsFamilies calls virtual addresses and pods' addresses over both address families.
func (m mesh) callsFamilies() {
	addresses := strings.Fields(m.output(m.t, "get", "service", "many", "-n", "shapes", "-o", "jsonpath={.spec.clusterIPs[*]}"))
	for _, ip := range strings.Fields(m.output(m.t, "get", "pod", "db-0", "-n", "shapes", "-o", "jsonpath={.status.podIPs[*].ip}")) {
		addresses = append(addresses, ip+" 8080")
	}
	if len(addresses) != 4 {
		m.t.Errorf("addresses of both families: %v", addresses)
	}
	for _, address := range addresses {
		ip, port, found := strings.Cut(address, " ")
		if !found {
			port = "80"
		}
		if strings.Contains(ip, ":") {
			ip = "[" + ip + "]"
		}
		m.call("http://" + ip + ":" + port + "/")
	}
}

// keepsSessions checks that always the same one of two servers serves a client.
func (m mesh) keepsSessions() {
	servers := map[string]int{}
	const times = 12
	for range times {
		servers[m.call("http://sticky/")]++
	}
	if len(servers) != 1 {
		m.t.Errorf("sessions were not kept: %v", servers)
	}
}

// isSeenInClear searches the mesh's traffic on the links for the secret. It also sends the secret without a mesh, to prove that the
// search would find it.
func (m mesh) isSeenInClear(wires []*wire) {
	for nth, wire := range wires {
		for _, packet := range wire.with(secret) {
			m.t.Errorf("a link of node %d has carried in clear:\n%q", nth+1, packet)
		}
	}
	records := 0
	for _, wire := range wires {
		records += len(wire.with(tlsRecord))
	}
	if records == 0 {
		m.t.Error("no TLS was on any wire: is nothing captured?")
	}
	// Traffic between two pods of the same node crosses no link.
	const ofTheOther = "jsonpath={.items[?(@.spec.nodeName=='n2')].status.podIP}"
	plain := m.output(m.t, "get", "pod", "-n", "leno-system", "-l", "app.kubernetes.io/name=leno-node", "-o", ofTheOther)
	m.inside("stranger", "curl", "-s", "-m", "5", "-d", secret, "http://"+plain+":15025/ready")
	m.until("the secret is seen where no mesh is", func() error {
		for _, wire := range wires {
			if len(wire.with(secret)) > 0 {
				return nil
			}
		}
		return fmt.Errorf("it is not")
	})
}

// allIsMutual checks that no proxy of the shapes has served a client without an identity.
func (m mesh) allIsMutual() {
	for _, ip := range strings.Fields(m.output(m.t, "get", "pods", "-n", "shapes", "-l", "app=db", "-o", "jsonpath={.items[*].status.podIP}")) {
		text := m.inside("stranger", "curl", "-s", "-m", "5", "http://"+ip+":15020/metrics")
		served := regexp.MustCompile(`(?m)^leno_(?:requests|tcp_opened)_total\{[^}]*direction="inbound"[^}]*\}`).FindAllString(text, -1)
		if len(served) == 0 {
			m.t.Errorf("%s has served no client:\n%s", ip, grep(text, "leno_"))
		}
		for _, series := range served {
			if !strings.Contains(series, `mtls="true"`) {
				m.t.Errorf("served in clear: %s", series)
			}
		}
	}
}
