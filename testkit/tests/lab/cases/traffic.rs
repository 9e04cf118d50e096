//! Tests traffic policies and rate limits, from YAML through the control plane, which are changed while they
//! apply.

mod growing;
mod mesh;

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use leno_testkit::lab::Capture;
use leno_testkit::wait;

use super::{Case, once};
use growing::a_new_endpoint_grows_to_its_share;
use mesh::TrafficMesh;

/// How long a change may take to reach a proxy.
const HEAR_LIMIT: Duration = Duration::from_secs(90);
/// How long to wait for a window of time in which the machine is quiet.
const WINDOWS: Duration = Duration::from_secs(240);
/// The number of requests in one measurement.
const REQUESTS: usize = 200;
/// How many times a policy changes under load.
const CHANGES: usize = 10;

pub(super) fn cases() -> Vec<Case> {
    vec![
        once!(clients_get_what_policy_promises),
        once!(workloads_take_what_rate_limits_say),
        once!(a_policy_that_changes_loses_no_request),
        once!(a_new_endpoint_grows_to_its_share),
    ]
}

/// Tests retries, timeouts, ejection, faults and limits, one after another on one mesh.
fn clients_get_what_policy_promises(capture: Capture) -> Result<()> {
    let bed = TrafficMesh::start(capture, &mesh::ALL)?;
    let cases = || -> Result<()> {
        retries_keep_faults_from_clients(&bed)?;
        non_idempotent_requests_are_sent_once(&bed)?;
        retries_stay_in_their_budget(&bed)?;
        tries_end_in_time(&bed)?;
        late_requests_are_copied(&bed)?;
        endpoints_that_fail_are_ejected(&bed)?;
        faults_are_made_for_one_rule(&bed)?;
        requests_over_a_limit_are_refused(&bed)?;
        no_application_speaks_as_its_proxy(&bed)?;
        a_slow_endpoint_is_avoided(&bed)
    };
    bed.lab.explain(cases())
}

/// Of six endpoints, one fails half of its requests, one stalls, one closes, and one responds with bytes that are
/// not HTTP.
fn retries_keep_faults_from_clients(bed: &TrafficMesh) -> Result<()> {
    let policy = "  retries:\n    attempts: 4\n    on: [5xx, reset, timeout]\n    \
        perTryTimeout: 500ms\n    backoff: 1ms\n    budget: {percent: 100, minPerSecond: 100}\n";
    bed.policy_holds("mixed", "PeakEwma", policy)?;
    let before = bed.seen(&bed.mixed())?.len();
    let answers = bed.ask_many("client", "http://mixed/try", REQUESTS, &[])?;
    let good = answers.iter().filter(|answer| *answer == "200").count();
    ensure!(good == REQUESTS, "{good} of {REQUESTS} were served: {answers:?}");
    let seen = bed.seen(&bed.mixed())?.len() - before;
    ensure!(seen > REQUESTS, "nothing was tried again");
    ensure!(seen <= REQUESTS * 5, "{seen} tries of {REQUESTS} requests");
    Ok(())
}

/// Under the same policy, a POST must be sent only once, whatever its outcome.
fn non_idempotent_requests_are_sent_once(bed: &TrafficMesh) -> Result<()> {
    let answers = bed.ask_many("client", "http://mixed/post", 30, &["-X", "POST"])?;
    ensure!(answers.iter().any(|answer| answer != "200"), "{answers:?}");
    let mut posts: Vec<String> =
        bed.seen(&bed.mixed())?.into_iter().filter(|id| id.starts_with("/post")).collect();
    let all = posts.len();
    posts.sort();
    posts.dedup();
    ensure!(all == posts.len(), "{all} POSTs came of {}", posts.len());
    Ok(())
}

/// All endpoints fail. They receive the requests, and as many retries as the budget allows.
fn retries_stay_in_their_budget(bed: &TrafficMesh) -> Result<()> {
    // From here on, the budget grows.
    let began = Instant::now();
    bed.policy_holds(
        "failing",
        "PeakEwma",
        "  retries:\n    attempts: 5\n    on: [503]\n    backoff: 1ms\n    \
         budget: {percent: 10, minPerSecond: 2}\n",
    )?;
    let before = bed.seen(&["failing-0"])?.len();
    let answers = bed.ask_many("client", "http://failing/it", REQUESTS, &[])?;
    // The budget starts with the retries of one second.
    let seconds = began.elapsed().as_secs_f64() + 1.0;
    ensure!(answers.iter().all(|answer| answer == "503"), "{answers:?}");
    let retries = (bed.seen(&["failing-0"])?.len() - before - REQUESTS) as f64;
    let (percent, most) = (REQUESTS as f64 * 0.1, REQUESTS as f64 * 0.1 + seconds * 2.0);
    ensure!(retries >= percent - 1.0 && retries <= most, "{retries} of {percent} to {most}");
    Ok(())
}

/// There are two proxies with mTLS. An application that has processed a POST sends the response that a proxy sends
/// when it cannot connect to its application. The POST must not be sent to the other replica, and no endpoint may
/// be ejected because of it.
fn no_application_speaks_as_its_proxy(bed: &TrafficMesh) -> Result<()> {
    const POSTS: usize = 20;
    let answers = bed.ask_many("client", "http://forging/post", POSTS, &["-X", "POST"])?;
    ensure!(answers.iter().all(|answer| answer == "503"), "{answers:?}");
    let seen = bed.seen(&["forging-0", "forging-1"])?;
    ensure!(seen.len() == POSTS, "{} requests reached an application of {POSTS}", seen.len());
    let curl = ["curl", "-s", "-m", "20", "-D", "-", "http://forging/head"];
    let answer = bed.lab.text("client", &curl)?.to_ascii_lowercase();
    ensure!(answer.ends_with("forged") && !answer.contains("leno"), "{answer}");
    Ok(())
}

fn tries_end_in_time(bed: &TrafficMesh) -> Result<()> {
    bed.policy("stalling", "  timeouts: {response: 100ms}\n")?;
    bed.until("client", &["http://stalling/"], "504 response-timeout")?;
    bed.policy("stalling", "  timeouts: {request: 100ms}\n")?;
    bed.until("client", &["http://stalling/"], "504 deadline")
}

/// One of three endpoints is always slow. Requests that are sent to it are hedged, and another endpoint answers.
fn late_requests_are_copied(bed: &TrafficMesh) -> Result<()> {
    const COPIED: usize = 60;
    let policy = "  hedging: {delay: 15ms}\n  \
        retries: {on: [connect-failure], budget: {percent: 1000, minPerSecond: 1000}}\n";
    bed.policy_holds("uneven", "RoundRobin", policy)?;
    let before = (bed.seen(&["slow-0"])?.len(), bed.seen(&mesh::UNEVEN)?.len());
    let answers = bed.ask_many("client", "http://uneven/late", COPIED, &[])?;
    ensure!(answers.iter().all(|answer| answer == "200"), "{answers:?}");
    let slow = bed.seen(&["slow-0"])?.len() - before.0;
    let all = bed.seen(&mesh::UNEVEN)?.len() - before.1;
    // If the machine does not run the proxy for longer than the endpoint takes, the proxy makes no copy.
    let copies = all - COPIED;
    ensure!(slow > 0 && copies >= slow / 2, "{copies} copies, {slow} at the slow endpoint");
    ensure!(all <= COPIED * 2, "{all} sent of {COPIED} requests with one copy each");
    Ok(())
}

/// One of three endpoints fails every request. It must receive at most three.
fn endpoints_that_fail_are_ejected(bed: &TrafficMesh) -> Result<()> {
    let ejection = "  ejection: {consecutiveFailures: 3, base: 1h, max: 1h}\n";
    bed.policy_holds("third", "RoundRobin", ejection)?;
    let before = bed.seen(&["third-bad-0"])?.len();
    let answers = bed.ask_many("client", "http://third/", 90, &[])?;
    let failed = answers.iter().filter(|answer| *answer != "200").count();
    let seen = bed.seen(&["third-bad-0"])?.len() - before;
    ensure!(failed == seen && seen <= 3, "{failed} failed, {seen} of them at the bad endpoint");
    let answers = bed.ask_many("client", "http://third/", 30, &[])?;
    ensure!(answers.iter().all(|answer| answer == "200"), "{answers:?}");
    Ok(())
}

/// A rule of a route has a policy. Requests that match no such rule must not be affected.
fn faults_are_made_for_one_rule(bed: &TrafficMesh) -> Result<()> {
    bed.edit("teapot", mesh::FAULTS_OF_A_RULE)?;
    bed.until("client", &["http://good/teapot"], "418 fault-abort")?;
    bed.until("client", &["http://good/other"], "200")?;
    // An aborted request reaches no endpoint.
    let seen = bed.seen(&["good-0"])?;
    bed.until("client", &["http://good/teapot"], "418 fault-abort")?;
    ensure!(bed.seen(&["good-0"])? == seen, "an aborted request was sent");
    bed.edit("teapot", "")?;
    bed.until("client", &["http://good/teapot"], "200")
}

fn requests_over_a_limit_are_refused(bed: &TrafficMesh) -> Result<()> {
    bed.policy("stalling", "  limits: {requests: 1, pending: 0}\n")?;
    bed.until_heard("the refusal", || {
        let held = ["curl", "-s", "-m", "2", "http://stalling/held"];
        let _held = bed.lab.spawn("client", &held)?;
        Ok((bed.answered("client", &["http://stalling/more"])? == "503 overloaded").then_some(()))
    })
}

/// One of three endpoints is 20 times slower. In a window of 2 s in which the machine lets the other two be fast,
/// at most one request in ten may go there. If other processes take the CPU for tens of milliseconds, the others
/// are as slow as the third, which then rightly gets its share.
fn a_slow_endpoint_is_avoided(bed: &TrafficMesh) -> Result<()> {
    // Replaces the policy that the case about hedges has set.
    bed.policy_holds("uneven", "PeakEwma", "")?;
    let load = ["--url", "http://uneven/", "--rate", "300", "--connections", "4"];
    let warm = bed.lab.load("client", &[&load[..], &["--duration", "1s"]].concat())?.finish()?;
    ensure!(warm.errors == 0, "{warm:?}");
    wait::until("a window in which the slow endpoint is avoided", WINDOWS, || {
        let (slow, all) = (bed.seen(&["slow-0"])?.len(), bed.seen(&mesh::UNEVEN)?.len());
        let window = [&load[..], &["--duration", "2s"]].concat();
        let report = bed.lab.load("client", &window)?.finish()?;
        let slow = bed.seen(&["slow-0"])?.len() - slow;
        let all = bed.seen(&mesh::UNEVEN)?.len() - all;
        println!("{slow} of {all} went to the slow endpoint; {report:?}");
        // A busy machine may keep the generator's four connections waiting. Requests that it could not send never
        // reached a proxy.
        let unsent = report.unsent();
        ensure!(report.errors == unsent && all as u64 + unsent >= 600, "{report:?}");
        Ok((unsent * 2 < report.requests && slow * 10 <= all).then_some(()))
    })
}

/// Tests limits per workload, per client and per header, and that nothing is limited after the policy is removed.
fn workloads_take_what_rate_limits_say(capture: Capture) -> Result<()> {
    let bed = TrafficMesh::start(capture, &["good"])?;
    let statuses = |who: &str, url: &str, count, more: &[&str]| -> Result<(usize, usize)> {
        let answers = bed.ask_many(who, url, count, more)?;
        let of = |status: &str| answers.iter().filter(|answer| *answer == status).count();
        ensure!(of("200") + of("429") == count, "{who} {url}: {answers:?}");
        Ok((of("200"), of("429")))
    };
    let cases = || -> Result<()> {
        let workload = "[{group: leno.dev, kind: Workload, name: good}]";
        bed.edit("limit", &mesh::rate_limit(workload, "{requests: 5, per: 1h}"))?;
        bed.until("client", &["http://good/"], "429 rate-limited")?;
        let wait = ["-o", "/dev/null", "-w", "%header{retry-after}", "http://good/"];
        let wait = bed.lab.text("client", &[&["curl", "-sS"][..], &wait].concat())?;
        let wait: u32 = wait.trim().parse().with_context(|| format!("Retry-After: {wait:?}"))?;
        ensure!((1..=720).contains(&wait), "Retry-After: {wait}");
        // The limit applies to the workload, no matter which client sends the request.
        ensure!(statuses("other", "http://good/", 3, &[])? == (0, 3));

        let service = "[{group: '', kind: Service, name: good, sectionName: http}]";
        let by_client = "{requests: 2, per: 1h, by: {client: true}}";
        bed.edit("limit", &mesh::rate_limit(service, by_client))?;
        bed.until("client", &["http://good/"], "200")?;
        ensure!(statuses("client", "http://good/", 4, &[])? == (1, 3));
        ensure!(statuses("other", "http://good/", 4, &[])? == (2, 2));

        bed.edit("limit", &mesh::rate_limit(service, "{requests: 2, per: 1h, by: {header: x-u}}"))?;
        bed.until("client", &["-H", "x-u: first", "http://good/"], "200")?;
        ensure!(statuses("client", "http://good/", 4, &["-H", "x-u: a"])? == (2, 2));
        ensure!(statuses("client", "http://good/", 4, &["-H", "x-u: b"])? == (2, 2));

        bed.edit("limit", "")?;
        bed.until("client", &["-H", "x-u: a", "http://good/"], "200")?;
        ensure!(statuses("client", "http://good/", 20, &["-H", "x-u: a"])? == (20, 0));
        Ok(())
    };
    bed.lab.explain(cases())
}

/// While a policy changes under load, no request may fail, and the last change must apply.
fn a_policy_that_changes_loses_no_request(capture: Capture) -> Result<()> {
    let bed = TrafficMesh::start(capture, &["good"])?;
    let cases = || -> Result<()> {
        bed.until("client", &["http://good/"], "200")?;
        let load =
            ["--url", "http://good/", "--rate", "300", "--connections", "4", "--duration", "4s"];
        let load = bed.lab.load("client", &load)?;
        for change in 1..=CHANGES {
            let algorithm = ["RoundRobin", "LeastRequest"][change % 2];
            bed.edit(
                "moving",
                &mesh::traffic(
                    "moving",
                    "[{group: '', kind: Service, name: good}]",
                    &format!(
                        "  balancing: {{algorithm: {algorithm}, sessionCookie: c{change}}}\n  \
                         limits: {{requests: {}}}\n  timeouts: {{request: 10s}}\n  \
                         hedging: {{delay: {}ms}}\n",
                        100 + change,
                        1 + change
                    ),
                ),
            )?;
            // The name of the cookie shows which change applies.
            let name = format!("c{change}=");
            bed.until_heard("the change", || {
                let head = bed.lab.text("client", &["curl", "-sSI", "-m", "20", "http://good/"])?;
                Ok(head.contains(&name).then_some(()))
            })?;
        }
        let report = load.finish()?;
        ensure!(report.errors == 0 && report.requests >= 1200, "{report:?}");
        Ok(())
    };
    bed.lab.explain(cases())
}

impl TrafficMesh {
    /// Waits until a condition holds.
    fn until_heard(&self, what: &str, look: impl FnMut() -> Result<Option<()>>) -> Result<()> {
        wait::until(what, HEAR_LIMIT, look)
    }

    /// Waits until a request gets this status and `leno-error`. Each request takes at most a second, so that a
    /// request under an earlier policy does not delay the wait.
    fn until(&self, who: &str, more: &[&str], expected: &str) -> Result<()> {
        let mut last = String::new();
        let heard = self.until_heard("the answer", || {
            last = self.answered(who, more)?;
            Ok((last == expected).then_some(()))
        });
        heard.with_context(|| format!("{who} {more:?}: {last:?} where {expected:?} is expected"))
    }

    /// The status and `leno-error` of a request that may take one second.
    fn answered(&self, who: &str, more: &[&str]) -> Result<String> {
        let format = "%{http_code} %header{leno-error}";
        let curl = ["curl", "-sS", "-m", "1", "-o", "/dev/null", "-w", format];
        let answer = self.lab.exec(who, &[&curl[..], more].concat())?;
        Ok(String::from_utf8_lossy(&answer.stdout).trim().to_owned())
    }
}
