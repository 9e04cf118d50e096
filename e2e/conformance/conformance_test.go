// Package conformance runs the Gateway API's own suite for meshes, unmodified, against Leno in a real
// cluster, and writes the suite's report.
//
// Every case for meshes runs: all mesh features that the suite defines, and the further features that
// its cases require, are claimed. A skipped case is a failure.
package conformance

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"sigs.k8s.io/gateway-api/conformance"
	confv1 "sigs.k8s.io/gateway-api/conformance/apis/v1"
	meshtests "sigs.k8s.io/gateway-api/conformance/tests/mesh"
	"sigs.k8s.io/gateway-api/conformance/utils/flags"
	"sigs.k8s.io/gateway-api/conformance/utils/suite"
	"sigs.k8s.io/gateway-api/pkg/features"
	"sigs.k8s.io/yaml"
)

// Flags in addition to those of the suite.
var (
	out     = flag.String("out", "", "folder for the report and the list of cases; none are written by default")
	channel = flag.String("channel", standard, "channel of the Gateway API; with experimental the mesh is asked what it can do")
)

const (
	standard     = "standard"
	experimental = "experimental"
	// meshName is the XMesh that the control plane creates.
	meshName = "leno"
)

func TestMesh(t *testing.T) {
	cluster, options := newCluster(t)
	cluster.applyDefinitions()
	cluster.install()
	cluster.awaitGone()
	if *channel == experimental {
		cluster.awaitDeclaration(options.SupportedFeatures)
		// Without any claimed features, the suite reads them from the mesh.
		options.SupportedFeatures, options.MeshName, options.GatewayClassName = nil, meshName, ""
	}
	report := filepath.Join(t.TempDir(), "report.yaml")
	options.ReportOutputPath = report

	// The suite's own services and pods stay until the routes' statuses are checked.
	options.CleanupBaseResources = false
	t.Cleanup(cluster.removeNamespaces)
	var cases results
	options.Hook = cases.record
	t.Run("Suite", func(t *testing.T) { conformance.RunConformanceWithOptions(t, options) })

	written, err := os.ReadFile(report)
	require.NoError(t, err)
	if *out != "" {
		require.NoError(t, os.MkdirAll(*out, 0o755))
		require.NoError(t, os.WriteFile(filepath.Join(*out, reportName(t, options.Mode)), written, 0o644))
		if options.Mode == flags.DefaultMode {
			require.NoError(t, os.WriteFile(filepath.Join(*out, "cases.md"), []byte(cases.table()), 0o644))
		}
	}
	cases.judge(t, options.RunTest)
	if options.RunTest == "" {
		judge(t, written)
	}
	cluster.checkSidecars(options.Mode == flags.DefaultMode)
	cluster.checkStatuses()
}

// optionsOf claims every feature that the suite has for meshes.
func optionsOf(t *testing.T) suite.ConformanceOptions {
	options := conformance.DefaultOptions(t)
	options.ConformanceProfiles = []suite.ConformanceProfileName{
		suite.MeshHTTPConformanceProfileName, suite.MeshGRPCConformanceProfileName,
	}
	claimed := features.SetsToNamesSet(features.MeshCoreFeatures, features.MeshExtendedFeatures)
	for _, test := range meshtests.MeshConformanceTests {
		claimed.Insert(test.Features...)
	}
	options.SupportedFeatures = claimed.UnsortedList()
	slices.Sort(options.SupportedFeatures)
	options.NamespaceLabels = map[string]string{"leno.dev/inject": "enabled"}
	options.Implementation = confv1.Implementation{
		Organization: "leno", Project: "leno", URL: "https://leno.dev", Version: version(t), Contact: []string{"https://leno.dev"},
	}
	return options
}

// reportName is the name of such a report in the Gateway API's repository.
func reportName(t *testing.T, mode string) string {
	return fmt.Sprintf("%s-%s-%s-report.yaml", *channel, version(t), mode)
}

// results are the cases for meshes and the outcome of each.
type results struct {
	all []result
}

type result struct {
	test    suite.ConformanceTest
	outcome string
}

// record is called by the suite after each of its cases, including those for gateways.
func (r *results) record(t *testing.T, test suite.ConformanceTest, _ *suite.ConformanceTestSuite) {
	if !slices.Contains(test.Features, features.SupportMesh) {
		return
	}
	outcome := "passed"
	if t.Failed() {
		outcome = "failed"
	} else if t.Skipped() {
		outcome = "skipped"
	}
	r.all = append(r.all, result{test: test, outcome: outcome})
}

// judge requires that every case for meshes ran and passed, or the only one that was selected.
func (r *results) judge(t *testing.T, only string) {
	for _, test := range meshtests.MeshConformanceTests {
		if only != "" && only != test.ShortName {
			continue
		}
		at := slices.IndexFunc(r.all, func(one result) bool { return one.test.ShortName == test.ShortName })
		if at < 0 {
			t.Errorf("%s did not run", test.ShortName)
		} else if r.all[at].outcome != "passed" {
			t.Errorf("%s %s", test.ShortName, r.all[at].outcome)
		}
	}
}

// table is a page that lists the cases, the features of each, and the outcome.
func (r *results) table() string {
	var text strings.Builder
	text.WriteString("# Cases for meshes\n\nWritten by `make conformance`.\n\n| case | features | |\n|---|---|---|\n")
	slices.SortFunc(r.all, func(a, b result) int { return strings.Compare(a.test.ShortName, b.test.ShortName) })
	for _, one := range r.all {
		names := make([]string, 0, len(one.test.Features))
		for _, feature := range one.test.Features {
			names = append(names, string(feature))
		}
		fmt.Fprintf(&text, "| %s | %s | %s |\n", one.test.ShortName, strings.Join(names, ", "), one.outcome)
	}
	return text.String()
}

// judge requires that the report contains no skipped or failed case and no unclaimed feature. For a
// profile without any case for an extended feature (so far MESH-GRPC), the suite reports nothing
// extended.
func judge(t *testing.T, written []byte) {
	var report confv1.ConformanceReport
	require.NoError(t, yaml.Unmarshal(written, &report))
	claimed := map[string][]string{}
	for _, profile := range report.ProfileReports {
		claimed[profile.Name] = nil
		status(t, profile.Name+" core", profile.Core)
		if extended := profile.Extended; extended != nil {
			claimed[profile.Name] = extended.SupportedFeatures
			status(t, profile.Name+" extended", extended.Status)
			require.Empty(t, extended.UnsupportedFeatures, profile.Name)
		}
	}
	require.Contains(t, claimed, string(suite.MeshGRPCConformanceProfileName))
	require.Len(t, claimed[string(suite.MeshHTTPConformanceProfileName)], features.MeshExtendedFeatures.Len())
}

func status(t *testing.T, what string, found confv1.Status) {
	if found.Result != confv1.Success {
		t.Errorf("%s: %s: failed %v, skipped %v", what, found.Result, found.FailedTests, found.SkippedTests)
	}
	t.Logf("%s: %d passed, %d failed, %d skipped", what, found.Passed, found.Failed, found.Skipped)
}
