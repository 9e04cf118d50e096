//! Tests responses of the mesh itself. `leno-error`, the access log and the metric must name the same cause.

use std::io::{ErrorKind, Read};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use leno_testkit::http1::Response;
use leno_testkit::proxy::Proxy;
use leno_testkit::wait;
use serde_json::Value;

use crate::client;
use crate::fixture::{RoutesFixture, http_route};

/// How long it may take until a line is written and a count is exported.
const LIMIT: Duration = Duration::from_secs(20);

const DOCUMENTS: &str = "
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: none, namespace: t}
spec:
  parentRefs: [{group: '', kind: Service, name: echo, port: 80}]
  rules:
  - matches: [{path: {value: /none}}]
  - matches: [{path: {value: /served}}]
    backendRefs: [{name: echo-v1, port: 80}]
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: fault, namespace: t}
spec:
  parentRefs: [{group: '', kind: Service, name: echo, port: 80}]
  rules:
  - matches: [{path: {value: /fault}}]
    backendRefs: [{name: echo-v2, port: 80}]
---
apiVersion: leno.dev/v1alpha1
kind: TrafficPolicy
metadata: {name: fault, namespace: t}
spec:
  targetRefs: [{group: gateway.networking.k8s.io, kind: HTTPRoute, name: fault}]
  faults: {abort: {status: 418, percent: 100}}
";

/// The bytes of a request, the status and the cause of the response, and the method and target in the log.
const REQUESTS: [(&str, u16, &str, [&str; 2]); 7] = [
    ("GET /none HTTP/1.1\r\nHost: echo\r\n\r\n", 500, "no-backend", ["GET", "/none"]),
    ("GET /else HTTP/1.1\r\nHost: echo\r\n\r\n", 404, "no-route-matches", ["GET", "/else"]),
    ("GET /fault HTTP/1.1\r\nHost: echo\r\n\r\n", 418, "fault-abort", ["GET", "/fault"]),
    (
        "POST /served HTTP/1.1\r\nHost: echo\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
        400,
        "content-length-and-transfer-encoding",
        ["", ""],
    ),
    ("GET /served HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400, "host-repeated", ["", ""]),
    ("GET /served HTTP/2.7\r\nHost: echo\r\n\r\n", 505, "version", ["", ""]),
    ("CONNECT echo:80 HTTP/1.1\r\nHost: echo:80\r\n\r\n", 501, "connect", ["CONNECT", "echo:80"]),
];

/// The fields of those lines of the access log that report an error.
pub(super) fn lines(form: &str, log: &str) -> Vec<Vec<(String, String)>> {
    let fields = |line: &str| -> Vec<(String, String)> {
        if form == "json" {
            let Ok(Value::Object(line)) = serde_json::from_str(line) else { return Vec::new() };
            let shown = |value: Value| value.as_str().map_or(value.to_string(), str::to_owned);
            return line.into_iter().map(|(key, value)| (key, shown(value))).collect();
        }
        let pairs = line.split(' ').filter_map(|pair| pair.split_once('='));
        pairs.map(|(key, value)| (key.to_owned(), value.to_owned())).collect()
    };
    let with_error = |line: &Vec<(String, String)>| line.iter().any(|(key, _)| key == "error");
    log.lines().map(fields).filter(with_error).collect()
}

pub(super) fn field<'a>(line: &'a [(String, String)], key: &str) -> Option<&'a str> {
    line.iter().find(|(name, _)| name == key).map(|(_, value)| value.as_str())
}

/// The only line with this cause.
fn line(proxy: &Proxy, form: &str, cause: &str) -> Result<Vec<(String, String)>> {
    let mut log = String::new();
    let found = wait::until("a line of the access log", LIMIT, || {
        log = proxy.log()?;
        let mut found = lines(form, &log);
        found.retain(|line| field(line, "error") == Some(cause));
        ensure!(found.len() < 2, "{cause} has {} lines", found.len());
        Ok(found.pop())
    });
    found.with_context(|| format!("{cause}: {log}"))
}

/// Waits until the proxy has counted exactly one error of this cause.
fn counted(proxy: &Proxy, cause: &str) -> Result<()> {
    let mut counts = String::new();
    let found = wait::until("a count", LIMIT, || {
        let page = client::metrics(proxy)?;
        let of_it = format!("cause=\"{cause}\"");
        let is_it = |line: &&str| line.starts_with("leno_errors_total") && line.contains(&of_it);
        counts = page.lines().filter(is_it).collect::<Vec<_>>().join("\n");
        Ok((counts.ends_with("} 1") && counts.lines().count() == 1).then_some(()))
    });
    found.with_context(|| format!("{cause}: {counts:?}"))
}

fn cause_of(response: &Response) -> Option<&str> {
    response.header("leno-error").and_then(|text| text.split(';').next())
}

fn requests_agree(form: &str) -> Result<()> {
    let bed = RoutesFixture::start_logging(form, DOCUMENTS)?;
    assert_eq!(bed.send("GET /served")?.status, 200);
    for (request, status, cause, [method, target]) in REQUESTS {
        let response = client::raw(bed.proxy.address(), request.as_bytes(), false)?;
        assert_eq!((response.status, cause_of(&response)), (status, Some(cause)), "{request}");
        let line = line(&bed.proxy, form, cause)?;
        assert_eq!(field(&line, "status"), Some(&*status.to_string()), "{line:?}");
        assert_eq!(field(&line, "direction"), Some("outbound"), "{line:?}");
        assert_eq!((field(&line, "method"), field(&line, "target")), (Some(method), Some(target)));
        assert_eq!(field(&line, "protocol").is_some(), !method.is_empty(), "{line:?}");
        counted(&bed.proxy, cause)?;
    }
    Ok(())
}

#[test]
fn causes_of_requests_are_in_the_access_log() -> Result<()> {
    ["text", "json"].into_iter().try_for_each(requests_agree)
}

#[test]
fn lines_of_the_access_log_have_the_fields_that_settings_name() -> Result<()> {
    let route = "  - backendRefs: [{name: echo-v2, port: 80}]\n";
    for (settings, wanted) in [
        (
            "text:%status% \"%method% %path%\" %header(user-agent)% %route% %error%",
            "200 \"GET /a\" me%20too HTTPRoute%20t/route%20rule%200 -\n",
        ),
        (
            "json:code=status,target,header(authorization),retries,header(absent),authority",
            "{\"code\":200,\"target\":\"/a?b&token=(masked)\",\"authorization\":\"(masked)\",\
             \"retries\":0,\"authority\":\"echo\"}\n",
        ),
    ] {
        let bed = RoutesFixture::start_logging(settings, &http_route("route", route))?;
        let request = "GET /a?b&token=hidden HTTP/1.1\r\nHost: echo\r\nUser-Agent: me too\r\n\
                       Authorization: Bearer hidden\r\nConnection: close\r\n\r\n";
        let response = client::raw(bed.proxy.address(), request.as_bytes(), false)?;
        ensure!(response.status == 200, "{response:?}");
        let mut log = String::new();
        let found = wait::until("a line of the access log", LIMIT, || {
            log = bed.proxy.log()?;
            Ok(log.contains(wanted).then_some(()))
        });
        found.with_context(|| format!("{settings}: {log}"))?;
    }
    Ok(())
}

/// Malformed requests at the inbound side. Bytes that do not look like HTTP/1 are forwarded there as opaque.
#[test]
fn causes_of_requests_are_in_the_access_log_of_the_servers_side() -> Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let application = listener.local_addr()?;
    let proxy = Proxy::start_logging("json", |address, admin| {
        format!(
            "apiVersion: leno.dev/v1alpha1\nkind: Proxy\nmetadata: {{name: test, namespace: t}}\n\
             spec: {{workers: 1, admin: \"{admin}\", mtls: disabled, \
             inbound: {{listen: \"{address}\", application: \"{application}\"}}}}\n"
        )
    })?;
    for (request, status, cause, _) in REQUESTS.into_iter().skip(3).take(2) {
        let response = client::raw(proxy.address(), request.as_bytes(), false)?;
        assert_eq!((response.status, cause_of(&response)), (status, Some(cause)), "{request}");
        let line = line(&proxy, "json", cause)?;
        assert_eq!(field(&line, "status"), Some(&*status.to_string()), "{line:?}");
        assert_eq!(field(&line, "direction"), Some("inbound"), "{line:?}");
        counted(&proxy, cause)?;
    }
    Ok(())
}

/// The proxy cannot send an error to a TCP client. The connection must be reset, logged and counted.
#[test]
fn refused_connections_are_in_the_access_log() -> Result<()> {
    for (backends, cause) in [
        ("[{name: gone, port: 80}]", "backend-invalid"),
        ("[{name: bytes, port: 80, weight: 0}]", "no-backend"),
        ("[{name: bytes, port: 80}]", "no-endpoints"),
    ] {
        let proxy = Proxy::start_logging("text", |address, admin| {
            format!(
                "apiVersion: leno.dev/v1alpha1\nkind: Proxy\nmetadata: {{name: test, namespace: t}}\n\
                 spec: {{workers: 1, admin: \"{admin}\", mtls: disabled, \
                 outbound: {{listen: \"{address}\", service: \"t/bytes:80\"}}}}\n---\n\
                 apiVersion: v1\nkind: Service\nmetadata: {{name: bytes, namespace: t}}\n\
                 spec: {{clusterIP: 10.96.0.10, ports: [{{name: x, port: 80, appProtocol: tcp}}]}}\n---\n\
                 apiVersion: gateway.networking.k8s.io/v1\nkind: TCPRoute\n\
                 metadata: {{name: bytes, namespace: t}}\nspec:\n  \
                 parentRefs: [{{group: '', kind: Service, name: bytes}}]\n  \
                 rules: [{{backendRefs: {backends}}}]\n"
            )
        })?;
        // The helper that started the proxy has connected once as well, to find out whether it listens.
        let mut client = TcpStream::connect(proxy.address())?;
        client.set_read_timeout(Some(LIMIT))?;
        let ended = client.read(&mut [0]).map_err(|error| error.kind());
        assert_eq!(ended, Err(ErrorKind::ConnectionReset), "{cause}");
        wait::until("two lines of the access log", LIMIT, || {
            let found = lines("text", &proxy.log()?);
            let is_it = |line: &Vec<_>| {
                field(line, "error") == Some(cause)
                    && field(line, "method") == Some("TCP")
                    && field(line, "status").is_none()
            };
            ensure!(found.iter().all(is_it), "{cause}: {found:?}");
            Ok((found.len() == 2).then_some(()))
        })?;
        let page = client::metrics(&proxy)?;
        let mut counts = page.lines().filter(|line| line.starts_with("leno_errors_total"));
        let is_it =
            |line: &str| line.contains(&format!("cause=\"{cause}\"")) && line.ends_with("} 2");
        ensure!(counts.next().is_some_and(is_it) && counts.next().is_none(), "{cause}: {page}");
    }
    Ok(())
}
