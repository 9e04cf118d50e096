package main

import (
	"debug/elf"
	"fmt"
	"runtime"
)

// platform is what an image is for, in the words of the OCI image specification.
type platform struct {
	OS           string `json:"os"`
	Architecture string `json:"architecture"`
}

// machines are the architectures that images are made for.
var machines = map[string]struct {
	elf    elf.Machine
	triple string // of the folders that Debian keeps its libraries in
}{
	"amd64": {elf.EM_X86_64, "x86_64-linux-gnu"},
	"arm64": {elf.EM_AARCH64, "aarch64-linux-gnu"},
}

// here is the platform of this machine.
func here() platform { return platform{"linux", runtime.GOARCH} }

func (p platform) String() string { return p.OS + "/" + p.Architecture }

// Set reads linux/arm64 (flag.Value).
func (p *platform) Set(text string) error {
	for architecture := range machines {
		if known := (platform{"linux", architecture}); text == known.String() {
			*p = known
			return nil
		}
	}
	return fmt.Errorf("%q is not known: linux/amd64 or linux/arm64", text)
}
