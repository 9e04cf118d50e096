//! Tests parts of the mesh that stop or die under load.

use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use leno_testkit::lab::{Capture, Lab, LabOptions, MeshProcess, Status};
use leno_testkit::load::Report;
use leno_testkit::peer::Step;
use leno_testkit::{netns, wait};
use nix::sys::signal::Signal;

use super::reauthorization::{OpenTalk, begin_bytes, begin_talk, begin_upgrade};
use super::{Case, alone, once};

/// A client, three instances of a server, and one instance of a service whose protocol is detected.
const MESH: &str = "
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: client, namespace: lab}
spec: {command: [\"@BIN@/leno-peer\", idle]}
---
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: web, namespace: lab, labels: {app: web}}
spec:
  replicas: 3
  command: [\"@BIN@/leno-peer\", http, --listen, \"[::]:8080\"]
  ports: [{name: http, port: 8080, appProtocol: http}]
---
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: echo, namespace: lab}
spec:
  command: [\"@BIN@/leno-peer\", echo, --listen, \"[::]:9000\"]
  ports: [{name: x, port: 9000}]
";

/// How long the control plane may take to send an endpoint to a proxy.
const HEAR_LIMIT: Duration = Duration::from_secs(90);
/// The number of the load's connections, and therefore the most requests in progress.
const CONNECTIONS: u64 = 8;

pub(super) fn cases() -> Vec<Case> {
    vec![
        alone!(pieces_stop_and_die_under_load),
        alone!(no_connection_gets_past_a_missing_proxy),
        once!(certificates_rotate_under_load),
        alone!(a_server_that_loses_power_is_noticed),
    ]
}

fn load_for(seconds: &str) -> [&str; 8] {
    let url = "http://web:8080/?size=1000&delay_ms=2";
    ["--url", url, "--rate", "200", "--connections", "8", "--duration", seconds]
}

/// Checks that `due` requests were due, and that at most `most` of those that were sent failed. Requests that the
/// machine had no time to send do not count as lost.
fn none_lost(report: &Report, (due, most): (u64, u64)) -> Result<()> {
    ensure!(report.requests == due && report.errors < due, "{report:?}");
    ensure!(report.errors - report.unsent() <= most, "{report:?}");
    Ok(())
}

fn pieces_stop_and_die_under_load(capture: Capture) -> Result<()> {
    let lab = Lab::start(&LabOptions::new(capture), MESH, |_| Ok(()))?;
    let outcome = lab
        .reach("client", "web:8080")
        .and_then(|_| echoes(&lab).context("the first use of echo"))
        .and_then(|()| proxy_of_client_killed(&lab))
        .and_then(|()| heard_of_echo(&lab))
        .and_then(|()| control_plane_stopped(&lab).context("the control plane stopped"))
        .and_then(|()| control_plane_killed(&lab).context("the control plane killed"))
        .and_then(|()| endpoint_killed(&lab).context("an endpoint killed"))
        .and_then(|()| proxy_killed(&lab).context("a proxy killed"))
        .and_then(|()| all_killed(&lab).context("all proxies and the control plane killed"));
    lab.explain(outcome)
}

fn echoes(lab: &Lab) -> Result<()> {
    let steps = [Step::Send("hi".into()), Step::Expect("hi".into())];
    let echoed = lab.talk("client", "echo:9000", &steps)?;
    ensure!(echoed.failure().is_none(), "{echoed:?}");
    Ok(())
}

/// The client's next proxy fetches the services that the client has used before.
fn proxy_of_client_killed(lab: &Lab) -> Result<()> {
    lab.kill(MeshProcess::Proxy("client-0"), Signal::SIGKILL)?;
    lab.wait_for("the proxy of client-0 again", |s| {
        s.ready() && s.instance("client-0").is_ok_and(|i| i.proxy_restarts > 0)
    })
}

/// Waits until the client's proxy has an endpoint of `echo`, without causing it to subscribe.
fn heard_of_echo(lab: &Lab) -> Result<()> {
    let config = ["curl", "-sS", "--fail", "http://127.0.0.1:15020/config"];
    wait::until("the client's proxy to hear of echo", HEAR_LIMIT, || {
        let config: serde_json::Value = serde_json::from_str(&lab.text("client", &config)?)?;
        let services = config["services"].as_array().cloned().unwrap_or_default();
        let echo = services.iter().find(|service| service["name"] == "lab/echo");
        let reachable = echo.is_some_and(|echo| echo["ports"][0]["endpoints"] == 1);
        Ok(reachable.then_some(()))
    })
}

/// The control plane hangs right after the client's proxy has started. Services to which this proxy has not
/// subscribed yet must still work if workloads like its own have used them.
fn control_plane_stopped(lab: &Lab) -> Result<()> {
    lab.kill(MeshProcess::Controller, Signal::SIGSTOP)?;
    let load = lab.load("client", &load_for("3s"))?;
    let echoed = echoes(lab);
    let report = load.finish();
    lab.kill(MeshProcess::Controller, Signal::SIGCONT)?;
    let ((), report) = (echoed?, report?);
    none_lost(&report, (600, 0))
}

fn control_plane_killed(lab: &Lab) -> Result<()> {
    let before = lab.pid_of(MeshProcess::Controller)?;
    let load = lab.load("client", &load_for("3s"))?;
    lab.kill(MeshProcess::Controller, Signal::SIGKILL)?;
    none_lost(&load.finish()?, (600, 0))?;
    lab.wait_for("a new control plane", |s| s.controller.is_some_and(|pid| pid != before))
}

fn endpoint_killed(lab: &Lab) -> Result<()> {
    let load = lab.load("client", &load_for("3s"))?;
    lab.kill(MeshProcess::Application("web-1"), Signal::SIGKILL)?;
    none_lost(&load.finish()?, (600, CONNECTIONS)).context("more failed than was in flight")?;
    lab.wait_for("web-1 again", |s| s.ready() && s.instance("web-1").is_ok_and(|i| i.restarts > 0))
}

fn proxy_killed(lab: &Lab) -> Result<()> {
    let load = lab.load("client", &load_for("3s"))?;
    lab.kill(MeshProcess::Proxy("web-2"), Signal::SIGKILL)?;
    none_lost(&load.finish()?, (600, CONNECTIONS)).context("more failed than was in flight")?;
    lab.wait_for("the proxy of web-2 again", |s| {
        s.ready() && s.instance("web-2").is_ok_and(|i| i.proxy_restarts > 0)
    })?;
    // The client's own proxy is killed. Its connections are closed, and new ones work once the proxy is back.
    lab.kill(MeshProcess::Proxy("client-0"), Signal::SIGKILL)?;
    lab.wait_for("the proxy of client-0 again", |s| {
        s.ready() && s.instance("client-0").is_ok_and(|i| i.proxy_restarts > 1)
    })?;
    none_lost(&lab.load("client", &load_for("1s"))?.finish()?, (200, 0))
}

/// All proxies and the control plane are killed at once. Requests in progress fail, and so do those that begin
/// while there is no proxy. Once the proxies are back with certificates of the new control plane, no request may
/// fail.
fn all_killed(lab: &Lab) -> Result<()> {
    const PROXIES: [&str; 5] = ["client-0", "web-0", "web-1", "web-2", "echo-0"];
    let restarts = |status: &Status| -> Result<Vec<u32>> {
        PROXIES.iter().map(|name| Ok(status.instance(name)?.proxy_restarts)).collect()
    };
    let before = restarts(&lab.status()?)?;
    let controller = lab.pid_of(MeshProcess::Controller)?;
    let reports = under_load(lab, || {
        lab.kill(MeshProcess::Controller, Signal::SIGKILL)?;
        lab.kill_all(&PROXIES.map(MeshProcess::Proxy), Signal::SIGKILL)?;
        lab.wait_for("all pieces again", |status| {
            let is_new = status.controller.is_some_and(|pid| pid != controller);
            let all = restarts(status).is_ok_and(|now| now.iter().zip(&before).all(|(a, b)| a > b));
            status.ready() && is_new && all
        })
    })?;
    println!("all killed at once: {reports:?}");
    let [.., afterwards] = &*reports else { anyhow::bail!("no load") };
    none_lost(afterwards, (600, 0)).context("afterwards")?;
    echoes(lab)
}

/// Runs `work` while the client sends requests for three seconds at a time. The last such run begins after `work`.
fn under_load(lab: &Lab, work: impl FnOnce() -> Result<()>) -> Result<Vec<Report>> {
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let load = scope.spawn(|| -> Result<Vec<Report>> {
            let mut reports = Vec::new();
            loop {
                let is_last = over.load(Ordering::Relaxed);
                reports.push(lab.load("client", &load_for("3s"))?.finish()?);
                if is_last {
                    return Ok(reports);
                }
            }
        });
        let worked = work();
        over.store(true, Ordering::Relaxed);
        let reports = load.join().map_err(|_| anyhow::anyhow!("the load panicked"))?;
        worked.and(reports)
    })
}

/// Runs in the default mode, which accepts plaintext. Even then no connection may bypass a proxy that does not
/// run. The listeners of a node proxy belong to its brokers, and its next process starts at once, so connections
/// wait for that.
fn no_connection_gets_past_a_missing_proxy(capture: Capture) -> Result<()> {
    /// The exit status of curl if it cannot connect, and if it gets no response in time.
    const COULD_NOT_CONNECT: i32 = 7;
    const NO_RESPONSE: i32 = 28;
    const ENDS_WITHIN: Duration = Duration::from_secs(90);
    let options = LabOptions::new(capture);
    let (expected, patience) = match options.share {
        None => (COULD_NOT_CONNECT, "20"),
        Some(_) => (NO_RESPONSE, "5"),
    };
    let lab = Lab::start(&options, MESH, |_| Ok(()))?;
    let refused = || -> Result<()> {
        lab.reach("client", "web:8080")?;
        let address = lab.status()?.address("web-0", false)?;
        // Without the control plane, a new proxy gets no certificate, and it does not listen until it has one.
        lab.kill(MeshProcess::Controller, Signal::SIGSTOP)?;
        let names = ["client-0", "web-0"];
        let mut killed = names.map(MeshProcess::Proxy).to_vec();
        if options.share.is_some() {
            killed.extend(names.map(MeshProcess::Broker));
        }
        let pids = killed.iter().map(|piece| lab.pid_of(*piece)).collect::<Result<Vec<u32>>>()?;
        lab.kill_all(&killed, Signal::SIGKILL)?;
        // A process that is being killed accepts connections until the kernel has closed its listeners.
        let runs = |pid: &u32| Path::new(&format!("/proc/{pid}")).exists();
        wait::until("the end of the proxies", ENDS_WITHIN, || {
            Ok((!pids.iter().any(runs)).then_some(()))
        })?;
        let curl = |url: &str| ["curl", "-sS", "--max-time", patience, url].map(str::to_owned);
        let from_client = |url: &str| -> Result<Option<i32>> {
            let command = curl(url);
            let command: Vec<&str> = command.iter().map(String::as_str).collect();
            Ok(lab.exec("client", &command)?.status.code())
        };
        let from_bridge = |url: &str| -> Result<Option<i32>> {
            let [program, arguments @ ..] = &curl(url);
            let run = || Command::new(program).args(arguments).output();
            Ok(netns::inside(&lab.switch()?, || Ok(run()?))?.status.code())
        };
        let direct = format!("http://{address}:8080/");
        for (who, exited) in [
            ("its service", from_client("http://web:8080/")?),
            ("an instance", from_client(&direct)?),
            ("an instance, from outside", from_bridge(&direct)?),
        ] {
            ensure!(exited == Some(expected), "{who}: {exited:?}");
        }
        lab.kill(MeshProcess::Controller, Signal::SIGCONT)?;
        lab.wait_for("both proxies again", |s| {
            let again = |name| s.instance(name).is_ok_and(|i| i.proxy_restarts > 0);
            s.ready() && again("client-0") && again("web-0")
        })?;
        lab.reach("client", "web:8080").map(|_| ())
    };
    lab.explain(refused())
}

fn certificates_rotate_under_load(capture: Capture) -> Result<()> {
    /// The lifetime of certificates. They are renewed after 70 % of it, once during the load.
    const LIFETIME: std::time::Duration = std::time::Duration::from_secs(15);
    let options = LabOptions { cert_lifetime: Some(LIFETIME), ..LabOptions::new(capture) };
    let lab = Lab::start(&options, MESH, |_| Ok(()))?;
    let rotation = || -> Result<()> {
        lab.reach("client", "web:8080")?;
        let before = super::life::certificate(&lab, "web-0")?;
        // This load lasts longer than the first certificates are valid.
        none_lost(&lab.load("client", &load_for("18s"))?.finish()?, (3600, 0))?;
        let after = super::life::certificate(&lab, "web-0")?;
        ensure!(before != after, "the certificate is still {before}");
        // The load above used existing connections; this one opens new ones.
        let mut new = load_for("1s").to_vec();
        new.push("--new-connection");
        none_lost(&lab.load("client", &new)?.finish()?, (200, 0))
    };
    lab.explain(rotation())
}

/// The links of an HTTP server and of a TCP server are cut under load, without a FIN or a reset. Requests in
/// progress must end, those with a deadline at the deadline; so must upgraded and opaque connections. The other
/// servers must answer later requests.
fn a_server_that_loses_power_is_noticed(capture: Capture) -> Result<()> {
    let bounded = MESH.to_owned() + BOUNDED;
    let lab = Lab::start(&LabOptions::new(capture), &bounded, |_| Ok(()))?;
    let cut = || -> Result<()> {
        for service in ["web", "bounded"] {
            lab.reach("client", &format!("{service}:8080"))?;
            let all = at_once(&lab, service)?;
            ensure!(all.lines().all(|line| line.starts_with("200 ")), "{service}, before:\n{all}");
        }
        let load = ["--connections", "400", "--rate", "100", "--duration", "20s", "--timeout"];
        let url = ["40s", "--url", "http://web:8080/?delay_ms=100"];
        let load = lab.load("client", &[&load[..], &url].concat())?;
        let spawn = |service| lab.spawn("client", &["bash", "-c", &burst(service)]);
        let under_way = [spawn("web")?, spawn("bounded")?];
        wait::until("requests to be under way", HEAR_LIMIT, || {
            let busy = lab.metrics("web-1")?;
            let open = busy.lines().find(|line| line.starts_with("leno_busy "));
            Ok(open.is_some_and(|line| !line.ends_with(" 0")).then_some(()))
        })?;
        let go = lab.directory().join("never");
        let begin = |address, steps| begin_talk(&lab, ("client", address), steps, (&go, false));
        let idle = [
            begin("web-1.web.lab:8080", begin_upgrade())?,
            begin("echo-0.echo.lab:9000", begin_bytes())?,
        ];
        for instance in ["web-1", "echo-0"] {
            pull_cable(&lab, instance)?;
        }
        idle.into_iter()
            .try_for_each(OpenTalk::end)
            .context("connections on which nothing is sent")?;
        let [web, bounded] = under_way.map(|burst| burst.finish(BURST_LIMIT));
        let text = |output: std::process::Output| String::from_utf8(output.stdout);
        for (service, said) in [("web", text(web?)?), ("bounded", text(bounded?)?)] {
            println!("{service}, when its link was cut:\n{said}");
            none_hung(&said, service)?;
        }
        let report = load.finish()?;
        println!("{} of {} failed: {report:?}", report.errors, report.requests);
        ensure!(!report.errors_by_kind.contains_key("timeout"), "requests hung: {report:?}");
        for service in ["web", "bounded"] {
            let after = at_once(&lab, service)?;
            ensure!(
                after.lines().all(|line| line.starts_with("200 ")),
                "{service}, after:\n{after}"
            );
        }
        none_lost(&lab.load("client", &load_for("2s"))?.finish()?, (400, 0)).context("after")
    };
    lab.explain(cut())
}

/// A service for the servers of `web`, with a deadline that is shorter than the time that it takes to notice a
/// lost server.
const BOUNDED: &str = "---
apiVersion: v1
kind: Service
metadata: {name: bounded, namespace: lab}
spec: {selector: {app: web}, ports: [{port: 8080, targetPort: 8080, appProtocol: http}]}
---
apiVersion: leno.dev/v1alpha1
kind: TrafficPolicy
metadata: {name: bounded, namespace: lab}
spec:
  targetRefs: [{group: '', kind: Service, name: bounded}]
  timeouts: {request: 10s}
";

/// How long parallel requests may take together. Each of them has a shorter time limit.
const BURST_LIMIT: Duration = Duration::from_secs(90);

/// Sends parallel requests, which the proxy distributes among the servers. Prints a line for each request with
/// status, seconds and `leno-error`.
fn burst(service: &str) -> String {
    format!(
        "for i in $(seq 24); do curl -s -o /dev/null -m 50 -w '%{{http_code}} %{{time_total}} %header{{leno-error}}\n' \
         'http://{service}:8080/?delay_ms=1500' & done; wait"
    )
}

fn at_once(lab: &Lab, service: &str) -> Result<String> {
    lab.text("client", &["bash", "-c", &burst(service)])
}

/// Checks that each request was answered: by a server, at the deadline of its policy, or because its connection
/// was found to be dead.
fn none_hung(lines: &str, service: &str) -> Result<()> {
    /// How long a request may take, in seconds. The proxy takes up to 15, and every other time limit is longer
    /// than this.
    const NOTICED: f64 = 40.0;
    for line in lines.lines() {
        let mut words = line.split(' ');
        let (status, seconds) = words.next().zip(words.next()).context("two words")?;
        let in_time = seconds.parse::<f64>()? < NOTICED;
        ensure!(status != "000" && in_time, "a request to {service} hung:\n{lines}");
    }
    Ok(())
}

/// Takes down the bridge's end of an instance's link.
pub(super) fn pull_cable(lab: &Lab, instance: &str) -> Result<()> {
    let ip = |arguments: &'static [&'static str], extra: &str| -> Result<String> {
        let mut command = Command::new("ip");
        command.args(arguments);
        if !extra.is_empty() {
            command.args([extra, "down"]);
        }
        leno_testkit::command::text(&mut command, HEAR_LIMIT)
    };
    let links = netns::inside(&lab.namespace(instance)?, || ip(&["-o", "link"], ""))?;
    let peer = links.lines().find_map(|line| line.split_once("@if")?.1.split_once(':'));
    let (peer, _) = peer.context("no link to the bridge")?;
    let number = format!("{peer}: ");
    netns::inside(&lab.switch()?, || {
        let links = ip(&["-o", "link"], "")?;
        let link = links.lines().find_map(|line| line.strip_prefix(&number)?.split_once('@'));
        let (name, _) = link.with_context(|| format!("no link {peer} in\n{links}"))?;
        ip(&["link", "set", "dev"], name).map(|_| ())
    })
}
