package main

import (
	"embed"
	"os"
	"strings"
	"text/template"
)

// Images that are made here from binaries. A registry is a required part of the name, but is never
// contacted.
const (
	pauseImage = "registry.local/pause:1"
	kubeImage  = "registry.local/kube:1"
)

//go:embed config
var config embed.FS

// settings are the values for the templates in config/.
type settings struct {
	Name, Pods, Pods6, CgroupRoot string
	PKI, DNS, PodRange            string
	PauseImage, KubeImage         string
}

func (n node) settings() settings {
	return settings{
		Name: n.name(), Pods: n.pods(), Pods6: n.pods6(), CgroupRoot: "/" + name + "/" + n.name(),
		PKI: n.bed.file("pki"), DNS: dnsAddress, PodRange: podRange,
		PauseImage: pauseImage, KubeImage: kubeImage,
	}
}

// render renders one of the templates in config/.
func (n node) render(file string) (string, error) {
	parsed, err := template.New(file).Option("missingkey=error").ParseFS(config, "config/"+file)
	if err != nil {
		return "", err
	}
	var text strings.Builder
	err = parsed.ExecuteTemplate(&text, file, n.settings())
	return text.String(), err
}

// write renders a file to a path.
func (n node) write(file, path string) error {
	text, err := n.render(file)
	if err != nil {
		return err
	}
	return os.WriteFile(path, []byte(text), 0o644)
}
