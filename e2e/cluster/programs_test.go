package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// sizesOfFlows annotates a node with another size of the table of connections.
func (m mesh) sizesOfFlows() {
	node := m.node(1).name()
	capacity := func(wanted float64) error {
		if now := m.metric(1, "leno_flow_map_capacity"); now != wanted {
			return fmt.Errorf("the table has room for %v flows", now)
		}
		return nil
	}
	annotate := func(annotation string) {
		m.must(run1(m.administer("annotate", "--overwrite", "node", node, annotation)))
	}
	usual := m.metric(1, "leno_flow_map_capacity")
	annotate("leno.dev/flow-map-size=32768")
	m.until("the size of the annotation", func() error { return capacity(32768) })
	if other := m.metric(2, "leno_flow_map_capacity"); other != usual {
		m.t.Errorf("the table of another node has room for %v flows", other)
	}
	annotate("leno.dev/flow-map-size=2000000")
	m.until("the agent says why it refuses the size", func() error {
		said := m.output(m.t, "logs", "-n", "leno-system", "-l", "app.kubernetes.io/name=leno-agent", "--tail=-1")
		if grep(said, "2000000 flows are too many") == "" {
			return errors.New("it does not")
		}
		return capacity(32768)
	})
	annotate("leno.dev/flow-map-size-")
	m.until("the usual size", func() error { return capacity(usual) })
}

// programs returns the kernel's ids of the eBPF programs of a node's agent and of its pods.
func (m mesh) programs(node int) (ids []uint32) {
	output, err := m.leno("ebpf", "programs", "--node", m.node(node).name(), "-o", "json").Output()
	m.must(err)
	var programs []struct {
		ID   uint32
		Name string
	}
	m.must(json.Unmarshal(output, &programs))
	accounts := false
	for _, program := range programs {
		accounts = accounts || program.Name == "leno_flow_sockops"
		ids = append(ids, program.ID)
	}
	if !accounts {
		m.t.Errorf("node %d has no programs for flows: %s", node, output)
	}
	return ids
}

// areUnloaded waits until the kernel has unloaded all of these programs.
func (m mesh) areUnloaded(ids []uint32) {
	m.until("the kernel has unloaded the programs", func() error {
		for _, id := range ids {
			if isLoaded(id) {
				return fmt.Errorf("program %d is loaded", id)
			}
		}
		return nil
	})
}

// isLoaded asks the kernel for a descriptor of a program (BPF_PROG_GET_FD_BY_ID).
func isLoaded(id uint32) bool {
	const fdByID = 13
	asked := struct{ id, next, flags uint32 }{id: id}
	fd, _, failed := unix.Syscall(unix.SYS_BPF, fdByID, uintptr(unsafe.Pointer(&asked)), unsafe.Sizeof(asked))
	if failed != 0 {
		return failed != unix.ENOENT
	}
	unix.Close(int(fd))
	return true
}
