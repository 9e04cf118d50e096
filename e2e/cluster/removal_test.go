package main

import (
	"strings"
)

// isRemoved: what runs serves on, its connections too, and nothing is left of the mesh but proxies in pods that
// run, which pass nothing on any more.
func (m mesh) isRemoved() {
	m.underLoad(func() {
		said, err := m.leno("uninstall", "--yes").CombinedOutput()
		if err != nil {
			m.t.Fatalf("leno uninstall: %v\n%s", err, said)
		}
		for _, wanted := range []string{"cleaned  node n1", "cleaned  node n2", "pods of strict with a proxy"} {
			if !strings.Contains(string(said), wanted) {
				m.t.Errorf("leno uninstall does not say %q:\n%s", wanted, said)
			}
		}
		if strings.Contains(string(said), "untold") {
			m.t.Errorf("leno uninstall:\n%s", said)
		}
	})
	m.nothingIsLeft()
	// Proxies that are told of nothing any more must not stand between a client and servers that change.
	m.underLoad(func() {
		m.restart("load", "deployment/patient")
		m.settled("load")
	})
	proxies := m.output(m.t, "get", "pods", "-n", "load", "-l", "app=patient", "-o", "jsonpath={.items[*].spec.initContainers}")
	if proxies != "" {
		m.t.Errorf("pods made after the mesh have %s", proxies)
	}
}
