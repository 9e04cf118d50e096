package main

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// emulators run programs of one architecture on a machine of another one (Debian's qemu-user-static).
var emulators = map[string]string{"amd64": "qemu-x86_64-static", "arm64": "qemu-aarch64-static"}

// question is a command of an image's program, and a part of its output.
type question struct {
	command, answer string
	// The error of the command in qemu, if it fails there.
	emulated string
}

var questions = map[string][]question{
	"leno-proxy":      {{command: "/leno-proxy --version", answer: "leno-proxy"}},
	"leno-controller": {{command: "/leno-controller --version", answer: "leno-controller"}},
	"leno-bench":      {{command: "/leno-bench --version", answer: "leno-bench"}},
	"leno-agent": {
		{command: "/leno-agent --version", answer: "leno-agent"},
		{command: "/leno-proxy --version", answer: "leno-proxy"},
		{command: "/leno-broker --version", answer: "leno-broker"},
		{command: "/leno-cni", answer: `"supportedVersions"`},
		{command: "/usr/sbin/ip6tables-restore --version", answer: "nf_tables"},
		{command: "/usr/sbin/iptables-save --version", answer: "nf_tables"},
		// By then it has loaded all its libraries; qemu does not support netfilter's sockets.
		{command: "/usr/sbin/nft --version", answer: "nftables", emulated: "Unable to initialize Netlink socket"},
	},
}

// TestMadeImages checks the content of the images in the folder CLUSTER_IMAGES, imports them into a containerd,
// and runs their programs from there; those for another architecture run in qemu. It needs root.
func TestMadeImages(t *testing.T) {
	folder := os.Getenv("CLUSTER_IMAGES")
	if folder == "" || os.Geteuid() != 0 {
		leaveOutImages(t, "needs root and CLUSTER_IMAGES: scripts/images-test.sh")
	}
	if _, err := exec.LookPath("containerd"); err != nil {
		leaveOutImages(t, "needs containerd: scripts/images-test.sh installs it")
	}
	runtime := startContainerd(t)
	for _, image := range sortedKeys(questions) {
		t.Run(image, func(t *testing.T) {
			file := filepath.Join(folder, image+".tar")
			name, manifests, err := layoutOf(t, file).image()
			if err != nil {
				t.Fatal(err)
			}
			for _, manifest := range manifests {
				t.Run(manifest.Platform.Architecture, func(t *testing.T) {
					made := imageFor(t, file, *manifest.Platform)
					made.check(t, *manifest.Platform)
					runtime.run(t, "images", "import", "--platform", manifest.Platform.String(), file)
					c := container{runtime.mounted(t, name, *manifest.Platform), emulated(t, *manifest.Platform), made.User}
					c.works(t, image)
				})
			}
		})
	}
}

// leaveOutImages is leaveOut for the requirement images of LENO_REQUIRE.
func leaveOutImages(t *testing.T, lacks string) {
	t.Helper()
	leaveOutOf(t, "images", lacks)
}

// emulated returns the emulator for a platform; empty if this machine can run its programs.
func emulated(t *testing.T, platform platform) string {
	t.Helper()
	if platform == here() {
		return ""
	}
	emulator := emulators[platform.Architecture]
	path, err := exec.LookPath(emulator)
	if err != nil {
		leaveOutImages(t, "needs "+emulator+" for "+platform.String()+": apt-get install qemu-user-static")
	}
	return path
}

// containerdLimit is how long containerd may take to respond, on a busy machine.
const containerdLimit = time.Minute

// containerd is a daemon that ends with the test.
type containerd struct{ socket string }

func startContainerd(t *testing.T) containerd {
	t.Helper()
	// A short path, because the paths of sockets are limited.
	folder, err := os.MkdirTemp("", "leno-images")
	if err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(folder, "socket")
	settings := fmt.Sprintf("version = 2\nroot = %q\nstate = %q\ndisabled_plugins = [\"io.containerd.grpc.v1.cri\"]\n[grpc]\naddress = %q\n",
		folder+"/root", folder+"/state", socket)
	put(t, folder+"/config.toml", []byte(settings))
	command := exec.Command("containerd", "--log-level", "warn", "--config", folder+"/config.toml")
	var log bytes.Buffer
	command.Stderr = &log
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = command.Process.Signal(syscall.SIGTERM)
		_ = command.Wait()
		if t.Failed() {
			t.Log(log.String())
		}
		if err := os.RemoveAll(folder); err != nil {
			t.Error(err)
		}
	})
	started := containerd{socket}
	err = until(t.Context(), "containerd", containerdLimit, func() error { return run1(started.command("version")) })
	if err != nil {
		t.Fatal(err)
	}
	return started
}

func (c containerd) command(arguments ...string) *exec.Cmd {
	return exec.Command("ctr", append([]string{"--address", c.socket}, arguments...)...)
}

func (c containerd) run(t *testing.T, arguments ...string) {
	t.Helper()
	if err := run1(c.command(arguments...)); err != nil {
		t.Fatal(err)
	}
}

// mounted returns the folder with the files of an image for one platform, unpacked by containerd.
func (c containerd) mounted(t *testing.T, name string, platform platform) string {
	t.Helper()
	folder := t.TempDir()
	c.run(t, "images", "mount", "--rw", "--platform", platform.String(), name, folder)
	t.Cleanup(func() {
		if err := run1(c.command("images", "unmount", "--rm", folder)); err != nil {
			t.Error(err)
		}
	})
	return folder
}

// container is the files of an image, and the emulator and user that run them.
type container struct{ root, emulator, user string }

// works runs the programs of an image, and checks their output as far as they can run here.
func (c container) works(t *testing.T, image string) {
	t.Helper()
	for _, ask := range questions[image] {
		command := c.command(t, strings.Fields(ask.command)...)
		command.Stdin = strings.NewReader(`{"cniVersion":"1.0.0"}`)
		said, err := command.CombinedOutput()
		answer := ask.answer
		if c.emulator != "" && ask.emulated != "" {
			answer, err = ask.emulated, nil
		}
		if err != nil || !strings.Contains(string(said), answer) {
			t.Errorf("%s: %v: %s", ask.command, err, said)
		}
	}
	if image == "leno-proxy" {
		c.servesRequest(t)
	}
}

// command is a program of the image, with the image as its root and the image's user.
func (c container) command(t *testing.T, arguments ...string) *exec.Cmd {
	t.Helper()
	if c.emulator != "" {
		inside := "/" + filepath.Base(c.emulator)
		put(t, c.root+inside, bytesOf(t, c.emulator))
		arguments = append([]string{inside}, arguments...)
	}
	command := exec.Command(arguments[0], arguments[1:]...)
	command.Dir = "/"
	command.Env = []string{"CNI_COMMAND=VERSION"}
	user, group, found := strings.Cut(c.user, ":")
	uid, failed := strconv.ParseUint(user, 10, 32)
	gid, err := strconv.ParseUint(group, 10, 32)
	if !found || failed != nil || err != nil {
		t.Fatalf("its user is %q", c.user)
	}
	command.SysProcAttr = &syscall.SysProcAttr{
		Chroot: c.root, Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}, Pdeathsig: syscall.SIGKILL,
	}
	return command
}

// servesRequest sends a request through the proxy of the image.
func (c container) servesRequest(t *testing.T) {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "%s for %s", r.URL.Path, r.Host)
	}))
	defer server.Close()
	_, port, _ := net.SplitHostPort(server.Listener.Addr().String())
	listen, admin := freeAddress(t), freeAddress(t)
	put(t, c.root+"/proxy.yaml", fmt.Appendf(nil, proxyDocuments, admin, listen, port, port))
	command := c.command(t, "/leno-proxy", "--static", "/proxy.yaml")
	var log bytes.Buffer
	command.Stderr, command.Stdout = &log, &log
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- command.Wait() }()
	defer func() {
		_ = command.Process.Signal(syscall.SIGTERM)
		if err := <-ended; err != nil || t.Failed() {
			t.Errorf("the proxy ended: %v\n%s", err, log.String())
		}
	}()
	err := until(t.Context(), "the proxy", podLimit, func() error {
		connection, err := net.Dial("tcp", listen)
		if err != nil {
			return err
		}
		return connection.Close()
	})
	if err != nil {
		t.Fatal(err)
	}
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+listen+"/page", nil)
	if err != nil {
		t.Fatal(err)
	}
	request.Host = "web.shop"
	response, err := (&http.Client{Timeout: time.Minute}).Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil || response.StatusCode != http.StatusOK || string(body) != "/page for web.shop" {
		t.Errorf("%s: %q, %v", response.Status, body, err)
	}
}

// proxyDocuments is a template for the admin address, the listener's address, and twice the server's port.
const proxyDocuments = `
apiVersion: leno.dev/v1alpha1
kind: Proxy
metadata: {name: test, namespace: shop}
spec:
  admin: %q
  mtls: disabled
  outbound: {listen: %q, service: "shop/web:80"}
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec:
  clusterIP: 10.96.0.10
  ports: [{name: http, port: 80, targetPort: %s, appProtocol: http}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-1, namespace: shop, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{name: http, port: %s, appProtocol: http}]
endpoints: [{addresses: [127.0.0.1], conditions: {ready: true}}]
`

// freeAddress returns an address on which no program listens.
func freeAddress(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	return listener.Addr().String()
}
