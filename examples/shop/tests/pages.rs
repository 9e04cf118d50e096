//! The whole shop as ordinary processes with a real Redis, without a mesh.

#![expect(clippy::unwrap_used, reason = "a test ends where its set-up fails")]

use std::io::{BufRead, BufReader};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use leno_testkit::peer::{Event, Step, talk};
use leno_testkit::{binaries, wait};

/// How long a process may take until it listens.
const START_LIMIT: Duration = Duration::from_secs(20);

/// A process that is killed at the end of the test.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        // Both fail only if the process has already exited.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The processes of one shop, and the environment for the next service.
#[derive(Default)]
struct Shop {
    environment: Vec<(String, String)>,
    processes: Vec<Process>,
}

impl Shop {
    fn redis(&mut self) {
        let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let port = free.port().to_string();
        let child = Command::new(binaries::require("redis-server", "redis-server").unwrap())
            .args(["--port", &port, "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"])
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        self.processes.push(Process(child));
        wait::until("redis", START_LIMIT, || Ok(TcpStream::connect(free).ok())).unwrap();
        self.environment.push(("REDIS_ADDRESS".into(), free.to_string()));
    }

    /// Starts a service on a free port, and sets its address in the environment of the next ones.
    fn service(&mut self, name: &str) -> String {
        let mut child = Command::new(env!("CARGO_BIN_EXE_shop"))
            .arg(name)
            .env("SHOP_LISTEN", "127.0.0.1:0")
            .envs(self.environment.iter().cloned())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        self.processes.push(Process(child));
        let address = line.trim().rsplit(' ').next().unwrap().to_string();
        let variable = format!("{}_URL", name.to_uppercase());
        self.environment.push((variable, format!("http://{address}")));
        address
    }
}

/// Sends one request. Returns the status and the body.
fn ask(address: &str, head: &str) -> (u16, String) {
    let steps = [Step::Send(format!("{head}\r\nHost: shop\r\n\r\n")), Step::Response(false)];
    let transcript = talk(address, &steps).unwrap();
    match &transcript.events[..] {
        [Event::Response { status, body, .. }] => (*status, body.clone()),
        other => panic!("{head}: {other:?}"),
    }
}

#[test]
fn a_user_looks_buys_and_has_an_empty_cart_again() {
    let mut shop = Shop::default();
    shop.redis();
    for name in ["catalog", "recommend", "cart", "payment", "checkout"] {
        shop.service(name);
    }
    let web = shop.service("web");
    let page = "GET /?user=ada HTTP/1.1\r\nAccept: application/json";

    let (status, body) = ask(&web, page);
    assert_eq!(status, 200, "{body}");
    assert!(body.contains("Table loom") && body.contains("\"cart\":[]"), "{body}");
    assert!(body.contains("\"recommended\":[{\"id\":\"marquisette\""), "{body}");

    let (status, body) = ask(&web, "POST /cart?user=ada&product=loom HTTP/1.1");
    assert_eq!(status, 200, "{body}");
    assert!(ask(&web, page).1.contains("\"cart\":[{\"product\":\"Table loom, 8 shafts\""));
    assert!(ask(&web, "GET /?user=bob HTTP/1.1").1.contains("bob: 0 in the cart"));

    let (status, body) = ask(&web, "POST /buy?user=ada&product=reed HTTP/1.1");
    assert_eq!(status, 200, "{body}");
    assert!(body.contains("\"number\":1") && body.contains("\"amount_cents\":94400"), "{body}");
    assert!(ask(&web, page).1.contains("\"cart\":[]"));
}

#[test]
fn errors_have_a_status_and_name_the_failed_service() {
    let mut shop = Shop::default();
    let catalog = shop.service("catalog");
    assert_eq!(ask(&catalog, "GET /products/none HTTP/1.1").0, 404);
    assert_eq!(ask(&catalog, "POST /products HTTP/1.1\r\nContent-Length: 0").0, 405);
    let payment = shop.service("payment");
    assert_eq!(ask(&payment, "POST /payments HTTP/1.1\r\nContent-Length: 0").0, 400);
    // No process listens at the catalog's address.
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    shop.environment.push(("CATALOG_URL".into(), format!("http://{free}")));
    let recommend = shop.service("recommend");
    let (status, body) = ask(&recommend, "GET /recommendations HTTP/1.1");
    assert_eq!(status, 502);
    assert!(body.contains("/products"), "{body}");
}
