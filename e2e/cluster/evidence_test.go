package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// evidence collects the reasons for a wait that timed out: all pods; the events and the logs of pods that are not ready; the logs
// of agents, supervisors and control plane. The test's log gets the end of each, and the folder CLUSTER_EVIDENCE, if it is set, all
// of it.
func (m mesh) evidence() string {
	var all, short strings.Builder
	show := func(title, text string) {
		fmt.Fprintf(&all, "== %s\n%s\n", title, text)
		fmt.Fprintf(&short, "== %s\n%s\n", title, tail(text, 40))
	}
	say := func(arguments ...string) {
		output, _ := m.administer(arguments...).CombinedOutput()
		show("kubectl "+strings.Join(arguments, " "), string(output))
	}
	say("get", "pods", "-A", "-o", "wide")
	for _, pod := range m.unready() {
		namespace, name, _ := strings.Cut(pod, "/")
		say("get", "events", "-n", namespace, "--field-selector=involvedObject.name="+name)
		say("logs", "-n", namespace, name, "-c", "leno-proxy", "--timestamps")
		say("logs", "-n", namespace, name, "-c", "leno-proxy", "--previous", "--timestamps")
		say("get", "pod", "-n", namespace, name, "-o", "yaml")
		show("processes of "+pod, m.processes(namespace, name))
	}
	say("get", "endpointslices", "-A", "-o", "wide")
	for _, n := range m.nodes {
		log, _ := os.ReadFile(n.file("log", "kubelet.log"))
		show("kubelet of "+n.name(), tail(string(log), 400))
		show("network of "+n.name(), n.networkState())
	}
	for _, part := range []string{"leno-agent", "leno-node", "leno-controller"} {
		say("logs", "-n", "leno-system", "-l", "app.kubernetes.io/name="+part, "--tail=2000", "--prefix", "--timestamps")
	}
	if folder := os.Getenv("CLUSTER_EVIDENCE"); folder != "" {
		file := filepath.Join(folder, strings.ReplaceAll(m.t.Name(), "/", "-")+".txt")
		err := os.MkdirAll(folder, 0o755)
		if err == nil {
			err = os.WriteFile(file, []byte(all.String()), 0o644)
		}
		if err != nil {
			m.t.Log(err)
		}
	}
	return short.String()
}

// networkState returns the reasons why connections to pods or Services may fail on a node: its links and neighbours, the rules of
// kube-proxy, the connections without an answer, and the kernel's counters.
func (n node) networkState() string {
	const look = `ip -br link; ip neigh; ip -6 neigh; ip route; iptables-save -t nat | grep -E 'KUBE-(SEP|SVC)-'
conntrack -L -p tcp --state SYN_SENT; cat /var/lib/cni/networks/*/last_reserved_ip*; ls /var/lib/cni/networks/*
nstat -asz TcpExtListenDrops IcmpOutDestUnreachs IcmpInDestUnreachs TcpActiveOpens TcpAttemptFails`
	output, _ := n.command("sh", "-c", look).CombinedOutput()
	return string(output)
}

// processes returns the kernel's information about the processes of a pod: what each thread waits for, and how much memory and
// CPU time they have used.
func (m mesh) processes(namespace, name string) string {
	const look = `for c in $(find /sys/fs/cgroup -path "*pod$1/*" -name cgroup.procs); do
	for p in $(cat $c); do
		echo "-- $c $p $(tr '\0' ' ' </proc/$p/cmdline)"
		grep -E '^(State|VmRSS|RssFile|RssAnon|SigQ|Threads|voluntary|nonvol)' /proc/$p/status
		for t in /proc/$p/task/*; do echo "$t $(cat $t/comm) $(cut -d' ' -f3,10,12,14,15 $t/stat) $(cat $t/wchan)"; cat $t/stack; done
		nsenter --net=/proc/$p/ns/net ss -tanm
	done
	cat ${c%/*}/memory.usage_in_bytes ${c%/*}/memory.failcnt ${c%/*}/memory.current ${c%/*}/memory.events ${c%/*}/cpu.stat 2>/dev/null
done`
	uid, _ := m.administer("get", "pod", "-n", namespace, name, "-o", "jsonpath={.metadata.uid}").Output()
	output, _ := exec.Command("sh", "-c", look, "sh", string(uid)).CombinedOutput()
	return string(output)
}

// unready returns the namespaces and names of pods that run but are not ready.
func (m mesh) unready() []string {
	const each = `{range .items[*]}{.metadata.namespace}/{.metadata.name} {.status.phase} {.status.conditions[?(@.type=="Ready")].status}{"\n"}{end}`
	output, _ := m.administer("get", "pods", "-A", "-o", "jsonpath="+each).Output()
	var pods []string
	for line := range strings.Lines(string(output)) {
		fields := strings.Fields(line)
		if len(fields) > 1 && fields[1] != "Succeeded" && fields[len(fields)-1] != "True" {
			pods = append(pods, fields[0])
		}
	}
	return pods
}

// tail returns the last lines of a text.
func tail(text string, lines int) string {
	all := strings.SplitAfter(text, "\n")
	return strings.Join(all[max(0, len(all)-lines):], "")
}
