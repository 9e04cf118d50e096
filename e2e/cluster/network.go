package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// switchNamespace contains the bridge that joins the nodes. It has no other link, so no packet
// leaves it.
var switchNamespace = name + "-switch"

// namespaces is where iproute2 keeps network namespaces by name.
const namespaces = "/run/netns"

// makeNetwork makes the switch and the nodes' network namespaces, and the routes between their
// pods.
func (b *bed) makeNetwork(context.Context) error {
	commands := []string{
		"netns add " + switchNamespace,
		"-n " + switchNamespace + " link add bridge type bridge",
		"-n " + switchNamespace + " addr add 172.31.0.1/24 dev bridge",
		"-n " + switchNamespace + " addr add fd00:172::1/64 dev bridge nodad",
		"-n " + switchNamespace + " link set lo up",
		"-n " + switchNamespace + " link set bridge up",
	}
	for _, n := range b.nodes {
		commands = append(commands, n.links()...)
	}
	return ip(commands)
}

// links returns the arguments of ip that make a node's network namespace, its link and its routes.
func (n node) links() []string {
	in := "-n " + n.namespace() + " "
	commands := []string{
		"netns add " + n.namespace(),
		fmt.Sprintf("-n %s link add %s type veth peer name eth0 netns %s", switchNamespace, n.name(), n.namespace()),
		fmt.Sprintf("-n %s link set %s master bridge up", switchNamespace, n.name()),
		in + fmt.Sprintf("addr add %s/24 dev eth0", n.address()),
		in + fmt.Sprintf("addr add %s/64 dev eth0 nodad", n.address6()),
		in + "link set eth0 up",
		in + "link set lo up",
		// Without a default route, connecting to a virtual address would fail before netfilter could
		// rewrite it.
		in + "route add default via 172.31.0.1",
		in + "-6 route add default via fd00:172::1",
	}
	for _, other := range n.bed.nodes {
		if other.number != n.number {
			commands = append(commands,
				in+fmt.Sprintf("route add %s via %s", other.pods(), other.address()),
				in+fmt.Sprintf("-6 route add %s via %s", other.pods6(), other.address6()),
			)
		}
	}
	return commands
}

// ip runs ip with each of these arguments.
func ip(commands []string) error {
	for _, arguments := range commands {
		if err := run1(exec.Command("ip", strings.Fields(arguments)...)); err != nil {
			return err
		}
	}
	return nil
}

// removeNetwork removes the namespaces of any cluster with this name, and so their links.
func removeNetwork() error {
	found, err := filepath.Glob(filepath.Join(namespaces, name+"-*"))
	if err != nil {
		return err
	}
	var failed error
	for _, path := range found {
		failed = errors.Join(failed, run1(exec.Command("ip", "netns", "del", filepath.Base(path))))
	}
	return failed
}

// writeSysctl sets a kernel parameter in this process's network namespace.
func writeSysctl(key, value string) error {
	return os.WriteFile(filepath.Join("/proc/sys", strings.ReplaceAll(key, ".", "/")), []byte(value), 0o644)
}
