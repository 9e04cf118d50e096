package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// cgroups is where the hierarchies are mounted: a single one (v2), or one for each controller (v1).
const cgroups = "/sys/fs/cgroup"

// killLimit is how long killed processes may take to end.
const killLimit = 20 * time.Second

// hierarchies returns the roots of all hierarchies.
func hierarchies() ([]string, error) {
	if _, err := os.Stat(filepath.Join(cgroups, "cgroup.controllers")); err == nil {
		return []string{cgroups}, nil
	}
	entries, err := os.ReadDir(cgroups)
	var roots []string
	for _, entry := range entries {
		if entry.IsDir() {
			roots = append(roots, filepath.Join(cgroups, entry.Name()))
		}
	}
	return roots, err
}

// tracking is the hierarchy in which the processes of the cluster are found.
func tracking() string {
	v1 := filepath.Join(cgroups, "pids")
	if _, err := os.Stat(v1); err == nil {
		return v1
	}
	return cgroups
}

// makeCgroups makes a node's tree in every hierarchy; the kubelet adds pods to it.
func (n node) makeCgroups() error {
	all, err := hierarchies()
	if err != nil {
		return err
	}
	for _, hierarchy := range all {
		if err := os.MkdirAll(filepath.Join(hierarchy, name, n.name()), 0o755); err != nil {
			return err
		}
	}
	return os.MkdirAll(n.daemons(), 0o755)
}

// tree is the cgroup of all processes on a node, including those of pods.
func (n node) tree() string { return filepath.Join(tree(), n.name()) }

// daemons is the cgroup of a node's own processes.
func (n node) daemons() string { return filepath.Join(tracking(), name, n.name(), "daemons") }

// tree is the cgroup of all processes of the cluster, including those of pods.
func tree() string { return filepath.Join(tracking(), name) }

// processes returns all processes in a cgroup and below it.
func processes(root string) ([]int, error) {
	var found []int
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil // It was removed in the meantime.
		}
		if err != nil || entry.Name() != "cgroup.procs" {
			return err
		}
		text, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENODEV) {
			return nil
		}
		if err != nil {
			return err
		}
		for _, field := range strings.Fields(string(text)) {
			pid, err := strconv.Atoi(field)
			if err != nil {
				return fmt.Errorf("%s: %w", path, err)
			}
			found = append(found, pid)
		}
		return nil
	})
	return found, err
}

// killAll kills every process below a cgroup, and repeats that for processes that were started
// meanwhile.
func killAll(root string) error {
	for deadline := time.Now().Add(killLimit); ; time.Sleep(lookPause) {
		left, err := processes(root)
		if err != nil || len(left) == 0 {
			return err
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("processes %v do not end", left)
		}
		for _, pid := range left {
			if err := syscall.Kill(pid, syscall.SIGKILL); err != nil && err != syscall.ESRCH {
				return fmt.Errorf("process %d: %w", pid, err)
			}
		}
	}
}

// removeCgroups removes a tree of the cluster from all hierarchies, leaves first.
func removeCgroups(below ...string) error {
	all, err := hierarchies()
	if err != nil {
		return err
	}
	var failed error
	for _, hierarchy := range all {
		var directories []string
		err := filepath.WalkDir(filepath.Join(append([]string{hierarchy, name}, below...)...), func(path string, entry fs.DirEntry, err error) error {
			if errors.Is(err, fs.ErrNotExist) {
				return nil
			}
			if err == nil && entry.IsDir() {
				directories = append(directories, path)
			}
			return err
		})
		failed = errors.Join(failed, err)
		slices.Reverse(directories)
		for _, directory := range directories {
			if err := os.Remove(directory); err != nil && !errors.Is(err, fs.ErrNotExist) {
				failed = errors.Join(failed, err)
			}
		}
	}
	return failed
}
