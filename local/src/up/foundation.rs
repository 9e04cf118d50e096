//! Creates what the mesh needs before its first instance: control group, bridge, DNS server and certificate
//! authority.

use std::cell::RefCell;
use std::io;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;

use leno_flows::LedgerSettings;
use leno_identity::Authority;
use leno_supervise::{Cgroup, DescriptorLimit, SuccessionTurns};
use leno_types::InstanceName;
use tokio::sync::{mpsc, watch};

use super::UpOptions;
use crate::addresses::Subnet;
use crate::dns::{self, FailedLookups, Zone};
use crate::environment::Environment;
use crate::error::{Attempt, Result};
use crate::finished::FinishingProxies;
use crate::flows::Accounting;
use crate::guard::MeshGuard;
use crate::hung::HungProxies;
use crate::instance::{InstanceChange, MeshContext};
use crate::layout::Layout;
use crate::netns::Netns;
use crate::network::Switch;
use crate::node::NodeProxyGroups;
use crate::output::LineOutput;
use crate::proxy;
use crate::record::{self, MeshRecord, MeshResource};
use crate::token::MeshTokens;
use crate::uplink;

/// The port of the DNS server.
const DNS: u16 = 53;

/// The parts of a mesh that exist before its first instance.
pub(super) struct MeshFoundation {
    guard: MeshGuard,
    hierarchy: PathBuf,
    switch: Switch,
    flows: Accounting,
    proxy: proxy::MeshProxySettings,
    /// Sends zones to the DNS server. The server ends when this is dropped.
    zone: watch::Sender<Arc<Zone>>,
    hung: Arc<HungProxies>,
    finishing: Arc<FinishingProxies>,
    environment: Environment,
    /// Notes for the operator, one per line.
    pub(super) notes: Vec<String>,
}

/// The channels and rules of `leno up` that all instances use.
pub(super) struct InstanceContext {
    pub(super) output: LineOutput,
    pub(super) access_log: Option<LineOutput>,
    pub(super) changes: mpsc::Sender<(InstanceName, InstanceChange)>,
    pub(super) descriptors: DescriptorLimit,
}

/// Creates the foundation. If that fails, the record has what was created.
pub(super) async fn lay(
    options: &UpOptions,
    (subnet, flows): (Subnet, LedgerSettings),
    layout: &Layout,
    record: &mut MeshRecord,
    output: &LineOutput,
) -> Result<MeshFoundation> {
    let hierarchy = leno_capture::cgroup2_root()?;
    let group = layout.cgroup(&hierarchy);
    record.add(MeshResource::Cgroup(group.clone()))?;
    let guard = MeshGuard::start(&Cgroup::create(group.clone())?)?;
    let (flows, note) = Accounting::start(flows, layout, &group, record, output)?;
    let mut notes: Vec<String> = note.into_iter().collect();
    let name = layout.switch_netns();
    record.add(MeshResource::Netns(name.clone()))?;
    let switch = Switch::create(Netns::create(&name)?, subnet).await?;
    notes.extend(switch.note().map(str::to_owned));
    let mut upstreams = match &*options.resolvers {
        [] => dns::Upstreams::of_host(),
        given => dns::Upstreams::new(given.to_vec()),
    };
    let lookups = Arc::<FailedLookups>::default();
    let (hung, finishing) = (Arc::<HungProxies>::default(), Arc::<FinishingProxies>::default());
    let shown = (Arc::clone(&lookups), Arc::clone(&hung), Arc::clone(&finishing));
    let metrics = move || shown.0.metrics() + &shown.1.metrics() + &shown.2.metrics();
    flows.serve(&switch, metrics)?;
    flows.name_control_plane(&switch.subnet().gateway()).await;
    if options.uplink {
        let way = uplink::make(&switch, layout.mesh(), record).await?;
        if !way.ipv6 {
            upstreams = upstreams.without_ipv6();
        }
        notes.extend(way.notes);
    }
    let zone = serve_dns(&switch, upstreams, lookups)?;
    let tokens = MeshTokens::prepare(layout)?;
    // The roots are created here and not by the controller, so that no proxy has to wait for them.
    let issuer = options.issuer.as_deref();
    let authority = Authority::open(&layout.control(), issuer, tokens.trust_domain());
    let authority = authority.map_err(io::Error::other).attempt(|| {
        format!("cannot open the certificate authority in {}", layout.control().display())
    })?;
    record::write_atomically(&layout.roots(), authority.trust().roots_pem().as_bytes(), 0o644)?;
    let proxy = proxy::MeshProxySettings {
        machine: leno_capture::ProbeReport::probe(),
        trust_domain: tokens.trust_domain().to_string(),
        tokens,
        roots: layout.roots(),
        log: options.log.clone(),
        access_log: options.access_log.clone(),
        traces: options.traces.clone(),
        metrics_compat: options.metrics_compat.clone(),
        tap_bodies: options.tap_bodies,
        tls_profile: options.tls_profile.clone(),
        scrape_from: scrapers(options, &switch),
        spiffe_endpoint_socket: options.spiffe_endpoint_socket.clone(),
        gateway: switch.subnet().gateway(),
        response_wait: options.response_wait,
        handover_timeout: options.handover_timeout,
        connection_rate: options.connection_rate,
        one_pass: options.one_pass,
    };
    let environment = Environment::of_shell(&options.env_files)?
        .with_workload_api(&layout.workload_api(), options.spiffe_endpoint_socket.as_ref());
    Ok(MeshFoundation {
        guard,
        hierarchy,
        switch,
        flows,
        proxy,
        zone,
        hung,
        finishing,
        environment,
        notes,
    })
}

impl MeshFoundation {
    /// Turns the foundation into the state that all instances share, and the sender of DNS zones.
    pub(super) fn mesh(
        self,
        options: &UpOptions,
        layout: Layout,
        record: MeshRecord,
        given: InstanceContext,
    ) -> (Rc<MeshContext>, watch::Sender<Arc<Zone>>) {
        let mesh = MeshContext {
            layout,
            record: RefCell::new(record),
            switch: self.switch,
            hierarchy: self.hierarchy,
            flows: self.flows,
            output: given.output,
            access_log: given.access_log,
            proxy: self.proxy,
            groups: NodeProxyGroups::default(),
            hung: self.hung,
            finishing: self.finishing,
            successions: SuccessionTurns::default(),
            promotion: options.promotion,
            grace: options.grace,
            environment: self.environment,
            descriptors: given.descriptors,
            guard: self.guard,
            stages: watch::Sender::default(),
            changes: given.changes,
        };
        (Rc::new(mesh), self.zone)
    }
}

/// The addresses that may request metrics of proxies; empty if all may. The list includes the gateway, from which
/// this process and `leno stat` connect.
fn scrapers(options: &UpOptions, switch: &Switch) -> String {
    let given = options.scrape_from.iter().map(ToString::to_string);
    let own = switch.subnet().gateway();
    let own = own.iter().map(|ip| ip.to_string()).filter(|_| !options.scrape_from.is_empty());
    given.chain(own).collect::<Vec<_>>().join(",")
}

fn serve_dns(
    switch: &Switch,
    upstreams: dns::Upstreams,
    lookups: Arc<FailedLookups>,
) -> Result<watch::Sender<Arc<Zone>>> {
    let gateway = switch.subnet().gateway();
    let what = || "cannot serve DNS on the gateway".to_owned();
    let sockets =
        switch.netns().within(|| dns::Sockets::bind(gateway.iter(), DNS).attempt(what))?;
    let (zone, received) = watch::channel(Arc::default());
    dns::serve(sockets, received, upstreams, lookups).attempt(what)?;
    Ok(zone)
}
