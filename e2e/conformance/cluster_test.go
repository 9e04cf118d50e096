package conformance

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/controller-runtime/pkg/client"
	meshv1alpha1 "sigs.k8s.io/gateway-api/apisx/v1alpha1"
	"sigs.k8s.io/gateway-api/conformance/utils/suite"
	"sigs.k8s.io/gateway-api/pkg/features"
)

var (
	tool = flag.String("cluster", "", "program that starts a cluster (e2e/cluster), where KUBECONFIG names none")
	kube = flag.String("kube", "", "Kubernetes' components for it")
	mesh = flag.String("mesh", "", "folder of Leno's programs")
	echo = flag.String("echo", "", "folder of the suite's client and server (e2e/conformance/echo), and of a certificate")
)

const (
	registry = "registry.local"
	// echoImage is the image that the suite's manifests name.
	echoImage = "registry.k8s.io/gateway-api/echo-advanced:v1.5.1"
	// applyLimit is how long the API server may take to serve applied definitions; usually it takes much less.
	applyLimit = 30 * time.Second
	// goneLimit is how long the pods and namespaces of an earlier run may take to end.
	goneLimit = 2 * time.Minute
	// meshLimit is how long the control plane and the agents may take to be ready on a busy machine.
	meshLimit = 5 * time.Minute
)

// namespaces are those of the suite.
var namespaces = []string{suite.MeshNamespace, suite.MeshConsumerNamespace}

// cluster is the cluster under test: that of KUBECONFIG, or one that ends with the test.
type cluster struct {
	t   *testing.T
	own bool
	client.Client
}

// newCluster returns the cluster, and the suite's options for it.
func newCluster(t *testing.T) (*cluster, suite.ConformanceOptions) {
	made := &cluster{t: t, own: os.Getenv("KUBECONFIG") == ""}
	if made.own {
		made.start()
	}
	options := optionsOf(t)
	made.Client = options.Client
	return made, options
}

// start starts a cluster of two nodes with the required images.
func (c *cluster) start() {
	state := filepath.Join(c.t.TempDir(), "cluster")
	c.t.Cleanup(func() { c.run(*tool, "down", "--state", state, "--kube", *kube) })
	c.run(*tool, "up", "--nodes", "2", "--state", state, "--kube", *kube)
	c.t.Setenv("KUBECONFIG", filepath.Join(state, "kubeconfig"))
	images := []struct {
		name, entrypoint, user string
		files                  []string
	}{
		{registry + "/leno-proxy:1", "/leno-proxy", "2102:2102", []string{"/leno-proxy=" + *mesh + "/leno-proxy"}},
		{registry + "/leno-controller:1", "/leno-controller", "65532:65532", []string{"/leno-controller=" + *mesh + "/leno-controller"}},
		{registry + "/leno-agent:1", "/leno-agent", "0:0", append(c.netfilter(),
			"/leno-agent="+*mesh+"/leno-agent", "/leno-cni="+*mesh+"/leno-cni",
			"/leno-proxy="+*mesh+"/leno-proxy", "/leno-broker="+*mesh+"/leno-broker")},
		{echoImage, "/usr/local/bin/server", "1338:1338", []string{
			"/usr/local/bin/server=" + *echo + "/server", "/usr/local/bin/client=" + *echo + "/client",
			"/cert.crt=" + *echo + "/cert.crt", "/cert.key=" + *echo + "/cert.key",
		}},
	}
	load := []string{"load", "--state", state, "--kube", *kube}
	for nth, image := range images {
		file := filepath.Join(c.t.TempDir(), fmt.Sprintf("%d.tar", nth))
		c.run(*tool, append([]string{
			"image", "--name", image.name, "--entrypoint", image.entrypoint, "--user", image.user, "--out", file,
		}, image.files...)...)
		load = append(load, file)
	}
	c.run(*tool, load...)
}

// netfilter returns the files with which the agent captures without eBPF, as in the image of `make
// images`.
func (c *cluster) netfilter() []string {
	files, err := filepath.Glob("/usr/lib/*-linux-gnu/xtables/*.so")
	require.NoError(c.t, err)
	// The multi-call program is called by several names.
	for _, name := range []string{"nft", "iptables", "iptables-save", "iptables-restore", "ip6tables", "ip6tables-save", "ip6tables-restore"} {
		files = append(files, "/usr/sbin/"+name)
	}
	for nth, file := range files {
		files[nth] = file + "=" + file
	}
	return files
}

// applyDefinitions applies the Gateway API's definitions from the suite's release.
func (c *cluster) applyDefinitions() {
	folder := filepath.Join(strings.TrimSpace(c.output("go", "list", "-m", "-f", "{{.Dir}}", "sigs.k8s.io/gateway-api")),
		"config", "crd", *channel)
	files, err := filepath.Glob(filepath.Join(folder, "gateway.*.yaml"))
	require.NoError(c.t, err)
	require.NotEmpty(c.t, files)
	for _, file := range files {
		text, err := os.ReadFile(file)
		require.NoError(c.t, err)
		c.apply(text)
	}
}

// install installs Leno with strict mTLS, as `leno install | kubectl apply` does. A cluster that is not
// this test's own has it already.
func (c *cluster) install() {
	leno := filepath.Join(*mesh, "leno")
	if c.own {
		c.apply([]byte(c.output(leno, "install", "--set=image.registry="+registry, "--set=image.tag=1",
			"--set=image.pullPolicy=Never", "--set=mtls=strict")))
	}
	var said string
	err := wait.PollUntilContextTimeout(c.t.Context(), time.Second, meshLimit, true, func(ctx context.Context) (bool, error) {
		output, err := exec.CommandContext(ctx, leno, "check", "--cluster").CombinedOutput()
		said = string(output)
		return err == nil, nil
	})
	require.NoError(c.t, err, "leno check --cluster: %s", said)
	c.t.Logf("%s", said)
}

// awaitGone waits until the namespaces that an earlier run has deleted are gone.
func (c *cluster) awaitGone() {
	for _, name := range namespaces {
		err := wait.PollUntilContextTimeout(c.t.Context(), time.Second, goneLimit, true, func(ctx context.Context) (bool, error) {
			var found corev1.Namespace
			err := c.Get(ctx, client.ObjectKey{Name: name}, &found)
			return apierrors.IsNotFound(err) || err == nil && found.DeletionTimestamp == nil, nil
		})
		require.NoError(c.t, err, "namespace %s is still being removed", name)
	}
}

// awaitDeclaration waits until the control plane declares exactly these features of the mesh.
func (c *cluster) awaitDeclaration(wanted []features.FeatureName) {
	var mesh meshv1alpha1.XMesh
	var found []features.FeatureName
	err := wait.PollUntilContextTimeout(c.t.Context(), time.Second, applyLimit, true, func(ctx context.Context) (bool, error) {
		if err := c.Get(ctx, client.ObjectKey{Name: meshName}, &mesh); err != nil {
			return false, client.IgnoreNotFound(err)
		}
		found = nil
		for _, feature := range mesh.Status.SupportedFeatures {
			found = append(found, features.FeatureName(feature.Name))
		}
		return slices.Equal(found, wanted), nil
	})
	require.NoError(c.t, err, "XMesh %s has %v, not %v", meshName, found, wanted)
}

// checkSidecars requires that every pod of the suite has a sidecar, or that none has: in node mode the suite must not pass
// because of sidecars.
func (c *cluster) checkSidecars(wanted bool) {
	for _, namespace := range namespaces {
		var pods corev1.PodList
		require.NoError(c.t, c.List(c.t.Context(), &pods, client.InNamespace(namespace)))
		require.NotEmpty(c.t, pods.Items, namespace)
		for _, pod := range pods.Items {
			containers := append(pod.Spec.InitContainers, pod.Spec.Containers...)
			sidecar := slices.ContainsFunc(containers, func(one corev1.Container) bool { return one.Name == "leno-proxy" })
			require.Equal(c.t, wanted, sidecar, "%s/%s has a sidecar", namespace, pod.Name)
		}
	}
}

// removeNamespaces removes the namespaces of the suite and of the check of statuses.
func (c *cluster) removeNamespaces() {
	for _, name := range namespaces {
		object := corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
		if err := c.Delete(context.Background(), &object); client.IgnoreNotFound(err) != nil {
			c.t.Errorf("namespace %s: %v", name, err)
		}
	}
}

// apply applies objects with server-side apply.
func (c *cluster) apply(text []byte) {
	c.t.Helper()
	reader := yaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(text)))
	for {
		document, err := reader.Read()
		if errors.Is(err, io.EOF) {
			return
		}
		require.NoError(c.t, err)
		var object unstructured.Unstructured
		require.NoError(c.t, yaml.Unmarshal(document, &object.Object))
		if len(object.Object) == 0 {
			continue
		}
		var last error
		err = wait.PollUntilContextTimeout(c.t.Context(), time.Second/2, applyLimit, true, func(ctx context.Context) (bool, error) {
			last = c.Apply(ctx, client.ApplyConfigurationFromUnstructured(&object), client.FieldOwner("conformance"), client.ForceOwnership)
			return last == nil, nil
		})
		require.NoError(c.t, err, "%s %s: %v", object.GetKind(), object.GetName(), last)
	}
}

func (c *cluster) run(program string, arguments ...string) {
	c.t.Helper()
	command := exec.Command(program, arguments...)
	command.Stdout, command.Stderr = os.Stderr, os.Stderr
	require.NoError(c.t, command.Run(), "%s %v", program, arguments)
}

func (c *cluster) output(program string, arguments ...string) string {
	c.t.Helper()
	var problem bytes.Buffer
	command := exec.CommandContext(c.t.Context(), program, arguments...)
	command.Stderr = &problem
	output, err := command.Output()
	require.NoError(c.t, err, "%s %v: %s", program, arguments, &problem)
	return string(output)
}

// version is the version of Leno.
func version(t *testing.T) string {
	output, err := exec.CommandContext(t.Context(), filepath.Join(*mesh, "leno"), "--version").Output()
	require.NoError(t, err)
	words := strings.Fields(string(output))
	require.NotEmpty(t, words)
	return "v" + words[len(words)-1]
}
