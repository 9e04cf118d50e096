package main

import (
	"debug/elf"
	"fmt"
	"runtime"
)

// platform is the platform of an image, in the terms of the OCI image specification.
type platform struct {
	OS           string `json:"os"`
	Architecture string `json:"architecture"`
}

// machines lists the architectures for which images can be made.
var machines = map[string]struct {
	elf    elf.Machine
	triple string // of the folders in which Debian keeps libraries
}{
	"amd64": {elf.EM_X86_64, "x86_64-linux-gnu"},
	"arm64": {elf.EM_AARCH64, "aarch64-linux-gnu"},
}

// here is the platform of this machine.
func here() platform { return platform{"linux", runtime.GOARCH} }

func (p platform) String() string { return p.OS + "/" + p.Architecture }

// Set parses a platform such as linux/arm64 (flag.Value).
func (p *platform) Set(text string) error {
	for architecture := range machines {
		if known := (platform{"linux", architecture}); text == known.String() {
			*p = known
			return nil
		}
	}
	return fmt.Errorf("%q is not known: linux/amd64 or linux/arm64", text)
}
