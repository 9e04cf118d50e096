//! Tests to which backend a request is sent.

use anyhow::Result;

use crate::fixture::RoutesFixture;

fn check(rules: &str, cases: &[(&str, &str)]) {
    let run = || -> Result<()> {
        let bed = RoutesFixture::with_rules(rules)?;
        for (request, expected) in cases {
            assert_eq!(bed.outcome(request)?, *expected, "{request}");
        }
        Ok(())
    };
    if let Err(error) = run() {
        panic!("{error:?}");
    }
}

/// MeshHTTPRouteMatching: of a prefix and a header, either is enough; the longest prefix wins, and a prefix ends at a
/// slash.
#[test]
fn mesh_http_route_matching() {
    check(
        "
  - matches: [{path: {type: PathPrefix, value: /}}, {headers: [{name: version, value: one}]}]
    backendRefs: [{name: echo-v1, port: 80}]
  - matches: [{path: {type: PathPrefix, value: /v2}}, {headers: [{name: version, value: two}]}]
    backendRefs: [{name: echo-v2, port: 80}]
",
        &[
            ("GET /", "echo-v1"),
            ("GET /example", "echo-v1"),
            ("GET /\nVersion: one", "echo-v1"),
            ("GET /v2", "echo-v2"),
            ("GET /v2/example", "echo-v2"),
            ("GET /\nVersion: two", "echo-v2"),
            ("GET /v2/", "echo-v2"),
            ("GET /v2example", "echo-v1"),
            ("GET /foo/v2/example", "echo-v1"),
        ],
    );
}

/// MeshTrafficSplit and HTTPRouteExactPathMatching: an exact path matches no path below it.
#[test]
fn mesh_traffic_split() {
    check(
        "
  - matches: [{path: {type: Exact, value: /v1}}]
    backendRefs: [{name: echo-v1, port: 80}]
  - matches: [{path: {type: Exact, value: /v2}}]
    backendRefs: [{name: echo-v2, port: 80}]
",
        &[("GET /v1", "echo-v1"), ("GET /v2", "echo-v2"), ("GET /", "404"), ("GET /v1/x", "404")],
    );
}

/// MeshHTTPRouteQueryParamMatching and HTTPRouteMethodMatching, and with them regular expressions for a query parameter
/// and a path, and a condition on the header `Host`.
#[test]
fn mesh_http_route_query_param_matching() {
    check(
        "
  - matches: [{queryParams: [{name: animal, value: whale}]}]
    backendRefs: [{name: echo-v1, port: 80}]
  - matches: [{queryParams: [{name: animal, type: RegularExpression, value: 'dol.*'}]}]
    backendRefs: [{name: echo-v2, port: 80}]
  - matches: [{method: POST}]
    backendRefs: [{name: echo-v2, port: 80}]
  - matches: [{path: {type: RegularExpression, value: '/items/[0-9]+'}, method: PUT}]
    backendRefs: [{name: echo-v1, port: 80}]
  - matches: [{headers: [{name: Host, value: other.example}]}]
    backendRefs: [{name: echo-v2, port: 80}]
",
        &[
            ("GET /?animal=whale", "echo-v1"),
            ("GET /x?a=1&animal=dolphin", "echo-v2"),
            ("GET /?animal=dog", "404"),
            ("POST /\nContent-Length: 0", "echo-v2"),
            ("PUT /items/12\nContent-Length: 0", "echo-v1"),
            ("PUT /items/x\nContent-Length: 0", "404"),
            ("GET /\nHost: other.example", "echo-v2"),
        ],
    );
}

/// MeshHTTPRouteSimpleSameNamespace: a rule without matches that has one backend.
#[test]
fn mesh_http_route_simple_same_namespace() {
    check("  - backendRefs: [{name: echo-v1, port: 80}]\n", &[("GET /any", "echo-v1")]);
}

/// MeshHTTPRouteWeight: two backends get 70 % and 30 % of the requests, and a backend of weight 0 gets none.
#[test]
fn mesh_http_route_weight() {
    let run = || -> Result<()> {
        let bed = RoutesFixture::with_rules(
            "  - backendRefs:\n    - {name: echo-v1, port: 80, weight: 70}\n    \
             - {name: echo-v2, port: 80, weight: 30}\n    - {name: echo, port: 80, weight: 0}\n",
        )?;
        for _ in 0..500 {
            bed.send("GET /")?;
        }
        let (v1, v2) = (bed.v1.count(), bed.v2.count());
        assert_eq!((v1 + v2, bed.echo.count()), (500, 0));
        // For 500 choices, five standard deviations are 51.
        assert!((299..=401).contains(&v1), "{v1} of 500 where 350 are expected");
        Ok(())
    };
    run().unwrap_or_else(|error| panic!("{error:?}"));
}
