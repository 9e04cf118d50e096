//! Tests the real proxy with a small memory budget, and with clients that do not read their responses.
#![expect(clippy::unwrap_used, reason = "tests")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use leno_testkit::proxy::free_address;

const BUDGET: usize = 4 * 1024 * 1024;
const GET: &[u8] = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n";
/// The size of a large response: more than the kernel buffers for a client that does not read.
const BODY: usize = 64 * 1024 * 1024;
/// The number of clients, which is more than the budget has room for.
const CLIENTS: usize = 400;
const LIMIT: Duration = Duration::from_secs(30);

struct Proxy {
    child: Child,
    address: SocketAddr,
    admin: SocketAddr,
    _directory: tempfile::TempDir,
}

impl Drop for Proxy {
    fn drop(&mut self) {
        // Both fail only if the process has already ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Proxy {
    fn start(server: SocketAddr) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let (address, admin) = (free_address().unwrap(), free_address().unwrap());
        let file = directory.path().join("proxy.yaml");
        std::fs::write(&file, documents(address, admin, server)).unwrap();
        let child = Command::new(env!("CARGO_BIN_EXE_leno-proxy"))
            .arg("--static")
            .arg(&file)
            .args(["--memory-budget", "4Mi"])
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        let proxy = Self { child, address, admin, _directory: directory };
        until("the proxy listens", || TcpStream::connect(address).ok());
        proxy
    }

    /// Opens a connection and sends a request. Returns the connection and the status line of the response.
    fn ask(&self) -> Option<(BufReader<TcpStream>, String)> {
        let mut stream = TcpStream::connect(self.address).ok()?;
        stream.write_all(GET).ok()?;
        let mut stream = BufReader::new(stream);
        let line = line(&mut stream)?;
        Some((stream, line))
    }

    fn metric(&self, of: &str) -> f64 {
        let mut stream = TcpStream::connect(self.admin).unwrap();
        stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").unwrap();
        let mut page = String::new();
        stream.read_to_string(&mut page).unwrap();
        let of = |line: &&str| of.split(' ').all(|part| line.contains(part));
        let counts = page.lines().filter(|line| !line.starts_with('#')).filter(of);
        counts.map(|line| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap()).sum()
    }

    fn resident_kib(&self) -> usize {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        line.split_whitespace().next().unwrap().parse().unwrap()
    }
}

fn documents(address: SocketAddr, admin: SocketAddr, server: SocketAddr) -> String {
    let port = server.port();
    format!(
        "apiVersion: leno.dev/v1alpha1\nkind: Proxy\nmetadata: {{name: test, namespace: t}}\n\
         spec:\n  admin: \"{admin}\"\n  mtls: disabled\n  \
         outbound: {{listen: \"{address}\", service: \"t/web:80\"}}\n---\n\
         apiVersion: v1\nkind: Service\nmetadata: {{name: web, namespace: t}}\n\
         spec:\n  clusterIP: 10.96.0.10\n  \
         ports: [{{name: http, port: 80, targetPort: {port}, appProtocol: http}}]\n---\n\
         apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\n\
         metadata: {{name: web-1, namespace: t, labels: {{kubernetes.io/service-name: web}}}}\n\
         addressType: IPv4\nports: [{{name: http, port: {port}, appProtocol: http}}]\n\
         endpoints: [{{addresses: [127.0.0.1], conditions: {{ready: true}}}}]\n"
    )
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

/// The next line; `None` if the connection was reset or has ended.
fn line(stream: &mut impl BufRead) -> Option<String> {
    let mut line = String::new();
    let read = stream.read_line(&mut line).ok()?;
    (read > 0).then(|| line.trim_end().to_owned())
}

fn head(stream: &mut impl BufRead) -> Vec<String> {
    std::iter::from_fn(|| line(stream).filter(|line| !line.is_empty())).collect()
}

/// A server that answers the first request without a body, and all others with a large body.
fn server() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for (number, stream) in listener.incoming().enumerate() {
            let length = if number == 0 { 0 } else { BODY };
            thread::spawn(move || serve(stream.unwrap(), length));
        }
    });
    address
}

fn serve(mut stream: TcpStream, length: usize) {
    let mut requests = BufReader::new(stream.try_clone().unwrap());
    while !head(&mut requests).is_empty() {
        // The server's thread for the first connection must not serve another request, so it closes.
        let connection = if length == 0 { "close" } else { "keep-alive" };
        let head = format!(
            "HTTP/1.1 200 OK\r\nContent-Length: {length}\r\nConnection: {connection}\r\n\r\n"
        );
        let chunk = [b'x'; 64 * 1024];
        let chunks = std::iter::repeat_n(&chunk[..], length / chunk.len());
        let written = std::iter::once(head.as_bytes()).chain(chunks);
        // Writing fails when the client has left.
        let failed = written.map(|bytes| stream.write_all(bytes)).any(|result| result.is_err());
        if failed || length == 0 {
            return;
        }
    }
}

#[test]
fn clients_that_do_not_read_are_refused_at_the_budget_and_harm_no_other() {
    let proxy = Proxy::start(server());
    let (mut early, status) = proxy.ask().unwrap();
    assert_eq!(status, "HTTP/1.1 200 OK");
    head(&mut early);
    let before_kib = proxy.resident_kib();
    let mut lazy = Vec::new();
    let refused = (0..CLIENTS).find(|_| match proxy.ask() {
        Some((stream, status)) if status == "HTTP/1.1 200 OK" => {
            lazy.push(stream);
            false
        }
        _ => true,
    });
    assert!(refused.is_some(), "{CLIENTS} clients fit into the budget");
    assert!(lazy.len() > 4, "{} clients", lazy.len());
    let grown_kib = proxy.resident_kib() - before_kib;
    assert!(grown_kib < 2 * BUDGET / 1024, "{grown_kib} KiB for a budget of {BUDGET} bytes");

    until("the budget stays used up", || {
        proxy.ask().is_none_or(|(_, status)| status != "HTTP/1.1 200 OK").then_some(())
    });
    early.get_mut().write_all(GET).unwrap();
    assert_eq!(line(&mut early).unwrap(), "HTTP/1.1 503 Service Unavailable");
    assert!(head(&mut early).contains(&"leno-error: memory-budget".to_owned()));
    assert!(proxy.metric("leno_connections_refused_total outbound memory-budget") >= 1.0);
    assert!(proxy.metric("leno_errors_total outbound memory-budget") >= 1.0);
    assert!((proxy.metric("leno_memory_budget_bytes") - BUDGET as f64).abs() < 1.0);
    assert!(proxy.metric("leno_memory_charged_bytes") > BUDGET as f64 / 2.0);

    // A response that is being sent is completed.
    let mut first = lazy.swap_remove(0);
    head(&mut first);
    let mut body = vec![0; BODY];
    first.read_exact(&mut body).unwrap();
    assert!(body.iter().all(|byte| *byte == b'x'));
    drop((first, lazy));
    until("there is memory again", || {
        proxy.ask().filter(|(_, status)| status == "HTTP/1.1 200 OK")
    });
}
