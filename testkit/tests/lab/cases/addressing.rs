//! Tests the addresses that applications see of each other, and applications that are hard to reach.

use anyhow::{Context, Result, ensure};
use leno_testkit::lab::{Capture, Lab, LabOptions};
use leno_testkit::peer::{Event, Step};

use super::programs::{everywhere, socket, virtual_address};
use super::{Case, alone, shared};

pub(super) fn cases() -> Vec<Case> {
    vec![
        shared!(an_application_on_loopback_only_is_reached),
        alone!(an_application_of_one_address_family_is_reached_by_clients_of_the_other),
        shared!(a_server_that_speaks_first_is_not_kept_waiting),
        shared!(bytes_are_relayed_both_ways_after_a_half_close),
        shared!(a_client_sees_the_address_it_dialled),
        shared!(a_server_sees_its_own_port_and_address),
        shared!(a_workload_calls_itself),
        shared!(a_client_gets_an_error_if_nothing_listens),
        shared!(load_is_spread_over_all_instances),
    ]
}

fn an_application_on_loopback_only_is_reached(lab: &Lab) -> Result<()> {
    everywhere(lab, "local", 80, 8080, |host, port| {
        let said = lab
            .text("client", &["curl", "-sS", "--fail", "-m", "20", "-g", &url(host, port, "/")])?;
        ensure!(said == "abcdefghijklm", "got {said:?}");
        Ok(())
    })
}

/// An application that listens only on its instance's address of this family.
const OF_ONE_FAMILY: &str = "
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: client, namespace: lab}
spec: {command: [sleep, '100000']}
---
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: four, namespace: lab, labels: {app: four}}
spec:
  command: [python3, '@DIR@/own.py', AF_INET]
  ports: [{name: http, port: 8080, appProtocol: http}]
---
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: six, namespace: lab, labels: {app: six}}
spec:
  command: [python3, '@DIR@/own.py', AF_INET6]
  ports: [{name: http, port: 8080, appProtocol: http}]
";

const OWN: &str = r"
import http.server, socket, sys
class Own(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.send_header('Content-Length', '4')
        self.end_headers()
        self.wfile.write(b'own\n')
    def log_message(self, *_):
        pass
family = getattr(socket, sys.argv[1])
http.server.ThreadingHTTPServer.address_family = family
own = socket.getaddrinfo(socket.gethostname(), 8080, family, socket.SOCK_STREAM)[0][4]
assert own[0] not in ('127.0.0.1', '::1'), own
http.server.ThreadingHTTPServer(own, Own).serve_forever()
";

/// Regression: the application's proxy answered 503 if the name of the service was resolved to an address of the other
/// family than the one in which the application listens.
fn an_application_of_one_address_family_is_reached_by_clients_of_the_other(
    capture: Capture,
) -> Result<()> {
    let options = LabOptions { mtls: Some("strict"), ..LabOptions::new(capture) };
    let lab = Lab::start(&options, OF_ONE_FAMILY, |directory| {
        Ok(std::fs::write(directory.join("own.py"), OWN)?)
    })?;
    let outcome = || -> Result<()> {
        for server in ["four", "six"] {
            lab.reach("client", &format!("{server}:8080"))?;
            let mut hosts = vec![server.to_owned()];
            for ipv6 in [false, true] {
                hosts.push(lab.status()?.address(server, ipv6)?.to_string());
            }
            for host in hosts {
                let url = url(&host, 8080, "/");
                let said = lab.text("client", &["curl", "-sS", "--fail", "-m", "20", "-g", &url]);
                ensure!(said.with_context(|| format!("{server}: {url}"))? == "own\n");
            }
        }
        Ok(())
    };
    lab.explain(outcome())
}

fn a_server_that_speaks_first_is_not_kept_waiting(lab: &Lab) -> Result<()> {
    everywhere(lab, "banner", 9000, 9000, |host, port| {
        let steps = [
            Step::Expect("220 ready\r\n".into()),
            Step::Send("QUIT\r\n".into()),
            Step::Expect("QUIT\r\n".into()),
        ];
        let transcript = lab.talk("client", &socket(host, port), &steps)?;
        ensure!(transcript.failure().is_none(), "{transcript:?}");
        Ok(())
    })
}

fn bytes_are_relayed_both_ways_after_a_half_close(lab: &Lab) -> Result<()> {
    everywhere(lab, "echo", 9000, 9000, |host, port| {
        // More data than all buffers on the way can hold, so that both directions are busy at once. The echo
        // server's socket buffers hold what the client has not read yet.
        let steps = [
            Step::Send("\0\u{1}binary".into()),
            Step::Expect("\0\u{1}binary".into()),
            Step::SendTimes("0123456789".into(), 1000),
            Step::ShutdownWrite,
            Step::ReadToEnd,
        ];
        let transcript = lab.talk("client", &socket(host, port), &steps)?;
        let whole = matches!(&transcript.events[..], [Event::Bytes { len: 10_000, .. }]);
        ensure!(whole, "{transcript:?}");
        Ok(())
    })
}

fn a_client_sees_the_address_it_dialled(lab: &Lab) -> Result<()> {
    everywhere(lab, "echo", 9000, 9000, |host, port| {
        let transcript = lab.talk("client", &socket(host, port), &[])?;
        if host != "echo" {
            ensure!(transcript.remote == socket(host, port), "getpeername gave {transcript:?}");
        }
        Ok(())
    })
}

fn a_server_sees_its_own_port_and_address(lab: &Lab) -> Result<()> {
    let status = lab.status()?;
    for ipv6 in [false, true] {
        let address = status.address("nginx", ipv6)?.to_string();
        let virtual_address = virtual_address(lab, "nginx", ipv6)?;
        for url in [url(&address, 8080, "/where"), url(&virtual_address, 80, "/where")] {
            let said = lab.text("client", &["curl", "-sS", "--fail", "-m", "20", "-g", &url])?;
            let words: Vec<_> = said.split_whitespace().collect();
            ensure!(words.len() == 3 && words[2] == "8080", "{url}: {said}");
            let own = words[1] == address || words[1] == "127.0.0.1" || words[1] == "::1";
            ensure!(own, "{url}: the application's own address is {}", words[1]);
        }
    }
    Ok(())
}

fn a_workload_calls_itself(lab: &Lab) -> Result<()> {
    let status = lab.status()?;
    let mut places =
        vec![("nginx".to_string(), 80), ("127.0.0.1".into(), 8080), ("::1".into(), 8080)];
    for ipv6 in [false, true] {
        places.push((virtual_address(lab, "nginx", ipv6)?, 80));
        places.push((status.address("nginx", ipv6)?.to_string(), 8080));
    }
    for (host, port) in places {
        let url = url(&host, port, "/");
        let said = lab.text("nginx", &["curl", "-sS", "--fail", "-m", "20", "-g", &url]);
        ensure!(said.with_context(|| url)? == "hello from nginx\n");
    }
    // The instance calls itself by name, although its application listens only on loopback.
    let said = lab.text("local", &["curl", "-sS", "--fail", "-m", "20", "http://local/"])?;
    ensure!(said == "abcdefghijklm", "got {said:?}");
    Ok(())
}

fn a_client_gets_an_error_if_nothing_listens(lab: &Lab) -> Result<()> {
    // For HTTP, the mesh responds with an error; for other protocols, the connection is closed. In neither case
    // does the client hang.
    let steps = [Step::Send("GET / HTTP/1.1\r\nHost: x\r\n\r\n".into()), Step::Response(false)];
    let address = lab.status()?.address("web-0", false)?.to_string();
    let transcript = lab.talk("client", &socket(&address, 8081), &steps);
    let told = match &transcript {
        Err(_) => true,
        Ok(t) => t.was_cut() || t.statuses().iter().all(|s| *s >= 500),
    };
    ensure!(told, "{transcript:?}");
    Ok(())
}

fn load_is_spread_over_all_instances(lab: &Lab) -> Result<()> {
    // The requests are sent in parallel, because a client that sends one at a time may always reach the instance
    // that was fastest.
    let urls: Vec<_> = (0..20).map(|i| format!("http://web/?nth={i}&delay_ms=100")).collect();
    let mut command = vec!["curl", "-sS", "--fail", "-m", "20", "-i", "-Z", "--parallel-immediate"];
    command.extend(urls.iter().map(String::as_str));
    let said = lab.text("client", &command)?;
    for instance in ["web-0", "web-1"] {
        let header = format!("x-served-by: {instance}");
        ensure!(said.contains(&header), "{instance} served nothing:\n{said}");
    }
    Ok(())
}

fn url(host: &str, port: u16, path: &str) -> String {
    format!("http://{}{path}", socket(host, port))
}
