//! Accounts for the connections of a mesh's instances, and serves what is counted on the gateway.
//!
//! The programs are on the control group of the mesh; an instance is accounted for from the moment its
//! namespace is enrolled, which is before anything runs in it. What the kernel refuses here costs metrics,
//! never an instance: it is printed, and the mesh goes on.

use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use leno_flows::{Accounts, Budget, Earlier, Member, Port, Sizes, Source};
use leno_types::ports;

use crate::addresses::Addresses;
use crate::error::{Attempt, Result};
use crate::layout::Layout;
use crate::network::{Switch, port_name};
use crate::output::Output;
use crate::plan::Instance;
use crate::record::{MeshResource, Record};

/// How often counters are read without a reader: what has ended leaves the table in time for what is new.
const INTERVAL: Duration = Duration::from_secs(5);
/// A scrape within this time after another reading gets the same numbers.
const FRESH: Duration = Duration::from_millis(200);

/// How flows are accounted for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Settings {
    /// Where documents do not say.
    pub source: Source,
    /// Sizes of the table and of the ring of events.
    pub sizes: Sizes,
    /// The most that it may cost; `None` without a bound.
    pub budget: Option<Budget>,
}

/// The accounts of a mesh; does nothing if the kernel has refused them.
#[derive(Clone, Debug, Default)]
pub struct Accounting(Option<Arc<Ledger>>);

#[derive(Debug)]
struct Ledger {
    held: Mutex<AccountingState>,
    output: Output,
}

#[derive(Debug)]
struct AccountingState {
    /// `None` once the mesh has ended.
    accounts: Option<Accounts>,
    collected: Option<Instant>,
}

impl Accounting {
    /// Attaches the programs to the group of the mesh, with what a killed run of it has counted. Returns a
    /// line for the operator if there is something to tell.
    ///
    /// # Errors
    /// If the record cannot be written.
    pub fn start(
        settings: Settings,
        layout: &Layout,
        group: &Path,
        record: &mut Record,
        output: &Output,
    ) -> Result<(Self, Option<String>)> {
        let refused = |error: &leno_flows::Error| {
            Some(format!("flows are not accounted for: {}", chain(error)))
        };
        if let Err(error) = Accounts::check_pins() {
            return Ok((Self::default(), refused(&error)));
        }
        let owner = layout.flows();
        record.add(MeshResource::Flows(owner.clone()))?;
        match Accounts::start(&owner, group, settings.sizes) {
            Ok((mut accounts, earlier)) => {
                let bounded = accounts.set_budget(settings.budget);
                let note = match earlier {
                    Earlier::New => None,
                    Earlier::Kept => Some("flows: the counters of the killed run go on".to_owned()),
                    Earlier::Replaced => {
                        Some("flows: counters of another version were dropped".to_owned())
                    }
                };
                if let Err(error) = bounded {
                    output.say(&format!("flows: {}", chain(&error)));
                }
                let held = AccountingState { accounts: Some(accounts), collected: None };
                let ledger = Ledger { held: Mutex::new(held), output: output.clone() };
                Ok((Self(Some(Arc::new(ledger))), note))
            }
            Err(error) => {
                record.remove(&[MeshResource::Flows(owner)])?;
                Ok((Self::default(), refused(&error)))
            }
        }
    }

    /// Reads the counters from time to time, and serves them at the gateway's port of agents.
    ///
    /// # Errors
    /// If the port is taken.
    pub fn serve(&self, switch: &Switch) -> Result<()> {
        let Some(ledger) = &self.0 else { return Ok(()) };
        let at = SocketAddr::new(switch.subnet().gateway().v4.into(), ports::AGENT_ADMIN);
        let what = || format!("cannot serve the metrics of flows on {at}");
        let listener = switch.netns().within(|| TcpListener::bind(at).attempt(what))?;
        listener.set_nonblocking(true).attempt(what)?;
        let listener = tokio::net::TcpListener::from_std(listener).attempt(what)?;
        let of_scrapes = Arc::clone(ledger);
        let answer = move |request, _ends| {
            let ledger = Arc::clone(&of_scrapes);
            async move {
                let text = tokio::task::spawn_blocking(move || ledger.metrics(FRESH)).await;
                let text = text.unwrap_or_default();
                leno_program::answer_pages(&request, || None, || text)
            }
        };
        // Both end with the runtime.
        tokio::spawn(leno_program::serve(listener, answer));
        let of_rounds = Arc::clone(ledger);
        tokio::spawn(async move {
            let mut round = tokio::time::interval(INTERVAL);
            round.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
            loop {
                round.tick().await;
                let ledger = Arc::clone(&of_rounds);
                // A panic is printed by the runtime; the next round tries again.
                let round = move || {
                    ledger.keep_budget();
                    ledger.collect(INTERVAL / 2);
                };
                let _ended = tokio::task::spawn_blocking(round).await;
            }
        });
        Ok(())
    }

    /// Names the control plane as the peer of proxies.
    pub async fn name_control_plane(&self, gateway: &Addresses) {
        let at = SocketAddr::new(gateway.v4.into(), ports::CONTROL);
        self.change(move |accounts| accounts.control_plane(&[at])).await;
    }

    /// Enters an instance whose namespace has been made.
    pub async fn enrol(&self, layout: &Layout, switch: &Switch, instance: &Instance) {
        let name = instance.name.to_string();
        let member = Member {
            namespace: instance.name.namespace.to_string(),
            workload: instance.workload.to_string(),
            netns: netns(layout.netns(&instance.name)),
            addresses: instance.addresses.iter().collect(),
            proxy_uid: ports::PROXY_UID,
            source: instance.flows,
            port: Port {
                netns: netns(layout.switch_netns()),
                name: port_name(switch.subnet(), &instance.addresses),
            },
        };
        self.change(move |accounts| accounts.enrol(&name, member)).await;
    }

    /// Removes an instance.
    pub async fn withdraw(&self, instance: &Instance) {
        let name = instance.name.to_string();
        self.change(move |accounts| accounts.withdraw(&name)).await;
    }

    /// Has it as the documents say now, if it is there.
    pub async fn adopt(&self, instance: &Instance) {
        let name = instance.name.to_string();
        let source = instance.flows;
        self.change(move |accounts| accounts.set_source(&name, source)).await;
    }

    /// Reads no more, so that the pins can be removed.
    pub fn end(&self) {
        if let Some(ledger) = &self.0 {
            ledger.lock().accounts = None;
        }
    }

    async fn change(
        &self,
        change: impl FnOnce(&mut Accounts) -> std::result::Result<(), leno_flows::Error>
        + Send
        + 'static,
    ) {
        let Some(ledger) = self.0.clone() else { return };
        let changed = tokio::task::spawn_blocking(move || {
            let changed = ledger.lock().accounts.as_mut().map_or(Ok(()), change);
            if let Err(error) = changed {
                ledger.output.say(&format!("flows: {}", chain(&error)));
            }
        });
        // A panic is printed by the runtime.
        let _ended = changed.await;
    }
}

impl Ledger {
    /// The metrics, not older than that.
    fn metrics(&self, age: Duration) -> String {
        self.collect(age);
        self.lock().accounts.as_ref().map(Accounts::metrics).unwrap_or_default()
    }

    fn keep_budget(&self) {
        let kept = self.lock().accounts.as_mut().map_or(Ok(None), Accounts::keep_budget);
        match kept {
            Ok(None) => {}
            Ok(Some(step)) => self.output.say(&format!("flows: accounting {step}")),
            Err(error) => self.output.say(&format!("flows: {}", chain(&error))),
        }
    }

    fn collect(&self, age: Duration) {
        let mut held = self.lock();
        if held.collected.is_some_and(|last| last.elapsed() < age) {
            return;
        }
        if let Some(Err(error)) = held.accounts.as_mut().map(Accounts::collect) {
            self.output.say(&format!("flows: {}", chain(&error)));
        }
        held.collected = Some(Instant::now());
    }

    /// A panic while it was held leaves counters that the next reading brings up to date.
    fn lock(&self) -> MutexGuard<'_, AccountingState> {
        self.held.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

fn netns(name: String) -> PathBuf {
    Path::new("/run/netns").join(name)
}

/// The error and its causes on one line.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(": ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    text
}
