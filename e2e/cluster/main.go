// Command cluster runs a real Kubernetes cluster on one Linux machine, for tests. Every node is a
// network, mount and UTS namespace; a bridge without a way out joins them.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"syscall"
)

const usage = `Run a real Kubernetes cluster on this machine, for tests (as root).

  cluster up [--nodes N]         from binaries to nodes that are Ready; prints the kubeconfig's path
  cluster down                   end everything that up has started, and leave nothing behind
  cluster kubectl ARGUMENT...    kubectl, as the cluster's administrator
  cluster exec NODE -- COMMAND   run a command in the namespaces of a node (1, 2, ...)
  cluster load FILE.tar...       bring images into every node
  cluster image --help           make an image from files
  cluster index --help           join images for several platforms

Flags of up and of the others, before ARGUMENT or COMMAND:
  --state DIR   where the cluster keeps its files (default "target/cluster/state")
  --kube FILE   the components' binary (default "target/cluster/kube"; make cluster-up builds it)

CLUSTER_NAME=NAME gives the cluster another name than leno-e2e: two run beside each other, with a
--state for each.
`

func main() {
	if err := run(os.Args[1:]); err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			os.Exit(exit.ExitCode())
		}
		fmt.Fprintln(os.Stderr, "cluster:", err)
		os.Exit(1)
	}
}

func run(arguments []string) error {
	if len(arguments) == 0 {
		fmt.Fprint(os.Stderr, usage)
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	name, rest := arguments[0], arguments[1:]
	switch name {
	case "help", "-h", "--help":
		fmt.Print(usage)
		return nil
	case "image":
		return imageCommand(rest)
	case "index":
		return indexCommand(rest)
	// The cluster's own processes, started by up.
	case "pause":
		return pause(ctx)
	case "node-init":
		return nodeInit(ctx, rest)
	case "forward":
		return forward(ctx, rest)
	}

	flags := flag.NewFlagSet("cluster "+name, flag.ContinueOnError)
	flags.Usage = func() { fmt.Fprint(flags.Output(), usage) }
	state := flags.String("state", "target/cluster/state", "")
	kube := flags.String("kube", "target/cluster/kube", "")
	nodes := flags.Int("nodes", 1, "")
	if err := flags.Parse(rest); err != nil {
		return err
	}
	if os.Geteuid() != 0 {
		return errors.New("namespaces need root: run it with sudo")
	}
	bed, err := newBed(*state, *kube)
	if err != nil {
		return err
	}
	switch name {
	case "up":
		return bed.up(ctx, *nodes)
	case "down":
		return bed.down()
	case "kubectl":
		return bed.kubectl(flags.Args()...)
	case "exec":
		if flags.NArg() < 2 {
			return errors.New("exec NODE -- COMMAND: which node, and what?")
		}
		number, err := strconv.Atoi(flags.Arg(0))
		if err != nil {
			return fmt.Errorf("%q is no number of a node", flags.Arg(0))
		}
		command := flags.Args()[1:]
		if command[0] == "--" {
			command = command[1:]
		}
		return attached(bed.node(number).command(command...))
	case "load":
		return bed.load(flags.Args())
	}
	return fmt.Errorf("there is no command %q: see cluster --help", name)
}

// attached runs a command on this terminal.
func attached(command *exec.Cmd) error {
	command.Stdin, command.Stdout, command.Stderr = os.Stdin, os.Stdout, os.Stderr
	return command.Run()
}

// pause holds a pod's namespaces until it is signalled to end.
func pause(ctx context.Context) error {
	children := make(chan os.Signal, 1)
	signal.Notify(children, syscall.SIGCHLD)
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-children:
			reap()
		}
	}
}

// reap reaps the orphans of a pod whose containers share one PID namespace.
func reap() {
	for {
		if pid, err := syscall.Wait4(-1, nil, syscall.WNOHANG, nil); pid <= 0 || err != nil {
			return
		}
	}
}
