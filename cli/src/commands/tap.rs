//! Implements the command `leno tap`.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use clap::Args;
use futures_util::future::join_all;
use leno_console::{duration, note, within};
use leno_observe::tap::Joiner;
use leno_tap::{TapPage, TappedRequest};
use nix::unistd::{Uid, User};

use super::{AnyMesh, OutputForm, block_on, print, print_raw};

mod destinations;
mod parties;
pub(super) mod proxies;
pub(super) mod text;

use parties::WorkloadInstances;
use proxies::{PollFailure, TappedProxies, TappedProxy};

/// Most workloads that a message names.
const MAX_NAMED: usize = 20;
/// Most proxies that are tapped for the requested workloads (the targets). Each request between two proxies has two
/// halves: the record of the client's proxy, and that of the server's. For the halves that the targets do not record,
/// at most this many other proxies are tapped as well.
pub(super) const MAX_PROXIES: usize = 64;

/// Shows the requests of workloads as they happen: identities, routes, retries and the time spent at each step
///
/// The proxies of the workloads record the requests that match the filters, up to --max-rps, and the proxies of the
/// servers add their part of the time. While no tap is open, nothing is recorded and requests have no extra cost.
/// Secrets in headers and queries are masked. Each proxy logs who opens a tap. Needs root; in a cluster, the right to
/// create pods/portforward in the namespaces of the pods.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
                  sudo leno tap web --to cart --path /api --status 5xx\n  \
                  sudo leno tap web cart --headers --count 10\n  \
                  leno tap --context prod -n shop deploy/web --max-rps 5 -o json")]
pub(crate) struct Tap {
    #[command(flatten)]
    pub(super) filter: RequestFilter,

    /// Shows only requests of this client, a workload or service account (web, shop/web)
    #[arg(long, value_name = "CLIENT")]
    pub(super) from: Option<String>,

    /// Shows only requests with this status (503) or class of statuses (5xx)
    #[arg(long, value_name = "STATUS", value_parser = status)]
    pub(super) status: Option<String>,

    /// Largest number of requests shown per second, for all workloads together. Further requests are only counted
    #[arg(long, value_name = "REQUESTS", default_value_t = 50,
          value_parser = clap::value_parser!(u32).range(1..=500))]
    pub(super) max_rps: u32,

    /// Ends after this many requests [default: no limit]
    #[arg(long, value_name = "REQUESTS", value_parser = clap::value_parser!(u64).range(1..))]
    pub(super) count: Option<u64>,

    /// Ends after this time, from 1s to 24h [default: no limit]
    #[arg(long = "for", value_name = "DURATION", value_parser = time)]
    pub(super) time: Option<Duration>,

    /// Shows the headers of requests, with secrets masked
    #[arg(long)]
    pub(super) headers: bool,

    /// The output format; json prints one object per line
    #[arg(short, long, value_enum, default_value_t)]
    pub(super) output: OutputForm,
}

/// The options that select requests.
#[derive(Debug, Args)]
pub(super) struct RequestFilter {
    /// Workloads (web, deploy/web) or instances (web-0, pod/web-0)
    #[arg(required = true, value_name = "WORKLOAD")]
    pub(super) workloads: Vec<String>,

    #[command(flatten)]
    pub(super) mesh: AnyMesh,

    /// Namespace of the workloads. Not needed for a mesh of `leno up` if each name is in only one namespace
    #[arg(short, long, value_name = "NAME")]
    pub(super) namespace: Option<String>,

    /// Selects only requests to this workload or service (cart, svc/cart, shop/cart)
    #[arg(long, value_name = "SERVER")]
    pub(super) to: Option<String>,

    /// Selects only requests with this method
    #[arg(long, value_name = "METHOD")]
    pub(super) method: Option<String>,

    /// Selects only requests whose path begins with this prefix
    #[arg(long, value_name = "PREFIX")]
    pub(super) path: Option<String>,
}

pub(crate) fn run(tap: &Tap) -> Result<bool> {
    block_on(async {
        let mut session = TapSession::open(tap).await?;
        let ended = tokio::select! {
            ended = session.follow(tap) => ended,
            asked = tokio::signal::ctrl_c() => asked.map_err(Into::into),
            () = over(tap.time) => Ok(()),
        };
        session.close().await;
        ended?;
        session.sum_up();
        Ok(true)
    })
}

/// Parses how long a tap may be open.
pub(super) fn time(text: &str) -> Result<Duration, String> {
    within(duration(text)?, (Duration::from_secs(1), Duration::from_hours(24)))
}

/// Completes after the time, or never if there is none.
async fn over(time: Option<Duration>) {
    match time {
        Some(time) => tokio::time::sleep(time).await,
        None => std::future::pending().await,
    }
}

/// The current time. In the name of a tap, it distinguishes processes that have the same process number in
/// different containers.
pub(super) fn started() -> u128 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.map_or(0, |since| since.as_nanos())
}

/// The parameters of the page `/tap` that describe the filter, each already encoded. The rate is divided among the
/// targets.
fn query(tap: &Tap, proxies: &TappedProxies, targets: usize) -> Result<String> {
    let targets = u32::try_from(targets).unwrap_or(u32::MAX).max(1);
    let mut query = format!("&rate={}", tap.max_rps.div_ceil(targets));
    if let Some(status) = &tap.status {
        query += &format!("&status={}", parties::encoded(status));
    }
    if tap.headers {
        query += "&headers=true";
    }
    Ok(query + &tap.filter.query(proxies, tap.from.as_deref())?)
}

impl RequestFilter {
    /// The parameters of the page `/tap` that describe the filter. If `from` is given, only requests of this
    /// client match.
    pub(super) fn query(&self, proxies: &TappedProxies, from: Option<&str>) -> Result<String> {
        if let (Some(to), Some(known)) = (&self.to, proxies.destinations()) {
            known.check(self.namespace.as_deref(), to)?;
        }
        let mut query = String::new();
        let mut add = |name: &str, value: &str| {
            query += &format!("&{name}={}", parties::encoded(value));
        };
        if let Some(method) = &self.method {
            add("method", method);
        }
        if let Some(path) = &self.path {
            add("path", path);
        }
        for (name, wanted, direction) in
            [("to", self.to.as_deref(), "outbound"), ("from", from, "inbound")]
        {
            let Some(wanted) = wanted else { continue };
            for party in proxies.names().parties(self.namespace.as_deref(), wanted)? {
                add(name, &party);
            }
            if self.to.is_none() || from.is_none() {
                add("direction", direction);
            }
        }
        Ok(query)
    }

    /// The requests that match, in words: `a GET of web to cart with a path from /items on`.
    pub(super) fn described(&self) -> String {
        let mut text = format!(
            "a {} of {}",
            self.method.as_deref().unwrap_or("request"),
            self.workloads.join(" or ")
        );
        if let Some(to) = &self.to {
            text += &format!(" to {to}");
        }
        if let Some(path) = &self.path {
            text += &format!(" with a path that begins with {path}");
        }
        text
    }
}

/// The open taps, and the requests that they have recorded.
pub(super) struct TapSession {
    proxies: TappedProxies,
    id: String,
    query: String,
    /// The proxies of the requested workloads.
    targets: BTreeSet<TappedProxy>,
    /// The proxies of servers, which are tapped for the other halves of requests.
    others: BTreeSet<TappedProxy>,
    /// Proxies that refused a tap.
    refused: BTreeSet<TappedProxy>,
    joiner: Joiner,
    /// For each target, how many requests were beyond the rate, and how many were dropped.
    counts: BTreeMap<TappedProxy, (u64, u64)>,
    shown: u64,
}

impl TapSession {
    /// Creates the session for these options. The taps open at its first step.
    pub(super) async fn open(tap: &Tap) -> Result<Self> {
        let proxies = TappedProxies::of(&tap.filter).await?;
        let targets = proxies.of_workloads(&tap.filter)?;
        if targets.len() > MAX_PROXIES {
            bail!(
                "{} proxies were selected, but at most {MAX_PROXIES} can be tapped: select fewer \
                 workloads or instances",
                targets.len()
            );
        }
        let query = query(tap, &proxies, targets.len())?;
        Ok(Self {
            proxies,
            id: format!("tap-{}-{:x}", std::process::id(), started()),
            query,
            targets,
            others: BTreeSet::new(),
            refused: BTreeSet::new(),
            joiner: Joiner::default(),
            counts: BTreeMap::new(),
            shown: 0,
        })
    }

    /// Polls until the requested number of requests was shown, or no target answers any more.
    async fn follow(&mut self, tap: &Tap) -> Result<()> {
        loop {
            let next = Instant::now() + self.proxies.pause();
            let ready = self.step().await?;
            if self.show(tap, &ready)? {
                return Ok(());
            }
            tokio::time::sleep_until(next.into()).await;
        }
    }

    /// Polls every tap once. Returns the requests that are complete, and those whose other half has not arrived in
    /// time.
    ///
    /// # Errors
    /// None of the targets answers any more.
    pub(super) async fn step(&mut self) -> Result<Vec<TappedRequest>> {
        let targets: Vec<TappedProxy> = self.targets.iter().cloned().collect();
        let others: Vec<TappedProxy> = self.others.iter().cloned().collect();
        let (of_targets, of_others) = tokio::join!(
            join_all(targets.iter().map(|proxy| self.poll(proxy, &self.query))),
            join_all(others.iter().map(|proxy| self.poll(proxy, "&marked=true"))),
        );
        let mut ready = Vec::new();
        // The servers' halves are handled first, so that the clients' halves can be completed at once.
        for (proxy, page) in others.into_iter().zip(of_others) {
            match page {
                Ok(page) => ready.extend(self.joiner.push(page.requests, false, Instant::now())),
                Err(_) => {
                    self.others.remove(&proxy);
                    self.refused.insert(proxy);
                }
            }
        }
        for (proxy, page) in targets.into_iter().zip(of_targets) {
            match page {
                Ok(page) => ready.extend(self.take(proxy, page)),
                Err(reason) => self.lost(&proxy, reason)?,
            }
        }
        ready.extend(self.joiner.late(Instant::now()));
        Ok(ready)
    }

    /// The number of requests beyond the rate, and the number of requests that proxies have dropped.
    pub(super) fn missed(&self) -> (u64, u64) {
        let sum = |sum: (u64, u64), one: &(u64, u64)| (sum.0 + one.0, sum.1 + one.1);
        self.counts.values().fold((0, 0), sum)
    }

    /// Handles the page of a target, and remembers the servers to which its requests went.
    fn take(&mut self, proxy: TappedProxy, page: TapPage) -> Vec<TappedRequest> {
        let is_shared = |one: &&TappedRequest| one.is_outbound() && one.mark.is_some() && one.mtls;
        for request in page.requests.iter().filter(is_shared) {
            let Some((namespace, name)) = request.server.split_once('/') else { continue };
            let server = TappedProxy { namespace: namespace.to_owned(), name: name.to_owned() };
            let is_new = !self.targets.contains(&server) && !self.refused.contains(&server);
            if is_new && self.others.len() < MAX_PROXIES {
                self.others.insert(server);
            }
        }
        self.counts.insert(proxy, (page.sampled_out, page.dropped));
        self.joiner.push(page.requests, true, Instant::now())
    }

    /// Handles a target that does not answer. It may have ended, or the user may not tap it.
    fn lost(&mut self, proxy: &TappedProxy, reason: PollFailure) -> Result<()> {
        self.targets.remove(proxy);
        if self.targets.is_empty() {
            let what = format!("cannot open a tap at the proxy of {proxy}");
            return Err(anyhow::Error::new(reason).context(what));
        }
        note!("leno: the tap at the proxy of {proxy} has ended: {reason}");
        Ok(())
    }

    /// Prints requests. Returns whether the requested number has been shown.
    fn show(&mut self, tap: &Tap, requests: &[TappedRequest]) -> Result<bool> {
        for request in requests {
            match tap.output {
                OutputForm::Json => print_raw(&(serde_json::to_string(request)? + "\n"))?,
                OutputForm::Table => print(&text::lines(request))?,
            }
            self.shown += 1;
            if tap.count == Some(self.shown) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    async fn poll(&self, proxy: &TappedProxy, query: &str) -> Result<TapPage, PollFailure> {
        self.proxies.poll(proxy, &format!("id={}{query}", self.id)).await
    }

    /// Closes all taps. A tap that cannot be closed expires.
    pub(super) async fn close(&self) {
        let all = self.targets.iter().chain(&self.others);
        let bound = Duration::from_secs(2);
        let closed = join_all(all.map(|proxy| self.poll(proxy, "&close=true")));
        let _late = tokio::time::timeout(bound, closed).await;
    }

    fn sum_up(&self) {
        let (sampled_out, dropped) = self.missed();
        note!(
            "requests shown: {}, beyond --max-rps: {sampled_out}, dropped by proxies: {dropped}",
            self.shown
        );
    }
}

/// The name of the user, which proxies write to their logs.
fn user() -> String {
    let of = |name: &str| std::env::var(name).ok();
    let own = || User::from_uid(Uid::current()).ok().flatten().map(|user| user.name);
    let user = of("SUDO_USER").or_else(|| of("USER")).or_else(own).unwrap_or_default();
    let fits = |one: &char| one.is_ascii_alphanumeric() || "-._@".contains(*one);
    let user: String = user.chars().filter(fits).take(64).collect();
    if user.is_empty() { "unknown".to_owned() } else { user }
}

/// The namespace of a workload, or an error if it cannot be determined.
fn namespace_of(names: &WorkloadInstances, namespace: Option<&str>, name: &str) -> Result<String> {
    names.namespace_of(namespace, name).with_context(|| {
        let of: BTreeSet<String> =
            names.instances(namespace, name).into_iter().map(|one| one.namespace).collect();
        if of.len() > 1 {
            let of: Vec<String> = of.into_iter().collect();
            return format!("{name} is in the namespaces {}: choose one with -n", of.join(", "));
        }
        let known: Vec<String> = names.workloads().into_iter().take(MAX_NAMED).collect();
        let wanted = namespace.map_or_else(|| name.to_owned(), |of| format!("{of}/{name}"));
        format!("there is no workload {wanted} with a proxy; those with one: {}", known.join(", "))
    })
}

/// Checks that a text is a status or a class of statuses, as proxies accept them.
fn status(text: &str) -> Result<String, String> {
    let is_right = match text.as_bytes() {
        [b'1'..=b'5', b'x', b'x'] => true,
        [b'1'..=b'9', rest @ ..] => rest.len() == 2 && rest.iter().all(u8::is_ascii_digit),
        _ => false,
    };
    match is_right {
        true => Ok(text.to_owned()),
        false => {
            Err("not a status: write for example 503, or 5xx for a class of statuses".to_owned())
        }
    }
}
