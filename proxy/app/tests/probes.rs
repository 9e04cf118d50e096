//! Probes that the test sends to the real proxy as the kubelet would, and real servers that the proxy probes.
#![expect(clippy::unwrap_used, reason = "tests")]

use std::convert::Infallible;
use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::{Value, json};
use tempfile::TempDir;

const LIMIT: Duration = Duration::from_secs(30);

/// A process that is ended with the test.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        // Both fail only if the process has already ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A proxy with probes, without an inbound listener.
struct Proxy {
    admin: SocketAddr,
    _process: Process,
    _directory: TempDir,
}

impl Proxy {
    fn start(probes: &Value) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let (admin, outbound) = (free(), free());
        let file = directory.path().join("proxy.yaml");
        let document = format!(
            "apiVersion: leno.dev/v1alpha1\nkind: Proxy\nmetadata: {{name: web, namespace: shop}}\n\
             spec: {{admin: \"{admin}\", mtls: disabled, outbound: {{listen: \"{outbound}\"}}}}\n"
        );
        fs::write(&file, document).unwrap();
        let child = Command::new(env!("CARGO_BIN_EXE_leno-proxy"))
            .arg("--static")
            .arg(&file)
            .env("LENO_PROBES", probes.to_string())
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        let proxy = Self { admin, _process: Process(child), _directory: directory };
        // The same program, run as a hook, waits until the proxy is ready.
        let hook = Command::new(env!("CARGO_BIN_EXE_leno-proxy"))
            .args(["--hook", "started", "--admin", &admin.to_string()])
            .status();
        assert!(hook.unwrap().success());
        proxy
    }

    /// The status and the body of an admin page.
    fn page(&self, path: &str) -> (u16, String) {
        let mut stream = TcpStream::connect(self.admin).unwrap();
        let request = format!(
            "GET {path} HTTP/1.1\r\nHost: localhost\r\nUser-Agent: kube-probe/1.36\r\nConnection: close\r\n\r\n"
        );
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
    }

    fn probe(&self, path: &str) -> (u16, String) {
        let (status, body) = self.page(&format!("/probe/{path}"));
        (status, body.trim_end().to_owned())
    }
}

/// A port on which nothing listens. It is below the range from which the kernel chooses ports for connections and for
/// listeners on port 0. A port of that range could be used again by another test before the proxy listens on it.
fn free() -> SocketAddr {
    static TRIED: AtomicU32 = AtomicU32::new(0);
    let first = std::process::id().wrapping_mul(64);
    loop {
        let nth = first.wrapping_add(TRIED.fetch_add(1, Ordering::Relaxed)) % 20_000;
        let address = SocketAddr::from(([127, 0, 0, 1], 10_000 + u16::try_from(nth).unwrap()));
        if TcpListener::bind(address).is_ok() {
            return address;
        }
    }
}

fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let began = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(began.elapsed() < LIMIT, "{what}: not within {LIMIT:?}");
        thread::yield_now();
    }
}

/// Debian's nginx with HTTP and HTTPS; `None` if it is not installed, in which case a skip is printed.
fn nginx(directory: &TempDir) -> Option<(Process, u16, u16)> {
    let places = ["/usr/sbin/nginx", "/usr/bin/nginx", "/usr/local/sbin/nginx"].map(PathBuf::from);
    let Some(nginx) = places.into_iter().find(|path| path.exists()) else {
        let required = std::env::var("LENO_REQUIRE").is_ok_and(|all| all.contains("servers"));
        assert!(!required, "LENO_REQUIRE has servers, and there is no nginx");
        println!("skipped: needs nginx");
        return None;
    };
    let made = rcgen::generate_simple_self_signed(vec!["nobody.test".to_owned()]).unwrap();
    let path = directory.path();
    fs::write(path.join("cert.pem"), made.cert.pem()).unwrap();
    fs::write(path.join("key.pem"), made.signing_key.serialize_pem()).unwrap();
    let (http, https) = (free(), free());
    let config = format!(
        "worker_processes 1; daemon off; master_process off; pid {0}/pid; error_log stderr;\n\
         events {{}}\n\
         http {{ access_log off; client_body_temp_path {0}/b; proxy_temp_path {0}/p;\n\
         fastcgi_temp_path {0}/f; uwsgi_temp_path {0}/u; scgi_temp_path {0}/s;\n\
         server {{ listen {http}; listen {https} ssl;\n\
         ssl_certificate {0}/cert.pem; ssl_certificate_key {0}/key.pem;\n\
         location = /good {{ return 200; }} location = /gone {{ return 302 http://{http}/bad; }}\n\
         location = /bad {{ return 500; }}\n\
         location = /named {{ if ($http_x_probe = yes) {{ return 204; }} return 400; }}\n\
         location = /host {{ if ($http_host = shop.test) {{ return 200; }} return 421; }}\n\
         location = /agent {{ if ($http_user_agent = kube-probe/1.36) {{ return 200; }} return 403; }}\n\
         }} }}\n",
        path.display()
    );
    fs::write(path.join("nginx.conf"), config).unwrap();
    let child = Command::new(nginx)
        .args(["-e", "stderr", "-c"])
        .arg(path.join("nginx.conf"))
        .stdin(Stdio::null())
        .spawn()
        .unwrap();
    let process = Process(child);
    until("nginx listens", || TcpStream::connect(https).ok());
    Some((process, http.port(), https.port()))
}

/// A server of gRPC's health check that reports one service as healthy, another one as unhealthy, and any other as
/// unknown.
fn health() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let listener = tokio::net::TcpListener::from_std(listener).unwrap();
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let server = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
                tokio::spawn(server.serve_connection(TokioIo::new(stream), service_fn(checked)));
            }
        });
    });
    address
}

async fn checked(
    request: Request<Incoming>,
) -> Result<Response<impl hyper::body::Body<Data = Bytes, Error = Infallible>>, hyper::Error> {
    assert_eq!(request.uri().path(), "/grpc.health.v1.Health/Check");
    assert_eq!(request.headers()["content-type"], "application/grpc");
    assert_eq!(request.headers()["te"], "trailers");
    let message = request.into_body().collect().await?.to_bytes();
    assert_eq!(message[0], 0, "not compressed");
    assert_eq!(u32::from_be_bytes(message[1..5].try_into().unwrap()) as usize, message.len() - 5);
    let service = message.get(7..).unwrap_or_default();
    let (status, body): (&str, &[u8]) = match service {
        b"" | b"shop.Stock" => ("0", &[0, 0, 0, 0, 2, 8, 1]),
        b"shop.Ill" => ("0", &[0, 0, 0, 0, 2, 8, 2]),
        _ => ("5", &[]),
    };
    let trailers = hyper::HeaderMap::from_iter([(
        "grpc-status".parse::<hyper::header::HeaderName>().unwrap(),
        status.parse().unwrap(),
    )]);
    let body = Full::new(Bytes::copy_from_slice(body));
    let body = body.with_trailers(async move { Some(Ok(trailers)) });
    Ok(Response::builder().header("content-type", "application/grpc").body(body).unwrap())
}

#[test]
fn http_and_https_are_asked_as_the_kubelet_would() {
    let directory = tempfile::tempdir().unwrap();
    let Some((_nginx, http, https)) = nginx(&directory) else { return };
    let get = |path: &str, port: u16| {
        let asked = json!({"path": path, "port": "http"});
        json!({"httpGet": asked, "port": port, "timeoutSeconds": LIMIT.as_secs()})
    };
    let mut secure = get("/good", https);
    secure["httpGet"]["scheme"] = json!("HTTPS");
    let mut named = get("/named", http);
    named["httpGet"]["httpHeaders"] = json!([{"name": "X-Probe", "value": "yes"}]);
    let mut host = get("host", http);
    host["httpGet"]["httpHeaders"] = json!([{"name": "host", "value": "shop.test"}]);
    let dead = free().port();
    let proxy = Proxy::start(&json!({
        "web/liveness": get("/good", http), "web/readiness": get("/bad", http),
        "web/startup": get("/gone", http), "secure/liveness": secure,
        "plain/liveness": get("/good", https), "named/liveness": named, "host/liveness": host,
        "agent/liveness": get("/agent", http), "dead/liveness": get("/good", dead),
        "odd/liveness": get("/ö\u{7f}", http),
    }));
    let good = |path: &str, status: u16| {
        assert_eq!(proxy.probe(path), (200, format!("the application answered {status}")));
    };
    good("web/liveness", 200);
    good("web/startup", 302);
    good("secure/liveness", 200);
    good("named/liveness", 204);
    good("host/liveness", 200);
    good("agent/liveness", 200);
    let answer = "the application answered 500".to_owned();
    assert_eq!(proxy.probe("web/readiness"), (503, answer));
    let answer = "the application answered 400".to_owned();
    assert_eq!(
        proxy.probe("plain/liveness"),
        (503, answer),
        "HTTPS is asked only where it is said"
    );
    let (status, reason) = proxy.probe("dead/liveness");
    assert!(status == 503 && reason.contains("cannot connect to the application"), "{reason}");
    assert_eq!(proxy.probe("odd/liveness").0, 503);
    assert_eq!(proxy.probe("web/other"), (404, "there is no such probe".to_owned()));
    assert_eq!(proxy.page("/probes").0, 404);

    let metrics = proxy.page("/metrics").1;
    for line in
        ["leno_probes_total{result=\"success\"} 6", "leno_probes_total{result=\"failure\"} 4"]
    {
        assert!(metrics.contains(line), "{line}: {metrics}");
    }
}

#[test]
fn grpc_and_tcp_are_asked_and_silence_has_an_end() {
    let port = health().port();
    let patience = LIMIT.as_secs();
    let check = |service: &str| {
        let asked = json!({"port": port, "service": service});
        json!({"grpc": asked, "port": port, "timeoutSeconds": patience})
    };
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let silent_port = silent.local_addr().unwrap().port();
    let proxy = Proxy::start(&json!({
        "all/liveness": {"grpc": {"port": port}, "port": port, "timeoutSeconds": patience},
        "stock/liveness": check("shop.Stock"), "ill/liveness": check("shop.Ill"),
        "other/liveness": check("shop.Other"),
        "tcp/liveness": {"tcpSocket": {"port": port}, "port": port, "timeoutSeconds": patience},
        "dead/liveness": {"tcpSocket": {"port": 1}, "port": free().port()},
        "silent/liveness": {"httpGet": {"path": "/"}, "port": silent_port, "timeoutSeconds": 1},
        "silent/readiness": {"grpc": {}, "port": silent_port, "timeoutSeconds": 1},
    }));
    let answer = |text: &str| text.to_owned();
    assert_eq!(proxy.probe("all/liveness"), (200, answer("the application reports SERVING")));
    assert_eq!(proxy.probe("stock/liveness"), (200, answer("the application reports SERVING")));
    assert_eq!(proxy.probe("ill/liveness"), (503, answer("the application reports NOT_SERVING")));
    assert_eq!(proxy.probe("other/liveness"), (503, answer("the application's grpc-status is 5")));
    assert_eq!(proxy.probe("tcp/liveness"), (200, answer("connected")));
    assert_eq!(proxy.probe("dead/liveness").0, 503);
    for kind in ["liveness", "readiness"] {
        let silence = answer("the application did not answer within 1s");
        assert_eq!(proxy.probe(&format!("silent/{kind}")), (503, silence));
    }
}

#[test]
fn what_injection_writes_is_read_and_what_is_no_probe_is_not() {
    // The same JSON is in control/admission/tests/golden/probes.out.yaml.
    let written = "{\"api/liveness\":{\"grpc\":{\"port\":9000,\"service\":\"shop.Stock\"},\"port\":9000,\
                   \"timeoutSeconds\":1},\"web/liveness\":{\"httpGet\":{\"path\":\"/healthz?cost=\\u00245\",\
                   \"port\":\"health\",\"scheme\":\"HTTPS\",\"httpHeaders\":[{\"name\":\"X-Probe\",\
                   \"value\":\"yes\"}]},\"port\":8443,\"timeoutSeconds\":5}}";
    let proxy = Proxy::start(&serde_json::from_str(written).unwrap());
    assert_eq!(proxy.probe("web/liveness").0, 503, "it is known, and nobody is there");
    for wrong in ["x", "[]", "{\"a/b\":{\"port\":1}}", "{\"a/b\":{\"tcpSocket\":{}}}"] {
        let refused = Command::new(env!("CARGO_BIN_EXE_leno-proxy"))
            .args(["--static", "/dev/null", "--probes", wrong])
            .output()
            .unwrap();
        assert_eq!(refused.status.code(), Some(64), "{wrong}: {refused:?}");
    }
}

#[test]
fn a_stalled_probe_and_concurrent_ones_delay_no_other_answer() {
    let application = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = application.local_addr().unwrap().port();
    let probe = json!({"httpGet": {"path": "/"}, "port": port, "timeoutSeconds": 50});
    let proxy = Proxy::start(&json!({"web/liveness": probe}));
    let request =
        "GET /probe/web/liveness HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    let mut callers: Vec<TcpStream> = (0..12)
        .map(|_| {
            let mut caller = TcpStream::connect(proxy.admin).unwrap();
            caller.write_all(request.as_bytes()).unwrap();
            caller
        })
        .collect();
    let (mut asked, _) = application.accept().unwrap();
    // The other connections have sent their requests before this one, which is answered all the same.
    assert_eq!(proxy.page("/live").0, 200);
    let mut more: Vec<TcpStream> = Vec::new();
    until("connections of one address have an end", || {
        let mut one = TcpStream::connect(proxy.admin).unwrap();
        one.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
        let closed = matches!(one.read(&mut [0]), Ok(0))
            || one.read(&mut [0]).is_err_and(|error| error.kind() == ErrorKind::ConnectionReset);
        more.push(one);
        (closed && more.len() <= 20).then_some(())
    });
    drop(more);
    asked.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").unwrap();
    for caller in &mut callers {
        let mut answer = String::new();
        caller.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    }
    until("the callers shared one probe", || {
        let metrics = proxy.page("/metrics").1;
        metrics.contains("leno_probes_total{result=\"shared\"} 11").then_some(())
    });
    application.set_nonblocking(true).unwrap();
    assert!(application.accept().is_err(), "the application was asked once");
}
