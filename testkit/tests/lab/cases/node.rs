//! Tests workloads that a node proxy serves. These cases test properties in addition to the cases that every mesh
//! must pass, all of which `LENO_LAB_SHARE=node` runs in node mode.
//!
//! ```text
//! client, web ── share: node ──► one process      apart ── a sidecar
//! ```

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use leno_testkit::command::Running;
use leno_testkit::lab::{Capture, Lab, LabOptions, MeshProcess};
use leno_testkit::peer::{Step, Transcript};
use leno_testkit::proxy::every_thread_is_confined;
use leno_testkit::stopped::StoppedThreads;
use leno_testkit::{command, wait};
use nix::sys::signal::Signal;

use super::fairness::thread;
use super::flows::metric;
use super::identity::under_load;
use super::{Case, alone, once};

/// How long it may take until a change is observed.
pub(super) const LIMIT: Duration = Duration::from_secs(90);

pub(super) const MESH: &str = "
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: client, namespace: lab, annotations: {leno.dev/mode: node, leno.dev/share: node}}
spec: {serviceAccount: client, command: ['@BIN@/leno-peer', idle]}
---
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: web, namespace: lab, labels: {app: web}, annotations: {leno.dev/mode: node, leno.dev/share: node}}
spec:
  serviceAccount: web
  command: ['@BIN@/leno-peer', http, --listen, '[::]:8080']
  ports: [{name: http, port: 8080, appProtocol: http}]
---
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: apart, namespace: lab, labels: {app: apart}, annotations: {leno.dev/mode: sidecar}}
spec:
  serviceAccount: apart
  command: ['@BIN@/leno-peer', echo, --listen, '[::]:9000']
  ports: [{name: x, port: 9000}]
---
apiVersion: leno.dev/v1alpha1
kind: AuthorizationPolicy
metadata: {name: closed, namespace: lab}
spec:
  targetRefs: [{group: leno.dev, kind: Workload, name: web}]
  action: Deny
  rules: [{to: [{paths: [{prefix: /closed}]}]}]
";

/// A workload that is added to the process later.
pub(super) const GUEST: &str = "---
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: guest, namespace: lab, labels: {app: guest}, annotations: {leno.dev/mode: node, leno.dev/share: node}}
spec:
  serviceAccount: guest
  command: ['@BIN@/leno-peer', echo, --listen, '[::]:9000']
  ports: [{name: x, port: 9000}]
";

/// Holds connections to `apart` from when one file appears until another does. The connections need not be served.
const HOLD: &str = "
import os, socket, sys, time
held = [socket.create_connection(('apart', 9000)) for _ in range(40)]
open(sys.argv[1], 'w').close()
while not os.path.exists(sys.argv[2]):
    time.sleep(0.05)
";

/// The node proxy of the group that they all share.
pub(super) const GROUP: MeshProcess<'_> = MeshProcess::Node("node");

pub(super) fn cases() -> Vec<Case> {
    vec![
        alone!(two_workloads_of_one_process_pass_the_policies_and_counters_of_both),
        alone!(a_node_proxy_has_no_privilege_and_tokens_of_its_members_alone),
        alone!(threads_that_wait_return_what_their_stacks_were_for_a_moment),
        alone!(members_come_and_go_while_the_process_runs),
        alone!(a_killed_node_proxy_is_back_at_once_and_refuses_none),
        once!(a_node_proxy_that_a_signal_has_stopped_is_replaced_and_named),
        once!(a_sidecar_that_hangs_is_replaced_and_named),
        alone!(a_killed_broker_ends_its_own_workload_alone),
        once!(a_broker_that_hangs_is_replaced_and_named_once_a_connection_waits_for_it),
        alone!(a_process_without_a_free_descriptor_keeps_its_members),
        alone!(a_change_of_share_under_load_loses_and_cuts_nothing),
        alone!(
            a_process_that_was_left_takes_nothing_from_the_next_one_when_it_stands_still_or_dies
        ),
        alone!(a_change_of_share_that_is_taken_back_leaves_the_process_that_serves_its_identity),
        alone!(a_process_that_dies_while_the_next_one_waits_for_its_identity_is_left_for_it),
    ]
}

fn start(capture: Capture) -> Result<Lab> {
    let lab =
        Lab::start(&LabOptions { mtls: Some("strict"), ..LabOptions::new(capture) }, MESH, |_| {
            Ok(())
        })?;
    lab.explain(lab.reach("client", "web:8080").and_then(|_| echoes(&lab, "apart:9000")))?;
    Ok(lab)
}

/// The status of a request of the client to `web`.
pub(super) fn status(lab: &Lab, path: &str) -> Result<String> {
    let url = format!("http://web:8080{path}");
    lab.text("client", &["curl", "-sS", "-m", "10", "-o", "/dev/null", "-w", "%{http_code}", &url])
}

pub(super) fn echoes(lab: &Lab, server: &str) -> Result<()> {
    let steps = [Step::Send("hi".into()), Step::Expect("hi".into())];
    let echoed = lab.talk("client", server, &steps)?;
    ensure!(echoed.failure().is_none(), "{server}: {echoed:?}");
    Ok(())
}

/// The requests that the proxy of `who` has counted with these labels.
pub(super) fn counted(lab: &Lab, who: &str, labels: &[&str]) -> Result<f64> {
    let metrics = lab.metrics(who)?;
    let lines = metrics.lines().filter(|line| line.starts_with("leno_requests_total{"));
    let lines = lines.filter(|line| labels.iter().all(|label| line.contains(label)));
    Ok(lines.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum())
}

/// The value of a gauge of the proxy of `who`.
pub(super) fn gauge(lab: &Lab, who: &str, name: &str) -> Result<f64> {
    let metrics = lab.metrics(who)?;
    let line = metrics.lines().find_map(|line| line.strip_prefix(&format!("{name} ")));
    Ok(line.with_context(|| format!("{who} has no {name}"))?.parse()?)
}

fn two_workloads_of_one_process_pass_the_policies_and_counters_of_both(
    capture: Capture,
) -> Result<()> {
    let lab = start(capture)?;
    let outcome = || -> Result<()> {
        let edge = [r#"client="client"#, r#"server="web"#, r#"mtls="true""#];
        let of = |side: &'static str| [&[side][..], &edge].concat();
        let (outbound, inbound) = (of(r#"direction="outbound""#), of(r#"direction="inbound""#));
        let before = [counted(&lab, "client", &outbound)?, counted(&lab, "web", &inbound)?];
        for _ in 0..5 {
            ensure!(status(&lab, "/")? == "200");
        }
        ensure!(status(&lab, "/closed")? == "403", "the server's policy was not enforced");
        let after = [counted(&lab, "client", &outbound)?, counted(&lab, "web", &inbound)?];
        ensure!(after == before.map(|count| count + 6.0), "{before:?}, {after:?}");
        let strays = [counted(&lab, "client", &inbound)?, counted(&lab, "web", &outbound)?];
        ensure!(strays == [0.0, 0.0], "the counters of another workload: {strays:?}");
        let memory = |who: &str, of: &str| gauge(&lab, who, &format!("leno_memory_{of}_bytes"));
        ensure!(
            memory("web", "pool")? > memory("web", "budget")?,
            "half of all is more than an eighth"
        );
        ensure!(memory("apart", "pool")? == 0.0, "a sidecar shares no memory");
        // A client outside any workload, which has no certificate and bypasses the client's proxy.
        let address = lab.status()?.address("web", false)?;
        let said = is_served(&lab, &format!("http://{address}:8080/"))?;
        ensure!(!said, "plaintext was served under strict");
        Ok(())
    };
    lab.explain(outcome())
}

/// How much memory near the top of its stack a waiting thread uses: 16 KiB, with a reserve of two pages. It was 28 while
/// threads and futures passed large values on in frames that do not end.
const STACK_KIB: u64 = 24;

fn threads_that_wait_return_what_their_stacks_were_for_a_moment(capture: Capture) -> Result<()> {
    let lab = start(capture)?;
    let outcome = || -> Result<()> {
        let node = lab.pid_of(GROUP)?;
        // Memory that was returned is taken again when a thread needs it, so this is repeated.
        wait::until("stacks that are returned", LIMIT, || {
            let stacks = stacks_kib(node)?;
            ensure!(stacks.len() >= 2, "a thread of each member: {stacks:?}");
            Ok(stacks.iter().all(|kib| *kib <= STACK_KIB).then_some(()))
        })?;
        ensure!(status(&lab, "/")? == "200");
        echoes(&lab, "apart:9000")
    };
    lab.explain(outcome())
}

/// The private memory of the stacks of a process's threads except the first. These are anonymous mappings of the
/// size that the standard library uses.
fn stacks_kib(pid: u32) -> Result<Vec<u64>> {
    let text = fs::read_to_string(format!("/proc/{pid}/smaps"))?;
    let (mut is_stack, mut stacks) = (false, Vec::new());
    for line in text.lines() {
        let mut words = line.split_whitespace();
        match (words.next(), words.next()) {
            (Some("Size:"), Some(size)) => is_stack = size == "2048",
            (Some("Private_Dirty:"), Some(kib)) if is_stack => stacks.push(kib.parse()?),
            _ => {}
        }
    }
    Ok(stacks)
}

/// Whether a request from the switch's namespace, which has no proxy, is answered.
fn is_served(lab: &Lab, url: &str) -> Result<bool> {
    let switch = lab.switch()?;
    leno_testkit::netns::inside(&switch, || {
        let mut curl = Command::new("curl");
        Ok(curl.args(["-sS", "--fail", "-m", "5", "-o", "/dev/null", url]).status()?.success())
    })
}

/// A field of `/proc/PID/status`.
fn field(pid: u32, name: &str) -> Result<String> {
    let text = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = text.lines().find_map(|line| line.strip_prefix(&format!("{name}:")));
    Ok(line.with_context(|| format!("{name} of {pid}"))?.trim().to_owned())
}

fn a_node_proxy_has_no_privilege_and_tokens_of_its_members_alone(capture: Capture) -> Result<()> {
    let lab = start(capture)?;
    let outcome = || -> Result<()> {
        let node = lab.pid_of(GROUP)?;
        let broker = |name| lab.pid_of(MeshProcess::Broker(name));
        let brokers = [broker("client-0")?, broker("web-0")?];
        for pid in [node, brokers[0], brokers[1]] {
            for set in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
                ensure!(field(pid, set)? == "0000000000000000", "{set} of {pid}");
            }
            every_thread_is_confined(pid)?;
            ensure!(field(pid, "Uid")?.split_whitespace().all(|uid| uid == "2102"));
        }
        // One process serves both, in a network namespace that is neither workload's.
        let netns = |pid: u32| fs::read_link(format!("/proc/{pid}/ns/net"));
        ensure!(netns(node)? != netns(brokers[0])? && netns(node)? != netns(brokers[1])?);
        ensure!(tokens(&lab, node)? == ["lab.client-0", "lab.web-0"], "{:?}", tokens(&lab, node)?);
        Ok(())
    };
    lab.explain(outcome())
}

/// The tokens in the folder as a process sees it.
fn tokens(lab: &Lab, pid: u32) -> Result<Vec<String>> {
    let folder: PathBuf =
        Path::new(&format!("/proc/{pid}/root/run/leno")).join(lab.name()).join("own");
    let names = fs::read_dir(&folder)?.map(|entry| Ok(entry?.file_name().display().to_string()));
    let mut names = names.collect::<Result<Vec<_>>>()?;
    names.sort();
    Ok(names)
}

fn members_come_and_go_while_the_process_runs(capture: Capture) -> Result<()> {
    let lab = start(capture)?;
    let outcome = || -> Result<()> {
        let node = lab.pid_of(GROUP)?;
        let load = lab.load(
            "client",
            &[
                "--url",
                "http://web:8080/",
                "--rate",
                "100",
                "--connections",
                "4",
                "--duration",
                "8s",
            ],
        )?;
        lab.edit(&format!("{MESH}{GUEST}"))?;
        lab.wait_for("the guest", |s| s.ready() && s.instance("guest").is_ok())?;
        wait::until("the guest's first answer", LIMIT, || {
            Ok(echoes(&lab, "guest:9000").is_ok().then_some(()))
        })?;
        ensure!(tokens(&lab, node)?.contains(&"lab.guest-0".to_owned()));
        lab.edit(MESH)?;
        let gone = wait::until("the end of the guest", LIMIT, || {
            let left = lab.status()?.instance("guest").is_err();
            let token = tokens(&lab, node)?.contains(&"lab.guest-0".to_owned());
            Ok((left && !token).then_some(()))
        });
        let report = load.finish()?;
        gone?;
        ensure!(report.errors == 0 && report.requests == 800, "{report:?}");
        ensure!(lab.pid_of(GROUP)? == node, "the process was started again");
        // The guest's threads have ended with it.
        wait::until("the end of the guest's threads", LIMIT, || {
            // The process has one thread of its own and one for each member.
            let threads = fs::read_dir(format!("/proc/{node}/task"))?.count();
            Ok((threads == 3).then_some(()))
        })
    };
    lab.explain(outcome())
}

fn a_killed_node_proxy_is_back_at_once_and_refuses_none(capture: Capture) -> Result<()> {
    let lab = start(capture)?;
    let outcome = || -> Result<()> {
        let sidecar = lab.pid_of(MeshProcess::Proxy("apart-0"))?;
        // The first time the process is killed. The second time it is asked to end, and leaves the listeners open.
        for (restarts, signal) in [(1, Signal::SIGKILL), (2, Signal::SIGTERM)] {
            let before = lab.pid_of(GROUP)?;
            lab.kill(GROUP, signal)?;
            // The request waits in the queue of the listener, which has outlived the process.
            ensure!(status(&lab, "/")? == "200");
            lab.wait_for("the members again", |s| {
                s.ready()
                    && ["client-0", "web-0"]
                        .iter()
                        .all(|name| s.instance(name).is_ok_and(|i| i.proxy_restarts == restarts))
            })?;
            ensure!(lab.pid_of(GROUP)? != before, "{signal}");
        }
        ensure!(lab.pid_of(MeshProcess::Proxy("apart-0"))? == sidecar, "a sidecar was ended, too");
        ensure!(lab.status()?.instance("apart-0")?.proxy_restarts == 0);
        ensure!(status(&lab, "/closed")? == "403");
        echoes(&lab, "apart:9000")
    };
    lab.explain(outcome())
}

/// Regression: while the process was stopped, none of its workloads was served.
fn a_node_proxy_that_a_signal_has_stopped_is_replaced_and_named(capture: Capture) -> Result<()> {
    let lab = start(capture)?;
    let outcome = || -> Result<()> {
        let hung = || metric(&lab, "leno_node_processes_hung_total", &[]);
        let before = lab.pid_of(GROUP)?;
        ensure!(hung()? == 0);
        lab.kill(GROUP, Signal::SIGSTOP)?;
        // The request waits in the queue of the listener.
        lab.text("client", &["curl", "-sSf", "-m", "60", "-o", "/dev/null", "http://web:8080/"])?;
        ensure!(lab.pid_of(GROUP)? != before);
        let said = format!("process {before}, was stopped by a signal: it is killed");
        ensure!(lab.log().contains(&said) && hung()? == 1);
        lab.wait_for("the members again", |s| {
            let is_named = |name: &&str| {
                s.instance(name).is_ok_and(|instance| {
                    let ended = instance.proxy_ended.as_deref();
                    ended == Some("was stopped by a signal and was replaced")
                })
            };
            s.ready() && ["client-0", "web-0"].iter().all(is_named)
        })?;
        let check = command::run(&mut lab.leno("check"), LIMIT)?;
        let check = String::from_utf8_lossy(&check.stdout).into_owned();
        let shown = "restarted once (it was stopped by a signal and was replaced)";
        ensure!(check.matches(shown).count() == 2, "{check}");

        // Traffic does not pass through the broker. As long as no connection waits for the broker, it is only
        // named, not replaced.
        let broker = MeshProcess::Broker("web-0");
        lab.kill(broker, Signal::SIGSTOP)?;
        let check = command::run(&mut lab.leno("check"), LIMIT)?;
        lab.kill(broker, Signal::SIGCONT)?;
        let check = String::from_utf8_lossy(&check.stdout).into_owned();
        let shown =
            format!("process {} is stopped by a signal, and new connections", lab.pid_of(broker)?);
        ensure!(check.contains("lab/web-0 broker") && check.contains(&shown), "{check}");
        echoes(&lab, "apart:9000")
    };
    lab.explain(outcome())
}

/// Regression: a sidecar that hung was not replaced, and its workload was not served until an operator killed the
/// sidecar.
fn a_sidecar_that_hangs_is_replaced_and_named(capture: Capture) -> Result<()> {
    const SIDECAR: MeshProcess<'_> = MeshProcess::Proxy("apart-0");
    let lab = start(capture)?;
    let is_replaced = |before: u32, stopped: Option<StoppedThreads>, (how, count): (&str, u32)| {
        let said = format!("apart-0, process {before}, {how}: it is killed");
        wait::until("the end of a proxy that hangs", LIMIT, || {
            Ok(lab.log().contains(&said).then_some(()))
        })?;
        // Until now, the debugger has kept the process after its end.
        drop(stopped);
        lab.wait_for("its next process", |s| {
            s.ready()
                && s.instance("apart-0").is_ok_and(|apart| {
                    apart.proxy_restarts == count
                        && apart.proxy_ended == Some(format!("{how} and was replaced"))
                })
        })?;
        ensure!(lab.pid_of(SIDECAR)? != before);
        ensure!(metric(&lab, "leno_sidecar_processes_hung_total", &[])? == u64::from(count));
        echoes(&lab, "apart:9000")
    };
    let outcome = || -> Result<()> {
        let before = lab.pid_of(SIDECAR)?;
        lab.kill(SIDECAR, Signal::SIGSTOP)?;
        is_replaced(before, None, ("was stopped by a signal", 1))?;
        // The first thread of the process, which serves admin pages and orders, continues.
        let before = lab.pid_of(SIDECAR)?;
        let stopped = StoppedThreads::of(&[thread(before, "worker-0")?])?;
        is_replaced(before, Some(stopped), ("reported nothing for 10 s", 2))?;
        ensure!(metric(&lab, "leno_node_processes_hung_total", &[])? == 0);
        ensure!(lab.status()?.instance("web-0")?.proxy_restarts == 0);
        ensure!(status(&lab, "/")? == "200");
        Ok(())
    };
    lab.explain(outcome())
}

fn a_killed_broker_ends_its_own_workload_alone(capture: Capture) -> Result<()> {
    let lab = start(capture)?;
    let outcome = || -> Result<()> {
        let node = lab.pid_of(GROUP)?;
        // A stream of the other member must continue.
        let go = lab.directory().join("go");
        let stream = stream(&lab, &lab.directory().join("begun"), &go)?;
        lab.kill(MeshProcess::Broker("web-0"), Signal::SIGKILL)?;
        lab.wait_for("the proxy of web-0 again", |s| {
            s.ready() && s.instance("web-0").is_ok_and(|i| i.proxy_restarts > 0)
        })?;
        wait::until("an answer of web", LIMIT, || Ok((status(&lab, "/")? == "200").then_some(())))?;
        fs::write(go, "")?;
        has_nothing_lost(stream)?;
        ensure!(lab.pid_of(GROUP)? == node, "the process was started again");
        ensure!(lab.status()?.instance("client-0")?.proxy_restarts == 0);
        Ok(())
    };
    lab.explain(outcome())
}

/// Regression: each connection waited until it gave up, and no message named the cause. Traffic does not pass
/// through a stopped broker, so streams continue; it is replaced only when a connection waits for it.
fn a_broker_that_hangs_is_replaced_and_named_once_a_connection_waits_for_it(
    capture: Capture,
) -> Result<()> {
    const BROKER: MeshProcess<'_> = MeshProcess::Broker("client-0");
    let lab = start(capture)?;
    let outcome = || -> Result<()> {
        let (node, broker) = (lab.pid_of(GROUP)?, lab.pid_of(BROKER)?);
        let go = lab.directory().join("go");
        let stream = stream(&lab, &lab.directory().join("begun"), &go)?;
        lab.kill(BROKER, Signal::SIGSTOP)?;
        fs::write(go, "")?;
        has_nothing_lost(stream)?;
        let said = format!(
            "client-0, process {broker}, was stopped by a signal, and new connections wait"
        );
        ensure!(!lab.log().contains(&said), "it was replaced although nothing waited for it");
        // Each connection takes a socket from the stock of the process, until the process requests more from its
        // broker.
        let steps = [Step::Send("hi".into()), Step::Expect("hi".into())];
        wait::until("the end of a broker that hangs", LIMIT, || {
            let _late = lab.talk("client", "apart:9000", &steps)?;
            Ok(lab.log().contains(&said).then_some(()))
        })?;
        lab.wait_for("the next broker", |s| {
            let ended = "lost its broker, which was stopped by a signal and was replaced";
            s.ready()
                && s.instance("client-0").is_ok_and(|client| {
                    client.proxy_restarts > 0 && client.proxy_ended.as_deref() == Some(ended)
                })
        })?;
        ensure!(lab.pid_of(BROKER)? != broker);
        ensure!(metric(&lab, "leno_broker_processes_hung_total", &[])? == 1);
        ensure!(lab.pid_of(GROUP)? == node, "the process was started again");
        ensure!(lab.status()?.instance("web-0")?.proxy_restarts == 0);
        echoes(&lab, "apart:9000")
    };
    lab.explain(outcome())
}

/// Starts a stream of the client that lasts from when one file appears until another does. None of its data may be
/// lost.
pub(super) fn stream(lab: &Lab, begun: &Path, go: &Path) -> Result<Running> {
    stream_to(lab, "apart:9000", (begun, go))
}

/// Like [`stream`], to this server.
pub(super) fn stream_to(lab: &Lab, server: &str, (begun, go): (&Path, &Path)) -> Result<Running> {
    let steps = serde_json::to_string(&[
        Step::Send("one".into()),
        Step::Expect("one".into()),
        Step::Touch(begun.to_owned()),
        Step::WaitFor(go.to_owned()),
        Step::Send("two".into()),
        Step::Expect("two".into()),
    ])?;
    let stream = lab.spawn("client", &["leno-peer", "talk", server, &steps])?;
    wait::until("the stream", LIMIT, || Ok(begun.exists().then_some(())))?;
    Ok(stream)
}

pub(super) fn has_nothing_lost(stream: Running) -> Result<()> {
    let output = stream.finish(LIMIT)?;
    let said: Transcript = serde_json::from_slice(&output.stdout)?;
    ensure!(said.failure().is_none(), "{said:?}");
    Ok(())
}

/// If a process has no free descriptor, the sockets that a broker sends are lost, and an order to serve one more
/// workload arrives without its sockets.
fn a_process_without_a_free_descriptor_keeps_its_members(capture: Capture) -> Result<()> {
    let lab = start(capture)?;
    let outcome = || -> Result<()> {
        let node = lab.pid_of(GROUP)?;
        let file = |name: &str| lab.directory().join(name);
        let stream = stream(&lab, &file("begun"), &file("go"))?;
        let open = || -> Result<usize> { Ok(fs::read_dir(format!("/proc/{node}/fd"))?.count()) };
        // This many connections use up half of the sockets that the broker has sent, and there is no descriptor
        // for further ones.
        let limit = open()? + 12;
        set_limit(node, limit)?;
        let (full, free) = (file("full"), file("free"));
        let paths = [full.display().to_string(), free.display().to_string()];
        let hold = ["python3", "-c", HOLD, &paths[0], &paths[1]];
        let held = lab.spawn("client", &hold)?;
        wait::until("the last descriptor", LIMIT, || {
            Ok((full.exists() && open()? >= limit).then_some(()))
        })?;
        lab.edit(&format!("{MESH}{GUEST}"))?;
        wait::until("the attempt to serve the guest", LIMIT, || {
            Ok(lab.log().contains("a workload is not served").then_some(()))
        })?;
        set_limit(node, 4096)?;
        fs::write(free, "")?;
        held.finish(LIMIT)?;
        wait::until("the guest's first answer", LIMIT, || {
            Ok(echoes(&lab, "guest:9000").is_ok().then_some(()))
        })?;
        ensure!(status(&lab, "/")? == "200");
        fs::write(file("go"), "")?;
        has_nothing_lost(stream)?;
        ensure!(lab.pid_of(GROUP)? == node, "the process was started again");
        Ok(())
    };
    lab.explain(outcome())
}

/// Sets how many descriptors a proxy may have. Runs as the proxies' user, who needs no capability for that.
fn set_limit(pid: u32, descriptors: usize) -> Result<()> {
    let (pid, limit) = (pid.to_string(), format!("--nofile={descriptors}:"));
    let user = ["--reuid=2102", "--regid=2102", "--clear-groups"];
    let mut prlimit = Command::new("setpriv");
    let status = prlimit.args(user).args(["prlimit", "--pid", &pid, &limit]).status()?;
    ensure!(status.success(), "prlimit {limit}: {status}");
    Ok(())
}

/// Every process that has served a workload finishes its connections, while the next process accepts new ones.
fn a_change_of_share_under_load_loses_and_cuts_nothing(capture: Capture) -> Result<()> {
    // With the last share, the workloads return to the process that still has the stream.
    const SHARES: [&str; 4] = ["workload", "namespace", "service-account", "node"];
    let lab = start(capture)?;
    let outcome = || -> Result<()> {
        let application = |name: &str| lab.pid_of(MeshProcess::Application(name));
        let before = [application("client-0")?, application("web-0")?, lab.pid_of(GROUP)?];
        let file = |name: &str| lab.directory().join(name);
        let stream = stream(&lab, &file("begun"), &file("go"))?;
        // Starts a request whose body ends only after the last change.
        let upload = format!(
            "(printf head; touch {}; while [ ! -e {} ]; do printf more; sleep 0.05; done; printf tail) | \
             curl -sS -m 300 -o /dev/null -w '%{{http_code}}' -T - http://web:8080/upload",
            file("sending").display(),
            file("go").display()
        );
        let upload = lab.spawn("client", &["sh", "-c", &upload])?;
        wait::until("the upload", LIMIT, || Ok(file("sending").exists().then_some(())))?;
        let requests = under_load(&lab, (&["client-0"], "http://web:8080/"), || {
            SHARES.iter().try_for_each(|share| go_to(&lab, share))?;
            ensure!(status(&lab, "/closed")? == "403", "the policy is not enforced");
            Ok(())
        })?;
        fs::write(file("go"), "")?;
        has_nothing_lost(stream)?;
        let answer = upload.finish(LIMIT)?;
        ensure!(answer.stdout == b"200", "the upload was cut: {answer:?}");
        let after = [application("client-0")?, application("web-0")?, lab.pid_of(GROUP)?];
        ensure!(after == before, "{after:?} after {before:?}");
        println!("{}: {requests} requests over {} shares, none lost", capture.name(), SHARES.len());
        // The previous processes end together with their connections.
        let gone = ["workload.lab.web-0", "namespace.lab", "service-account.lab.client"];
        wait::until("the end of all processes but one", LIMIT, || {
            let left = gone.iter().any(|group| lab.pid_of(MeshProcess::Node(group)).is_ok());
            Ok((!left).then_some(()))
        })
    };
    lab.explain(outcome())
}

fn shared(share: &str) -> String {
    MESH.replace("share: node", &format!("share: {share}"))
}

/// Moves both workloads of the process to another share.
fn go_to(lab: &Lab, share: &str) -> Result<()> {
    lab.edit(&shared(share))?;
    for name in ["client", "web"] {
        let group = match share {
            "workload" => format!("workload.lab.{name}-0"),
            "service-account" => format!("service-account.lab.{name}"),
            "namespace" => "namespace.lab".to_owned(),
            share => share.to_owned(),
        };
        let line = format!("{name}-0 is served by node proxy {group} now");
        wait::until(&line, LIMIT, || Ok(lab.log().contains(&line).then_some(())))?;
    }
    Ok(())
}

fn a_process_that_was_left_takes_nothing_from_the_next_one_when_it_stands_still_or_dies(
    capture: Capture,
) -> Result<()> {
    let lab = start(capture)?;
    let outcome = || -> Result<()> {
        let file = |name: &str| lab.directory().join(name);
        let former = stream(&lab, &file("begun"), &file("killed"))?;
        go_to(&lab, "workload")?;
        let stopped = StoppedThreads::of_process(lab.pid_of(GROUP)?)?;
        // Each connection uses up a socket from the client's broker.
        let (full, free) = (file("full"), file("free"));
        let paths = [full.display().to_string(), free.display().to_string()];
        let held = lab.spawn("client", &["python3", "-c", HOLD, &paths[0], &paths[1]])?;
        wait::until("all connections", LIMIT, || Ok(full.exists().then_some(())))?;
        let later = stream(&lab, &file("begun later"), &file("go"))?;
        ensure!(status(&lab, "/")? == "200");
        lab.kill(GROUP, Signal::SIGKILL)?;
        fs::write(file("killed"), "")?;
        // The streams cannot continue, because their process no longer exists.
        drop(stopped);
        let cut = former.finish(LIMIT)?;
        let said: Transcript = serde_json::from_slice(&cut.stdout)?;
        ensure!(said.was_cut(), "the stream of a process that is gone: {said:?}");
        fs::write(file("go"), "")?;
        has_nothing_lost(later)?;
        fs::write(free, "")?;
        held.finish(LIMIT)?;
        ensure!(status(&lab, "/closed")? == "403");
        wait::until("the end of the process that was left", LIMIT, || {
            Ok(lab.pid_of(GROUP).is_err().then_some(()))
        })
    };
    lab.explain(outcome())
}

/// Begins a change of the share that has to wait, because no process gets a certificate while the controller is
/// stopped.
fn begin_change(lab: &Lab) -> Result<()> {
    lab.kill(MeshProcess::Controller, Signal::SIGSTOP)?;
    lab.edit(&shared("workload"))?;
    let next = ["workload.lab.client-0", "workload.lab.web-0"];
    wait::until("the next processes", LIMIT, || {
        let run = next.iter().all(|group| lab.pid_of(MeshProcess::Node(group)).is_ok());
        Ok(run.then_some(()))
    })
}

fn a_change_of_share_that_is_taken_back_leaves_the_process_that_serves_its_identity(
    capture: Capture,
) -> Result<()> {
    let lab = start(capture)?;
    let outcome = || -> Result<()> {
        begin_change(&lab)?;
        ensure!(status(&lab, "/")? == "200");
        lab.edit(MESH)?;
        wait::until("the end of the next processes", LIMIT, || {
            Ok(lab.pid_of(MeshProcess::Node("workload.lab.web-0")).is_err().then_some(()))
        })?;
        lab.kill(MeshProcess::Controller, Signal::SIGCONT)?;
        // The process that replaces it needs a certificate, so it cannot start.
        let before = lab.pid_of(GROUP)?;
        lab.kill(GROUP, Signal::SIGKILL)?;
        ensure!(status(&lab, "/")? == "200");
        lab.wait_for("both workloads", |status| status.ready())?;
        ensure!(lab.pid_of(GROUP)? != before);
        echoes(&lab, "apart:9000")
    };
    lab.explain(outcome())
}

fn a_process_that_dies_while_the_next_one_waits_for_its_identity_is_left_for_it(
    capture: Capture,
) -> Result<()> {
    let lab = start(capture)?;
    let outcome = || -> Result<()> {
        begin_change(&lab)?;
        // The third start is delayed, so the next process may already serve while this one does not run.
        for _ in 0..3 {
            let pid = lab.pid_of(GROUP)?;
            lab.kill(GROUP, Signal::SIGKILL)?;
            wait::until("the next start", LIMIT, || {
                Ok(lab.pid_of(GROUP).is_ok_and(|next| next != pid).then_some(()))
            })?;
        }
        lab.kill(GROUP, Signal::SIGKILL)?;
        lab.kill(MeshProcess::Controller, Signal::SIGCONT)?;
        for name in ["client", "web"] {
            let line = format!("{name}-0 is served by node proxy workload.lab.{name}-0 now");
            wait::until(&line, LIMIT, || Ok(lab.log().contains(&line).then_some(())))?;
        }
        lab.wait_for("both workloads", |status| status.ready())?;
        ensure!(status(&lab, "/")? == "200");
        ensure!(status(&lab, "/closed")? == "403", "the policy is not enforced");
        echoes(&lab, "apart:9000")
    };
    lab.explain(outcome())
}
