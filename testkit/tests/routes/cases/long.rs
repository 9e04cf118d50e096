//! Tests responses of the mesh itself that are as long as the requests that they repeat.

use std::net::SocketAddr;

use anyhow::{Context, Result};
use http::Request;
use tokio::net::TcpStream;

use crate::client;
use crate::fixture::RoutesFixture;

/// A rule that redirects everything below `/moved`, and a rule for everything else with CORS, which repeats the
/// origin.
const RULES: &str = "
  - matches: [{path: {value: /moved}}]
    filters: [{type: RequestRedirect, requestRedirect: {scheme: https}}]
  - filters:
    - type: CORS
      cors: {allowOrigins: ['*'], allowMethods: [GET], allowHeaders: ['*'], allowCredentials: true}
    backendRefs: [{name: echo-v1, port: 80}]
";

/// A request, the status of its response, and the response header that repeats a part of the
/// request.
struct Row {
    method: &'static str,
    host: String,
    path: String,
    headers: Vec<(&'static str, String)>,
    status: u16,
    echo: (&'static str, String),
}

fn redirected(host: usize, path: usize) -> Row {
    let (host, path) = ("h".repeat(host), format!("/moved/{}", "p".repeat(path)));
    let echo = ("location", format!("https://{host}{path}"));
    Row { method: "GET", host, path, headers: Vec::new(), status: 302, echo }
}

/// The proxy responds to a preflight (OPTIONS), and the application responds to a GET.
fn from_origin(method: &'static str, origin: usize, asked: usize) -> Row {
    let origin = format!("https://{}", "o".repeat(origin));
    let mut headers = vec![("origin", origin.clone())];
    let mut echo = ("access-control-allow-origin", origin);
    if method == "OPTIONS" {
        let asked = "x".repeat(asked);
        headers.push(("access-control-request-method", "GET".to_owned()));
        headers.push(("access-control-request-headers", asked.clone()));
        echo = ("access-control-allow-headers", asked);
    }
    let status = if method == "OPTIONS" { 204 } else { 200 };
    Row { method, host: "echo".to_owned(), path: "/".to_owned(), headers, status, echo }
}

/// Rows with lengths near the sizes of buffers (4, 16 and 64 KiB), and up to the limits of a head.
fn rows() -> Vec<Row> {
    vec![
        redirected(4, 1_000),
        redirected(4, 16_150),
        redirected(4, 17_000),
        redirected(4, 32_000),
        redirected(30_000, 30_000),
        redirected(60_000, 10),
        from_origin("OPTIONS", 17_000, 10),
        from_origin("OPTIONS", 30_000, 30_000),
        from_origin("GET", 17_000, 0),
        from_origin("GET", 60_000, 0),
    ]
}

/// Regression: rendering such a response into a buffer of 16 KiB ended the proxy with all its
/// connections.
#[test]
fn an_answer_as_long_as_its_request_ends_no_proxy() -> Result<()> {
    let bed = RoutesFixture::with_rules(RULES)?;
    let to = bed.proxy.address();
    let upload = b"POST /upload HTTP/1.1\r\nHost: echo\r\nContent-Length: 4\r\n\r\nab";
    let upload = client::begin(to, upload)?;
    for row in rows() {
        let headers = row.headers.iter().map(|(name, value)| format!("{name}: {value}\n"));
        let headers: String = headers.collect();
        let request = format!("{} {}\nhost: {}\n{headers}", row.method, row.path, row.host);
        let response = bed.send(&request)?;
        let echoed = response.header(row.echo.0);
        assert_eq!((response.status, echoed), (row.status, Some(&*row.echo.1)), "HTTP/1.1");
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(http2(to))?;
    let response = client::finish(upload, b"cd", false)?;
    assert_eq!(
        (response.status, bed.v1.seen().last().map(|seen| seen.body.clone())),
        (200, Some(b"abcd".to_vec()))
    );
    Ok(())
}

/// Sends the requests that the proxy itself answers, on one HTTP/2 connection.
async fn http2(to: SocketAddr) -> Result<()> {
    let stream = TcpStream::connect(to).await?;
    let (mut requests, connection) = h2::client::handshake(stream).await?;
    let driver = tokio::spawn(connection);
    for row in rows().into_iter().filter(|row| row.status != 200) {
        let uri = format!("http://{}{}", row.host, row.path);
        let mut request = Request::builder().method(row.method).uri(uri);
        for (name, value) in &row.headers {
            request = request.header(*name, value);
        }
        requests = requests.ready().await?;
        let (response, _) = requests.send_request(request.body(())?, true)?;
        let response = response.await.with_context(|| format!("{} of HTTP/2", row.echo.0))?;
        let echoed = response.headers().get(row.echo.0).map(|value| value.as_bytes());
        let expected = (row.status, Some(row.echo.1.as_bytes()));
        assert_eq!((response.status().as_u16(), echoed), expected, "HTTP/2");
    }
    drop(requests);
    driver.abort();
    Ok(())
}
