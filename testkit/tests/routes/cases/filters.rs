//! Tests filters that change requests and responses.

use std::time::Duration;

use anyhow::Result;
use leno_testkit::wait;

use crate::client;
use crate::fixture::RoutesFixture;

/// How long a mirrored request may take to arrive.
const LIMIT: Duration = Duration::from_secs(20);

const CHANGES: &str = "
    - type: RequestHeaderModifier
      requestHeaderModifier:
        set: [{name: X-Header-Set, value: set-overwrites-values}]
        add: [{name: X-Header-Add, value: header-val-1}]
        remove: [X-Header-Remove]
";

fn rewritten(bed: &RoutesFixture, request: &str) -> Result<String> {
    let response = bed.send(request)?;
    assert_eq!(response.status, 200, "{request}: {}", response.text());
    let text = response.text();
    let line = text.lines().nth(1).unwrap_or_default();
    Ok(line.split(' ').nth(1).unwrap_or_default().to_owned())
}

/// MeshHTTPRouteRequestHeaderModifier and MeshHTTPRouteBackendRequestHeaderModifier: a rule, and a backend of a rule,
/// sets, adds and removes headers of requests. All other headers are kept.
#[test]
fn mesh_http_route_request_header_modifier() -> Result<()> {
    let bed = RoutesFixture::with_rules(&format!(
        "  - matches: [{{path: {{value: /rule}}}}]\n    filters:{CHANGES}    \
         backendRefs: [{{name: echo-v1, port: 80}}]\n  \
         - backendRefs:\n    - name: echo-v2\n      port: 80\n      filters:{}",
        CHANGES.replace("\n    ", "\n      ")
    ))?;
    for (path, server) in [("/rule", &bed.v1), ("/backend", &bed.v2)] {
        let headers = "X-Header-Set: some\nX-Header-Add: own\nX-Header-Remove: gone\nX-Other: kept";
        assert_eq!(bed.send(&format!("GET {path}\n{headers}"))?.status, 200);
        let seen = server.seen().pop().expect("a request");
        assert_eq!(seen.header("x-header-set"), "set-overwrites-values");
        assert_eq!(seen.header("x-header-add"), "own,header-val-1");
        assert_eq!(seen.header("x-header-remove"), "");
        assert_eq!(seen.header("x-other"), "kept");
        assert_eq!(seen.header("host"), "echo");
    }
    Ok(())
}

/// HTTPRouteResponseHeaderModifier, a filter that MeshPorts and MeshFrontend also use: a rule sets, adds and removes
/// headers of responses.
#[test]
fn http_route_response_header_modifier() -> Result<()> {
    let bed = RoutesFixture::with_rules(
        "
  - filters:
    - type: ResponseHeaderModifier
      responseHeaderModifier:
        set: [{name: X-Header-Set, value: set}]
        add: [{name: X-Header-Add, value: add}]
        remove: [X-Header-Remove]
    backendRefs: [{name: echo-v1, port: 80}]
",
    )?;
    let response = bed.send("GET /")?;
    let all = |name: &str| -> Vec<&str> {
        let of_name = response.headers.iter().filter(|(given, _)| given == name);
        of_name.map(|(_, value)| value.as_str()).collect()
    };
    assert_eq!(all("x-header-set"), ["set"]);
    assert_eq!(all("x-header-add"), ["original", "add"]);
    assert_eq!(all("x-header-remove"), [""; 0]);
    Ok(())
}

/// MeshHTTPRouteRewritePath, HTTPRouteRewriteHost and HTTPRouteBackendURLRewrite: the server receives the new path with
/// the old query, the new host, and also the changes of other filters of the rule.
#[test]
fn mesh_http_route_rewrite_path() -> Result<()> {
    let bed = RoutesFixture::with_rules(&format!(
        "
  - matches: [{{path: {{value: /prefix/one}}}}]
    filters: [{{type: URLRewrite, urlRewrite: {{path: {{type: ReplacePrefixMatch, replacePrefixMatch: /one}}}}}}]
    backendRefs: [{{name: echo-v1, port: 80}}]
  - matches: [{{path: {{value: /strip-prefix}}}}]
    filters: [{{type: URLRewrite, urlRewrite: {{path: {{type: ReplacePrefixMatch, replacePrefixMatch: /}}}}}}]
    backendRefs: [{{name: echo-v1, port: 80}}]
  - matches: [{{path: {{value: /full/one}}}}]
    filters:{CHANGES}    - type: URLRewrite
      urlRewrite: {{hostname: one.example.org, path: {{type: ReplaceFullPath, replaceFullPath: /one}}}}
    backendRefs: [{{name: echo-v1, port: 80}}]
"
    ))?;
    for (request, expected) in [
        ("GET /prefix/one/two", "/one/two"),
        ("GET /prefix/one?q=1", "/one?q=1"),
        ("GET /strip-prefix/three", "/three"),
        ("GET /strip-prefix", "/"),
        ("GET /full/one/two", "/one"),
        ("GET http://echo/prefix/one/two", "http://echo/one/two"),
        ("GET http://echo/full/one/two", "/one"),
    ] {
        assert_eq!(rewritten(&bed, request)?, expected, "{request}");
    }
    rewritten(&bed, "GET /full/one")?;
    let seen = bed.v1.seen().pop().expect("a request");
    assert_eq!(seen.header("host"), "one.example.org");
    assert_eq!(seen.header("x-header-set"), "set-overwrites-values");
    Ok(())
}

/// HTTPRouteCORS: the proxy answers preflights itself, with permissions only for allowed origins, and adds headers to
/// the responses to all other requests of these origins.
#[test]
fn http_route_cors() -> Result<()> {
    let bed = RoutesFixture::with_rules(
        "
  - filters:
    - type: CORS
      cors:
        allowOrigins: [https://www.foo.com, 'https://*.bar.com']
        allowMethods: [GET, OPTIONS]
        allowHeaders: [x-header-1]
        exposeHeaders: [x-header-3]
        allowCredentials: true
        maxAge: 3600
    backendRefs: [{name: echo-v1, port: 80}]
",
    )?;
    let asks = "Access-Control-Request-Method: GET";
    let response = bed.send(&format!("OPTIONS /\nOrigin: https://a.bar.com\n{asks}"))?;
    assert_eq!((response.status, bed.v1.count()), (204, 0));
    for (name, expected) in [
        ("access-control-allow-origin", "https://a.bar.com"),
        ("access-control-allow-methods", "GET, OPTIONS"),
        ("access-control-allow-headers", "x-header-1"),
        ("access-control-allow-credentials", "true"),
        ("access-control-max-age", "3600"),
    ] {
        assert_eq!(response.header(name), Some(expected), "{name}");
    }
    let response = bed.send(&format!("OPTIONS /\nOrigin: https://evil.com\n{asks}"))?;
    assert_eq!(response.status, 204);
    assert_eq!(response.header("access-control-allow-origin"), None);
    let response = bed.send("GET /\nOrigin: https://www.foo.com")?;
    assert_eq!(response.header("access-control-allow-origin"), Some("https://www.foo.com"));
    assert_eq!(response.header("access-control-expose-headers"), Some("x-header-3"));
    assert_eq!(response.header("vary"), Some("Origin"));
    // An OPTIONS request that is no preflight is forwarded to the application.
    assert_eq!(bed.outcome("OPTIONS /\nOrigin: https://www.foo.com")?, "echo-v1");
    Ok(())
}

/// HTTPRouteRequestMirror, HTTPRouteRequestMultipleMirrors and HTTPRouteRequestPercentageMirror: one mirror gets a copy
/// of each request with its body and changed headers, and a mirror with 0 % gets none. The client gets the response of
/// the backend.
#[test]
fn http_route_request_mirror() -> Result<()> {
    let bed = RoutesFixture::with_rules(
        "
  - filters:
    - type: RequestMirror
      requestMirror: {backendRef: {name: echo-v2, port: 80}}
    - type: RequestMirror
      requestMirror: {backendRef: {name: echo, port: 80}, percent: 0}
    - type: RequestHeaderModifier
      requestHeaderModifier: {set: [{name: X-Header-Set, value: set}]}
    backendRefs: [{name: echo-v1, port: 80}]
",
    )?;
    assert_eq!(bed.outcome("GET /first")?, "echo-v1");
    assert_eq!(bed.outcome("POST /second\nContent-Length: 0")?, "echo-v1");
    let body = "x".repeat(1000);
    let post = format!("POST /body HTTP/1.1\r\nHost: echo\r\nContent-Length: 1000\r\n\r\n{body}");
    assert_eq!(client::raw(bed.proxy.address(), post.as_bytes(), false)?.status, 200);
    let seen = wait::until("the copies", LIMIT, || {
        let seen = bed.v2.seen();
        Ok((seen.len() == 3).then_some(seen))
    })?;
    let mut lines: Vec<_> = seen.iter().map(|seen| seen.line.as_str()).collect();
    lines.sort_unstable();
    assert_eq!(lines, ["GET /first HTTP/1.1", "POST /body HTTP/1.1", "POST /second HTTP/1.1"]);
    assert!(seen.iter().all(|seen| seen.header("x-header-set") == "set"));
    assert_eq!(seen.iter().map(|seen| seen.body.len()).sum::<usize>(), 1000);
    // A request that is too large to be mirrored is served nevertheless, and is counted.
    let body = "x".repeat(100_000);
    let post =
        format!("POST /large HTTP/1.1\r\nHost: echo\r\nContent-Length: 100000\r\n\r\n{body}");
    assert_eq!(client::raw(bed.proxy.address(), post.as_bytes(), false)?.status, 200);
    assert_eq!(bed.v1.seen().pop().map(|seen| seen.body.len()), Some(100_000));
    let expected = [("sent", 3), ("too_large", 1), ("failed", 0), ("too_many", 0)].map(|(result, count)| {
        format!("leno_mirrored_requests_total{{direction=\"outbound\",result=\"{result}\"}} {count}\n")
    });
    wait::until("the counts of copies", LIMIT, || {
        let metrics = bed.metrics()?;
        Ok(expected.iter().all(|line| metrics.contains(line)).then_some(()))
    })?;
    assert_eq!((bed.v1.count(), bed.echo.count()), (4, 0));
    Ok(())
}
