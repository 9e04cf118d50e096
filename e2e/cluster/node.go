package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// nodeLimit is how long the namespaces of a node may take to be made.
const nodeLimit = 10 * time.Second

// descriptors is how many a daemon may open (as many as are allowed here without privilege).
const descriptors = 20000

// own lists the directories of which every node has its own.
var own = []string{
	"/var/lib/kubelet", "/var/lib/containerd", "/var/lib/cni", "/etc/cni", "/opt/cni/bin", "/etc/kubernetes",
	"/var/log/pods", "/var/log/containers",
}

// sysctls are parameters of the whole machine that a kubelet would set. It is shown the values that
// it wants, and the machine keeps its own.
var sysctls = map[string]string{
	"vm/overcommit_memory":      "1",
	"vm/panic_on_oom":           "0",
	"kernel/panic":              "10",
	"kernel/panic_on_oops":      "1",
	"kernel/keys/root_maxkeys":  "1000000",
	"kernel/keys/root_maxbytes": "25000000",
}

// startNodes starts a process for each node, which holds its mount and UTS namespaces.
func (b *bed) startNodes(ctx context.Context) error {
	for _, n := range b.nodes {
		if err := errors.Join(n.makeCgroups(), os.MkdirAll(n.file("log"), 0o755)); err != nil {
			return err
		}
		if err := n.startInit(); err != nil {
			return err
		}
	}
	for _, n := range b.nodes {
		if err := n.awaitInit(ctx); err != nil {
			return err
		}
	}
	b.say("%d node(s) have their namespaces", len(b.nodes))
	return nil
}

func (n node) startInit() error {
	return n.launch("node", []string{
		"nsenter", "--net=" + filepath.Join(namespaces, n.namespace()), "unshare", "--mount", "--uts",
		n.bed.self, "node-init", n.bed.state, strconv.Itoa(n.number),
	})
}

func (n node) awaitInit(ctx context.Context) error {
	return n.await(ctx, "node", "namespaces of "+n.name(), nodeLimit, func() error {
		_, err := os.Stat(n.file("ready"))
		return err
	})
}

// command is a command in the node's namespaces.
func (n node) command(arguments ...string) *exec.Cmd {
	pid, err := os.ReadFile(n.file("node.pid"))
	if err != nil {
		// The error is reported when the command is run.
		return &exec.Cmd{Path: "nsenter", Err: fmt.Errorf("there is no node %d: is the cluster up?", n.number)}
	}
	enter := []string{"--target", string(pid), "--mount", "--net", "--uts", "--"}
	return exec.Command("nsenter", append(enter, arguments...)...)
}

// start starts a daemon in the node's namespaces.
func (n node) start(daemon string, arguments ...string) error {
	command := n.command(arguments...)
	if command.Err != nil {
		return command.Err
	}
	return n.launch(daemon, command.Args)
}

// launch starts a process that outlives this one, in the node's cgroup and with a log.
func (n node) launch(daemon string, arguments []string) error {
	log, err := os.Create(n.file("log", daemon+".log"))
	if err != nil {
		return err
	}
	defer log.Close()
	script := fmt.Sprintf(`ulimit -n %d; echo $$ >"$0" && exec "$@"`, descriptors)
	shell := append([]string{"-c", script, filepath.Join(n.daemons(), "cgroup.procs")}, arguments...)
	command := exec.Command("sh", shell...)
	command.Stdout, command.Stderr = log, log
	command.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := command.Start(); err != nil {
		return err
	}
	pid := strconv.Itoa(command.Process.Pid)
	go func() { n.bed.ended.Store(pid, fmt.Sprint(command.Wait())) }()
	return os.WriteFile(n.file(daemon+".pid"), []byte(pid), 0o644)
}

// pid is the process id of the daemon's last start; empty if it was never started.
func (n node) pid(daemon string) string {
	text, _ := os.ReadFile(n.file(daemon + ".pid"))
	return string(text)
}

// await waits for a condition that a daemon brings about; an error includes the end of the daemon's
// log.
func (n node) await(ctx context.Context, daemon, what string, limit time.Duration, look func() error) error {
	err := until(ctx, what, limit, func() error {
		if how, ended := n.bed.ended.Load(n.pid(daemon)); ended {
			return fmt.Errorf("%s of %s %w: %v", daemon, n.name(), errEnded, how)
		}
		return look()
	})
	if err != nil {
		return fmt.Errorf("%w\n%s", err, n.logTail(daemon))
	}
	return nil
}

// logTail returns the last lines of a daemon's log, for errors.
func (n node) logTail(daemon string) string {
	text, err := os.ReadFile(n.file("log", daemon+".log"))
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	return strings.Join(lines[max(0, len(lines)-10):], "\n")
}

// nodeInit runs in a node's new namespaces, sets them up and holds them.
func nodeInit(ctx context.Context, arguments []string) error {
	if len(arguments) != 2 {
		return errors.New("node-init STATE NUMBER")
	}
	number, err := strconv.Atoi(arguments[1])
	if err != nil {
		return err
	}
	n := (&bed{state: arguments[0]}).node(number)
	steps := []func() error{n.mountSys, n.mountRun, n.mountOwn, n.hideSysctls, n.setNetwork, shareMounts}
	for _, step := range steps {
		if err := step(); err != nil {
			return err
		}
	}
	if err := os.WriteFile(n.file("ready"), nil, 0o644); err != nil {
		return err
	}
	signal.Ignore(syscall.SIGCHLD)
	<-ctx.Done()
	return nil
}

// mountSys mounts a /sys of the node's own network namespace, with the machine's cgroups in it.
func (n node) mountSys() error {
	keep := n.file("cgroups")
	if err := os.MkdirAll(keep, 0o755); err != nil {
		return err
	}
	mounts := []func() error{
		func() error { return unix.Mount(cgroups, keep, "", unix.MS_BIND|unix.MS_REC, "") },
		func() error { return unix.Mount("sysfs", "/sys", "sysfs", 0, "") },
		func() error { return unix.Mount(keep, cgroups, "", unix.MS_BIND|unix.MS_REC, "") },
		func() error { return unix.Unmount(keep, unix.MNT_DETACH) },
		func() error { return unix.Mount("bpf", "/sys/fs/bpf", "bpf", 0, "") },
		func() error { return unix.Sethostname([]byte(n.name())) },
	}
	for nth, mount := range mounts {
		if err := mount(); err != nil {
			return fmt.Errorf("mount %d of /sys: %w", nth, err)
		}
	}
	return nil
}

func (n node) mountRun() error {
	if err := unix.Mount("tmpfs", "/run", "tmpfs", 0, ""); err != nil {
		return fmt.Errorf("/run: %w", err)
	}
	return errors.Join(os.MkdirAll("/run/netns", 0o755), os.MkdirAll("/run/lock", 0o755))
}

// mountOwn mounts the node's own directories, and a resolv.conf that names an address without a
// resolver.
func (n node) mountOwn() error {
	for _, directory := range own {
		source := n.file("root", directory)
		if err := errors.Join(os.MkdirAll(directory, 0o755), os.MkdirAll(source, 0o755)); err != nil {
			return err
		}
		if err := unix.Mount(source, directory, "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("%s: %w", directory, err)
		}
	}
	return n.overlay("/etc/resolv.conf", "nameserver 127.0.0.1\n")
}

func (n node) hideSysctls() error {
	for key, value := range sysctls {
		if err := n.overlay("/proc/sys/"+key, value+"\n"); err != nil {
			return err
		}
	}
	return nil
}

// overlay shows other content in place of a file.
func (n node) overlay(path, content string) error {
	source := n.file("overlay-" + filepath.Base(path))
	if err := os.WriteFile(source, []byte(content), 0o644); err != nil {
		return err
	}
	if err := unix.Mount(source, path, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}

// setNetwork enables forwarding between pods, and to ports of the node's own loopback (NodePort).
func (n node) setNetwork() error {
	wanted := [][2]string{
		{"net.ipv4.ip_forward", "1"},
		{"net.ipv6.conf.all.forwarding", "1"},
		{"net.ipv4.conf.all.rp_filter", "0"},
		{"net.ipv4.conf.default.rp_filter", "0"},
		{"net.ipv4.conf.all.route_localnet", "1"},
	}
	for _, parameter := range wanted {
		if err := writeSysctl(parameter[0], parameter[1]); err != nil {
			return err
		}
	}
	// Exists only with the module br_netfilter; without it bridged packets bypass netfilter anyway.
	err := writeSysctl("net.bridge.bridge-nf-call-iptables", "1")
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// shareMounts makes mounts of volumes visible in pods. It runs last, because earlier mounts would
// have spread as well.
func shareMounts() error {
	return unix.Mount("", "/", "", unix.MS_SHARED|unix.MS_REC, "")
}
