//! The admin server of the real proxy, called by an application, by another user, and by the proxy's own user.
#![expect(clippy::unwrap_used, reason = "tests")]

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use leno_testkit::proxy::free_address;

const LIMIT: Duration = Duration::from_secs(30);

struct Proxy {
    child: Child,
    /// The address on which the inbound side listens.
    address: SocketAddr,
    admin: SocketAddr,
    application: TcpListener,
    socket: PathBuf,
    directory: tempfile::TempDir,
}

impl Drop for Proxy {
    fn drop(&mut self) {
        // Both fail only if the process has already ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Proxy {
    fn start() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let (address, admin) = (free_address().unwrap(), free_address().unwrap());
        let application = TcpListener::bind("127.0.0.1:0").unwrap();
        let behind = application.local_addr().unwrap();
        let document = format!(
            "apiVersion: leno.dev/v1alpha1\nkind: Proxy\nmetadata: {{name: web-0, namespace: t}}\n\
             spec:\n  admin: \"{admin}\"\n  mtls: disabled\n  \
             inbound: {{listen: \"{address}\", application: \"{behind}\"}}\n"
        );
        std::fs::write(directory.path().join("proxy.yaml"), document).unwrap();
        let socket = directory.path().join("admin.sock");
        let child = spawn(directory.path(), &socket);
        let proxy = Self { child, address, admin, application, socket, directory };
        until("the proxy is ready", || {
            (proxy.tcp("GET /ready", "localhost")? == 200).then_some(())
        });
        proxy
    }

    /// The status of a response over TCP; `None` if the connection fails.
    fn tcp(&self, what: &str, host: &str) -> Option<u16> {
        Some(ask(TcpStream::connect(self.admin).ok()?, what, host))
    }

    fn has_ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().unwrap()
    }
}

fn spawn(directory: &Path, socket: &Path) -> Child {
    Command::new(env!("CARGO_BIN_EXE_leno-proxy"))
        .arg("--static")
        .arg(directory.join("proxy.yaml"))
        .arg("--admin-socket")
        .arg(socket)
        .stdin(Stdio::null())
        .spawn()
        .unwrap()
}

fn ask(mut stream: impl Read + Write, what: &str, host: &str) -> u16 {
    let request = format!("{what} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer.split(' ').nth(1).unwrap().parse().unwrap()
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

/// CVE-2024-40632 of Linkerd: an application that fetches any URL for its clients could be used to end its proxy.
#[test]
fn a_request_that_an_application_was_tricked_into_does_not_end_the_proxy() {
    let mut proxy = Proxy::start();
    let host = proxy.admin.to_string();
    for target in ["/drain", "/drain?x", "http://127.0.0.1:15020/drain"] {
        assert_eq!(proxy.tcp(&format!("POST {target}"), &host), Some(403), "{target}");
    }
    assert_eq!(proxy.tcp("GET /ready", &host), Some(200), "it drains");
    assert!(proxy.has_ended().is_none());

    let socket = UnixStream::connect(&proxy.socket).unwrap();
    assert_eq!(ask(socket, "POST /drain", "any"), 200);
    assert!(until("the drained proxy ends", || proxy.has_ended()).success());

    // The socket file that the proxy leaves behind does not prevent the next one from starting.
    assert!(proxy.socket.exists());
    proxy.child = spawn(proxy.directory.path(), &proxy.socket);
    until("the next one is ready", || (proxy.tcp("GET /ready", "localhost")? == 200).then_some(()));
    let socket = UnixStream::connect(&proxy.socket).unwrap();
    assert_eq!(ask(socket, "GET /config", "any"), 200);
}

#[test]
fn a_page_under_another_name_reads_nothing() {
    let proxy = Proxy::start();
    for page in ["/metrics", "/config", "/ready"] {
        assert_eq!(proxy.tcp(&format!("GET {page}"), "rebound.example"), Some(421), "{page}");
        assert_eq!(proxy.tcp(&format!("GET {page}"), "127.0.0.1"), Some(200), "{page}");
    }
}

/// Reads up to the end of a message head.
fn head(stream: &mut TcpStream) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).unwrap();
        head.extend(byte);
    }
    String::from_utf8(head).unwrap()
}

/// A client may send a request at any time on its idle connection, so a drain closes it with a response, or after a
/// second.
#[test]
fn a_drain_gives_an_idle_client_its_grace() {
    let mut proxy = Proxy::start();
    let mut client = TcpStream::connect(proxy.address).unwrap();
    client.write_all(b"GET / HTTP/1.1\r\nHost: web\r\n\r\n").unwrap();
    let (mut application, _) = proxy.application.accept().unwrap();
    head(&mut application);
    application.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").unwrap();
    assert!(head(&mut client).starts_with("HTTP/1.1 200 "));
    let began = Instant::now();
    assert_eq!(ask(UnixStream::connect(&proxy.socket).unwrap(), "POST /drain", "any"), 200);
    assert_eq!(client.read(&mut [0]).unwrap(), 0);
    assert!(began.elapsed() >= Duration::from_secs(1), "closed after {:?}", began.elapsed());
    assert!(until("the drained proxy ends", || proxy.has_ended()).success());
}

/// A binary without the FIPS module refuses to start, instead of using cryptography that is not approved.
#[test]
#[cfg(not(feature = "fips"))]
fn a_profile_that_the_program_has_no_module_for_is_refused_with_what_to_build() {
    let run = |profile: &str| {
        let mut proxy = Command::new(env!("CARGO_BIN_EXE_leno-proxy"));
        let output =
            proxy.args(["--static", "/dev/null", "--tls-profile", profile]).output().unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    let (code, said) = run("fips");
    assert_eq!(code, Some(64), "{said}");
    assert!(said.contains("make release FIPS=1"), "{said}");
    let (code, said) = run("FIPS");
    assert_eq!(code, Some(64), "{said}");
    assert!(said.contains("use default or fips"), "{said}");
}
