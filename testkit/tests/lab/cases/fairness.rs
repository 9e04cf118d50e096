//! Tests workloads that flood their node proxy, keep it busy, or block one of its threads, and the effect on the
//! other workloads of that process.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use leno_testkit::lab::{Capture, Lab, LabOptions, MeshProcess};
use leno_testkit::spinning::SpinningThread;
use leno_testkit::stopped::StoppedThreads;
use leno_testkit::{command, wait};

use super::identity::{under_load, under_load_of};
use super::node::{
    GROUP, GUEST, LIMIT, MESH, echoes, gauge, has_nothing_lost, status, stream, stream_to,
};
use super::{Case, once};

/// Workloads in the same process. They run only what a case starts in them.
const NEIGHBOURS: &str = "---
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: flood, namespace: lab, annotations: {leno.dev/mode: node, leno.dev/share: node}}
spec: {command: ['@BIN@/leno-peer', idle]}
---
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: bulk, namespace: lab, annotations: {leno.dev/mode: node, leno.dev/share: node}}
spec: {command: ['@BIN@/leno-peer', idle]}
---
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: mute, namespace: lab, annotations: {leno.dev/mode: node, leno.dev/share: node}}
spec: {command: ['@BIN@/leno-peer', idle]}
";

/// Opens connections to `apart` as fast as possible until a file appears. Prints how many.
const FLOOD: &str = "
import os, socket, sys
address, opened = (socket.gethostbyname('apart'), 9000), 0
while not os.path.exists(sys.argv[1]):
    try:
        socket.create_connection(address, 5).close()
        opened += 1
    except OSError:
        pass
print(opened)
";

/// Requests large bodies and reads none of them, until a file appears.
const MUTE: &str = "
import os, socket, sys, time
held = []
for _ in range(10):
    client = socket.create_connection(('web', 8080))
    client.sendall(b'GET /?size=8388608 HTTP/1.1\\r\\nHost: web\\r\\n\\r\\n')
    held.append(client)
while not os.path.exists(sys.argv[1]):
    time.sleep(0.05)
";

pub(super) fn cases() -> Vec<Case> {
    let mut cases = vec![
        once!(a_busy_workload_gets_a_process_of_its_own_and_goes_back_with_nothing_cut),
        once!(which_busy_workloads_get_a_process_of_their_own_is_an_annotation),
        once!(the_limit_of_memory_of_a_process_follows_its_members),
        once!(a_workload_whose_thread_stands_still_is_served_by_another_one_alone),
        once!(workloads_that_flood_a_shared_process_are_slowed_and_named_and_others_are_served),
    ];
    if cfg!(target_arch = "x86_64") {
        cases.push(once!(a_workload_whose_thread_spins_is_served_by_another_one_alone));
    }
    cases
}

fn start(options: &LabOptions, mesh: &str) -> Result<Lab> {
    let lab = Lab::start(options, mesh, |_| Ok(()))?;
    lab.explain(lab.reach("client", "web:8080").and_then(|_| echoes(&lab, "apart:9000")))?;
    Ok(lab)
}

/// What `leno ps` prints about the proxy of an instance.
fn proxy(lab: &Lab, instance: &str) -> Result<serde_json::Value> {
    let shown = command::run(lab.leno("ps").args(["-o", "json"]), LIMIT)?;
    let rows: serde_json::Value = serde_json::from_slice(&shown.stdout)?;
    let mut rows = rows.as_array().context("no rows")?.iter();
    let row = rows.find(|row| row["name"] == instance).context("no such instance")?;
    Ok(row["proxy"].clone())
}

fn a_busy_workload_gets_a_process_of_its_own_and_goes_back_with_nothing_cut(
    capture: Capture,
) -> Result<()> {
    // The limit is so low that the instance exceeds it even beside many others, but higher than the use of an idle
    // instance.
    let promote = Some(("2s", "4"));
    let options = LabOptions { mtls: Some("strict"), promote, ..LabOptions::new(capture) };
    let lab = start(&options, &format!("{MESH}{GUEST}"))?;
    let outcome = || -> Result<()> {
        let file = |name: &str| lab.directory().join(name);
        let shared = lab.pid_of(GROUP)?;
        let stream = stream(&lab, &file("begun"), &file("go"))?;
        let served = |name: &str, group: &str, times: usize| {
            let line = format!("{name} is served by node proxy {group} now");
            wait::until(&line, LIMIT, || {
                Ok((lab.log().matches(&line).count() >= times).then_some(()))
            })
        };
        // The load sends as many requests as the server answers.
        let requests =
            under_load_of(&lab, (&["client-0"], "http://web:8080/"), &["--rate", "max"], || {
                served("client-0", "workload.lab.client-0", 1)?;
                served("web-0", "workload.lab.web-0", 1)?;
                let shown = proxy(&lab, "web-0")?;
                ensure!(
                    shown["promoted"] == true && shown["group"] == "workload.lab.web-0",
                    "{shown}"
                );
                let shown = proxy(&lab, "guest-0")?;
                ensure!(shown["promoted"] == false && shown["group"] == "node", "{shown}");
                ensure!(status(&lab, "/closed")? == "403", "the policy is not enforced");
                Ok(())
            })?;
        ensure!(requests > 0);
        // After both have been quiet for long, they share the process again. The stream was kept all the time.
        served("client-0", "node", 1)?;
        served("web-0", "node", 1)?;
        ensure!(status(&lab, "/")? == "200");
        fs::write(file("go"), "")?;
        has_nothing_lost(stream)?;
        ensure!(lab.pid_of(GROUP)? == shared, "the process was started again");
        wait::until("the end of the processes of their own", LIMIT, || {
            let own = ["workload.lab.client-0", "workload.lab.web-0"];
            let left = own.iter().any(|group| lab.pid_of(MeshProcess::Node(group)).is_ok());
            Ok((!left).then_some(()))
        })
    };
    lab.explain(outcome())
}

fn which_busy_workloads_get_a_process_of_their_own_is_an_annotation(
    capture: Capture,
) -> Result<()> {
    // With these options no instance is promoted.
    let options = LabOptions { promote: Some(("never", "4")), ..LabOptions::new(capture) };
    let client = |after: &str| {
        let own = format!("leno.dev/share: node, leno.dev/promote-after: {after}");
        MESH.replacen("leno.dev/share: node", &own, 1)
    };
    let lab = start(&options, &client("2s"))?;
    let outcome = || -> Result<()> {
        let said = |line: &'static str| {
            wait::until(line, LIMIT, || Ok(lab.log().contains(line).then_some(())))
        };
        let busy = &["--rate", "max"];
        let requests = under_load_of(&lab, (&["client-0"], "http://web:8080/"), busy, || {
            said("client-0 is served by node proxy workload.lab.client-0 now")?;
            let shown = proxy(&lab, "client-0")?;
            ensure!(shown["promoted"] == true, "{shown}");
            // The server handles the same requests, but its annotation excludes it.
            let shown = proxy(&lab, "web-0")?;
            ensure!(shown["promoted"] == false && shown["group"] == "node", "{shown}");
            lab.edit(&client("'off'"))?;
            said("client-0 shares a node proxy again, because its documents changed")?;
            said("client-0 is served by node proxy node now")
        })?;
        ensure!(requests > 0);
        lab.edit(&client("soon"))?;
        said("\"soon\" is not a duration from 1s to 24h: use for example 30s, or off")?;
        ensure!(status(&lab, "/")? == "200");
        Ok(())
    };
    lab.explain(outcome())
}

/// The ID of the thread that serves an instance's connections.
pub(super) fn thread(process: u32, name: &str) -> Result<String> {
    for thread in fs::read_dir(format!("/proc/{process}/task"))? {
        let thread = thread?;
        if fs::read_to_string(thread.path().join("comm"))?.trim() == name {
            return Ok(thread.file_name().display().to_string());
        }
    }
    anyhow::bail!("no thread {name}")
}

/// A thread cannot be ended from outside. Its connections wait for it, and another thread serves new ones.
fn a_workload_whose_thread_stands_still_is_served_by_another_one_alone(
    capture: Capture,
) -> Result<()> {
    let stop = |thread: &str| StoppedThreads::of(&[thread.to_owned()]);
    is_served_by_another_thread_alone(capture, stop, StoppedThreads::resume)
}

/// A thread that spins still runs, unlike a stopped one. The process notices it by the CPU time that the thread uses.
fn a_workload_whose_thread_spins_is_served_by_another_one_alone(capture: Capture) -> Result<()> {
    is_served_by_another_thread_alone(capture, SpinningThread::of, SpinningThread::resume)
}

fn is_served_by_another_thread_alone<T>(
    capture: Capture,
    hold: impl FnOnce(&str) -> Result<T>,
    release: impl FnOnce(T) -> Result<()>,
) -> Result<()> {
    let options = LabOptions { mtls: Some("strict"), ..LabOptions::new(capture) };
    let lab = start(&options, &format!("{MESH}{GUEST}"))?;
    let outcome = || -> Result<()> {
        wait::until("the guest's first answer", LIMIT, || {
            Ok(echoes(&lab, "guest:9000").is_ok().then_some(()))
        })?;
        let file = |name: &str| lab.directory().join(name);
        let process = lab.pid_of(GROUP)?;
        let of_guest = stream_to(&lab, "guest:9000", (&file("begun"), &file("go")))?;
        let of_client = stream(&lab, &file("begun too"), &file("go"))?;
        let held = hold(&thread(process, "w:lab/guest-0")?)?;
        // The workload is served by another thread.
        echoes_again(&lab)?;
        ensure!(lab.log().contains("guest-0 in the proxy of group node has stalled"));
        ensure!(gauge(&lab, "guest", "leno_worker_stalls_total")? == 1.0);
        ensure!(gauge(&lab, "web", "leno_worker_stalls_total")? == 0.0);
        ensure!(status(&lab, "/")? == "200");
        release(held)?;
        fs::write(file("go"), "")?;
        // The streams of the thread that was held, and of another one.
        has_nothing_lost(of_guest)?;
        has_nothing_lost(of_client)?;
        ensure!(lab.pid_of(GROUP)? == process, "the process was started again");
        for name in ["client-0", "web-0"] {
            ensure!(lab.status()?.instance(name)?.proxy_restarts == 0, "{name} was interrupted");
        }
        // The thread ends when its connections have ended. The process then has one thread of its own and one for
        // each member.
        wait::until("the end of the guest's former threads", LIMIT, || {
            Ok((fs::read_dir(format!("/proc/{process}/task"))?.count() == 4).then_some(()))
        })?;
        echoes(&lab, "guest:9000")
    };
    lab.explain(outcome())
}

fn echoes_again(lab: &Lab) -> Result<()> {
    wait::until("an answer of the guest", LIMIT, || {
        Ok(echoes(lab, "guest:9000").is_ok().then_some(()))
    })
}

/// The sum of a counter with this label, of the proxy of `who`.
fn counted(lab: &Lab, who: &str, name: &str, label: &str) -> Result<f64> {
    let metrics = lab.metrics(who)?;
    let lines = metrics.lines().filter(|line| line.starts_with(name) && line.contains(label));
    Ok(lines.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum())
}

fn workloads_that_flood_a_shared_process_are_slowed_and_named_and_others_are_served(
    capture: Capture,
) -> Result<()> {
    // This is far below the rate at which Python opens connections on any machine.
    let connection_rate = Some("25");
    let options = LabOptions { mtls: Some("strict"), connection_rate, ..LabOptions::new(capture) };
    let lab = start(&options, &format!("{MESH}{NEIGHBOURS}"))?;
    let outcome = || -> Result<()> {
        let process = lab.pid_of(GROUP)?;
        let over = lab.directory().join("over");
        let path = over.display().to_string();
        let flood = lab.spawn("flood", &["python3", "-c", FLOOD, &path])?;
        let mute = lab.spawn("mute", &["python3", "-c", MUTE, &path])?;
        let bulk = format!(
            "while [ ! -e {path} ]; do head -c 16777216 /dev/zero | \
             curl -sS -m 300 -o /dev/null -w '%{{http_code}}\\n' -T - http://web:8080/upload; done"
        );
        let bulk = lab.spawn("bulk", &["sh", "-c", &bulk])?;
        let seen = |label: &'static str, name: &'static str| {
            wait::until(name, LIMIT, || {
                Ok((counted(&lab, "flood", name, label)? > 0.0).then_some(()))
            })
        };
        let requests = under_load(&lab, (&["client-0"], "http://web:8080/"), || {
            seen("outbound", "leno_connections_slowed_total")?;
            seen(r#"reason="rate""#, "leno_connections_refused_total")?;
            wait::until("its name and the cause", LIMIT, || {
                let why = command::run(&mut lab.leno("why"), LIMIT)?;
                let why = String::from_utf8_lossy(&why.stdout).into_owned();
                let is_named = why.contains("from lab/flood to (unknown)");
                Ok((is_named && why.contains("connections-rate")).then_some(()))
            })?;
            let bound = gauge(&lab, "mute", "leno_memory_budget_bytes")?;
            let charged = gauge(&lab, "mute", "leno_memory_charged_bytes")?;
            ensure!(charged <= bound, "{charged} bytes are more than {bound}");
            Ok(())
        });
        fs::write(&over, "")?;
        let opened = flood.finish(LIMIT)?;
        mute.finish(LIMIT)?;
        let bodies = bulk.finish(LIMIT)?;
        let requests = requests?;
        for who in ["client", "web", "bulk", "mute"] {
            let refused = counted(&lab, who, "leno_connections_refused_total", r#"reason="rate""#)?;
            ensure!(refused == 0.0, "{who} is taken for one that floods");
        }
        let answers = String::from_utf8(bodies.stdout)?;
        ensure!(answers.lines().all(|status| status == "200"), "{answers}");
        println!(
            "{requests} requests beside {} connections and {} bodies, none lost",
            String::from_utf8(opened.stdout)?.trim(),
            answers.lines().count()
        );
        ensure!(lab.pid_of(GROUP)? == process, "the process was started again");
        Ok(())
    };
    lab.explain(outcome())
}

/// The memory limit of a process, from the process's control group.
fn limit_of_memory(process: u32) -> Result<u64> {
    let groups = fs::read_to_string(format!("/proc/{process}/cgroup"))?;
    let mounts = fs::read_to_string("/proc/self/mounts")?;
    for line in groups.lines() {
        let (controllers, path) = line
            .split_once(':')
            .and_then(|(_, rest)| rest.split_once(':'))
            .context("a line of /proc/PID/cgroup has three fields")?;
        let (kind, option, file) = match controllers {
            "" => ("cgroup2", "rw", "memory.max"),
            "memory" => ("cgroup", "memory", "memory.limit_in_bytes"),
            _ => continue,
        };
        let mount = mounts.lines().find_map(|line| {
            let mut fields = line.split(' ').skip(1);
            let (at, its, options) = (fields.next()?, fields.next()?, fields.next()?);
            (its == kind && options.split(',').any(|one| one == option)).then(|| at.to_owned())
        });
        let file = mount.map(|mount| PathBuf::from(mount + path).join(file));
        if let Some(Ok(text)) = file.map(fs::read_to_string)
            && path.contains("/groups/")
        {
            return Ok(text.trim().parse()?);
        }
    }
    anyhow::bail!("it has no limit of its own: {groups}")
}

fn the_limit_of_memory_of_a_process_follows_its_members(capture: Capture) -> Result<()> {
    let lab = start(&LabOptions::new(capture), MESH)?;
    let outcome = || -> Result<()> {
        let process = lab.pid_of(GROUP)?;
        let two = limit_of_memory(process)?;
        lab.edit(&format!("{MESH}{NEIGHBOURS}"))?;
        lab.wait_for("the neighbours", |s| s.ready() && s.instance("mute-0").is_ok())?;
        let five = limit_of_memory(process)?;
        ensure!(five > two, "{five} for five, {two} for two");
        lab.edit(MESH)?;
        wait::until("a lower limit", LIMIT, || {
            Ok((limit_of_memory(process)? == two).then_some(()))
        })?;
        ensure!(lab.pid_of(GROUP)? == process, "the process was started again");
        ensure!(status(&lab, "/")? == "200");
        lab.end()?;
        let left = lab.remains()?;
        ensure!(left.is_empty(), "left behind: {left:?}");
        Ok(())
    };
    lab.explain(outcome())
}
