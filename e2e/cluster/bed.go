package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"time"
)

// name prefixes every namespace and cgroup of the cluster. CLUSTER_NAME sets another one, so that
// two clusters can run beside each other; neither name may be a prefix of the other.
var name = cmp.Or(os.Getenv("CLUSTER_NAME"), "leno-e2e")

// maxNodes is the number of nodes that the addresses below have room for.
const maxNodes = 9

// Addresses of both families, which exist only in the cluster's own namespaces.
const (
	serviceRange = "10.96.0.0/16,fd00:96::/112"
	apiAddress   = "10.96.0.1"
	dnsAddress   = "10.96.0.10"
	podRange     = "10.244.0.0/16,fd00:244::/48"
	apiPort      = 6443
)

// bed is one cluster: its files, and through them its processes.
type bed struct {
	state string // the folder of its files
	kube  string // the binary with the components
	self  string // this binary
	nodes []node
	start time.Time
	ended sync.Map // how daemons have ended, by their process ids
}

// node is one machine of the cluster.
type node struct {
	bed    *bed
	number int
}

// record is the part of a running cluster's state that later commands read.
type record struct {
	Nodes int
}

func newBed(state, kube string) (*bed, error) {
	state, err := filepath.Abs(state)
	if err != nil {
		return nil, err
	}
	kube, err = filepath.Abs(kube)
	if err != nil {
		return nil, err
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	b := &bed{state: state, kube: kube, self: self, start: time.Now()}
	var known record
	if text, err := os.ReadFile(b.file("cluster.json")); err == nil {
		if err := json.Unmarshal(text, &known); err != nil {
			return nil, fmt.Errorf("%s: %w", b.file("cluster.json"), err)
		}
	}
	b.addNodes(known.Nodes)
	return b, nil
}

func (b *bed) addNodes(count int) {
	for number := 1; number <= count; number++ {
		b.nodes = append(b.nodes, node{b, number})
	}
}

func (b *bed) file(path ...string) string {
	return filepath.Join(append([]string{b.state}, path...)...)
}

func (b *bed) say(format string, arguments ...any) {
	fmt.Fprintf(os.Stderr, "%6.1f s  %s\n", time.Since(b.start).Seconds(), fmt.Sprintf(format, arguments...))
}

func (b *bed) node(number int) node { return node{b, number} }

func (n node) name() string               { return fmt.Sprintf("n%d", n.number) }
func (n node) namespace() string          { return name + "-" + n.name() }
func (n node) file(path ...string) string { return n.bed.file(append([]string{n.name()}, path...)...) }

// address is the node's address on the bridge.
func (n node) address() netip.Addr {
	return netip.AddrFrom4([4]byte{172, 31, 0, byte(10 + n.number)})
}

func (n node) address6() netip.Addr {
	return netip.MustParseAddr(fmt.Sprintf("fd00:172::%d", 10+n.number))
}

func (n node) pods() string  { return fmt.Sprintf("10.244.%d.0/24", n.number) }
func (n node) pods6() string { return fmt.Sprintf("fd00:244:0:%d::/64", n.number) }

// up starts a cluster and waits until it is complete; if a step fails, nothing is left running.
func (b *bed) up(ctx context.Context, count int) (err error) {
	if len(b.nodes) > 0 {
		return errors.New("a cluster is up: end it with cluster down")
	}
	if count < 1 || count > maxNodes {
		return fmt.Errorf("--nodes %d: 1 to %d", count, maxNodes)
	}
	if _, err := os.Stat(b.kube); err != nil {
		return fmt.Errorf("the components' binary: %w (make cluster-up builds it)", err)
	}
	b.addNodes(count)
	text, err := json.Marshal(record{Nodes: count})
	if err != nil {
		return err
	}
	if err := os.MkdirAll(b.state, 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(b.file("cluster.json"), text, 0o644); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, b.down())
		}
	}()
	steps := []func(context.Context) error{
		b.makePKI, b.makeNetwork, b.startNodes, b.startControlPlane, b.startWorkers, b.startDNS, b.startForward,
	}
	for _, step := range steps {
		if err := step(ctx); err != nil {
			return err
		}
	}
	b.say("the cluster is up; export KUBECONFIG=%s", b.file("kubeconfig"))
	return nil
}

// down ends a cluster, even one that was only started in part, and removes everything it made.
func (b *bed) down() error {
	left := errors.Join(killAll(tree()), removeNetwork(), removeCgroups())
	if left != nil {
		return left
	}
	// Mounts in the nodes' namespaces have ended with the last process in them.
	if err := os.RemoveAll(b.state); err != nil {
		return err
	}
	b.say("the cluster is down")
	return nil
}

// kubectl runs kubectl on the first node, as the administrator.
func (b *bed) kubectl(arguments ...string) error {
	return attached(b.administer(arguments...))
}

func (b *bed) administer(arguments ...string) *exec.Cmd {
	all := append([]string{b.kube, "kubectl", "--kubeconfig", b.file("pki", "admin.kubeconfig")}, arguments...)
	return b.node(1).command(all...)
}

// load imports images on every node.
func (b *bed) load(files []string) error {
	for _, n := range b.nodes {
		for _, file := range files {
			path, err := filepath.Abs(file)
			if err != nil {
				return err
			}
			if err := run1(n.command("ctr", "--namespace", "k8s.io", "images", "import", path)); err != nil {
				return err
			}
		}
	}
	return nil
}

// run1 runs a command whose output is only needed if it fails.
func run1(command *exec.Cmd) error {
	if output, err := command.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", command, err, output)
	}
	return nil
}

// errEnded reports that a process ended which should have kept running; waiting longer is
// pointless.
var errEnded = errors.New("has ended")

// until calls look repeatedly until it returns no error, for at most limit.
func until(ctx context.Context, what string, limit time.Duration, look func() error) error {
	deadline := time.Now().Add(limit)
	for {
		err := look()
		if err == nil {
			return nil
		}
		if errors.Is(err, errEnded) || time.Now().After(deadline) {
			return fmt.Errorf("%s: waited for at most %s: %w", what, limit, err)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s: %w", what, context.Cause(ctx))
		case <-time.After(lookPause):
		}
	}
}

// lookPause is the pause between two polls.
const lookPause = 50 * time.Millisecond
