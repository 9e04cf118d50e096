package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// forwardLimit is how long the forwarder may take to listen.
const forwardLimit = 10 * time.Second

// startForward makes the API server reachable on this machine's loopback, for programs outside of
// the nodes. The forwarder dials from inside the node's namespace, so no packet crosses its border.
func (b *bed) startForward(ctx context.Context) error {
	n := b.node(1)
	ready := b.file("api-address")
	err := n.launch("forward", []string{b.self, "forward", filepath.Join(namespaces, n.namespace()), ready})
	if err != nil {
		return err
	}
	var address string
	if err := n.await(ctx, "forward", "the way to the API server", forwardLimit, func() error {
		text, err := os.ReadFile(ready)
		address = string(text)
		return err
	}); err != nil {
		return err
	}
	return b.writeKubeconfig(b.file("kubeconfig"), "admin", "https://"+strings.TrimSpace(address))
}

// forward listens on a free loopback port, writes the address to a file, and connects every
// connection to the API server in the other namespace.
func forward(ctx context.Context, arguments []string) error {
	if len(arguments) != 2 {
		return errors.New("forward NAMESPACE FILE")
	}
	namespace, err := os.Open(arguments[0])
	if err != nil {
		return err
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	context.AfterFunc(ctx, func() { listener.Close() })
	draft := arguments[1] + ".new"
	if err := os.WriteFile(draft, []byte(listener.Addr().String()), 0o644); err != nil {
		return err
	}
	if err := os.Rename(draft, arguments[1]); err != nil {
		return err
	}
	for {
		near, err := listener.Accept()
		if err != nil {
			return err
		}
		go join(near, namespace)
	}
}

func join(near net.Conn, namespace *os.File) {
	defer near.Close()
	far, err := dialInside(namespace, fmt.Sprintf("127.0.0.1:%d", apiPort))
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return
	}
	defer far.Close()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		relay(far, near)
	}()
	relay(near, far)
	<-ended
}

// relay copies until the end, and then shuts down the other direction; if either connection breaks,
// it closes both.
func relay(to, from net.Conn) {
	if _, err := io.Copy(to, from); err != nil {
		to.Close()
		from.Close()
		return
	}
	if half, ok := to.(*net.TCPConn); ok {
		half.CloseWrite()
	}
}

// dialInside connects from another network namespace; the socket stays in that namespace.
func dialInside(namespace *os.File, address string) (net.Conn, error) {
	type outcome struct {
		connection net.Conn
		err        error
	}
	done := make(chan outcome)
	go func() {
		// Never unlocked: the thread ends with this goroutine, so no other goroutine runs in its
		// namespace.
		runtime.LockOSThread()
		if err := unix.Setns(int(namespace.Fd()), unix.CLONE_NEWNET); err != nil {
			done <- outcome{nil, err}
			return
		}
		// A loopback address needs no resolver, which would run on another thread.
		connection, err := net.Dial("tcp", address)
		done <- outcome{connection, err}
	}()
	got := <-done
	return got.connection, got.err
}
