//! Tests retries by the rules of a route (GEP-1731).

use anyhow::Result;

use crate::fixture::RoutesFixture;

fn rule(path: &str, retry: &str, timeouts: &str) -> String {
    format!(
        "  - matches: [{{path: {{value: {path}}}}}]\n    retry: {{{retry}}}\n    \
         timeouts: {{{timeouts}}}\n    backendRefs: [{{name: echo-v1, port: 80}}]\n"
    )
}

/// Sends a request to a target that fails a number of times. Checks the outcome, and how many times the request
/// was sent.
fn expect(bed: &RoutesFixture, target: &str, expected: &str, sent: usize) -> Result<()> {
    assert_eq!(bed.outcome(&format!("GET {target}"))?, expected, "{target}");
    assert_eq!(bed.v1.tries(target), sent, "{target}");
    Ok(())
}

/// HTTPRouteRetry: only the listed statuses are retried, and at most as often as the rule says; then the client gets
/// the last status.
#[test]
fn http_route_retry() -> Result<()> {
    let rules = [
        rule("/retry/code-500-attempts-3", "codes: [500], attempts: 3, backoff: 1ms", ""),
        rule(
            "/retry/code-all-attempts-2",
            "codes: [500, 502, 503, 504], attempts: 2, backoff: 1ms",
            "",
        ),
    ];
    let bed = RoutesFixture::with_rules(&rules.concat())?;
    let three = "/retry/code-500-attempts-3";
    expect(&bed, &format!("{three}?code=500&after=2"), "echo-v1", 3)?;
    expect(&bed, &format!("{three}?code=500&after=4"), "500", 4)?;
    expect(&bed, &format!("{three}?code=503&after=2"), "503", 1)?;
    let all = "/retry/code-all-attempts-2";
    for code in [500, 502, 503, 504] {
        expect(&bed, &format!("{all}?code={code}&after=1"), "echo-v1", 2)?;
        expect(&bed, &format!("{all}?code={code}&after=3"), &code.to_string(), 3)?;
    }
    // A POST is sent only once.
    let target = format!("{all}?code=503&after=1&post");
    assert_eq!(bed.outcome(&format!("POST {target}"))?, "503");
    assert_eq!(bed.v1.tries(&target), 1);
    Ok(())
}

/// HTTPRouteRetryConnectionError: a connection that the server closes instead of a response is retried without a list
/// of statuses. If all attempts fail, the client gets 502.
#[test]
fn http_route_retry_connection_error() -> Result<()> {
    let bed = RoutesFixture::with_rules(&rule("/retry", "attempts: 2, backoff: 1ms", ""))?;
    expect(&bed, "/retry?after=1", "echo-v1", 2)?;
    expect(&bed, "/retry?after=2", "echo-v1", 3)?;
    expect(&bed, "/retry?after=3", "502", 3)
}

/// HTTPRouteRetryWithTimeouts: `backendRequest` limits each attempt, and an attempt that is too late is retried.
/// `request` limits all attempts together.
#[test]
fn http_route_retry_with_timeouts() -> Result<()> {
    let retry = "codes: [500], attempts: 2, backoff: 1ms";
    let rules = [
        rule("/retry/backend", retry, "backendRequest: 700ms"),
        rule("/retry/request", "codes: [500], attempts: 5, backoff: 1ms", "request: 2s"),
    ];
    let bed = RoutesFixture::with_rules(&rules.concat())?;
    expect(&bed, "/retry/backend?code=500&after=2&delay=2000", "echo-v1", 3)?;
    expect(&bed, "/retry/backend?code=500&after=3&delay=2000", "504", 3)?;
    expect(&bed, "/retry/request?code=500&after=1", "echo-v1", 2)?;
    let target = "/retry/request?code=500&after=5&delay=800";
    assert_eq!(bed.outcome(&format!("GET {target}"))?, "504");
    assert!(bed.v1.tries(target) < 5, "{} tries", bed.v1.tries(target));
    Ok(())
}
