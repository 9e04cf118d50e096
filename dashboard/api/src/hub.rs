//! The history of a mesh and its present state. A collector writes to it; the connections of readers read from it.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use leno_observe::stat::{MeshGrowth, NamespacedName, ProxyReport};

use crate::api::{Budget, Changes, ControlPlane, MeshState, Overview, Points, Routes, Topology};
use crate::file::HistoryStore;
use crate::history::{History, Mark, MarkKind};
use crate::inventory::{AgentPage, Flows, Inventory, Policies, Proxies};
use crate::policies::MatchedPolicies;
use crate::problems::problems;
use crate::query::{self, SeriesSubject};
use crate::series::SeriesKey;
use crate::view::HistoryView;
use crate::visible_namespaces::VisibleNamespaces;

/// The time between two observations.
pub const TICK: Duration = Duration::from_secs(5);
/// The window of a topology, if the request sets none.
const WINDOW_MS: u64 = 60_000;
/// The span of a series or of changes, if the request sets none.
const SPAN_MS: u64 = 60 * 60_000;

const WENT_AWAY: &str = "the control plane went away";

/// The history and the state of one mesh.
#[derive(Debug)]
pub struct Hub {
    mesh: String,
    /// The options that are added to the commands in answers, so that the commands select this mesh.
    name_option: String,
    known: Mutex<HubState>,
}

#[derive(Debug)]
struct HubState {
    history: History,
    store: HistoryStore,
    state: MeshState,
    /// How many entries of its lists were dropped because the lists were full.
    state_left_out: usize,
    /// The present identities of workloads.
    identities: BTreeMap<NamespacedName, String>,
    /// The present proxies, policies and flows.
    inventory: Inventory,
}

impl Hub {
    /// Opens the hub of a mesh, with the history in the file at `path`.
    ///
    /// # Errors
    /// The file exists but cannot be read.
    pub fn open(mesh: &str, path: PathBuf) -> io::Result<Self> {
        let (store, history) = HistoryStore::open(path, now_ms())?;
        let (state, identities) = (MeshState::default(), BTreeMap::new());
        let inventory = Inventory::default();
        let known = Mutex::new(HubState {
            history,
            store,
            state,
            state_left_out: 0,
            identities,
            inventory,
        });
        Ok(Self { mesh: mesh.to_owned(), name_option: String::new(), known })
    }

    /// Sets the options that are added to the commands in answers, so that the commands select this mesh.
    #[must_use]
    pub fn with_name_option(self, name_option: String) -> Self {
        Self { name_option, ..self }
    }

    /// Adds an observation: the counts of proxies since the last one, the state of the mesh, and changes. Changes
    /// that were already added are ignored.
    ///
    /// # Errors
    /// The file cannot be written. The observation is kept in memory, and is written together with the next one.
    pub fn take(
        &self,
        growth: Option<&MeshGrowth>,
        mut state: MeshState,
        marks: Vec<Mark>,
    ) -> io::Result<()> {
        let now_ms = now_ms();
        let left_out = state.bound();
        let mut known = self.lock();
        known.state_left_out = left_out;
        let HubState { history, store, state: before, identities, .. } = &mut *known;
        for mark in marks {
            history.mark(mark);
        }
        if let Some(line) = control_plane_change(history, before.control_plane, state.control_plane)
        {
            let lines = vec![line.to_owned()];
            history.mark(Mark { at_ms: now_ms, kind: MarkKind::ControlPlane, lines });
        }
        *before = state;
        if let Some(growth) = growth {
            history.push(now_ms, growth);
            identities.clone_from(&growth.identities);
        }
        store.save(history)
    }

    /// Replaces the reports of proxies about themselves.
    pub fn take_proxies(&self, proxies: Vec<ProxyReport>) {
        self.lock().inventory.take_proxies(proxies, now_ms());
    }

    /// Replaces the policies, or the reason why the policies are unknown.
    pub fn take_policies(&self, policies: Result<MatchedPolicies, String>) {
        self.lock().inventory.take_policies(policies);
    }

    /// Adds the flow counts of all agents.
    pub fn take_flows(&self, pages: Vec<AgentPage>) {
        self.lock().inventory.take_flows(pages, now_ms());
    }

    /// How many entries of the state, proxies, policies and flows were dropped because their lists were full.
    #[must_use]
    pub fn left_out(&self) -> Vec<(&'static str, u64)> {
        let known = self.lock();
        let mut all = vec![("state", known.state_left_out as u64)];
        all.extend(known.inventory.left_out());
        all
    }

    /// All namespaces that the hub has any data about.
    #[must_use]
    pub fn namespaces(&self) -> BTreeSet<String> {
        let known = self.lock();
        let mut all = BTreeSet::new();
        for subject in known.history.names().subjects().flatten() {
            match subject {
                SeriesKey::Workload(name) => drop(all.insert(name.0.clone())),
                SeriesKey::Edge { client, server, .. } => {
                    all.extend([client.0.clone(), server.0.clone()]);
                }
                SeriesKey::Route(name) => drop(all.insert(name.service.0.clone())),
            }
        }
        all.extend(known.state.unready.iter().map(|one| one.namespace.clone()));
        let marks = known.history.marks(0, u64::MAX);
        all.extend(marks.map(|mark| mark.namespace().to_owned()));
        all.extend(known.inventory.namespaces().cloned());
        all.remove("");
        all
    }

    /// The present state of the mesh.
    #[must_use]
    pub fn overview(&self, sight: &VisibleNamespaces) -> Overview {
        let known = self.lock();
        // Some figures depend on the traffic of all namespaces, and are shown only to readers who may see them
        // all.
        let all = matches!(sight, VisibleNamespaces::All);
        Overview {
            mesh: self.mesh.clone(),
            now_ms: now_ms(),
            from_ms: known.history.begin_ms(),
            to_ms: known.history.end_ms(),
            step_ms: tick_ms(),
            history_bytes: if all { known.history.size() as u64 } else { 0 },
            lost: if all { known.history.lost() } else { 0 },
            state: sight.state(&known.state),
        }
    }

    /// The workloads and edges in the window that ends at `at_ms`, or now.
    #[must_use]
    pub fn topology(
        &self,
        sight: &VisibleNamespaces,
        at_ms: Option<u64>,
        window_ms: Option<u64>,
    ) -> Topology {
        let known = self.lock();
        let view = HistoryView::new(&known.history, sight);
        let (from_ms, to_ms) = window_before(at_ms, window_ms);
        let window = view.window(from_ms, to_ms);
        let state = at_ms.is_none().then(|| sight.state(&known.state));
        let topology = query::topology(&view, (&self.mesh, &known.identities), &window);
        let topology = Topology { from_ms, to_ms, ..topology };
        let mut problems = problems(&view, &topology, &window, state.as_ref());
        for problem in problems.iter_mut().filter(|problem| !problem.more.is_empty()) {
            problem.more.push_str(&self.name_option);
        }
        Topology { problems, ..topology }
    }

    /// The route rules that requests followed in the window that ends at `at_ms`, or now.
    #[must_use]
    pub fn routes(
        &self,
        sight: &VisibleNamespaces,
        at_ms: Option<u64>,
        window_ms: Option<u64>,
    ) -> Routes {
        let known = self.lock();
        let view = HistoryView::new(&known.history, sight);
        let (from_ms, to_ms) = window_before(at_ms, window_ms);
        let window = view.window(from_ms, to_ms);
        let routes = query::routes(view.names(), &window);
        let (mesh, observed_s, left_out) = (self.mesh.clone(), window.seconds, window.left_out);
        Routes { mesh, from_ms, to_ms, observed_s, routes, left_out }
    }

    /// The counts of one workload or edge over time; `None` if the history does not contain it.
    #[must_use]
    pub fn series(
        &self,
        sight: &VisibleNamespaces,
        wanted: &SeriesSubject,
        span: TimeSpan,
        step_ms: Option<u64>,
    ) -> Option<Points> {
        let known = self.lock();
        let view = HistoryView::new(&known.history, sight);
        query::series(&view, wanted, span.bounds(), (step_ms, tick_ms()))
    }

    /// The requests to some workloads in the window that ends now. `bound_ms` is the longest time that a good
    /// request may take.
    #[must_use]
    pub fn budget(
        &self,
        sight: &VisibleNamespaces,
        servers: &[NamespacedName],
        window_ms: u64,
        bound_ms: Option<u64>,
    ) -> Budget {
        let known = self.lock();
        let view = HistoryView::new(&known.history, sight);
        let to_ms = now_ms();
        let window = view.window(to_ms.saturating_sub(window_ms), to_ms);
        query::budget(view.names(), &window, servers, bound_ms)
    }

    /// The changes in a span of time.
    #[must_use]
    pub fn changes(&self, sight: &VisibleNamespaces, span: TimeSpan) -> Changes {
        let (from_ms, to_ms) = span.bounds();
        let known = self.lock();
        let marks = known.history.marks(from_ms, to_ms);
        Changes { changes: marks.filter_map(|mark| sight.mark(mark)).collect() }
    }

    /// The proxies.
    #[must_use]
    pub fn proxies(&self, sight: &VisibleNamespaces) -> Proxies {
        let lists = self.lock().inventory.lists();
        lists.proxies(sight)
    }

    /// The policies, with the clients that were denied in the window that ends at `at_ms`, or now.
    #[must_use]
    pub fn policies(
        &self,
        sight: &VisibleNamespaces,
        at_ms: Option<u64>,
        window_ms: Option<u64>,
    ) -> Policies {
        let known = self.lock();
        let view = HistoryView::new(&known.history, sight);
        let (from_ms, to_ms) = window_before(at_ms, window_ms);
        let window = view.window(from_ms, to_ms);
        let edges = query::topology(&view, (&self.mesh, &known.identities), &window).edges;
        let lists = known.inventory.lists();
        drop(known);
        // The lock is released before, so that the collector and other readers do not wait for this.
        lists.policies(sight, &edges, (from_ms, to_ms))
    }

    /// The connections that the kernel accounts for.
    #[must_use]
    pub fn flows(&self, sight: &VisibleNamespaces) -> Flows {
        self.lock().inventory.flows(sight)
    }

    fn lock(&self) -> MutexGuard<'_, HubState> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A span of time that a request selects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TimeSpan {
    /// The beginning of the span; a default if the request sets none.
    pub from_ms: Option<u64>,
    /// The end of the span; now if the request sets none.
    pub to_ms: Option<u64>,
}

impl TimeSpan {
    fn bounds(self) -> (u64, u64) {
        let to_ms = self.to_ms.unwrap_or_else(now_ms);
        (self.from_ms.unwrap_or(to_ms.saturating_sub(SPAN_MS)).min(to_ms), to_ms)
    }
}

/// A description of a change of the control plane's state. A control plane that was never seen running is still
/// starting, which counts as no change.
fn control_plane_change(
    history: &History,
    before: ControlPlane,
    now: ControlPlane,
) -> Option<&'static str> {
    let last = history.marks(0, u64::MAX).filter(|mark| mark.kind == MarkKind::ControlPlane).last();
    let went_away = last.is_some_and(|mark| mark.lines == [WENT_AWAY]);
    match (before, now) {
        (ControlPlane::Running, ControlPlane::Away) => Some(WENT_AWAY),
        (_, ControlPlane::Running) if went_away => Some("the control plane came back"),
        _ => None,
    }
}

/// The beginning and the end of the window that ends at `at_ms`, or now.
fn window_before(at_ms: Option<u64>, window_ms: Option<u64>) -> (u64, u64) {
    let to_ms = at_ms.unwrap_or_else(now_ms);
    (to_ms.saturating_sub(window_ms.unwrap_or(WINDOW_MS).max(tick_ms())), to_ms)
}

fn tick_ms() -> u64 {
    u64::try_from(TICK.as_millis()).unwrap_or(u64::MAX)
}

fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_commands_of_problems_name_a_mesh_that_others_run_beside() {
        let directory = tempfile::tempdir().unwrap();
        let hub = Hub::open("shop", directory.path().join("history")).unwrap();
        let hub = hub.with_name_option(" --name shop".to_owned());
        let away = MeshState { control_plane: ControlPlane::Away, ..MeshState::default() };
        hub.take(None, away, Vec::new()).unwrap();
        let problems = hub.topology(&VisibleNamespaces::All, None, None).problems;
        assert_eq!(problems[0].more, "leno logs controller --name shop");
    }

    #[test]
    fn a_control_plane_comes_back_only_if_it_was_there_before() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("history");
        let hub = Hub::open("default", path.clone()).unwrap();
        let take = |hub: &Hub, control_plane| {
            hub.take(None, MeshState { control_plane, ..MeshState::default() }, Vec::new())
                .unwrap();
        };
        let said = |hub: &Hub| {
            let changes = hub.changes(&VisibleNamespaces::All, TimeSpan::default()).changes;
            changes.into_iter().flat_map(|mark| mark.lines).collect::<Vec<_>>()
        };
        take(&hub, ControlPlane::Away);
        take(&hub, ControlPlane::Running);
        assert!(
            said(&hub).is_empty(),
            "starting for the first time is no return: {:?}",
            said(&hub)
        );
        take(&hub, ControlPlane::Away);
        drop(hub);

        // Another observer opens the same file while the control plane is away.
        let hub = Hub::open("default", path).unwrap();
        take(&hub, ControlPlane::Running);
        take(&hub, ControlPlane::Running);
        assert_eq!(said(&hub), [WENT_AWAY, "the control plane came back"]);
    }
}
