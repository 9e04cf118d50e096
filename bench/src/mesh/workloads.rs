//! The workloads of the mesh: a client, and a server for each kind of work.

use std::net::{Ipv4Addr, SocketAddr};

use crate::scenario::Work;

/// The port of every application, each in a namespace of its own.
pub(super) const APPLICATION_PORT: u16 = 8080;

/// The name of each kind of work in this bench, which is also the name of its workload.
pub(super) fn name(work: Work) -> &'static str {
    match work {
        Work::Http1 => "http",
        Work::Http2 => "h2",
        Work::Tcp => "echo",
    }
}

/// The workloads: a client, and a server for each kind of work, once meshed and once without a
/// proxy.
pub(super) fn documents(works: &[Work]) -> String {
    let mut text = workload("client", "[\"@BIN@/leno-peer\", idle]", "", true);
    text += &workload("plain-client", "[\"@BIN@/leno-peer\", idle]", "", false);
    for work in works {
        let listen = SocketAddr::from((Ipv4Addr::UNSPECIFIED, APPLICATION_PORT));
        for meshed in [true, false] {
            let name = if meshed { name(*work).into() } else { plain(*work) };
            let (command, protocol) = match work {
                Work::Http1 => {
                    (format!("[nginx, -e, stderr, -c, \"@DIR@/{name}/nginx.conf\"]"), "http")
                }
                Work::Http2 => (
                    format!(
                        "[\"@BIN@/leno-bench\", serve, --listen, \"{listen}\", --response-bytes, \"1024\"]"
                    ),
                    "kubernetes.io/h2c",
                ),
                Work::Tcp => {
                    (format!("[\"@BIN@/leno-peer\", echo, --listen, \"{listen}\"]"), "tcp")
                }
            };
            let ports = format!(
                "\n  ports: [{{name: x, port: {APPLICATION_PORT}, appProtocol: {protocol}}}]"
            );
            text += &workload(&name, &command, &ports, meshed);
        }
    }
    text
}

/// The name of the server workload without a proxy.
pub(super) fn plain(work: Work) -> String {
    format!("plain-{}", name(work))
}

fn workload(name: &str, command: &str, ports: &str, meshed: bool) -> String {
    let inject = if meshed { "enabled" } else { "disabled" };
    format!(
        "apiVersion: leno.dev/v1alpha1\nkind: Workload\n\
         metadata: {{name: {name}, namespace: bench, labels: {{leno.dev/inject: {inject}}}}}\n\
         spec:\n  serviceAccount: {name}\n  command: {command}{ports}\n---\n"
    )
}
