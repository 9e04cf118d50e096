//! Tests requests that the mesh redirects.

use anyhow::Result;

use crate::fixture::RoutesFixture;

/// MeshHTTPRouteRedirectHostAndStatus, MeshHTTPRouteRedirectPath, MeshHTTPRouteRedirectPort,
/// MeshHTTPRouteSchemeRedirect, MeshHTTPRoute303Redirect, MeshHTTPRoute307Redirect, MeshHTTPRoute308Redirect: the proxy
/// redirects with the status of the filter, 302 by default. `Location` keeps what the filter does not set, and the
/// query. No server receives the request.
#[test]
fn mesh_http_route_redirect() -> Result<()> {
    let replaced = "path: {type: ReplacePrefixMatch, replacePrefixMatch: /new}";
    let table = [
        ("/host", "hostname: example.org", 302, "http://example.org/host/x?q=1"),
        ("/moved", "hostname: example.org, statusCode: 301", 301, "http://example.org/moved/x?q=1"),
        ("/other", "statusCode: 303", 303, "http://echo/other/x?q=1"),
        ("/keep", "statusCode: 307", 307, "http://echo/keep/x?q=1"),
        ("/perm", "statusCode: 308", 308, "http://echo/perm/x?q=1"),
        ("/prefix", replaced, 302, "http://echo/new/x?q=1"),
        (
            "/full",
            "path: {type: ReplaceFullPath, replaceFullPath: /all}",
            302,
            "http://echo/all?q=1",
        ),
        ("/port", "port: 8083", 302, "http://echo:8083/port/x?q=1"),
        ("/scheme", "scheme: https", 302, "https://echo/scheme/x?q=1"),
        ("/both", "scheme: https, port: 8443", 302, "https://echo:8443/both/x?q=1"),
    ];
    let rule = |(path, redirect, ..): &(&str, &str, u16, &str)| {
        format!(
            "  - matches: [{{path: {{value: {path}}}}}]\n    \
             filters: [{{type: RequestRedirect, requestRedirect: {{{redirect}}}}}]\n"
        )
    };
    let bed = RoutesFixture::with_rules(&table.iter().map(rule).collect::<String>())?;
    for (path, _, status, location) in table {
        let response = bed.send(&format!("GET {path}/x?q=1"))?;
        assert_eq!((response.status, response.header("location")), (status, Some(location)));
        assert_eq!(response.header("leno-error"), None, "a redirect is no error");
    }
    assert_eq!((bed.echo.count(), bed.v1.count()), (0, 0));
    Ok(())
}
