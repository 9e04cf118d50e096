package main

import (
	"context"
	"fmt"
	"time"
)

// apiLimit is how long the API server may take to be ready, on a busy machine.
const apiLimit = 2 * time.Minute

// startControlPlane starts etcd, the API server and, once that is ready, the components that watch
// it.
func (b *bed) startControlPlane(ctx context.Context) error {
	n := b.node(1)
	pki := func(file string) string { return b.file("pki", file) }
	if err := n.start("etcd", b.kube, "etcd",
		"--name=n1", "--data-dir="+n.file("etcd"), "--log-level=warn",
		"--listen-client-urls=http://127.0.0.1:2379", "--advertise-client-urls=http://127.0.0.1:2379",
		"--listen-peer-urls=http://127.0.0.1:2380", "--initial-advertise-peer-urls=http://127.0.0.1:2380",
		"--initial-cluster=n1=http://127.0.0.1:2380",
		// The data of a test cluster need not survive a power failure.
		"--unsafe-no-fsync",
	); err != nil {
		return err
	}
	if err := n.start("kube-apiserver", b.kube, "kube-apiserver",
		"--etcd-servers=http://127.0.0.1:2379",
		"--advertise-address="+n.address().String(), "--bind-address=::",
		fmt.Sprintf("--secure-port=%d", apiPort),
		"--service-cluster-ip-range="+serviceRange,
		"--client-ca-file="+pki("ca.crt"),
		"--tls-cert-file="+pki("apiserver.crt"), "--tls-private-key-file="+pki("apiserver.key"),
		"--kubelet-client-certificate="+pki("kubelet-client.crt"),
		"--kubelet-client-key="+pki("kubelet-client.key"),
		"--kubelet-preferred-address-types=InternalIP",
		"--service-account-issuer=https://kubernetes.default.svc.cluster.local",
		"--service-account-key-file="+pki("tokens.pub"),
		"--service-account-signing-key-file="+pki("tokens.key"),
		"--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction",
		"--allow-privileged=true", "--profiling=false",
		"--requestheader-client-ca-file="+pki("front-proxy-ca.crt"),
		"--requestheader-allowed-names=front-proxy-client",
		"--requestheader-extra-headers-prefix=X-Remote-Extra-",
		"--requestheader-group-headers=X-Remote-Group", "--requestheader-username-headers=X-Remote-User",
		"--proxy-client-cert-file="+pki("front-proxy-client.crt"),
		"--proxy-client-key-file="+pki("front-proxy-client.key"),
		"--enable-aggregator-routing=true",
	); err != nil {
		return err
	}
	if err := n.await(ctx, "kube-apiserver", "the API server", apiLimit, func() error {
		return run1(b.administer("get", "--raw", "/readyz"))
	}); err != nil {
		return err
	}
	b.say("the API server is ready")
	return b.startControllers(n)
}

// startControllers starts the components that would exit if the API server had not created its
// roles yet.
func (b *bed) startControllers(n node) error {
	common := func(user string) []string {
		kubeconfig := b.file("pki", user+".kubeconfig")
		return []string{
			"--kubeconfig=" + kubeconfig, "--authentication-kubeconfig=" + kubeconfig,
			"--authorization-kubeconfig=" + kubeconfig, "--bind-address=127.0.0.1", "--profiling=false",
			"--leader-elect=false", "--kube-api-qps=300", "--kube-api-burst=600",
		}
	}
	controllers := append([]string{
		b.kube, "kube-controller-manager",
		"--use-service-account-credentials",
		"--service-account-private-key-file=" + b.file("pki", "tokens.key"),
		"--root-ca-file=" + b.file("pki", "ca.crt"),
		"--cluster-signing-cert-file=" + b.file("pki", "ca.crt"),
		"--cluster-signing-key-file=" + b.file("pki", "ca.key"),
		"--allocate-node-cidrs=false",
		"--node-monitor-period=2s", "--node-monitor-grace-period=20s",
	}, common("controller-manager")...)
	if err := n.start("kube-controller-manager", controllers...); err != nil {
		return err
	}
	return n.start("kube-scheduler", append([]string{b.kube, "kube-scheduler"}, common("scheduler")...)...)
}
