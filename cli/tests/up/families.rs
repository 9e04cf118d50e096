//! Tests applications that listen in only one address family.

use std::path::Path;

use crate::mesh::{Mesh, root};

/// `four`, `soon` and `later` have no proxy; `meshed` has one. Each listens in one address family. `client` and
/// `plain` call them.
const MESH: &str = "
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: four, namespace: s, labels: {leno.dev/inject: disabled}}
spec: {command: [python3, -m, http.server, --bind, 0.0.0.0, '8080'], ports: [{port: 8080, appProtocol: http}]}
---
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: later, namespace: s, labels: {leno.dev/inject: disabled}}
spec: {command: [python3, -c, LATER], ports: [{port: 8080, appProtocol: http}]}
---
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: soon, namespace: s, labels: {leno.dev/inject: disabled}}
spec: {command: [python3, -c, SOON], ports: [{port: 8080, appProtocol: http}]}
---
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: meshed, namespace: s}
spec: {command: [python3, -m, http.server, --bind, 0.0.0.0, '8080'], ports: [{port: 8080, appProtocol: http}]}
---
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: client, namespace: s}
spec: {command: [sleep, infinity]}
---
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: plain, namespace: s, labels: {leno.dev/inject: disabled}}
spec: {command: [sleep, infinity]}
";

/// A server that listens on IPv4. Once the file `FLAG` exists, it listens on IPv6 instead, after 0.3 seconds. It
/// uses `TCPServer` because `HTTPServer` asks a name server for the name of the address that it binds.
const LATER: &str = "import http.server as h, os, socket, socketserver, threading, time\n\
    class Four(socketserver.ThreadingTCPServer): allow_reuse_address = daemon_threads = True\n\
    class Six(Four): address_family = socket.AF_INET6\n\
    four = Four(('0.0.0.0', 8080), h.SimpleHTTPRequestHandler)\n\
    threading.Thread(target=four.serve_forever, args=[0.02]).start()\n\
    while not os.path.exists('FLAG'): time.sleep(0.3)\n\
    time.sleep(0.3)\n\
    four.shutdown(); four.server_close()\n\
    Six(('::', 8080), h.SimpleHTTPRequestHandler).serve_forever()\n";

fn status(mesh: &Mesh, client: &str, arguments: &[&str]) -> String {
    let curl = ["curl", "-s", "-o", "/dev/null", "-m", "10", "-w", "%{http_code}"];
    let output = mesh.exec(client, &[&curl[..], arguments].concat());
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn an_application_on_ipv4_alone_answers_clients_that_dial_ipv6() {
    let flags = tempfile::tempdir().unwrap();
    let flag = flags.path().join("six");
    let waits_for =
        |flag: &Path| format!("{:?}", LATER.replace("FLAG", &flag.display().to_string()));
    let yaml = MESH.replace("LATER", &waits_for(&flag)).replace("SOON", &waits_for(flags.path()));
    let Some(mesh) = root(|| Mesh::start(&yaml)) else { return };
    for server in ["four", "later", "meshed"] {
        let url = format!("http://{server}:8080/");
        // The service has an address in each family, and the client's proxy accepts both.
        for family in ["-4", "-6"] {
            assert_eq!(status(&mesh, "client", &[family, &url]), "200", "{server} {family}");
        }
        // A client without a proxy gets the instance's own addresses.
        assert_eq!(status(&mesh, "plain", &[&url]), "200", "{server}");
    }
    let addresses = |name: &str, kind: &str| mesh.text("plain", &["dig", "+short", name, kind]);
    for name in ["four.s.svc.cluster.local", "four-0.four.s.svc.cluster.local"] {
        assert!(addresses(name, "A").starts_with("10.89."), "{name}");
        assert_eq!(addresses(name, "AAAA"), "", "no server listens there: {name}");
    }
    // A server that starts to listen on IPv6 is called there, whether it does so at once or later.
    std::fs::write(&flag, "").unwrap();
    for name in ["soon", "later"] {
        let (host, url) = (format!("{name}.s.svc.cluster.local"), format!("http://{name}:8080/"));
        mesh.wait_for("IPv6", || !addresses(&host, "AAAA").is_empty());
        mesh.wait_for("200 over IPv6", || status(&mesh, "client", &["-6", &url]) == "200");
        assert_eq!(status(&mesh, "plain", &["-6", &url]), "200", "{name}");
    }
}
