//! `leno check`: what this machine can do, and whether a mesh is healthy.

mod descriptors;

use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use k8s_openapi::jiff::Timestamp;
use leno_types::{InstanceName, ports};
use nix::sys::statvfs::statvfs;
use nix::unistd::Pid;
use serde::Serialize;

use leno_checks::{Check, CheckResult, Level, is_well, table};
use leno_observe::ejected::EjectedEndpoint;
use leno_observe::metrics::{self, Sample};
use leno_supervise::{Cgroup, is_stopped};

use crate::admin::Admin;
use crate::analysis;
use crate::error::{Error, Result};
use crate::hint::command;
use crate::layout::Layout;
use crate::listening;
use crate::netns::Netns;
use crate::record::{self, RecordedProcess};
use crate::status::{InstancePhase, InstanceStatus, MeshStatus, ProxyProcess, Schedule};

/// A proxy's metric: when its certificate expires, in seconds since 1970.
const EXPIRATION: &str = "leno_identity_expiration_timestamp_seconds";
/// A metric of the control plane: 1 if it has loaded the present documents.
const LAST_GOOD: &str = "leno_control_last_reload_good";
/// A proxy's metric: 1 while the control plane is connected.
const CONNECTED: &str = "leno_discovery_connected";
/// A proxy's metric: open flows of datagrams. Only a proxy that carries datagrams has it.
const FLOWS_OF_DATAGRAMS: &str = "leno_datagram_flows_open";

/// How long to wait for a response of a proxy or of the control plane, which are on this machine. All are
/// requested at once, and a failed request is not repeated.
const ANSWER: Duration = Duration::from_secs(3);

/// The state of a machine and of the mesh on it.
#[derive(Clone, Debug, Serialize)]
pub struct MachineHealth {
    /// What the machine can do.
    pub machine: leno_capture::ProbeReport,
    /// The findings about the mesh; `None` if it does not run.
    pub mesh: Option<Vec<CheckResult>>,
}

impl MachineHealth {
    /// Examines the machine, and the mesh if it runs.
    ///
    /// # Errors
    /// When the mesh runs and cannot be examined.
    pub async fn run(layout: &Layout) -> Result<Self> {
        let mesh = match MeshStatus::read(layout) {
            Ok(status) => {
                Some(room(layout.directory()).into_iter().chain(mesh(&status).await?).collect())
            }
            Err(Error::NotRunning { .. }) => left_behind(layout),
            // The report about the machine is useful even if the mesh cannot be examined.
            Err(error) => Some(vec![whole_mesh().bad(error.chain())]),
        };
        Ok(Self { machine: leno_capture::ProbeReport::probe(), mesh })
    }

    /// Whether traffic can be captured on this machine and the mesh, if one runs, is healthy.
    #[must_use]
    pub fn is_well(&self) -> bool {
        self.machine.chosen.is_some() && self.mesh.as_deref().is_none_or(is_well)
    }

    /// A table of the machine, and one of the mesh if it runs.
    #[must_use]
    pub fn table(&self) -> String {
        let mesh = self.mesh.iter().map(|mesh| format!("\n{}", table(mesh)));
        table(&self.machine.findings()) + &mesh.collect::<String>()
    }
}

fn whole_mesh() -> Check {
    Check::new("mesh", "Does it run?")
}

fn files() -> Check {
    Check::new("files", "Were the current documents accepted?")
}

/// The finding about a full file system: `leno up` can write neither its status, which all commands read, nor its log.
fn room(state: &Path) -> Option<CheckResult> {
    let check = || Check::new("state", "Is there room for what leno up writes?");
    let place = state.display();
    match statvfs(state) {
        // Some file systems, such as /proc, report no size.
        Ok(of) if of.blocks() == 0 || of.blocks_available() > 0 => None,
        Ok(_) => {
            let text = format!(
                "{place} is full: no proxy can be started, and the findings below may be \
                 out of date"
            );
            let remedy = "free space there, or enlarge its file system, for example with `mount -o \
                          remount,size=BYTES`";
            Some(check().bad(text).remedy(remedy))
        }
        Err(error) => {
            Some(check().unknown(format!("cannot read the free space of {place}: {error}")))
        }
    }
}

/// The finding that a mesh has ended without removing its resources; `None` if it left none.
fn left_behind(layout: &Layout) -> Option<Vec<CheckResult>> {
    if !layout.record().exists() {
        return None;
    }
    Some(vec![match record::owner(layout) {
        Some(owner) => whole_mesh().bad(format!("is starting, in process {}", owner.pid)),
        None => whole_mesh().bad("an earlier run was killed and has left something behind").remedy(
            format!("`{}` or the next `leno up` removes it", command(layout.mesh(), "cleanup")),
        ),
    }])
}

async fn mesh(status: &MeshStatus) -> Result<Vec<CheckResult>> {
    let switch = Netns::open(&status.switch_netns)?;
    let mut findings = Vec::new();
    if status.needs_controller {
        findings.push(controller(status, &switch).await);
        findings.extend(overloaded(&status.mesh));
    }
    if let Some(reason) = &status.refused_edit {
        findings.push(files().bad(format!("the last edit was rejected: {reason}")));
    }
    let wrong = status.mistakes.iter().filter(|mistake| mistake.error);
    findings.extend(wrong.map(|mistake| files().bad(mistake.text.clone())));
    findings.extend(descriptors::short_of(&status.instances));
    // All instances at once, so that a proxy that hangs only delays its own finding.
    let instances =
        status.instances.iter().map(|instance| of_instance((&status.mesh, instance), &switch));
    findings.extend(futures_util::future::join_all(instances).await.into_iter().flatten());
    Ok(findings)
}

/// Findings about workloads that are selected by more policies than their proxies apply.
fn overloaded(mesh: &str) -> Vec<CheckResult> {
    let check = |of: String| {
        Check::new(of, "Do no more policies select the workload than its proxy applies?")
    };
    let row = |(name, reason): (InstanceName, Arc<str>)| {
        check(format!("{}/{} policies", name.namespace, name.name))
            .bad(format!("it denies every client: {reason}"))
            .remedy("merge rules of several policies into one, or select fewer workloads")
    };
    match analysis::running(mesh) {
        Ok(mesh) => mesh.overloaded().into_iter().map(row).collect(),
        Err(error) => vec![check("policies".to_owned()).bad(error.chain())],
    }
}

async fn of_instance(
    (mesh, instance): (&str, &InstanceStatus),
    switch: &Netns,
) -> Vec<CheckResult> {
    let mut findings = vec![application((mesh, instance))];
    if instance.meshed {
        findings.push(proxy((mesh, instance), switch).await);
        findings.extend(next_proxy(instance));
        findings.extend(stopped_broker(instance));
    }
    findings
}

async fn controller(status: &MeshStatus, switch: &Netns) -> CheckResult {
    let check = || Check::new("controller", "Is the control plane ready, with the last state?");
    let Some(process) = status.controller.and_then(RecordedProcess::find) else {
        return check().bad(
            "does not run, and is being restarted; proxies continue with the state \
             that they have",
        );
    };
    let (pid, address) = (process.pid, SocketAddr::new(status.gateway, ports::CONTROL));
    let admin = Admin::within(switch).bounded(ANSWER);
    let not = |why: String| check().bad(format!("process {pid} {why}")).remedy("see its log");
    match admin.get("/ready").await {
        Ok(reply) if reply.status == 200 => {}
        Ok(reply) => return not(format!("is not ready: {}", reply.body.trim())),
        Err(error) => return not(error.chain()),
    }
    let reply = admin.get("/metrics").await;
    let samples = reply.map(|reply| metrics::parse(&reply.body)).unwrap_or_default();
    if value(&samples, LAST_GOOD) == Some(0.0) {
        return not("rejected the last state that leno up has written".to_owned());
    }
    check().good(format!("process {pid} serves {address}"))
}

fn value(samples: &[Sample], name: &str) -> Option<f64> {
    samples.iter().find(|sample| sample.name == name).map(|sample| sample.value)
}

fn times(number: u32) -> String {
    match number {
        1 => "once".to_owned(),
        _ => format!("{number} times"),
    }
}

fn application((mesh, instance): (&str, &InstanceStatus)) -> CheckResult {
    let closed = instance.pid.map_or(Vec::new(), |pid| listening::closed(pid, &instance.ports));
    let text = state((mesh, instance), &closed, Timestamp::now().as_millisecond());
    let serves = instance.phase == InstancePhase::Running && instance.trouble.reason.is_none();
    let healthy = (serves && closed.is_empty())
        || (instance.phase.is_settled() && !instance.has_failed_run());
    let subject = format!("{}/{}", instance.namespace, instance.name);
    let level = if healthy { Level::Good } else { Level::Bad };
    Check::new(subject, "Does the application run, and listen on its ports?").result(level, text)
}

/// Describes the phase of an application and, if it does not take traffic, the reason that `leno up` has recorded.
/// `closed` are ports that the application declares and that are not open now.
#[must_use]
pub fn state(
    (mesh, instance): (&str, &InstanceStatus),
    closed: &[u16],
    now_unix_ms: i64,
) -> String {
    let trouble = &instance.trouble;
    let mut text = instance.phase.as_str().to_owned();
    if let (InstancePhase::Scheduled, Some(schedule)) = (instance.phase, &instance.schedule) {
        return text + &runs(schedule, now_unix_ms);
    }
    if !closed.is_empty() {
        text += &format!(", does not listen on {}", listening::shown(closed));
    }
    if let Some(reason) = &trouble.reason {
        text += &format!(", {reason}");
    }
    match &trouble.ended {
        _ if instance.phase == InstancePhase::Completed => {}
        Some(how) if instance.phase != InstancePhase::Running => {
            text += &format!(": {how}");
            if trouble.times > 1 {
                text += &format!(", {} in a row", times(trouble.times));
            }
            if let Some(next) = trouble.next_try_unix_ms {
                // Rounded up to whole seconds.
                text += &format!(", next try in {} s", ((next - now_unix_ms).max(0) + 999) / 1000);
            }
            if !trouble.last_line.is_empty() {
                text += &format!("; last line: {}", trouble.last_line);
            }
        }
        _ if instance.restarts > 0 => {
            text += &format!(", restarted {}", times(instance.restarts));
        }
        _ => {}
    }
    if let Some(why) = &instance.proxy_waits {
        text += &format!(", still served by the old proxy: {why}");
    }
    text + &unserved((mesh, instance))
}

/// Describes an application that cannot take traffic because its proxy does not serve, with how the proxy's last
/// process ended.
fn unserved((mesh, instance): (&str, &InstanceStatus)) -> String {
    // The application is only started once its proxy serves.
    let is_held_up = match instance.phase {
        InstancePhase::Running => !instance.ready,
        InstancePhase::Starting => instance.pid.is_none(),
        _ => false,
    };
    let waits_for_proxy = is_held_up && instance.meshed && instance.trouble.reason.is_none();
    match &instance.proxy_ended {
        _ if !waits_for_proxy => String::new(),
        None => ", its proxy does not serve yet".to_owned(),
        Some(how) => format!(
            ", its proxy does not serve: it {how}, restarted {}; {}",
            times(instance.proxy_restarts),
            printed_by((mesh, instance))
        ),
    }
}

/// The command that shows the operator the output of an instance's proxy.
fn printed_by((mesh, instance): (&str, &InstanceStatus)) -> String {
    let logs = command(mesh, &format!("logs --proxy {}", instance.workload));
    format!("`{logs}` prints its output")
}

/// Describes the last and the next run of a schedule.
fn runs(schedule: &Schedule, now_unix_ms: i64) -> String {
    let seconds = |from: i64, to: i64| roughly((to - from).max(0) as f64 / 1000.0);
    let mut text = match (schedule.running, schedule.started_unix_ms) {
        (0, _) | (_, None) => String::new(),
        (1, Some(started)) => format!(", has been running for {}", seconds(started, now_unix_ms)),
        (number, Some(_)) => format!(", {number} runs are under way"),
    };
    if let Some(last) = &schedule.last {
        let ended = seconds(last.ended_unix_ms, now_unix_ms);
        text += &format!(", last run {} {ended} ago", last.how);
        if !last.last_line.is_empty() {
            text += &format!(" (last line: {})", last.last_line);
        }
    }
    match schedule.next_unix_ms {
        _ if schedule.suspended => text + ", suspended",
        Some(next) => text + &format!(", next run in {}", seconds(now_unix_ms, next)),
        None => text,
    }
}

async fn proxy((mesh, instance): (&str, &InstanceStatus), switch: &Netns) -> CheckResult {
    let address = instance.addresses.first().copied();
    let admin = Admin::at(switch, address.unwrap_or(IpAddr::from([0, 0, 0, 0]))).bounded(ANSWER);
    let (mut healthy, mut text, answers) = match admin.get("/ready").await {
        Ok(reply) if reply.status == 200 => (true, "ready".to_owned(), true),
        Ok(reply) => (false, format!("not ready: {}", reply.body.trim()), true),
        Err(error) => (false, error.chain() + &processes(instance), false),
    };
    match &instance.capture {
        Some(backend) => text += &format!(", traffic captured by {backend}"),
        None => {
            healthy = false;
            text += ", traffic not captured";
        }
    }
    text += &format!(", mTLS {}", instance.mtls);
    // If the first request failed, its error is shown, and no other page is requested.
    if answers {
        match admin.get("/metrics").await {
            Ok(reply) if reply.status == 200 => healthy = counted(&reply.body, healthy, &mut text),
            // Without metrics, it is not known whether the certificate is valid.
            Ok(reply) => {
                healthy = false;
                text += &format!(", certificate unknown: {}", reply.why_no_metrics());
            }
            Err(error) => {
                healthy = false;
                text += &format!(", certificate unknown: {}", error.chain());
            }
        }
    }
    if instance.proxy_restarts > 0 {
        text += &format!(", restarted {}", times(instance.proxy_restarts));
        text += &instance.proxy_ended.iter().map(|how| format!(" (it {how})")).collect::<String>();
    }
    let subject = format!("{}/{} proxy", instance.namespace, instance.name);
    let asks = "Is the proxy ready, captured and connected, and is its certificate valid?";
    let check = Check::new(subject, asks);
    if healthy {
        return check.good(text);
    }
    check.bad(text).remedy(printed_by((mesh, instance)))
}

/// Describes the processes of a proxy that does not answer.
fn processes(instance: &InstanceStatus) -> String {
    let pids = instance.proxy.as_ref().map(ProxyProcess::pids).unwrap_or_default();
    let group = instance.proxy.as_ref().and_then(|process| process.group.as_deref());
    let of = group.map_or_else(String::new, |group| format!(" of group {group}"));
    let process = |pid: i32| {
        let state = if is_stopped(pid) { " is stopped by a signal" } else { " does not answer" };
        format!(", process {pid}{of}{state}")
    };
    pids.into_iter().map(process).collect()
}

/// A finding if a signal has stopped the broker of an instance in node mode. A stopped broker is not replaced
/// until a new connection waits for it, because a replacement closes the instance's open connections.
fn stopped_broker(instance: &InstanceStatus) -> Option<CheckResult> {
    instance.proxy.as_ref()?.group.as_ref()?;
    let cgroup = Cgroup::at(instance.surroundings.cgroup.with_file_name("proxy"));
    let pid = cgroup.processes().into_iter().map(Pid::as_raw).find(|pid| is_stopped(*pid))?;
    let subject = format!("{}/{} broker", instance.namespace, instance.name);
    let check = Check::new(subject, "Does the broker create sockets for new connections?");
    let text = format!("process {pid} is stopped by a signal, and new connections wait for it");
    let remedy = format!(
        "continue it with `kill -CONT {pid}`; once a new connection has waited for 5 s, it is \
         replaced, which cuts open connections"
    );
    Some(check.bad(text).remedy(remedy))
}

/// A finding if the proxy process that an edit or an upgrade has started does not serve the instance yet.
fn next_proxy(instance: &InstanceStatus) -> Option<CheckResult> {
    let why = instance.proxy_waits.as_ref()?;
    let subject = format!("{}/{} next proxy", instance.namespace, instance.name);
    let check = Check::new(subject, "Does the new proxy of the last edit or upgrade serve?");
    Some(check.warning(format!("the old proxy continues to serve: {why}")))
}

/// Adds to `text` what a proxy's metrics show about its health, and returns `healthy` or false.
fn counted(page: &str, mut healthy: bool, text: &mut String) -> bool {
    let samples = metrics::parse(page);
    let left = value(&samples, EXPIRATION).map(|end| end - unix_now());
    healthy &= left.is_none_or(|left| left > 0.0);
    match left {
        Some(left) if left > 0.0 => *text += &format!(", certificate valid for {}", roughly(left)),
        Some(_) => *text += ", certificate has expired",
        None => {}
    }
    let ejected = EjectedEndpoint::of(&samples);
    if !ejected.is_empty() {
        let endpoints: Vec<String> = ejected.iter().map(EjectedEndpoint::endpoint).collect();
        *text += &format!(", ejects {}", endpoints.join(", "));
    }
    if value(&samples, FLOWS_OF_DATAGRAMS).is_some() {
        text.push_str(", carries UDP datagrams");
    }
    if value(&samples, CONNECTED) == Some(0.0) {
        *text += match healthy {
            true => ", continues with the state from before it lost the control plane",
            false => ", not connected to the control plane",
        };
        healthy = false;
    }
    healthy
}

fn unix_now() -> f64 {
    // If the clock is before 1970, every certificate looks valid here, but the proxy itself reports the failure.
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}

/// A duration in the largest unit that fits.
fn roughly(seconds: f64) -> String {
    match seconds {
        s if s >= 172_800.0 => format!("{:.0} days", s / 86_400.0),
        s if s >= 7_200.0 => format!("{:.0} h", s / 3_600.0),
        s if s >= 120.0 => format!("{:.0} min", s / 60.0),
        s => format!("{s:.0} s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::DEFAULT_MESH;
    use crate::status::{ApplicationTrouble, ProcessSurroundings, ScheduledRun};

    fn instance(
        phase: InstancePhase,
        restarts: u32,
        trouble: ApplicationTrouble,
    ) -> InstanceStatus {
        InstanceStatus {
            namespace: "shop".into(),
            workload: "web".into(),
            name: "web-0".into(),
            addresses: Vec::new(),
            meshed: false,
            mtls: leno_types::MtlsMode::Permissive,
            capture: None,
            datagrams: None,
            phase,
            ready: phase == InstancePhase::Running,
            restarts,
            pid: None,
            started_unix_ms: None,
            ports: vec![8080],
            closed_ports: Vec::new(),
            published: Vec::new(),
            trouble,
            schedule: None,
            proxy_restarts: 0,
            proxy_ended: None,
            proxy: None,
            proxy_waits: None,
            surroundings: ProcessSurroundings::default(),
        }
    }

    #[test]
    fn a_state_says_what_up_has_seen() {
        let failing = ApplicationTrouble {
            ended: Some("exited with 3".into()),
            times: 3,
            reason: None,
            next_try_unix_ms: Some(10_000),
            last_line: "no database".into(),
        };
        let none = ApplicationTrouble::default;
        let not_ready = ApplicationTrouble {
            reason: Some("not ready: GET / on port 8080 answers 503".into()),
            ..ApplicationTrouble::default()
        };
        let over = ApplicationTrouble { times: 1, next_try_unix_ms: None, ..failing.clone() };
        let mut refused = instance(InstancePhase::Running, 0, none());
        refused.proxy_waits = Some("it runs as user 2102".into());
        let found = next_proxy(&refused).unwrap();
        assert_eq!((found.level, found.text.contains("user 2102")), (Level::Warning, true));
        assert_eq!(next_proxy(&instance(InstancePhase::Running, 0, none())), None);
        let mut unserved = instance(InstancePhase::Running, 0, none());
        (unserved.meshed, unserved.ready, unserved.proxy_restarts) = (true, false, 3);
        let starting = unserved.clone();
        unserved.proxy_ended = Some("exited with 2".into());
        for (of, closed, expected) in [
            (instance(InstancePhase::Running, 0, none()), vec![], "running"),
            (refused, vec![], "running, still served by the old proxy: it runs as user 2102"),
            (starting, vec![], "running, its proxy does not serve yet"),
            (
                unserved,
                vec![],
                "running, its proxy does not serve: it exited with 2, restarted 3 times; `leno logs --proxy web` prints its output",
            ),
            (
                instance(InstancePhase::Running, 2, failing.clone()),
                vec![],
                "running, restarted 2 times",
            ),
            (
                instance(InstancePhase::Running, 0, none()),
                vec![8080],
                "running, does not listen on port 8080",
            ),
            (
                instance(InstancePhase::Waiting, 2, failing),
                vec![],
                "waiting: exited with 3, 3 times in a row, next try in 4 s; last line: no database",
            ),
            (
                instance(InstancePhase::Running, 0, not_ready),
                vec![],
                "running, not ready: GET / on port 8080 answers 503",
            ),
            (
                instance(InstancePhase::Ended, 0, over.clone()),
                vec![],
                "ended: exited with 3; last line: no database",
            ),
            (instance(InstancePhase::Completed, 0, over), vec![], "completed"),
        ] {
            assert_eq!(state((DEFAULT_MESH, &of), &closed, 6_500), expected);
        }
    }

    #[test]
    fn a_schedule_says_what_ran_last_and_when_the_next_run_begins() {
        let state_of = |schedule: Schedule| {
            let schedule = Some(schedule);
            let job = InstanceStatus {
                schedule,
                ..instance(InstancePhase::Scheduled, 0, ApplicationTrouble::default())
            };
            state((DEFAULT_MESH, &job), &[], 100_000)
        };
        let next = Schedule { next_unix_ms: Some(140_000), ..Schedule::default() };
        assert_eq!(state_of(next.clone()), "scheduled, next run in 40 s");
        let run = ScheduledRun {
            started_unix_ms: 80_000,
            ended_unix_ms: 88_000,
            succeeded: true,
            how: "exited with 0".into(),
            last_line: String::new(),
        };
        let ran = Schedule { last: Some(run.clone()), ..next };
        assert_eq!(
            state_of(ran.clone()),
            "scheduled, last run exited with 0 12 s ago, next run in 40 s"
        );
        let failed = ScheduledRun {
            succeeded: false,
            how: "exited with 3".into(),
            last_line: "no database".into(),
            ..run
        };
        let under_way = Schedule {
            running: 1,
            started_unix_ms: Some(99_000),
            last: Some(failed),
            ..ran.clone()
        };
        assert_eq!(
            state_of(under_way),
            "scheduled, has been running for 1 s, last run exited with 3 12 s ago (last line: no database), next \
             run in 40 s"
        );
        let suspended = Schedule { suspended: true, next_unix_ms: None, last: None, ..ran };
        assert_eq!(state_of(suspended), "scheduled, suspended");
    }
}
