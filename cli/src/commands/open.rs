//! Implements the command `leno open`.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result};
use clap::Args;
use leno_local::forward;
use leno_local::hint::command;
use leno_local::layout::Layout;
use leno_local::status::{InstanceStatus, MeshStatus};
use leno_supervise::ProcessCredentials;

use super::{RunningMesh, block_on, port_forward, print};

/// Opens a workload of `leno up` in a browser
///
/// Uses the published port of the workload; if it has none, forwards a port to it until Ctrl-C. The browser is the
/// program in the variable BROWSER, else xdg-open, and runs as the user who called sudo. Needs root.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  sudo leno open web\n  sudo leno open web 9090 --path /metrics\n  \
                        sudo leno open web --no-browser"
)]
pub(crate) struct Open {
    /// Instance (web-1) or workload (web); of a workload, its first instance
    workload: String,

    /// Port of the workload [default: its first published port, else its first port]
    #[arg(value_parser = clap::value_parser!(u16).range(1..))]
    port: Option<u16>,

    #[command(flatten)]
    mesh: RunningMesh,

    /// Namespace of the workload. Not needed if its name is in only one namespace
    #[arg(short, long, value_name = "NAME")]
    namespace: Option<String>,

    /// Path and query of the address
    #[arg(long, default_value = "/", value_parser = path)]
    path: String,

    /// Opens an https address instead of http
    #[arg(long)]
    https: bool,

    /// Prints the address, and starts no browser
    #[arg(long)]
    no_browser: bool,
}

fn path(text: &str) -> Result<String, String> {
    match text.starts_with('/') {
        true => Ok(text.to_owned()),
        false => Err("the path does not begin with /: write for example /admin".to_owned()),
    }
}

pub(crate) fn run(open: &Open) -> Result<bool> {
    let layout = Layout::new(&open.mesh.name()?)?;
    let status = MeshStatus::read(&layout)?;
    let instance = status.find(open.namespace.as_deref(), &open.workload)?;
    match access((layout.mesh(), instance), open.port)? {
        Access::Published(address) => {
            show(open, address)?;
            Ok(true)
        }
        Access::Forwarded(port) => block_on(async {
            let (namespace, wanted) = (open.namespace.as_deref(), open.workload.as_str());
            port_forward::warn_if_undeclared((&layout, namespace, wanted), port, "open")?;
            let target = || port_forward::target(&layout, namespace, wanted, port);
            let listener = forward::bind((Ipv4Addr::LOCALHOST, 0).into()).await?;
            show(open, listener.local_addr()?)?;
            forward::serve(listener, target, port_forward::report).await;
            Ok(true)
        }),
    }
}

/// How a port can be reached from this machine.
#[derive(Debug, PartialEq, Eq)]
enum Access {
    /// At a published address.
    Published(SocketAddr),
    /// Through a forwarded port. This is the workload's port.
    Forwarded(u16),
}

fn access((mesh, instance): (&str, &InstanceStatus), wanted: Option<u16>) -> Result<Access> {
    let mut published = instance.published.iter();
    let published = published.find(|(_, port)| wanted.is_none_or(|wanted| wanted == *port));
    if let Some((address, _)) = published {
        return Ok(Access::Published(here(*address)));
    }
    let port = wanted.or(instance.ports.first().copied());
    let name = &instance.name;
    port.map(Access::Forwarded).with_context(|| {
        let open = command(mesh, &format!("open {name} 8080"));
        format!("{name} declares no port: name the port to open, such as `{open}`")
    })
}

/// The address that a browser on this machine can use.
fn here(address: SocketAddr) -> SocketAddr {
    let ip = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    SocketAddr::new(ip, address.port())
}

/// Prints the URL and starts the browser.
fn show(open: &Open, address: SocketAddr) -> Result<()> {
    let scheme = if open.https { "https" } else { "http" };
    let url = format!("{scheme}://{address}{}", open.path);
    print(&format!("{url}\n"))?;
    if open.no_browser {
        return Ok(());
    }
    if let Err(error) = browse(&url) {
        // The printed address is useful even without a browser.
        leno_console::complain("leno", &error);
    }
    Ok(())
}

/// Starts the browser without waiting for its end.
fn browse(url: &str) -> Result<()> {
    let program = std::env::var_os("BROWSER").filter(|program| !program.is_empty());
    let program = program.unwrap_or_else(|| "xdg-open".into());
    let user = ProcessCredentials::invoking();
    let mut browser = Command::new(&program);
    browser.arg(url).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    browser.envs(user.environment());
    // In a process group of its own, the browser does not get the Ctrl-C that ends the forwarded port.
    browser.process_group(0);
    if nix::unistd::geteuid().is_root() && user.uid() != 0 {
        browser.gid(user.gid()).uid(user.uid());
    }
    browser.spawn().with_context(|| {
        format!(
            "cannot start the browser {}: open the address yourself, or set BROWSER to another \
             program",
            program.display()
        )
    })?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_of_all_interfaces_is_called_on_loopback() {
        let shown = |text: &str| here(text.parse().unwrap()).to_string();
        assert_eq!(shown("0.0.0.0:8080"), "127.0.0.1:8080");
        assert_eq!(shown("[::]:8080"), "[::1]:8080");
        assert_eq!(shown("192.0.2.1:80"), "192.0.2.1:80");
    }
}
