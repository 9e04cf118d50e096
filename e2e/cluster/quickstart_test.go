package main

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// registry replaces the placeholder R of the page. The test imports the images on the nodes, so no node pulls from it.
const registry = "registry.local"

// readerNames are the places of the page in which a reader writes the name of a registry, and the text that this test writes.
var readerNames = []struct{ page, typed string }{
	{"REGISTRY=R ", "REGISTRY=" + registry + " "},
	{"docker://R/", "docker://" + registry + "/"},
	{"image.registry=R ", "image.registry=" + registry + " "},
}

// recorded are the programs of the page that the test does not run, because they build release images and push them. It only checks
// their command lines. The images are made from the debug build instead, and imported on the nodes. `make images-test` tests the
// images of `make images`.
var recorded = []string{"make", "skopeo"}

// TestQuickStart runs every command of docs/quick-start-kubernetes.md in order, and compares the output with the page.
func TestQuickStart(t *testing.T) { follow(t, "docs/quick-start-kubernetes.md") }

func follow(t *testing.T, name string) {
	binaries := os.Getenv("CLUSTER_BIN")
	if binaries == "" {
		leaveOut(t, "needs CLUSTER_BIN: scripts/cluster.sh test")
	}
	text, err := os.ReadFile(filepath.Join("../..", name))
	if err != nil {
		t.Fatal(err)
	}
	page := string(text)
	for _, name := range readerNames {
		if strings.Count(page, name.page) != 1 {
			t.Fatalf("%q is not once on the page", name.page)
		}
		page = strings.Replace(page, name.page, name.typed, 1)
	}
	all, err := steps(page)
	if err != nil || len(all) == 0 {
		t.Fatalf("%d steps, %v", len(all), err)
	}
	m := mesh{startCluster(t), t}
	tag := m.version()
	m.loadImagesAs(binaries, registry+"/", ":"+tag)
	m.loadPython()
	reader := newReader(m, name, binaries)
	for _, step := range all {
		reader.take(step)
	}
	m.nothingIsLeft()
	expected := "make REGISTRY=" + registry + " images\n"
	for _, image := range []string{"leno-proxy", "leno-controller", "leno-agent"} {
		expected += fmt.Sprintf("skopeo REGISTRY= copy --all oci-archive:target/images/%[1]s.tar docker://%[2]s/%[1]s:%[3]s\n", image, registry, tag)
	}
	if typed := reader.typed(); typed != expected {
		t.Errorf("the images are made and pushed by\n%swhere this is expected:\n%s", typed, expected)
	}
}

// version is the version of Leno, which is the tag of the images on the page.
func (m mesh) version() string {
	m.t.Helper()
	text, err := os.ReadFile("../../Cargo.toml")
	m.must(err)
	found := regexp.MustCompile(`(?m)^version = "(.*)"$`).FindSubmatch(text)
	if found == nil {
		m.t.Fatal("Cargo.toml has no version")
	}
	return string(found[1])
}

// loadPython imports an image on the nodes under the name of the image that the page's pods run. It consists of this machine's
// Python, and of busybox.
func (m mesh) loadPython() {
	m.t.Helper()
	made := image{name: "docker.io/library/python:3-alpine", files: map[string]string{"/usr/bin/python3": "/usr/bin/python3"}}
	for _, applet := range []string{"sh", "sleep", "wget"} {
		made.files["/bin/"+applet] = "/bin/busybox"
	}
	output, err := exec.Command("/usr/bin/python3", "-c", "import sysconfig; print(sysconfig.get_path('stdlib'))").Output()
	m.must(err)
	library := strings.TrimSpace(string(output))
	m.must(filepath.WalkDir(library, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.IsDir() && (entry.Name() == "test" || entry.Name() == "__pycache__" || entry.Name() == "dist-packages") {
			return filepath.SkipDir
		}
		if entry.Type().IsRegular() && (strings.HasSuffix(path, ".py") || strings.HasSuffix(path, ".so")) {
			made.files[path] = path
		}
		return nil
	}))
	file := filepath.Join(m.t.TempDir(), "python.tar")
	m.must(made.write(file))
	m.must(m.load([]string{file}))
}

// pageReader types commands in an empty folder.
type pageReader struct {
	mesh
	page, folder, path, record string
}

// newReader makes a folder for the PATH with leno, kubectl, and scripts in place of the recorded programs, which only record how they
// are called.
func newReader(m mesh, page, binaries string) pageReader {
	m.t.Helper()
	r := pageReader{m, page, m.t.TempDir(), m.t.TempDir(), filepath.Join(m.t.TempDir(), "typed")}
	programs := map[string]string{"kubectl": `exec "$CLUSTER_KUBE" kubectl "$@"`, "leno": `exec "$CLUSTER_BIN/leno" "$@"`}
	for _, program := range recorded {
		programs[program] = fmt.Sprintf(`echo "%s REGISTRY=$REGISTRY $*" >>%s`, program, r.record)
	}
	for program, script := range programs {
		m.must(os.WriteFile(filepath.Join(r.path, program), []byte("#!/bin/sh\n"+script+"\n"), 0o755))
	}
	return r
}

// commandLimit is how long a command may take: rollouts and the end of pods wait for processes.
const commandLimit = 3 * time.Minute

// take takes one step of the page. A command whose output the page shows is repeated until it prints that output. Other commands must
// succeed.
func (r pageReader) take(s step) {
	r.t.Helper()
	if s.file != "" {
		r.must(os.WriteFile(filepath.Join(r.folder, s.file), []byte(s.text), 0o644))
		return
	}
	place := fmt.Sprintf("%s:%d: $ %s", r.page, s.line, s.command)
	deadline := time.Now().Add(commandLimit)
	for {
		printed, err := r.once(s.command)
		if err == nil && (s.shown == nil || shows(s.shown, printed)) {
			r.t.Logf("%s\n%s", place, printed)
			return
		}
		if s.shown == nil || time.Now().After(deadline) {
			pods, _ := r.administer("get", "pods", "-A", "-o", "wide").CombinedOutput()
			r.t.Fatalf("%s\n%v\nthe page shows:\n%s\nit prints:\n%s\n%s", place, err, strings.Join(s.shown, "\n"), printed, pods)
		}
		time.Sleep(lookPause)
	}
}

func (r pageReader) once(command string) (string, error) {
	ctx, cancel := context.WithTimeout(r.t.Context(), commandLimit)
	defer cancel()
	shell := exec.CommandContext(ctx, "bash", "-c", "set -o pipefail\n"+command)
	shell.Dir = r.folder
	shell.Env = append(os.Environ(), "PATH="+r.path+":"+os.Getenv("PATH"), "KUBECONFIG="+r.file("kubeconfig"), "HOME="+r.folder)
	shell.WaitDelay = time.Second // processes that the shell has started may keep its output open
	output, err := shell.CombinedOutput()
	return string(output), err
}

// typed is how the recorded programs were called.
func (r pageReader) typed() string {
	text, err := os.ReadFile(r.record)
	r.must(err)
	return string(text)
}
