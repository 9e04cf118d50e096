package main

import (
	"bytes"
	"os"
	"path/filepath"
	"runtime"
	"sync"

	"golang.org/x/sys/unix"
)

// tlsRecord is the beginning of every encrypted record (RFC 8446, 5.2).
const tlsRecord = "\x17\x03\x03"

// maxPacket is the most that is read of one packet: more than the links carry, even if the kernel
// has merged several.
const maxPacket = 1 << 16

// maxSeen limits the bytes that are kept of all packets.
const maxSeen = 64 << 20

// loopback is the interface index of the loopback device, which is 1 in every network namespace.
const loopback = 1

// wire records the packets on all links of a node except the loopback device. The kubelet forwards
// the streams of kubectl exec over loopback, so the secret of the test may be seen there; and no
// other machine could listen there.
type wire struct {
	socket int
	mutex  sync.Mutex
	seen   [][]byte
	bytes  int
	done   chan struct{}
}

// tap records the packets on a node's links from now on.
func (m mesh) tap(n node) *wire {
	namespace, err := os.Open(filepath.Join(namespaces, n.namespace()))
	m.must(err)
	defer namespace.Close()
	opened := make(chan *wire)
	failed := make(chan error)
	go func() {
		// Never unlocked: the thread ends with this goroutine, so no other goroutine runs in its
		// namespace.
		runtime.LockOSThread()
		if err := unix.Setns(int(namespace.Fd()), unix.CLONE_NEWNET); err != nil {
			failed <- err
			return
		}
		everything := int(htons(unix.ETH_P_ALL))
		socket, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, everything)
		if err != nil {
			failed <- err
			return
		}
		opened <- &wire{socket: socket, done: make(chan struct{})}
	}()
	select {
	case err := <-failed:
		m.t.Fatalf("the links of %s cannot be looked at: %v", n.name(), err)
		return nil
	case w := <-opened:
		// A read without a timeout could outlive the test.
		m.must(unix.SetsockoptTimeval(w.socket, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 200_000}))
		stop := make(chan struct{})
		m.t.Cleanup(func() { close(stop); <-w.done })
		go w.read(stop)
		return w
	}
}

func (w *wire) read(stop chan struct{}) {
	defer close(w.done)
	defer unix.Close(w.socket)
	packet := make([]byte, maxPacket)
	for {
		select {
		case <-stop:
			return
		default:
		}
		n, from, err := unix.Recvfrom(w.socket, packet, 0)
		if err != nil {
			continue // usually the timeout: nothing arrived
		}
		if link, known := from.(*unix.SockaddrLinklayer); known && link.Ifindex == loopback {
			continue
		}
		w.mutex.Lock()
		if w.bytes+n <= maxSeen {
			w.seen = append(w.seen, bytes.Clone(packet[:n]))
			w.bytes += n
		}
		w.mutex.Unlock()
	}
}

// with returns the packets that contain what.
func (w *wire) with(what string) [][]byte {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	var found [][]byte
	for _, packet := range w.seen {
		if bytes.Contains(packet, []byte(what)) {
			found = append(found, packet)
		}
	}
	return found
}

// htons converts a number to network byte order on a little-endian machine.
func htons(number uint16) uint16 { return number<<8 | number>>8 }
