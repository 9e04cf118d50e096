//! Implements the command `leno port-forward`.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use anyhow::{Context, Result};
use clap::Args;
use futures_util::future::join_all;
use leno_local::forward::{self, ForwardTarget};
use leno_local::hint::command;
use leno_local::layout::Layout;
use leno_local::status::MeshStatus;

use super::{RunningMesh, block_on, print};

/// Forwards ports of this machine to a workload of `leno up`, until Ctrl-C
///
/// Connections reach the application on the loopback address of its network namespace and bypass its proxy, as with
/// kubectl port-forward. Needs root.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  sudo leno port-forward web 8080        # 127.0.0.1:8080 to port 8080\n  \
                        sudo leno port-forward db 15432:5432\n  \
                        sudo leno port-forward web :8080       # any free port of this machine"
)]
pub(crate) struct PortForward {
    /// Instance (web-1) or workload (web); of a workload, its first instance
    workload: String,

    /// Ports to forward: PORT, LOCAL:PORT, or :PORT for any free port of this machine
    #[arg(required = true, value_name = "PORTS", value_parser = ports)]
    ports: Vec<Ports>,

    #[command(flatten)]
    mesh: RunningMesh,

    /// Namespace of the workload. Not needed if its name is in only one namespace
    #[arg(short, long, value_name = "NAME")]
    namespace: Option<String>,

    /// Address of this machine to listen on
    #[arg(long, value_name = "ADDRESS", default_value_t = IpAddr::V4(Ipv4Addr::LOCALHOST))]
    address: IpAddr,
}

/// A port of this machine, where 0 means any free port, and a port of the workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Ports {
    here: u16,
    there: u16,
}

fn ports(text: &str) -> Result<Ports, String> {
    let port = |text: &str| text.parse().ok().filter(|port: &u16| *port > 0);
    let both = match text.split_once(':') {
        None => port(text).map(|port| Ports { here: port, there: port }),
        Some(("", there)) => port(there).map(|there| Ports { here: 0, there }),
        Some((here, there)) => {
            port(here).zip(port(there)).map(|(here, there)| Ports { here, there })
        }
    };
    both.ok_or_else(|| format!("{text:?} is not a port: write 8080, 9000:8080 or :8080"))
}

pub(crate) fn run(port_forward: &PortForward) -> Result<bool> {
    let layout = Layout::new(&port_forward.mesh.name()?)?;
    let (namespace, wanted) = (port_forward.namespace.as_deref(), &port_forward.workload);
    let target = |port: u16| target(&layout, namespace, wanted, port);
    block_on(async {
        let mut serving = Vec::new();
        for Ports { here, there } in &port_forward.ports {
            let to = target(*there)?.instance;
            warn_if_undeclared((&layout, namespace, wanted), *there, "port-forward")?;
            let bound = forward::bind(SocketAddr::new(port_forward.address, *here)).await;
            let listener = bound.with_context(|| {
                format!(
                    "cannot forward port {there}: write `:{there}` for any free port of this \
                     machine"
                )
            })?;
            print(&format!("{} -> {to} port {there}\n", listener.local_addr()?))?;
            serving.push(forward::serve(listener, || target(*there), report));
        }
        join_all(serving).await;
        Ok(true)
    })
}

/// Finds the destination of connections to a port of a workload. It is looked up for each connection, because the
/// instance may restart.
pub(super) fn target(
    layout: &Layout,
    namespace: Option<&str>,
    wanted: &str,
    port: u16,
) -> leno_local::Result<ForwardTarget> {
    let status = MeshStatus::read(layout)?;
    let instance = status.find(namespace, wanted)?;
    Ok(ForwardTarget {
        instance: format!("{}/{}", instance.namespace, instance.name),
        netns: instance.surroundings.netns.clone(),
        addresses: instance.addresses.clone(),
        port,
    })
}

/// Prints a warning if a workload does not declare a port. Its application may listen there all the same, for example
/// for a debugger. `verb` is the subcommand, such as `open`, that the warning suggests with a declared port.
pub(super) fn warn_if_undeclared(
    (layout, namespace, wanted): (&Layout, Option<&str>, &str),
    port: u16,
    verb: &str,
) -> leno_local::Result<()> {
    let status = MeshStatus::read(layout)?;
    let instance = status.find(namespace, wanted)?;
    let name = format!("{}/{}", instance.namespace, instance.name);
    let instead = |port: &u16| command(layout.mesh(), &format!("{verb} {name} {port}"));
    undeclared((&name, &instance.ports), port, instead).into_iter().for_each(report);
    Ok(())
}

/// A warning if a port is not one of those that a workload declares. `instead`: the command for another port.
fn undeclared(
    (name, declared): (&str, &[u16]),
    port: u16,
    instead: impl Fn(&u16) -> String,
) -> Option<String> {
    if declared.contains(&port) {
        return None;
    }
    let all: Vec<String> = declared.iter().map(u16::to_string).collect();
    let (only, remedy) = match declared.first() {
        Some(first) => (
            format!("no port {port}, only {}", all.join(", ")),
            format!("`{}` uses a declared one", instead(first)),
        ),
        None => ("no port".to_owned(), "declare its ports in spec.ports".to_owned()),
    };
    Some(format!(
        "{name} declares {only}, so connections fail unless its application listens on {port}: \
         {remedy}"
    ))
}

/// Prints a line on standard error: why a connection failed, or a warning.
pub(super) fn report(text: String) {
    leno_console::complain("leno", &anyhow::Error::msg(text));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_that_is_not_declared_is_named_with_those_that_are() {
        let warning = |declared: &[u16], port| {
            undeclared(("shop/web-0", declared), port, |port| {
                format!("leno open shop/web-0 {port}")
            })
        };
        assert_eq!(warning(&[8080, 9090], 9090), None);
        assert_eq!(
            warning(&[8080, 9090], 80).unwrap(),
            "shop/web-0 declares no port 80, only 8080, 9090, so connections fail unless its application listens on 80: \
             `leno open shop/web-0 8080` uses a declared one"
        );
        assert_eq!(
            warning(&[], 80).unwrap(),
            "shop/web-0 declares no port, so connections fail unless its application listens on 80: \
             declare its ports in spec.ports"
        );
    }

    #[test]
    fn ports_are_read() {
        assert_eq!(ports("80"), Ok(Ports { here: 80, there: 80 }));
        assert_eq!(ports("8080:80"), Ok(Ports { here: 8080, there: 80 }));
        assert_eq!(ports(":80"), Ok(Ports { here: 0, there: 80 }));
        for text in ["", "0", "80:", "http", "1:2:3", "70000"] {
            let refused = format!("{text:?} is not a port: write 8080, 9000:8080 or :8080");
            assert_eq!(ports(text), Err(refused));
        }
    }
}
