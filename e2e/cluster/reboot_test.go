package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"time"
)

// nodeReboots ends a node's processes, its network and its kernel state, and starts it again with its disk.
func (m mesh) nodeReboots() {
	const number = 2
	// There is one server on each node, so the other one keeps serving.
	pods := m.meshedOn(number)
	if len(pods) == 0 {
		m.t.Fatal("no pod of the node has a proxy")
	}
	m.must(m.node(number).reboot(m.t.Context()))
	if left := m.command(number, "sh", "-c", "ls /run/leno /sys/fs/bpf/leno 2>/dev/null; true"); strings.Contains(left, "pod-") {
		m.t.Errorf("captures have outlived the node: %s", left)
	}
	m.until("the node is Ready", m.node(number).isReady)
	m.agentIsThere()
	for _, pod := range pods {
		namespace, name, _ := strings.Cut(pod, "/")
		m.until(pod+" runs again", func() error {
			state := m.output(m.t, "get", "pod", "-n", namespace, name, "-o",
				`jsonpath={.status.conditions[?(@.type=="Ready")].status} {.status.containerStatuses[0].restartCount}`)
			if ready, restarts, _ := strings.Cut(state, " "); ready != "True" || restarts == "0" {
				return fmt.Errorf("ready and restarts: %q", state)
			}
			return nil
		})
	}
	// Clients must get responses again from all servers that served them before.
	m.allAnswered(m.counts())
	if count := m.metric(number, `leno_agent_captures_total\{backend="ebpf",origin="cni"\}`); int(count) < len(pods) {
		m.t.Errorf("%v pods of %d were captured before they started", count, len(pods))
	}
	for _, ip := range strings.Fields(m.output(m.t, "get", "pods", "-n", "strict", "-o", "jsonpath={.items[*].status.podIP}")) {
		if err := m.fetch("stranger", ip+":8080"); err == nil {
			m.t.Errorf("a stranger was answered by %s under strict mTLS", ip)
		}
	}
	// Requests that were sent to pods while those were down still fail until then; the next part must not count
	// them.
	time.Sleep(answerLimit)
}

// meshedOn returns the pods of a node with a proxy, except those of Jobs, which end by themselves.
func (m mesh) meshedOn(number int) []string {
	all := m.output(m.t, "get", "pods", "-A", "--field-selector=status.phase=Running,spec.nodeName="+m.node(number).name(), "-o",
		`jsonpath={range .items[?(@.spec.initContainers[0].name=="leno-proxy")]}{.metadata.namespace}/{.metadata.name}={.metadata.ownerReferences[0].kind} {end}`)
	var stay []string
	for one := range strings.FieldsSeq(all) {
		if pod, owner, _ := strings.Cut(one, "="); owner != "Job" {
			stay = append(stay, pod)
		}
	}
	return stay
}

// reboot ends everything of a node except its disk, and starts it again.
func (n node) reboot(ctx context.Context) error {
	if err := errors.Join(
		killAll(n.tree()),
		removeCgroups(n.name()),
		run1(exec.Command("ip", "netns", "del", n.namespace())),
		os.Remove(n.file("ready")),
	); err != nil {
		return err
	}
	// The kernel removes a namespace and then its links, once no process or socket uses it any more.
	if err := until(ctx, "the node's link is gone", podLimit, func() error {
		if exec.Command("ip", "-n", switchNamespace, "link", "show", n.name()).Run() == nil {
			return errors.New("it is there")
		}
		return nil
	}); err != nil {
		return err
	}
	if err := errors.Join(ip(n.links()), n.makeCgroups(), n.startInit()); err != nil {
		return err
	}
	if err := n.awaitInit(ctx); err != nil {
		return err
	}
	if err := n.startContainerd(); err != nil {
		return err
	}
	if err := n.awaitRuntime(ctx); err != nil {
		return err
	}
	return n.startKubelet()
}
