package main

import (
	"bufio"
	"fmt"
	"strings"
)

// stubborn is a pod that can only be captured before its proxy listens.
const stubborn = `
apiVersion: v1
kind: Pod
metadata: {name: stubborn, namespace: load, labels: {leno.dev/capture: ebpf}}
spec:
  nodeSelector: {kubernetes.io/hostname: n1}
  terminationGracePeriodSeconds: 1
  containers: [{name: application, image: ` + loadImage + `, imagePullPolicy: Never, args: [serve]}]
`

// isKept interrupts a removal once the nodes have released their captures, and installs the mesh again. Running
// pods keep serving and are captured again before any client uses mTLS to them; `leno check` lists those that
// cannot be.
func (m mesh) isKept() {
	m.must(m.apply(stubborn))
	m.wait("wait", "--for=condition=Ready", "pod/stubborn", "-n", "load")
	m.checks(true, "all captured")
	m.underLoad(func() {
		m.removalIsInterrupted()
		if step := m.removalStep(); step != "plaintext" && step != "released" {
			m.t.Fatalf("the removal was interrupted at step %q", step)
		}
		m.checks(false, "being removed, or the removal was interrupted")
		// The proxies' image was changed by hand, which conflicts with the installation.
		m.must(m.apply(m.installation(func(string) bool { return true }), "--force-conflicts"))
		m.wait("rollout", "status", "deployment/leno-controller", "-n", "leno-system")
		m.agentIsThere()
		m.injectorIsTrusted()
		m.until("the removal is taken back", func() error {
			if step := m.removalStep(); step != "" {
				return fmt.Errorf("step %s", step)
			}
			return nil
		})
	})
	m.until("strangers are refused again", func() error {
		pod := m.output(m.t, "get", "pods", "-n", "strict", "-l", "app=steady", "-o", "jsonpath={.items[0].status.podIP}")
		if m.fetch("stranger", pod+":8080") == nil {
			return fmt.Errorf("%s has answered", pod)
		}
		return nil
	})
	m.checks(false, "1 of ", "load/stubborn", "kubectl rollout restart -n load ")
	m.must(run1(m.administer("delete", "pod", "stubborn", "-n", "load")))
	m.checks(true, "all captured")

	// After a restart pods are captured as before, as the guide says.
	for _, namespace := range clients {
		m.must(run1(m.administer("delete", "pod", "client", "-n", namespace)))
	}
	for _, name := range []string{"server", "patient"} {
		m.restart("load", "deployment/"+name)
	}
	m.restart("strict", "deployment/steady")
	m.must(m.apply(operated()))
	m.operates()
	m.settled("load")
}

// removalIsInterrupted starts a removal, and kills it once both nodes are clean.
func (m mesh) removalIsInterrupted() {
	removal := m.leno("uninstall", "--yes")
	output, err := removal.StderrPipe()
	m.must(err)
	m.must(removal.Start())
	lines, cleaned, said := bufio.NewScanner(output), 0, ""
	for cleaned < 2 && lines.Scan() {
		said += lines.Text() + "\n"
		if strings.HasPrefix(lines.Text(), "cleaned  node ") {
			cleaned++
		}
	}
	_ = removal.Process.Kill() // has ended already if it did not clean both nodes
	_ = removal.Wait()         // was killed
	if cleaned < 2 || strings.Contains(said, "missed   ") {
		m.t.Fatalf("leno uninstall:\n%s", said)
	}
}

// removalStep is the step that a removal has reached, from an annotation of the control plane's namespace.
func (m mesh) removalStep() string {
	return m.output(m.t, "get", "namespace", "leno-system", "-o", `jsonpath={.metadata.annotations.leno\.dev/removal}`)
}

// checks expects `leno check` to succeed or fail, and to print these texts.
func (m mesh) checks(well bool, wanted ...string) {
	m.t.Helper()
	m.until("leno check", func() error {
		said, err := m.leno("check", "--cluster").CombinedOutput()
		if (err == nil) != well {
			return fmt.Errorf("%v:\n%s", err, said)
		}
		for _, one := range wanted {
			if !strings.Contains(string(said), one) {
				return fmt.Errorf("it does not say %q:\n%s", one, said)
			}
		}
		return nil
	})
}

// isTakenOver starts a second removal beside a first one: the first ends, and the second continues from its
// step.
func (m mesh) isTakenOver() {
	first := m.leno("uninstall", "--yes")
	output, err := first.StderrPipe()
	m.must(err)
	m.must(first.Start())
	lines, said := bufio.NewScanner(output), ""
	for !strings.Contains(said, "MutatingWebhookConfiguration leno-injector") && lines.Scan() {
		said += lines.Text() + "\n"
	}
	second, err := m.leno("uninstall", "--yes").CombinedOutput()
	for lines.Scan() {
		said += lines.Text() + "\n"
	}
	if first.Wait() == nil || !strings.Contains(said, "another leno uninstall ") {
		m.t.Errorf("the first leno uninstall:\n%s", said)
	}
	m.removed(second, err)
}

// removed checks the output of a removal that leaves nothing.
func (m mesh) removed(said []byte, err error) {
	m.t.Helper()
	if err != nil {
		m.t.Fatalf("leno uninstall: %v\n%s", err, said)
	}
	for _, wanted := range []string{"cleaned  node n1", "cleaned  node n2", "pods of strict with a proxy"} {
		if !strings.Contains(string(said), wanted) {
			m.t.Errorf("leno uninstall does not say %q:\n%s", wanted, said)
		}
	}
	if strings.Contains(string(said), "missed ") {
		m.t.Errorf("leno uninstall:\n%s", said)
	}
}

// isRemoved removes the mesh: running pods keep serving, also over open connections, and nothing of the mesh is
// left except proxies in running pods, through which no connection is routed.
func (m mesh) isRemoved() {
	m.underLoad(m.isTakenOver)
	m.nothingIsLeft()
	// Proxies that get no more updates must not stand between clients and servers that change.
	m.underLoad(func() {
		m.restart("load", "deployment/patient")
		m.settled("load")
	})
	proxies := m.output(m.t, "get", "pods", "-n", "load", "-l", "app=patient", "-o", "jsonpath={.items[*].spec.initContainers}")
	if proxies != "" {
		m.t.Errorf("pods made after the mesh have %s", proxies)
	}
}
