//! Tests that every case of the conformance suite has a test or a reason why there is none.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// The cases of Gateway API v1.6.3 (`ShortName` in conformance/tests) about the kinds of routes
/// that a mesh supports.
const UPSTREAM: [&str; 102] = [
    "GRPCExactMethodMatching",
    "GRPCRouteHeaderMatching",
    "GRPCRouteListenerHostnameMatching",
    "GRPCRouteNamedRule",
    "GRPCRouteWeight",
    "HTTPRoute303Redirect",
    "HTTPRoute307Redirect",
    "HTTPRoute308Redirect",
    "HTTPRouteBackendProtocolH2C",
    "HTTPRouteBackendProtocolWebSocket",
    "HTTPRouteBackendRequestHeaderModifier",
    "HTTPRouteCORS",
    "HTTPRouteCrossNamespace",
    "HTTPRouteDisallowedKind",
    "HTTPRouteExactPathMatching",
    "HTTPRouteHTTPSListener",
    "HTTPRouteHTTPSListenerDetectMisdirectedRequests",
    "HTTPRouteHeaderMatching",
    "HTTPRouteHostnameIntersection",
    "HTTPRouteInvalidBackendRefUnknownKind",
    "HTTPRouteInvalidCrossNamespaceBackendRef",
    "HTTPRouteInvalidCrossNamespaceParentRef",
    "HTTPRouteInvalidNonExistentBackendRef",
    "HTTPRouteInvalidParentRefNotMatchingListenerPort",
    "HTTPRouteInvalidParentRefNotMatchingSectionName",
    "HTTPRouteInvalidParentRefSectionNameNotMatchingPort",
    "HTTPRouteInvalidReferenceGrant",
    "HTTPRouteListenerHostnameMatching",
    "HTTPRouteListenerPortMatching",
    "HTTPRouteMatching",
    "HTTPRouteMatchingAcrossRoutes",
    "HTTPRouteMethodMatching",
    "HTTPRouteMultipleGateways",
    "HTTPRouteNamedRule",
    "HTTPRouteNoBackendRefs",
    "HTTPRouteObservedGenerationBump",
    "HTTPRoutePartiallyInvalidViaInvalidReferenceGrant",
    "HTTPRoutePathMatchOrder",
    "HTTPRouteQueryParamMatching",
    "HTTPRouteRedirectHostAndStatus",
    "HTTPRouteRedirectPath",
    "HTTPRouteRedirectPort",
    "HTTPRouteRedirectPortAndScheme",
    "HTTPRouteRedirectScheme",
    "HTTPRouteReferenceGrant",
    "HTTPRouteRequestHeaderModifier",
    "HTTPRouteRequestHeaderModifierBackendWeights",
    "HTTPRouteRequestMirror",
    "HTTPRouteRequestMultipleMirrors",
    "HTTPRouteRequestPercentageMirror",
    "HTTPRouteResponseHeaderModifier",
    "HTTPRouteRetry",
    "HTTPRouteRewriteHost",
    "HTTPRouteRewritePath",
    "HTTPRouteServiceTypes",
    "HTTPRouteSimpleSameNamespace",
    "HTTPRouteTimeoutBackendRequest",
    "HTTPRouteTimeoutRequest",
    "HTTPRouteWeight",
    "MeshBasic",
    "MeshConsumerRoute",
    "MeshFrontend",
    "MeshFrontendHostname",
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
    "TCPRouteInvalidBackendRefNonexistent",
    "TCPRouteInvalidCrossNamespaceBackendRef",
    "TCPRouteInvalidNonTCPListener",
    "TCPRouteMultipleRoutesAttachment",
    "TCPRouteParentRefAttachAll",
    "TCPRouteParentRefPortAndSectionName",
    "TCPRouteReferenceGrant",
    "TCPRouteWeightedRouting",
    "TLSRouteHostnameIntersection",
    "TLSRouteInvalidBackendRefNonexistent",
    "TLSRouteInvalidBackendRefUnknownKind",
    "TLSRouteInvalidNoMatchingListener",
    "TLSRouteInvalidNoMatchingListenerHostname",
    "TLSRouteInvalidReferenceGrant",
    "TLSRouteListenerMixedTerminationNotSupported",
    "TLSRouteListenerPassthroughSupportedKinds",
    "TLSRouteListenerTerminateNotSupported",
    "TLSRouteListenerTerminateSupportedKinds",
    "TLSRouteMixedTerminationSameNamespace",
    "TLSRouteSimpleSameNamespace",
    "TLSRouteTerminateSimpleSameNamespace",
];

/// Cases that were added later, as of monthly-2026.06.
const LATER: [&str; 5] = [
    "GRPCRouteRequestHeaderModifier",
    "HTTPRouteBackendURLRewrite",
    "HTTPRouteRetryConnectionError",
    "HTTPRouteRetryWithTimeouts",
    "MeshGRPCRouteRequestHeaderModifier",
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// The source files in a folder, as one text.
fn sources(folder: &str) -> String {
    let files = fs::read_dir(root().join(folder)).expect("a folder of tests");
    let text = |file: fs::DirEntry| fs::read_to_string(file.path()).unwrap_or_default();
    files.flatten().map(text).collect()
}

/// For every case, the documentation must name an existing test or a reason why there is none.
#[test]
fn every_case_of_the_suite_has_a_test_or_a_reason() {
    let page = fs::read_to_string(root().join("docs/guide/conformance.md")).expect("the page");
    let suites = [
        ("lab", sources("testkit/tests/lab/cases")),
        ("routes", sources("testkit/tests/routes/cases")),
        ("resilience", sources("testkit/tests/resilience")),
        ("policy", sources("api/policy/tests/policy/routes")),
        ("status", sources("control/status/src/status")),
    ];
    let (held, absent) = page.split_once("## Cases that do not apply").expect("both parts");
    let mut named = BTreeSet::new();
    for row in rows(held) {
        let cells: Vec<&str> = row.split(['|', '`']).map(str::trim).collect();
        let [_, case, _, suite, _, test, ..] = cells[..] else { panic!("another form: {row}") };
        let of_suite = suites.iter().find(|(name, _)| *name == suite);
        let (_, text) = of_suite.unwrap_or_else(|| panic!("no such suite: {row}"));
        assert!(text.contains(&format!("fn {test}(")), "no such test: {row}");
        assert!(named.insert(case), "twice: {row}");
    }
    for row in rows(absent) {
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        let [_, case, why, ..] = cells[..] else { panic!("another form: {row}") };
        assert!(!why.is_empty() && named.insert(case), "twice, or without a reason: {row}");
    }
    let upstream: BTreeSet<&str> = UPSTREAM.into_iter().chain(LATER).collect();
    let missing: Vec<_> = upstream.difference(&named).collect();
    assert!(missing.is_empty(), "neither tested nor explained: {missing:?}");
    let unknown: Vec<_> = named.difference(&upstream).collect();
    assert!(unknown.is_empty(), "no such case upstream: {unknown:?}");
}

/// The rows of tables, without the heads of the tables.
fn rows(part: &str) -> impl Iterator<Item = &str> {
    part.lines().filter(|line| line.starts_with("| ") && !line.starts_with("| case |"))
}
