//! Tests how long requests may take.

use anyhow::Result;

use crate::fixture::RoutesFixture;

/// HTTPRouteTimeoutRequest and HTTPRouteTimeoutBackendRequest: a late response becomes 504, and the request is not sent
/// again. A timeout of 0 is none. The number in a path is the delay of the response in milliseconds.
#[test]
fn http_route_timeouts() -> Result<()> {
    let rule = |path: &str, timeouts: &str| {
        format!(
            "  - matches: [{{path: {{value: {path}}}}}]\n    timeouts: {{{timeouts}}}\n    \
             filters: [{{type: URLRewrite, urlRewrite: {{path: {{type: ReplacePrefixMatch, \
             replacePrefixMatch: /delay}}}}}}]\n    backendRefs: [{{name: echo-v1, port: 80}}]\n"
        )
    };
    let rules = [
        rule("/request", "request: 300ms"),
        rule("/backend", "backendRequest: 300ms"),
        rule("/never", "request: 0s"),
    ];
    let bed = RoutesFixture::with_rules(&rules.concat())?;
    for (path, expected) in [
        ("/request/0", "echo-v1"),
        ("/request/5000", "504"),
        ("/backend/0", "echo-v1"),
        ("/backend/5000", "504"),
        ("/never/600", "echo-v1"),
    ] {
        assert_eq!(bed.outcome(&format!("GET {path}"))?, expected, "{path}");
    }
    let seen = bed.v1.count();
    assert_eq!(seen, 5, "a request whose time is over is not sent again");
    Ok(())
}
