package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"
)

const (
	// runtimeLimit is how long containerd may take to respond.
	runtimeLimit = 30 * time.Second
	// readyLimit is how long a node may take to be Ready, and the cluster's DNS to be available.
	readyLimit = 2 * time.Minute
)

// startWorkers starts the container runtime and the kubelet on every node, and waits until all
// nodes are Ready.
func (b *bed) startWorkers(ctx context.Context) error {
	images, err := b.makeImages()
	if err != nil {
		return err
	}
	for _, n := range b.nodes {
		if err := n.startRuntime(); err != nil {
			return err
		}
	}
	for _, n := range b.nodes {
		if err := n.awaitRuntime(ctx); err != nil {
			return err
		}
	}
	if err := b.load(images); err != nil {
		return err
	}
	b.say("images are in every node")
	for _, n := range b.nodes {
		if err := n.startKubelet(); err != nil {
			return err
		}
	}
	for _, n := range b.nodes {
		if err := n.await(ctx, "kubelet", "node "+n.name(), readyLimit, n.isReady); err != nil {
			return err
		}
	}
	b.say("%d node(s) are Ready", len(b.nodes))
	return nil
}

func (n node) startRuntime() error {
	network := n.file("root", "etc", "cni", "net.d")
	if err := errors.Join(
		os.MkdirAll(network, 0o755),
		n.linkPlugins(),
		n.write("cni.json", network+"/10-bed.conflist"),
		n.write("containerd.toml", n.file("containerd.toml")),
	); err != nil {
		return err
	}
	return n.startContainerd()
}

func (n node) startContainerd() error {
	return n.start("containerd", "containerd", "--config", n.file("containerd.toml"), "--log-level", "warn")
}

func (n node) awaitRuntime(ctx context.Context) error {
	return n.await(ctx, "containerd", "containerd of "+n.name(), runtimeLimit, func() error {
		return run1(n.command("ctr", "version"))
	})
}

// linkPlugins links the machine's CNI plugins into the node's own folder, to which other programs
// may add plugins.
func (n node) linkPlugins() error {
	plugins, err := filepath.Glob("/usr/lib/cni/*")
	if err != nil {
		return err
	}
	for _, plugin := range plugins {
		if err := os.Symlink(plugin, n.file("root", "opt", "cni", "bin", filepath.Base(plugin))); err != nil {
			return err
		}
	}
	return nil
}

// startKubelet creates the Node with the addresses of its network, and starts its kubelet and
// kube-proxy.
func (n node) startKubelet() error {
	object, err := n.render("node.yaml")
	if err != nil {
		return err
	}
	if err := n.bed.apply(object); err != nil {
		return err
	}
	if err := errors.Join(
		n.write("kubelet.yaml", n.file("kubelet.yaml")),
		n.write("kube-proxy.yaml", n.file("kube-proxy.yaml")),
	); err != nil {
		return err
	}
	if err := n.start("kubelet", n.bed.kube, "kubelet",
		"--config="+n.file("kubelet.yaml"), "--kubeconfig="+n.bed.file("pki", n.name()+".kubeconfig"),
		"--hostname-override="+n.name(), fmt.Sprintf("--node-ip=%s,%s", n.address(), n.address6()),
		"--cert-dir=/var/lib/kubelet/pki",
	); err != nil {
		return err
	}
	return n.start("kube-proxy", n.bed.kube, "kube-proxy",
		"--config="+n.file("kube-proxy.yaml"), "--hostname-override="+n.name())
}

func (n node) isReady() error {
	path := `jsonpath={.status.conditions[?(@.type=="Ready")].status}`
	output, err := n.bed.administer("get", "node", n.name(), "-o", path).Output()
	if err != nil {
		return err
	}
	if string(output) != "True" {
		return fmt.Errorf("Ready is %q", output)
	}
	return nil
}

// apply applies objects to the cluster.
func (b *bed) apply(objects string, flags ...string) error {
	command := b.administer(append([]string{"apply", "--server-side", "-f", "-"}, flags...)...)
	command.Stdin = strings.NewReader(objects)
	return run1(command)
}

// startDNS runs CoreDNS as a pod, from the binary with the components.
func (b *bed) startDNS(ctx context.Context) error {
	objects, err := b.node(1).render("dns.yaml")
	if err != nil {
		return err
	}
	if err := b.apply(objects); err != nil {
		return err
	}
	wait := []string{"rollout", "status", "deployment/coredns", "-n", "kube-system", "--timeout=1s"}
	if err := until(ctx, "the cluster's DNS", readyLimit, func() error {
		return run1(b.administer(wait...))
	}); err != nil {
		return err
	}
	b.say("DNS answers")
	return nil
}
