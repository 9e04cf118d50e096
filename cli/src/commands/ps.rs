//! Implements the command `leno ps`.

use anyhow::Result;
use clap::Args;
use leno_local::check::state;
use leno_local::layout::Layout;
use leno_local::listening;
use leno_local::status::{InstanceStatus, MeshStatus, ProxyProcess, Schedule};
use serde::Serialize;

use super::{OutputForm, RunningMesh, print, print_json, table};

/// Lists the instances of a mesh of `leno up`: process, addresses, ports, and problems
///
/// The column READY is `yes` if the instance can take traffic, and `-` if it is not meant to, because it has
/// completed or runs on a schedule. Exits 1 if an instance that is meant to take traffic is not ready, or if the last
/// run of a schedule failed. Needs root.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  sudo leno ps\n  sudo leno ps -n shop -o json")]
pub(crate) struct Ps {
    #[command(flatten)]
    mesh: RunningMesh,

    /// Lists only the instances of this namespace
    #[arg(short, long, value_name = "NAME")]
    namespace: Option<String>,

    /// The output format
    #[arg(short, long, value_enum, default_value_t)]
    output: OutputForm,
}

/// An instance, as it is printed for programs.
#[derive(Serialize)]
struct Row<'a> {
    namespace: &'a str,
    workload: &'a str,
    name: &'a str,
    phase: &'a str,
    ready: bool,
    /// Whether the instance is deliberately not ready for traffic.
    #[serde(skip)]
    takes_no_traffic: bool,
    restarts: u32,
    pid: Option<i32>,
    started_unix_ms: Option<i64>,
    addresses: &'a [std::net::IpAddr],
    ports: &'a [u16],
    published: &'a [(std::net::SocketAddr, u16)],
    /// Which UDP datagrams its proxy carries, according to `leno.dev/udp`; `None` if they bypass the proxy.
    datagrams: Option<&'a str>,
    /// The schedule of the workload, if there is one.
    schedule: Option<&'a Schedule>,
    /// Where its proxy runs, if it has a proxy.
    proxy: Option<Proxy<'a>>,
    state: String,
}

/// The process of a proxy.
#[derive(Serialize)]
struct Proxy<'a> {
    /// `sidecar` or `node`.
    mode: &'static str,
    /// The group of instances that share the process; `None` for a sidecar.
    group: Option<&'a str>,
    /// Whether it normally shares a process, but currently has a process of its own because it is busy.
    promoted: bool,
    /// The process's ID; `None` while the proxy is being restarted, or while its next process does not serve yet.
    pid: Option<i32>,
}

pub(crate) fn run(ps: &Ps) -> Result<bool> {
    let status = MeshStatus::read(&Layout::new(&ps.mesh.name()?)?)?;
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let now = i64::try_from(now.unwrap_or_default().as_millis()).unwrap_or(i64::MAX);
    let instances = status.meant(ps.namespace.as_deref(), None)?;
    let rows = instances.iter().map(|instance| row((&status.mesh, instance), now));
    let rows: Vec<Row<'_>> = rows.collect();
    if ps.output == OutputForm::Json {
        print_json(&rows)?;
    } else {
        print(&text(&rows, now))?;
    }
    Ok(instances.iter().all(|instance| instance.settled() && !instance.has_failed_run()))
}

fn row<'a>((mesh, instance): (&str, &'a InstanceStatus), now_unix_ms: i64) -> Row<'a> {
    let closed = instance.pid.map_or(Vec::new(), |pid| listening::closed(pid, &instance.ports));
    Row {
        namespace: &instance.namespace,
        workload: &instance.workload,
        name: &instance.name,
        phase: instance.phase.as_str(),
        ready: instance.ready,
        takes_no_traffic: !instance.ready && instance.settled(),
        restarts: instance.restarts,
        pid: instance.pid,
        started_unix_ms: instance.started_unix_ms,
        addresses: &instance.addresses,
        ports: &instance.ports,
        published: &instance.published,
        datagrams: instance.datagrams.as_deref(),
        schedule: instance.schedule.as_ref(),
        proxy: instance.proxy.as_ref().map(|process| proxy(process, instance)),
        state: state((mesh, instance), &closed, now_unix_ms),
    }
}

fn proxy<'l>(process: &'l ProxyProcess, instance: &InstanceStatus) -> Proxy<'l> {
    // While a sidecar's next process does not serve yet, its control group contains two processes, and either
    // could be the serving one.
    let is_one_of_two = process.group.is_none() && instance.proxy_waits.is_some();
    Proxy {
        mode: if process.group.is_some() { "node" } else { "sidecar" },
        group: process.group.as_deref(),
        promoted: process.promoted,
        // The newest process. Earlier processes only finish their connections.
        pid: process.pids().into_iter().max().filter(|_| !is_one_of_two),
    }
}

/// A proxy's cell in the table: its group, or `sidecar`, and its process ID.
fn shown_proxy(proxy: &Proxy<'_>) -> String {
    let name = proxy.group.unwrap_or(proxy.mode);
    let mut shown = proxy.pid.map_or_else(|| name.to_owned(), |pid| format!("{name} ({pid})"));
    if proxy.promoted {
        shown += ", promoted";
    }
    shown
}

fn text(rows: &[Row<'_>], now_unix_ms: i64) -> String {
    let namespaces = table::width("NAMESPACE", rows.iter().map(|row| row.namespace));
    let names = table::width("INSTANCE", rows.iter().map(|row| row.name));
    let dash = || "-".to_owned();
    let of_ports = |row: &Row<'_>| {
        let mut ports: Vec<String> = row.ports.iter().map(|port| shown_port(row, *port)).collect();
        ports.extend(row.datagrams.map(shown_datagrams));
        if ports.is_empty() { dash() } else { ports.join(",") }
    };
    let ports: Vec<String> = rows.iter().map(of_ports).collect();
    let wide = table::width("PORTS", ports.iter().map(String::as_str));
    // If no instance is in node mode, all proxies are sidecars.
    let has_node_proxies =
        rows.iter().filter_map(|row| row.proxy.as_ref()).any(|of| of.group.is_some());
    let of_proxy = |row: &Row<'_>| match &row.proxy {
        _ if !has_node_proxies => String::new(),
        Some(proxy) => shown_proxy(proxy),
        None => dash(),
    };
    let proxies: Vec<String> = rows.iter().map(of_proxy).collect();
    let heading = if has_node_proxies { "PROXY" } else { "" };
    let of_proxies = match has_node_proxies {
        true => table::width(heading, proxies.iter().map(String::as_str)),
        false => 0,
    };
    let mut text = format!(
        "{:<namespaces$}{:<names$}{:>5}{:>8}{:>8}  {:<15}  {:<wide$}{heading:<of_proxies$}STATE\n",
        "NAMESPACE", "INSTANCE", "READY", "PID", "AGE", "ADDRESS", "PORTS"
    );
    for ((row, ports), proxy) in rows.iter().zip(&ports).zip(&proxies) {
        let age = row.started_unix_ms.filter(|_| row.pid.is_some());
        text += &format!(
            "{:<namespaces$}{:<names$}{:>5}{:>8}{:>8}  {:<15}  {:<wide$}{proxy:<of_proxies$}{}\n",
            row.namespace,
            row.name,
            shown_ready(row),
            row.pid.map_or_else(dash, |pid| pid.to_string()),
            age.map_or_else(dash, |started| shown_age((now_unix_ms - started).max(0) / 1000)),
            row.addresses.first().map_or_else(dash, ToString::to_string),
            ports,
            row.state,
        );
    }
    text
}

/// Whether an instance is ready for traffic; `-` if it is deliberately without traffic.
fn shown_ready(row: &Row<'_>) -> &'static str {
    match (row.ready, row.takes_no_traffic) {
        (true, _) => "yes",
        (false, true) => "-",
        (false, false) => "no",
    }
}

/// A port, with the published addresses that lead to it.
fn shown_port(row: &Row<'_>, port: u16) -> String {
    let published = row.published.iter().filter(|(_, to)| *to == port);
    let from: String = published.map(|(address, _)| format!("{address}->")).collect();
    format!("{from}{port}")
}

/// A note after the ports that tells which datagrams the proxy carries.
fn shown_datagrams(which: &str) -> String {
    match which {
        "all" => "udp+dns".to_owned(),
        _ => "udp".to_owned(),
    }
}

/// A duration in the largest unit that fits.
fn shown_age(seconds: i64) -> String {
    match seconds {
        0..120 => format!("{seconds} s"),
        120..7_200 => format!("{} min", seconds / 60),
        7_200..172_800 => format!("{} h", seconds / 3_600),
        _ => format!("{} d", seconds / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_instance_is_one_line() {
        let addresses = [std::net::IpAddr::V4(std::net::Ipv4Addr::new(10, 89, 0, 2))];
        let published = [("127.0.0.1:80".parse().unwrap(), 8080)];
        let row = |proxy: Option<Proxy<'static>>| Row {
            namespace: "shop",
            workload: "web",
            name: "web-0",
            phase: "running",
            ready: true,
            takes_no_traffic: false,
            restarts: 0,
            pid: Some(4321),
            started_unix_ms: Some(0),
            addresses: &addresses,
            ports: &[8080, 9000],
            published: &published,
            datagrams: None,
            schedule: None,
            proxy,
            state: "running".to_owned(),
        };
        let sidecar =
            || Some(Proxy { mode: "sidecar", group: None, promoted: false, pid: Some(77) });
        assert_eq!(
            text(&[row(sidecar())], 150_000),
            "NAMESPACE   INSTANCE    READY     PID     AGE  ADDRESS          PORTS                    STATE\n\
             shop        web-0         yes    4321   2 min  10.89.0.2        127.0.0.1:80->8080,9000  running\n"
        );
        let of_udp = |which| text(&[Row { datagrams: Some(which), ..row(None) }], 150_000);
        assert!(of_udp("enabled").contains("8080,9000,udp  running"), "{}", of_udp("enabled"));
        assert!(of_udp("all").contains("8080,9000,udp+dns  running"), "{}", of_udp("all"));
        let not_ready = |takes_no_traffic| {
            text(&[Row { ready: false, takes_no_traffic, ..row(None) }], 150_000)
        };
        assert!(not_ready(false).contains("web-0          no    4321"), "{}", not_ready(false));
        assert!(not_ready(true).contains("web-0           -    4321"), "{}", not_ready(true));
        // The column is shown when proxies run in different ways.
        let shared =
            Proxy { mode: "node", group: Some("namespace.shop"), promoted: false, pid: None };
        let own = Proxy { mode: "node", group: Some("own"), promoted: true, pid: Some(8) };
        let text = text(&[row(sidecar()), row(Some(shared)), row(Some(own)), row(None)], 150_000);
        let ends: Vec<&str> = text
            .lines()
            .filter_map(|line| line.split_once("PORTS").or(line.split_once(",9000")))
            .map(|(_, end)| end.trim_start())
            .collect();
        assert_eq!(
            ends,
            [
                "PROXY              STATE",
                "sidecar (77)       running",
                "namespace.shop     running",
                "own (8), promoted  running",
                "-                  running",
            ]
        );
    }
}
