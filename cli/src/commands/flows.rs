//! Implements the command `leno flows`.

mod drops;
mod requests;
mod wire;

use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use clap::{Args, ValueEnum};
use leno_console::note;
use leno_flows::{ConnectionChange, FlowConnection, FlowEvents, FlowPeer, FlowView};
use leno_local::hint::command;
use leno_local::layout::Layout;
use leno_local::status::{InstanceStatus, MeshStatus};
use leno_types::ports;
use serde::{Deserialize, Serialize};
use tokio::signal::unix::{SignalKind, signal};

use super::{
    NodeOfCluster, OutputForm, RunningMesh, block_on, print, print_json, print_raw, table,
};

/// How often changes are fetched. The kernel does not wake a reader, because waking it would cost each connection
/// more than counting it.
const POLL: Duration = Duration::from_millis(50);

/// The values of `--peer` that do not name a workload.
const NO_WORKLOAD: [&str; 3] = ["outside", "itself", "control-plane"];

/// Lists the open and recently closed connections of workloads, or follows them as they change
///
/// The kernel counts them. Bytes are payload without retransmissions; for workloads whose frames are counted, all
/// bytes on the wire. A connection has one line for each workload at its ends, and further lines for the connections
/// between applications and their proxies. The proxies' own connections, to the control plane and to their admin
/// ports, are left out unless --all, --peer or --port selects them. Needs root, or with --node the right to create a
/// port-forward to the agent's pod.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  sudo leno flows web --state established\n  \
                  sudo leno flows -n shop --socket application -o json\n  \
                  sudo leno flows --follow --peer outside\n  sudo leno flows web --requests\n  \
                  sudo leno flows --requests --socket wire\n  \
                  sudo leno flows --drops\n  \
                  leno flows shop/web --node worker-1")]
pub(crate) struct Flows {
    /// Lists only connections of this workload; shop/web names its namespace
    #[arg(value_name = "WORKLOAD")]
    workload: Option<String>,

    #[command(flatten)]
    mesh: RunningMesh,

    #[command(flatten)]
    of: NodeOfCluster,

    /// Lists only connections of this namespace
    #[arg(short, long, value_name = "NAME")]
    namespace: Option<String>,

    /// Lists only connections in this state. Can be repeated
    #[arg(long, value_enum, value_name = "STATE")]
    state: Vec<State>,

    /// Lists only connections with this workload at the other end; also outside (not in the mesh), itself (the same
    /// workload) and control-plane
    #[arg(long, value_name = "WORKLOAD")]
    peer: Option<String>,

    /// Lists only connections that the workload opened (client) or accepted (server)
    #[arg(long, value_enum, value_name = "ROLE")]
    role: Option<Role>,

    /// Lists only connections of the application, of the proxy, or those that are counted by their frames (wire)
    #[arg(long, value_enum, value_name = "PROGRAM")]
    socket: Option<Socket>,

    /// Lists only flows of this protocol. Protocols other than TCP are counted only by frames (leno.dev/flow-metrics:
    /// packets)
    #[arg(long, value_enum, value_name = "PROTOCOL")]
    protocol: Option<Protocol>,

    /// Lists the proxies' own connections too: to the control plane, and to their admin ports
    #[arg(long, conflicts_with_all = ["requests", "drops"])]
    all: bool,

    /// Lists only connections with this port at either end
    #[arg(long, value_name = "PORT")]
    port: Option<u16>,

    /// Shows requests since the start of the mesh instead of connections: by client and server, as proxies count
    /// them; with --socket wire by protocol, kind and result, as they are read from the frames of workloads without a
    /// proxy
    #[arg(long, conflicts_with_all = ["follow", "state", "protocol", "port"])]
    requests: bool,

    /// Shows packets that the kernel dropped since the start of the mesh instead of connections: by workload and the
    /// kernel's reason
    #[arg(long, conflicts_with_all = ["requests", "follow", "state", "peer", "role", "socket", "protocol", "port"])]
    drops: bool,

    /// Prints each change of a connection as it happens, until Ctrl-C. Not with --node, and only one process at a
    /// time can follow
    #[arg(short, long, conflicts_with = "node")]
    follow: bool,

    /// The output format; with --follow, json prints one object per line
    #[arg(short, long, value_enum, default_value_t)]
    output: OutputForm,
}

/// The states of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum State {
    /// A SYN was sent
    New,
    /// Both sides may send
    Established,
    /// One side has closed
    Closing,
    /// It has ended
    Closed,
}

/// Which side opened a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Role {
    /// The workload
    Client,
    /// The other side
    Server,
}

/// Which program has the socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Socket {
    /// The application
    Application,
    /// The proxy
    Proxy,
    /// Any: frames of its interface
    Wire,
}

/// What a flow is carried by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Protocol {
    Tcp,
    Udp,
    Icmp,
    Icmpv6,
    Sctp,
    /// Any other, ARP among them
    Other,
}

/// Changes that were dropped, in the JSON form of `--follow`.
#[derive(Serialize)]
struct LostChanges {
    lost: u64,
}

/// The flows of a mesh that runs.
pub(crate) fn view(mesh: &RunningMesh) -> Result<FlowView> {
    open(&Layout::new(&mesh.name()?)?)
}

fn open(layout: &Layout) -> Result<FlowView> {
    let view = FlowView::open(&layout.flows()).context("cannot open the flow table of the mesh")?;
    let Some(view) = view else {
        bail!(
            "mesh {} has no flow metrics: the first lines of `{}` have the reason",
            layout.mesh(),
            command(layout.mesh(), "logs")
        );
    };
    Ok(view)
}

/// A page of flows from a node's agent.
#[derive(Deserialize)]
struct NodePage {
    flows: Vec<FlowConnection>,
    /// The number of flows that the table lacks because it was full.
    missing: u64,
    /// The number of flows that the page lacks because there were too many.
    left_out: u64,
}

pub(crate) fn run(flows: &Flows) -> Result<bool> {
    if flows.of.is_named() {
        return of_node(flows).map(|()| true);
    }
    let layout = Layout::new(&flows.mesh.name()?)?;
    if !nix::unistd::geteuid().is_root() {
        return Err(leno_local::Error::NeedsRoot.into());
    }
    check_names(flows, &MeshStatus::read(&layout)?)?;
    let view = open(&layout)?;
    if flows.follow {
        return block_on(follow(flows, &view));
    }
    if flows.requests && flows.are_of_wire()? {
        return wire::show(flows, view.wire_requests()?).map(|()| true);
    }
    if flows.requests {
        return requests::show(flows, view.requests()?).map(|()| true);
    }
    if flows.drops {
        if let Some(why) = view.drops_are_not_counted() {
            bail!("dropped packets are not counted: {why}");
        }
        return drops::show(flows, view.drops()?).map(|()| true);
    }
    let (all, missing) = view.list()?;
    show(flows, all, missing)?;
    Ok(true)
}

/// The flows of a node of a cluster, as its agent sends them.
fn of_node(flows: &Flows) -> Result<()> {
    if flows.requests && flows.are_of_wire()? {
        return wire::show(flows, flows.of.get("/wire-requests")?);
    }
    if flows.requests {
        return requests::show(flows, flows.of.get("/requests")?);
    }
    if flows.drops {
        return drops::show(flows, flows.of.get("/drops")?);
    }
    let page: NodePage = flows.of.get("/flows")?;
    show(flows, page.flows, page.missing)?;
    if page.left_out > 0 {
        note!(
            "leno: the agent left out {} flows, the ones whose last change is oldest: select fewer \
             with -n or WORKLOAD",
            page.left_out
        );
    }
    Ok(())
}

fn show(flows: &Flows, mut all: Vec<FlowConnection>, missing: u64) -> Result<()> {
    all.retain(|one| flows.matches(one));
    let matching = all.len();
    all.retain(|one| !flows.hides(one));
    if flows.output == OutputForm::Json {
        print_json(&all)?;
    } else {
        print(&text(&all))?;
        match matching - all.len() {
            0 => {}
            1 => {
                note!("leno: 1 connection of a proxy itself is not shown: --all shows it")
            }
            left_out => note!(
                "leno: {left_out} connections of proxies themselves are not shown: --all shows them"
            ),
        }
    }
    if missing > 0 {
        note!(
            "leno: {missing} flows were not counted because the table was full: raise \
             --flow-map-size of `leno up`, or agent.flows.mapSize of the chart"
        );
    }
    Ok(())
}

/// Checks that the mesh has the workload and the namespace that the user names.
fn check_names(flows: &Flows, status: &MeshStatus) -> Result<()> {
    if let Some(namespace) = &flows.namespace {
        status.has_namespace(namespace)?;
    }
    let peer = flows.peer.as_deref().filter(|peer| !NO_WORKLOAD.contains(peer));
    for wanted in [flows.workload.as_deref(), peer].into_iter().flatten() {
        let is_one = |one: &InstanceStatus| names(wanted, &one.namespace, &one.workload);
        if status.instances.iter().any(is_one) {
            continue;
        }
        // Names of instances are refused as well, because the kernel counts by workload.
        let of_instance = |one: &&InstanceStatus| names(wanted, &one.namespace, &one.name);
        match status.instances.iter().find(of_instance) {
            Some(one) => bail!(
                "{wanted} is an instance, but flows are counted by workload: write {}/{}",
                one.namespace,
                one.workload
            ),
            None => {
                status.find(None, wanted)?;
            }
        }
    }
    Ok(())
}

/// Whether a text means this workload, either by its name or by its namespace and name.
fn names(wanted: &str, namespace: &str, workload: &str) -> bool {
    match wanted.split_once('/') {
        Some(full) => full == (namespace, workload),
        None => wanted == workload,
    }
}

/// Prints changes until a signal ends the command. Afterwards the kernel writes no more changes.
async fn follow(flows: &Flows, view: &FlowView) -> Result<bool> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut events = view.follow()?;
    let mut lost = 0;
    loop {
        print_changes(flows, &mut events, &mut lost)?;
        tokio::select! {
            () = tokio::time::sleep(POLL) => {}
            _ = tokio::signal::ctrl_c() => return Ok(true),
            _ = terminate.recv() => return Ok(true),
        }
    }
}

fn print_changes(flows: &Flows, events: &mut FlowEvents<'_>, lost: &mut u64) -> Result<()> {
    let changes = events.take()?;
    let json = flows.output == OutputForm::Json;
    let mut text = String::new();
    for change in changes.iter().filter(|change| flows.wants(&change.connection)) {
        text += &if json { serde_json::to_string(change)? } else { event(change) };
        text.push('\n');
    }
    let dropped = events.dropped()?;
    if dropped > *lost {
        let more = dropped - *lost;
        text += &match json {
            true => serde_json::to_string(&LostChanges { lost: more })?,
            false => format!(
                "{more} changes were lost because the ring was full: raise \
                 --flow-ring-size of `leno up`"
            ),
        };
        text.push('\n');
        *lost = dropped;
    }
    match text.as_str() {
        "" => Ok(()),
        text if json => print_raw(text),
        text => print(text),
    }
}

impl Flows {
    /// Whether the user asks for requests that were read from frames.
    fn are_of_wire(&self) -> Result<bool> {
        match self.socket {
            None => Ok(false),
            Some(Socket::Wire) => Ok(true),
            Some(_) => {
                bail!(
                    "--requests works without --socket, for requests that proxies count, or with \
                     --socket wire, for those in frames"
                )
            }
        }
    }

    /// Whether the user asks for connections between these two ends.
    fn wants_ends(&self, (namespace, workload): (&str, &str), peer: &FlowPeer) -> bool {
        let is = |wanted: &Option<String>, namespace: &str, workload: &str| {
            wanted.as_deref().is_none_or(|wanted| names(wanted, namespace, workload))
        };
        let is_peer = match peer {
            FlowPeer::Workload { namespace, workload } => is(&self.peer, namespace, workload),
            FlowPeer::Itself => is(&self.peer, "", "itself"),
            FlowPeer::ControlPlane => is(&self.peer, "", "control-plane"),
            FlowPeer::Outside => is(&self.peer, "", "outside"),
        };
        is_peer
            && is(&self.workload, namespace, workload)
            && self.namespace.as_ref().is_none_or(|wanted| *wanted == namespace)
    }

    /// Whether a connection is shown.
    fn wants(&self, one: &FlowConnection) -> bool {
        self.matches(one) && !self.hides(one)
    }

    /// Whether a connection is left out because it is one that a proxy has for itself, unless the user asks for
    /// these.
    fn hides(&self, one: &FlowConnection) -> bool {
        let is_asked_for = self.all
            || self.peer.as_deref() == Some("control-plane")
            || self.port.is_some_and(|port| [ports::ADMIN, ports::CONTROL].contains(&port));
        !is_asked_for && is_of_proxy_itself(one)
    }

    /// Whether the filters select a connection.
    fn matches(&self, one: &FlowConnection) -> bool {
        let named = |value: Option<&'static str>, has: &str| value.is_none_or(|name| name == has);
        self.wants_ends((&one.namespace, &one.workload), &one.peer)
            && (self.state.is_empty() || self.state.iter().any(|state| state.name() == one.state))
            && named(self.role.map(Role::name), one.role)
            && named(self.socket.map(Socket::name), one.socket)
            && named(self.protocol.map(Protocol::name), one.protocol)
            && self.port.is_none_or(|port| [one.local.port(), one.remote.port()].contains(&port))
    }
}

/// Whether a proxy has this connection for itself rather than for its workload: with the control plane, or as the
/// server of its admin port.
fn is_of_proxy_itself(one: &FlowConnection) -> bool {
    let is_admin = one.role == Role::Server.name() && one.local.port() == ports::ADMIN;
    one.socket == Socket::Proxy.name() && (one.peer == FlowPeer::ControlPlane || is_admin)
}

impl State {
    fn name(self) -> &'static str {
        match self {
            Self::New => "new",
            Self::Established => "established",
            Self::Closing => "closing",
            Self::Closed => "closed",
        }
    }
}

impl Role {
    fn name(self) -> &'static str {
        match self {
            Self::Client => "client",
            Self::Server => "server",
        }
    }
}

impl Socket {
    fn name(self) -> &'static str {
        match self {
            Self::Application => "application",
            Self::Proxy => "proxy",
            Self::Wire => "wire",
        }
    }
}

impl Protocol {
    fn name(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
            Self::Icmp => "icmp",
            Self::Icmpv6 => "icmpv6",
            Self::Sctp => "sctp",
            Self::Other => "other",
        }
    }
}

fn text(all: &[FlowConnection]) -> String {
    let rows: Vec<[String; 4]> = all
        .iter()
        .map(|one| [owner(one), one.local.to_string(), one.remote.to_string(), peer(&one.peer)])
        .collect();
    let wide = |heading, column: usize| {
        table::width(heading, rows.iter().map(move |row| row[column].as_str()))
    };
    let [whose, local, remote, with] =
        [wide("WORKLOAD", 0), wide("LOCAL", 1), wide("REMOTE", 2), wide("PEER", 3)];
    let mut text = format!(
        "{:<14}{:<8}{:<8}{:<13}{:<whose$}{:<local$}{:<remote$}{:<with$}{:>12}{:>12}{:>9}{:>10}{:>10}\n",
        "STATE",
        "PROTO",
        "ROLE",
        "SOCKET",
        "WORKLOAD",
        "LOCAL",
        "REMOTE",
        "PEER",
        "SENT",
        "RECEIVED",
        "RETRANS",
        "RTT MS",
        "LASTED S"
    );
    for (one, row) in all.iter().zip(&rows) {
        text += &format!(
            "{:<14}{:<8}{:<8}{:<13}{:<whose$}{:<local$}{:<remote$}{:<with$}{:>12}{:>12}{:>9}{:>10}{:>10}\n",
            shown_state(one),
            one.protocol,
            one.role,
            one.socket,
            row[0],
            row[1],
            row[2],
            row[3],
            one.bytes_sent,
            one.bytes_received,
            one.retransmits,
            ms(one.rtt_us),
            format!("{:.1}", one.duration_ms as f64 / 1000.0),
        );
    }
    text
}

/// One change of a connection, in the form that `conntrack -E` prints.
fn event(change: &ConnectionChange) -> String {
    let one = &change.connection;
    format!(
        "{}.{:03} {:<13} {:<6} {:<6} {:<11} {} {} -> {} ({}) sent {} received {} retransmits {} rtt {} ms",
        change.at_unix_ms / 1000,
        change.at_unix_ms % 1000,
        shown_state(one),
        one.protocol,
        one.role,
        one.socket,
        owner(one),
        one.local,
        one.remote,
        peer(&one.peer),
        one.bytes_sent,
        one.bytes_received,
        one.retransmits,
        ms(one.rtt_us),
    )
}

/// The state as text. For a closed connection, the way it ended, because that says more.
fn shown_state(one: &FlowConnection) -> &'static str {
    match one.end {
        "open" => one.state,
        "closed_local" => "closed",
        "closed_remote" => "closed (peer)",
        "reset_local" => "reset",
        "reset_remote" => "reset (peer)",
        "timed_out" => "timed out",
        end => end,
    }
}

fn owner(one: &FlowConnection) -> String {
    format!("{}/{}", one.namespace, one.workload)
}

fn peer(peer: &FlowPeer) -> String {
    match peer {
        // `other`, which stands for workloads beyond the table's capacity, has no namespace.
        FlowPeer::Workload { namespace, workload } if namespace.is_empty() => workload.clone(),
        FlowPeer::Workload { namespace, workload } => format!("{namespace}/{workload}"),
        FlowPeer::Itself => "itself".to_owned(),
        FlowPeer::ControlPlane => "control-plane".to_owned(),
        FlowPeer::Outside => "outside".to_owned(),
    }
}

fn ms(us: u32) -> String {
    if us == 0 { "-".to_owned() } else { format!("{:.3}", f64::from(us) / 1000.0) }
}
