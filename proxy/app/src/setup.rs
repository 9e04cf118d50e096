//! The setup that is common to proxies with and without a control plane, once their configuration was read.

use std::cell::RefCell;
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU32;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use anyhow::bail;
use leno_discovery::{ApplicationIdentity, Directory};
use leno_handover::AsyncChannel;
use leno_http::Limits;
use leno_inbound::LimitTable;
use leno_names::{Names, Resolvers};
use leno_outbound::Fixed;
use leno_telemetry::MetricsCompat;
use leno_telemetry::access::{AccessSettings, Form, Layout, Log};
use leno_telemetry::tap::Taps;
use leno_tls::{Credentials, Keyring};
use leno_transport::budget::Budget;
use leno_transport::{HandedNamespace, Listener};
use leno_types::authorization::Cidr;
use leno_types::mesh::ServerPolicy;
use leno_types::{Identity, InstanceName};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use tokio::sync::watch;

use crate::admin::probe::{KubeletCalls, Probes};
use crate::config::Flags;
use crate::export::TracePlan;
use crate::guest::GuestBook;
use crate::node::Reports;
use crate::worker::Plan;

pub(crate) mod memory;

/// How many descriptors are reserved for other purposes than proxied connections.
const RESERVED_DESCRIPTORS: u64 = 256;
/// How many descriptors each connection is counted with: one socket on either side, and on average one end of a pipe.
/// While a connection is spliced, it uses up to four of those.
const DESCRIPTORS_PER_CONNECTION: u64 = 3;
/// There may be one HBONE tunnel for every so many connections. A tunnel uses one socket and no pipes.
pub(crate) const CONNECTIONS_PER_TUNNEL: usize = 4;
/// How many connections a worker accepts at least, even if the limit on descriptors is lower.
const MIN_CONNECTIONS: u64 = 64;

/// The configuration and state of the proxy of one workload. A node proxy has one for each of its workloads.
#[derive(Debug)]
pub(crate) struct Setup {
    pub(crate) instance: InstanceName,
    /// Whether the configuration is complete, so that there is no control plane to wait for.
    pub(crate) is_static: bool,
    pub(crate) workers: u16,
    pub(crate) admin: Option<SocketAddr>,
    pub(crate) outbound: Vec<SocketAddr>,
    pub(crate) inbound: Vec<SocketAddr>,
    /// The sockets of the workload's network namespace, if the process is in another one. They are for one worker.
    pub(crate) handed: RefCell<Option<Handed>>,
    /// The list of the workload's guests on threads of other workloads, if the process serves several.
    pub(crate) guests: Option<Arc<GuestBook>>,
    /// The listener of the admin server, if a broker has handed it over and it is not yet in use.
    pub(crate) admin_handed: RefCell<Option<OwnedFd>>,
    /// Whether another process serves the workload until this one does.
    pub(crate) succeeds: bool,
    /// The supervisor of a proxy that serves one workload, if it has one.
    pub(crate) supervisor: Option<Rc<AsyncChannel>>,
    /// Sends the reports of a workload that shares its process.
    pub(crate) reports: Option<Reports>,
    /// How often the workload's workers have stalled before in this process.
    pub(crate) stalls: u64,
    /// The process' descriptors are divided by this number: several workloads may share the process.
    pub(crate) sharing: u16,
    /// Whether this proxy is a waypoint, which serves clients of those services whose waypoint it is according to
    /// discovery.
    pub(crate) is_waypoint: bool,
    /// Whether the first worker carries datagrams.
    pub(crate) datagrams: bool,
    /// The configured address of the application; `None` if it is the address that clients dial.
    pub(crate) application: Option<SocketAddr>,
    /// The configured destination of all outbound connections; `None` if they go where the application connects to.
    pub(crate) fixed: Option<Fixed>,
    pub(crate) directory: Directory,
    pub(crate) names: Names,
    pub(crate) policy: watch::Receiver<Option<Arc<ServerPolicy>>>,
    pub(crate) keyring: Keyring,
    pub(crate) identity: watch::Receiver<IdentityState>,
    /// Issues certificates for the application itself.
    pub(crate) application_identity: Option<ApplicationIdentity>,
    pub(crate) probes: Probes,
    /// The addresses from which a kubelet sends probes to the workload; none for a sidecar.
    pub(crate) kubelet: Vec<IpAddr>,
    pub(crate) drain_timeout: Duration,
    /// The time limit for draining if another process already accepts new connections.
    pub(crate) handover_timeout: Duration,
    /// How long a response may take to begin while no byte moves, if no policy sets it.
    pub(crate) response_wait: Duration,
    /// [`access_log`], which must be called once the process is confined. `None` before.
    pub(crate) access_log: Option<AccessLog>,
    /// The taps, which the workers share with the admin server.
    pub(crate) taps: Taps,
    /// Which requests have spans, and where the spans are sent.
    pub(crate) traces: Option<TracePlan>,
    /// The meshes whose metric names are served in addition.
    pub(crate) metrics_compat: MetricsCompat,
    /// Whether taps may show bodies.
    pub(crate) tap_bodies: bool,
    /// The network addresses that may request metrics; if there are none, all may.
    pub(crate) scrapers: Vec<Cidr>,
    /// The workload to which the instance belongs.
    pub(crate) workload: String,
    pub(crate) budget: Budget,
    /// How many new connections per second a workload may have that shares its process.
    pub(crate) connection_rate: Option<NonZeroU32>,
    /// The counts of rate limits, which the workers share.
    pub(crate) limit_table: LimitTable,
}

/// The sockets that the broker of a workload's network namespace has handed over.
#[derive(Debug)]
pub(crate) struct Handed {
    pub(crate) outbound: Vec<OwnedFd>,
    pub(crate) inbound: Vec<OwnedFd>,
    pub(crate) namespace: HandedNamespace,
}

impl Handed {
    /// Returns the listeners: outbound, then inbound. From now on the calling thread only uses sockets of that
    /// namespace.
    pub(crate) fn enter(self) -> anyhow::Result<(Vec<Listener>, Vec<Listener>)> {
        let adopt = |sockets: Vec<OwnedFd>| -> std::io::Result<Vec<Listener>> {
            sockets.into_iter().map(Listener::adopt).collect()
        };
        self.namespace.enter()?;
        Ok((adopt(self.outbound)?, adopt(self.inbound)?))
    }
}

/// The access log of a worker.
#[derive(Clone, Debug)]
pub(crate) enum AccessLog {
    /// Lines, written by a thread that all workers share.
    Lines(Log),
    /// Records, which each worker exports itself.
    Records(Layout),
}

/// The identity of the proxy, and when its certificate expires. Both are `None` before the first certificate.
#[derive(Clone, Debug, Default)]
pub(crate) struct IdentityState {
    pub(crate) name: Option<Identity>,
    pub(crate) not_after: Option<SystemTime>,
}

impl IdentityState {
    pub(crate) fn of(credentials: &Credentials) -> Self {
        Self {
            name: Some(credentials.identity().clone()),
            not_after: Some(credentials.not_after()),
        }
    }
}

impl Setup {
    /// The common setup, made from the flags. All other fields have the values for a proxy with a control plane.
    pub(crate) fn new(
        flags: &Flags,
        instance: InstanceName,
        directory: Directory,
        (keyring, identity): (Keyring, watch::Receiver<IdentityState>),
    ) -> anyhow::Result<Self> {
        let workload = flags.workload.clone().unwrap_or_else(|| instance.name.to_string());
        let plan = |settings| TracePlan { settings, workload: workload.clone() };
        Ok(Self {
            traces: flags.traces.clone().map(plan),
            metrics_compat: flags.metrics_compat,
            tap_bodies: flags.tap_bodies,
            scrapers: flags.scrapers(),
            workload,
            instance,
            is_static: false,
            workers: flags.workers,
            admin: Some(flags.admin),
            outbound: flags.outbound.clone(),
            inbound: flags.inbound.clone(),
            handed: RefCell::default(),
            guests: None,
            admin_handed: RefCell::default(),
            succeeds: false,
            supervisor: None,
            reports: None,
            stalls: 0,
            connection_rate: None,
            sharing: 1,
            application: None,
            fixed: None,
            policy: directory.server_policy(),
            directory,
            names: Names::new(Resolvers::of_machine()),
            keyring,
            identity,
            application_identity: None,
            probes: flags.probes.clone(),
            kubelet: Vec::new(),
            drain_timeout: Duration::from_secs(flags.drain_timeout_s),
            handover_timeout: Duration::from_secs(flags.handover_timeout_s),
            response_wait: match flags.response_wait_s {
                // Zero means that there is no limit.
                0 => Duration::MAX,
                seconds => Duration::from_secs(seconds),
            },
            is_waypoint: flags.waypoint,
            datagrams: flags.datagrams,
            access_log: None,
            taps: Taps::default(),
            budget: budget(flags),
            limit_table: LimitTable::default(),
        })
    }

    /// The plan of one worker.
    pub(crate) fn plan(&self, number: u16) -> Plan {
        let listened = self.outbound.iter().chain(&self.inbound).chain(&self.admin);
        Plan {
            instance: self.instance.clone(),
            directory: self.directory.clone(),
            names: self.names.clone(),
            policy: self.policy.clone(),
            connector: self.keyring.connector(),
            acceptor: self.keyring.acceptor(),
            credentials: self.keyring.watch(),
            limits: Limits { response_wait: self.response_wait, ..Limits::default() },
            outbound: self.outbound.clone(),
            inbound: self.inbound.clone(),
            own_ports: listened.map(|address| address.port()).collect(),
            is_waypoint: self.is_waypoint,
            // Only one worker carries datagrams, because one socket receives all QUIC packets, for connections in both
            // directions.
            datagrams: self.datagrams && number == 0,
            guests: self.guests.clone(),
            guest_of: None,
            kubelet: KubeletCalls::new(self.probes.clone(), self.kubelet.clone()),
            fixed: self.fixed.clone(),
            application: self.application,
            access_log: self.access_log.clone(),
            taps: self.taps.clone(),
            traces: self.traces.clone(),
            max_connections: max_connections(self.workers, self.sharing),
            connection_rate: self.connection_rate,
            budget: self.budget,
            workers: self.workers,
            limit_table: self.limit_table.clone(),
        }
    }
}

/// The access log. Its thread, if it needs one, is started here.
pub(crate) fn access_log(flags: &Flags) -> anyhow::Result<Option<AccessLog>> {
    let AccessSettings { form, layout } = flags.access_log.clone();
    match form {
        Form::Off => Ok(None),
        Form::Otlp if flags.traces.is_none() => {
            bail!(
                "--access-log otlp exports to the collector of --traces: add --traces \
                 NAMESPACE/SERVICE:PORT"
            )
        }
        Form::Otlp => Ok(Some(AccessLog::Records(layout))),
        Form::Text | Form::Json => Ok(Some(AccessLog::Lines(Log::start(form, layout)?))),
    }
}

pub(crate) fn budget(flags: &Flags) -> Budget {
    Budget::new(flags.memory_budget.unwrap_or_else(memory::default_budget))
}

/// How many connections one worker may have: as many as there are descriptors for, so that `accept` does not fail for
/// lack of a descriptor, but at least [`MIN_CONNECTIONS`]. `sharing`: the process' descriptors are divided by this
/// number.
#[expect(clippy::arithmetic_side_effects, reason = "no divisor is zero")]
fn max_connections(workers: u16, sharing: u16) -> usize {
    let descriptors = descriptors();
    let group = CONNECTIONS_PER_TUNNEL as u64;
    let connections = descriptors.saturating_sub(RESERVED_DESCRIPTORS)
        / (DESCRIPTORS_PER_CONNECTION * group + 1)
        * group
        / u64::from(workers.max(1))
        / u64::from(sharing.max(1));
    usize::try_from(connections.max(MIN_CONNECTIONS)).unwrap_or(usize::MAX)
}

/// Raises the limit on descriptors of the process from its soft limit to its hard limit, and returns the limit. The
/// soft limit is often 1,024 because of programs that use select(2).
fn descriptors() -> u64 {
    let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE) else { return 1024 };
    let raised = soft < hard && setrlimit(Resource::RLIMIT_NOFILE, hard, hard).is_ok();
    if raised { hard } else { soft }
}
