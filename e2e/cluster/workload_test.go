package main

import "fmt"

// workload is a pod in the mesh, as the injector would make it; in node mode as its author writes it.
type workload struct {
	name, capture string
	node          int
	// YAML lists of init containers and containers without their names and images; application is
	// server by default.
	before, after, application string
	more                       string // further fields of the pod's spec
}

const (
	serves = `command: [sh, -c, "mkdir -p /tmp/www; echo served >/tmp/www/index.html; exec httpd -f -p 8080 -h /tmp/www"], readinessProbe: {httpGet: {path: /ready, port: 15020}, periodSeconds: 1}`
	sleeps = `command: [sleep, infinity]`
)

const sidecar = `
  - name: leno-proxy
    image: ` + proxyImage + `
    imagePullPolicy: Never
    restartPolicy: Always
    securityContext: {runAsUser: 2102, runAsGroup: 2102, runAsNonRoot: true, allowPrivilegeEscalation: false, readOnlyRootFilesystem: true, capabilities: {drop: [ALL]}}
    env:
    - {name: LENO_NAME, valueFrom: {fieldRef: {fieldPath: metadata.name}}}
    - {name: LENO_NAMESPACE, valueFrom: {fieldRef: {fieldPath: metadata.namespace}}}
    - {name: LENO_SERVICE_ACCOUNT, valueFrom: {fieldRef: {fieldPath: spec.serviceAccountName}}}
    - {name: LENO_CONTROL, value: "https://leno-controller.leno-system.svc:15010"}
    - {name: LENO_ROOTS, value: /var/run/leno/roots/roots.pem}
    - {name: LENO_TOKEN, value: /var/run/leno/token/token}
    - {name: LENO_AWAIT_CAPTURE, value: "true"}
    - {name: LENO_LOG, value: info}
    livenessProbe: {httpGet: {path: /live, port: 15020}, periodSeconds: 10, timeoutSeconds: 10, failureThreshold: 6}
    startupProbe: {httpGet: {path: /ready, port: 15020}, periodSeconds: 1, failureThreshold: 120}
    volumeMounts: [{name: leno-token, mountPath: /var/run/leno/token}, {name: leno-roots, mountPath: /var/run/leno/roots}]`

const proxyVolumes = `
  volumes:
  - {name: leno-token, projected: {sources: [{serviceAccountToken: {path: token, audience: leno}}]}}
  - {name: leno-roots, configMap: {name: leno-roots}}`

func (w workload) template() string {
	container := func(name, what string) string {
		if what == "" {
			return ""
		}
		return fmt.Sprintf("\n  - {name: %s, image: %s, imagePullPolicy: Never, %s}", name, boxImage, what)
	}
	proxy, volumes := sidecar, proxyVolumes
	if inNodeMode() {
		proxy, volumes = "", ""
	}
	return fmt.Sprintf(`metadata: {name: %s, labels: {app: %[1]s}, annotations: {leno.dev/capture: %s}}
spec:
  nodeSelector: {kubernetes.io/hostname: n%d}
  terminationGracePeriodSeconds: 1
  %s
  initContainers:%s%s%s
  containers:%s%s
`, w.name, w.capture, w.node, w.more, container("before", w.before), proxy, container("after", w.after),
		container("application", w.application), volumes)
}

func (w workload) pod() string { return "apiVersion: v1\nkind: Pod\n" + w.template() }

func service(name string) string {
	return fmt.Sprintf("apiVersion: v1\nkind: Service\nmetadata: {name: %s}\nspec: {selector: {app: %[1]s}, ports: [{port: 80, targetPort: 8080}]}\n", name)
}
