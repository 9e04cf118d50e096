package main

import (
	"errors"
	"fmt"
	"strings"
	"time"
)

// awayFor is how long the control plane is away: longer than any component waits for it.
const awayFor = 2 * time.Minute

// controllerIsAway removes the control plane. Pods end meanwhile, and no update tells their
// clients' proxies; new pods with a proxy are not created.
func (m mesh) controllerIsAway() {
	m.must(run1(m.administer("scale", "-n", "load", "deployment/server", "--replicas=4")))
	m.wait("rollout", "status", "deployment/server", "-n", "load")
	m.underLoad(func() {
		m.must(run1(m.administer("scale", "-n", "leno-system", "deployment/leno-controller", "--replicas=0")))
		m.until("no control plane is there", func() error {
			if left := m.output(m.t, "get", "pods", "-n", "leno-system", "-l", "app.kubernetes.io/name=leno-controller", "-o", "name"); left != "" {
				return errors.New(left)
			}
			return nil
		})
		gone := time.Now()
		// Two of four servers end, one after the other; pods without a proxy start and end.
		for nth := range 2 {
			pods := strings.Fields(m.output(m.t, "get", "pods", "-n", "load", "-l", "app=server", "-o", "jsonpath={.items[*].metadata.name}"))
			m.must(run1(m.administer("delete", "pod", "-n", "load", pods[0])))
			m.plainPod(fmt.Sprint("plain-", nth))
		}
		m.until("the reason is told why no pod replaces them", func() error {
			events := m.output(m.t, "get", "events", "-n", "load", "--field-selector=reason=FailedCreate", "-o", "jsonpath={.items[*].message}")
			if !strings.Contains(events, "inject.leno.dev") {
				return errors.New(events)
			}
			return nil
		})
		for remaining := awayFor - time.Since(gone); remaining > 0; remaining = awayFor - time.Since(gone) {
			time.Sleep(remaining) // the test requires minutes under load
		}
		m.must(run1(m.administer("scale", "-n", "leno-system", "deployment/leno-controller", "--replicas=1")))
		m.wait("rollout", "status", "deployment/leno-controller", "-n", "leno-system")
		m.must(run1(m.administer("scale", "-n", "load", "deployment/server", "--replicas=2")))
		m.restart("load", "deployment/server")
		m.settled("load")
	})
}

// plainPod starts a pod without a proxy, and deletes it.
func (m mesh) plainPod(name string) {
	m.must(m.apply(fmt.Sprintf("apiVersion: v1\nkind: Pod\nmetadata: {name: %s}\nspec: {terminationGracePeriodSeconds: 0, "+
		"containers: [{name: application, image: %s, imagePullPolicy: Never, %s}]}\n", name, boxImage, sleeps)))
	m.ready(name)
	m.must(run1(m.administer("delete", "pod", name)))
}
