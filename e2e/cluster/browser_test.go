package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// browserLimit is how long the browser may take for all pages of one reader.
const browserLimit = 10 * time.Minute

// pageReaders are accounts that may connect to the observer: `clerk` sees the namespace `shop`, and `visitor` sees none. The
// policy is shown on the pages of `shop`.
var pageReaders = account("shop", "clerk", `
- {apiGroups: [""], resources: [pods/portforward], verbs: [create]}
`) + `
apiVersion: v1
kind: ServiceAccount
metadata: {name: visitor, namespace: shop}
---
apiVersion: leno.dev/v1alpha1
kind: AuthorizationPolicy
metadata: {name: of-shop, namespace: shop}
spec: {selector: {}, rules: [{from: [{serviceAccounts: [default]}]}]}
`

// isOpenedInABrowser opens the observer's page in a headless Chromium with the token of a reader. Every page must show the
// namespaces that the reader may see, and no others. The workloads are those of [mesh.commands].
func (m mesh) isOpenedInABrowser() {
	driver, chromium := browser(m.t)
	m.must(m.apply(pageReaders))
	ctx, cancel := context.WithCancel(m.t.Context())
	defer cancel()
	address, err := m.forwardsObserver(ctx)
	m.must(err)
	for _, reader := range []struct{ account, seen, hidden string }{
		{"clerk", "shop", "default/,server-ebpf,client-ebpf,server-nftables"},
		{"visitor", "", "shop,default/,server-ebpf,client-ebpf"},
	} {
		token := strings.TrimSpace(m.output(m.t, "create", "token", reader.account, "-n", "shop", "--audience", "leno-observer"))
		limited, end := context.WithTimeout(ctx, browserLimit)
		drive := exec.CommandContext(limited, nodeOf(driver), "../../dashboard/web/test/browser.mjs", "cluster", address+"#token="+token)
		drive.Env = append(os.Environ(), "LENO_BROWSER="+driver, "LENO_CHROMIUM="+chromium,
			"LENO_SEEN="+reader.seen, "LENO_HIDDEN="+reader.hidden)
		output, err := drive.CombinedOutput()
		end()
		if err != nil {
			m.t.Errorf("the page of %s: %v\n%s", reader.account, err, output)
		}
	}
	m.must(m.kubectl("delete", "-n", "shop", "authorizationpolicy/of-shop", "rolebinding/clerk", "role/clerk", "serviceaccount/clerk", "serviceaccount/visitor"))
}

// nodeOf returns the path of Node. If the machine's Node is too old, it is the one that comes with the driver.
func nodeOf(driver string) string {
	own := filepath.Join(driver, "node_modules/node/bin/node")
	if _, err := os.Stat(own); err != nil {
		return "node"
	}
	return own
}

// browser contains the paths of Chromium and of its driver.
func browser(t *testing.T) (driver, chromium string) {
	t.Helper()
	if _, err := exec.LookPath("node"); err != nil {
		leaveOutOf(t, "tools", "needs node: apt-get install nodejs")
	}
	chromium, err := exec.LookPath("chromium")
	if err != nil {
		leaveOutOf(t, "tools", "needs Chromium: apt-get install chromium")
	}
	tools := os.Getenv("LENO_TOOLS")
	if tools == "" {
		tools = filepath.Join(os.Getenv("CLUSTER_BIN"), "..", "tools")
	}
	install := exec.Command("../../scripts/tools.sh", "browser")
	install.Env = append(os.Environ(), "LENO_TOOLS="+tools)
	if output, err := install.CombinedOutput(); err != nil {
		leaveOutOf(t, "tools", fmt.Sprintf("needs what drives Chromium: %v: %s", err, output))
	}
	return filepath.Join(tools, "browser"), chromium
}

// forwardsObserver forwards a port of this machine to the observer until ctx ends, with the rights of an administrator, and
// returns the address of its page. The page requires the token of each reader.
func (m mesh) forwardsObserver(ctx context.Context) (string, error) {
	forward := exec.CommandContext(ctx, m.kube, "kubectl", "--kubeconfig", m.file("kubeconfig"), "port-forward", "-n", "leno-system",
		"pod/leno-observer-0", ":15024", "--address", "127.0.0.1")
	output, err := forward.StdoutPipe()
	if err != nil {
		return "", err
	}
	var notes strings.Builder
	forward.Stderr = &notes
	if err := forward.Start(); err != nil {
		return "", err
	}
	lines := bufio.NewReader(output)
	line, err := lines.ReadString('\n')
	found := regexp.MustCompile(`127\.0\.0\.1:\d+`).FindString(line)
	if found == "" {
		return "", fmt.Errorf("kubectl port-forward prints %q, %w: %s", line, err, notes.String())
	}
	go func() {
		// kubectl prints a line for each connection.
		_, _ = lines.WriteTo(io.Discard)
		_ = forward.Wait()
	}()
	return "http://" + found + "/", nil
}
