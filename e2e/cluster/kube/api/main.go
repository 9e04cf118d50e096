// Command api contains the parts of Kubernetes that the control plane's tests need, etcd and the
// API server, in one binary; the first argument chooses one.
package main

import (
	"fmt"
	"os"

	"go.etcd.io/etcd/server/v3/etcdmain"
	"k8s.io/component-base/cli"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
)

func main() {
	if len(os.Args) > 1 {
		os.Args = os.Args[1:]
		switch os.Args[0] {
		case "etcd":
			etcdmain.Main(os.Args)
			return
		case "kube-apiserver":
			os.Exit(cli.Run(apiserver.NewAPIServerCommand()))
		}
	}
	fmt.Fprintln(os.Stderr, "usage: api etcd|kube-apiserver [ARGUMENT...]")
	os.Exit(2)
}
