//! Accounts for the connections of a mesh's instances, and serves the counts on the gateway.
//!
//! The kernel programs that count are attached to the control group of the mesh. An instance is counted as soon as
//! its namespace is enrolled, which is before any process runs in it. If the kernel refuses a program or a map, a
//! line is printed, and the mesh runs with fewer metrics.

use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use leno_flows::{
    Accounts, EarlierMaps, FlowMember, FlowSizes, Ledger, LedgerSettings, ROUND, WorkloadInterface,
};
use leno_types::ports;

use crate::addresses::Addresses;
use crate::error::{Attempt, Result};
use crate::layout::Layout;
use crate::network::{Switch, port_name};
use crate::output::LineOutput;
use crate::plan::PlannedInstance;
use crate::record::{MeshRecord, MeshResource};

/// Counts the connections of a mesh. If the kernel has refused the programs, every method does nothing.
#[derive(Clone, Debug, Default)]
pub struct Accounting(Option<Arc<Ledger>>);

impl Accounting {
    /// Attaches the programs to the control group of the mesh, and takes over the counters of a killed run. Also
    /// returns a line for the operator if something is to be reported.
    ///
    /// # Errors
    /// If the record cannot be written.
    pub fn start(
        settings: LedgerSettings,
        layout: &Layout,
        group: &Path,
        record: &mut MeshRecord,
        output: &LineOutput,
    ) -> Result<(Self, Option<String>)> {
        let refused = |error: &leno_flows::Error| {
            Some(format!("flow metrics are off: {}", leno_program::chain(error)))
        };
        if let Err(error) = Accounts::check_pins() {
            return Ok((Self::default(), refused(&error)));
        }
        let owner = layout.flows();
        record.add(MeshResource::Flows(owner.clone()))?;
        let to_operator = output.clone();
        match Ledger::start((&owner, group), settings, move |line| to_operator.say(line)) {
            Ok((ledger, earlier)) => {
                let note = match earlier {
                    EarlierMaps::New => None,
                    EarlierMaps::Kept => {
                        Some("flows: the counters of the killed run continue".to_owned())
                    }
                    EarlierMaps::Replaced => {
                        Some("flows: counters of another version were dropped".to_owned())
                    }
                };
                Ok((Self(Some(Arc::new(ledger))), note))
            }
            Err(error) => {
                record.remove(&[MeshResource::Flows(owner)])?;
                Ok((Self::default(), refused(&error)))
            }
        }
    }

    /// Reads the counters at intervals. Serves them, together with `others`, the metrics of `leno up` itself, on the
    /// gateway at the port that agents use.
    ///
    /// # Errors
    /// If the port is in use.
    pub fn serve(
        &self,
        switch: &Switch,
        others: impl Fn() -> String + Clone + Send + Sync + 'static,
    ) -> Result<()> {
        let at = SocketAddr::new(switch.subnet().gateway().v4.into(), ports::AGENT_ADMIN);
        let what = || format!("cannot serve the metrics of flows on {at}");
        let listener = switch.netns().within(|| TcpListener::bind(at).attempt(what))?;
        listener.set_nonblocking(true).attempt(what)?;
        let listener = tokio::net::TcpListener::from_std(listener).attempt(what)?;
        let of_scrapes = (self.0.clone(), others);
        let answer = move |request, _ends| {
            let (ledger, others) = of_scrapes.clone();
            async move {
                let text = tokio::task::spawn_blocking(move || {
                    let flows = ledger.map(|ledger| ledger.metrics()).unwrap_or_default();
                    flows + &others()
                });
                let text = text.await.unwrap_or_default();
                leno_program::answer_pages(&request, || None, || text)
            }
        };
        // Both tasks end with the runtime that they belong to.
        tokio::spawn(leno_program::serve(listener, answer));
        let Some(of_rounds) = self.0.clone() else { return Ok(()) };
        tokio::spawn(async move {
            let mut round = tokio::time::interval(ROUND);
            round.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
            loop {
                round.tick().await;
                let ledger = Arc::clone(&of_rounds);
                // The runtime prints a panic of the task, and the next round tries again.
                let _ended = tokio::task::spawn_blocking(move || ledger.round()).await;
            }
        });
        Ok(())
    }

    /// Makes connections between proxies and the control plane appear under the control plane's name.
    pub async fn name_control_plane(&self, gateway: &Addresses) {
        let at = SocketAddr::new(gateway.v4.into(), ports::CONTROL);
        self.change(move |accounts| accounts.control_plane(&[at])).await;
    }

    /// Adds an instance whose namespace was created; `hierarchy` is the mount point of cgroup2.
    pub async fn enrol(
        &self,
        (layout, hierarchy): (&Layout, &Path),
        switch: &Switch,
        instance: &PlannedInstance,
    ) {
        let name = instance.name.to_string();
        let member = FlowMember {
            namespace: instance.name.namespace.to_string(),
            workload: instance.workload.to_string(),
            netns: netns(layout.netns(&instance.name)),
            addresses: instance.addresses.iter().collect(),
            proxy_uid: ports::PROXY_UID,
            // Room for several proxies: a proxy that was replaced still finishes its open streams.
            proxies: match instance.launch.meshed {
                true => vec![
                    layout.groups_cgroup(hierarchy),
                    layout.instance_cgroup(hierarchy, &instance.name),
                ],
                false => Vec::new(),
            },
            source: instance.flows,
            budget: instance.flow_budget,
            port: Some(WorkloadInterface {
                netns: netns(layout.switch_netns()),
                name: port_name(switch.subnet(), &instance.addresses),
            }),
        };
        self.change(move |accounts| accounts.enrol(&name, member)).await;
    }

    /// Stops counting an instance.
    pub async fn withdraw(&self, instance: &PlannedInstance) {
        let name = instance.name.to_string();
        self.change(move |accounts| accounts.withdraw(&name)).await;
    }

    /// Applies the present settings of an instance, if it is counted.
    pub async fn adopt(&self, instance: &PlannedInstance) {
        let name = instance.name.to_string();
        let (source, budget) = (instance.flows, instance.flow_budget);
        self.change(move |accounts| accounts.set_source(&name, source, budget)).await;
    }

    /// Resizes the table of flows and the ring buffer of events, if the sizes differ from those of the last call.
    pub async fn resize(&self, sizes: FlowSizes) {
        let Some(ledger) = self.0.clone() else { return };
        // The runtime prints a panic of the task.
        let _ended = tokio::task::spawn_blocking(move || ledger.resize(sizes)).await;
    }

    /// Stops reading the counters, so that the pinned programs and maps can be removed.
    pub fn end(&self) {
        if let Some(ledger) = &self.0 {
            ledger.end();
        }
    }

    async fn change(
        &self,
        change: impl FnOnce(&mut Accounts) -> std::result::Result<(), leno_flows::Error>
        + Send
        + 'static,
    ) {
        let Some(ledger) = self.0.clone() else { return };
        // The runtime prints a panic of the task.
        let _ended = tokio::task::spawn_blocking(move || ledger.change(change)).await;
    }
}

fn netns(name: String) -> PathBuf {
    Path::new("/run/netns").join(name)
}
