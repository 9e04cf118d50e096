//! The list of the conformance suite's cases, and the tests that it names.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// The mesh suite, as of Gateway API's monthly-2026.06.
const MESH: [&str; 23] = [
    "MeshBasic",
    "MeshConsumerRoute",
    "MeshFrontend",
    "MeshFrontendHostname",
    "MeshGRPCRouteRequestHeaderModifier",
    "MeshGRPCRouteWeight",
    "MeshHTTPRoute303Redirect",
    "MeshHTTPRoute307Redirect",
    "MeshHTTPRoute308Redirect",
    "MeshHTTPRouteBackendRequestHeaderModifier",
    "MeshHTTPRouteMatching",
    "MeshHTTPRouteNamedRule",
    "MeshHTTPRouteQueryParamMatching",
    "MeshHTTPRouteRedirectHostAndStatus",
    "MeshHTTPRouteRedirectPath",
    "MeshHTTPRouteRedirectPort",
    "MeshHTTPRouteRequestHeaderModifier",
    "MeshHTTPRouteRewritePath",
    "MeshHTTPRouteSchemeRedirect",
    "MeshHTTPRouteSimpleSameNamespace",
    "MeshHTTPRouteWeight",
    "MeshPorts",
    "MeshTrafficSplit",
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// The sources of a suite, as one text.
fn sources(folder: &str) -> String {
    let files = fs::read_dir(root().join(folder)).expect("a folder of tests");
    let text = |file: fs::DirEntry| fs::read_to_string(file.path()).unwrap_or_default();
    files.flatten().map(text).collect()
}

/// Every case of the mesh suite has a test, and every test that the page names is there.
#[test]
fn every_case_of_the_mesh_suite_has_a_test() {
    let page = fs::read_to_string(root().join("docs/guide/conformance.md")).expect("the page");
    let suites = [
        ("lab", sources("testkit/tests/lab/cases")),
        ("routes", sources("testkit/tests/routes/cases")),
        ("policy", sources("api/policy/tests/routes")),
    ];
    let mut named = BTreeSet::new();
    for row in page.lines().filter(|line| line.starts_with("| ") && line.contains('`')) {
        let cells: Vec<&str> = row.split(['|', '`']).map(str::trim).collect();
        let [_, case, _, suite, _, test, ..] = cells[..] else { panic!("another form: {row}") };
        let of_suite = suites.iter().find(|(name, _)| *name == suite);
        let (_, text) = of_suite.unwrap_or_else(|| panic!("no such suite: {row}"));
        assert!(text.contains(&format!("fn {test}(")), "no such test: {row}");
        assert!(named.insert(case), "twice: {row}");
    }
    for case in MESH {
        assert!(named.contains(case), "{case} has no test");
    }
}
