//! Implements the command `leno trace-request`.

mod hops;

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use clap::Args;
use futures_util::future::join_all;
use leno_console::note;
use leno_observe::tap::Joiner;
use leno_tap::TappedRequest;
use tokio::time::{sleep, timeout};

use super::tap::proxies::{TappedProxies, TappedProxy};
use super::tap::{MAX_PROXIES, RequestFilter, started, time};
use super::{OutputForm, block_on, print, print_json};
use hops::Hops;

/// How long to wait for later hops after the request has ended. A hop normally ends before the request does,
/// unless the request did not wait for it.
const REST: Duration = Duration::from_secs(1);
/// How long closing all taps may take. Taps that are not closed by then expire.
const CLOSE: Duration = Duration::from_secs(2);

/// Follows the next matching request of a workload through the mesh, and shows the decisions of each proxy
///
/// Shows for each hop the identities, the route, each try, the policy that permits or denies the request, headers
/// with secrets masked, and the time spent at each step. The workload's proxy marks one request with tracestate:
/// leno=..., and adds a traceparent if it has none. Later hops are found only if applications pass these headers on
/// (W3C Trace Context). Needs the same rights as `leno tap`, and has its limits. Exits 1 if no request matched in
/// time.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  sudo leno trace-request web --to cart --path /checkout\n  \
                        leno trace-request --context prod -n shop deploy/web --for 5m -o json")]
pub(crate) struct TraceRequest {
    #[command(flatten)]
    filter: RequestFilter,

    /// How long to wait for a matching request, from 1s to 24h
    #[arg(long = "for", value_name = "DURATION", default_value = "1m", value_parser = time)]
    time: Duration,

    /// Shows the first 4 KiB of bodies, including any secrets in them. The mesh must permit it: --tap-bodies of `leno
    /// up`, or proxy.tapBodies of the chart. Not shown: bodies of HTTP/2 at both ends of a proxy, and of hedged
    /// requests
    #[arg(long)]
    bodies: bool,

    /// The output format
    #[arg(short, long, value_enum, default_value_t)]
    output: OutputForm,
}

pub(crate) fn run(trace: &TraceRequest) -> Result<bool> {
    let traced = block_on(async {
        let proxies = TappedProxies::of(&trace.filter).await?;
        let mut following = FollowingTaps::new(trace, &proxies)?;
        note!("leno: waiting for {}, at most {:?} (--for)", trace.filter.described(), trace.time);
        let traced = tokio::select! {
            traced = following.request(trace.time) => traced,
            asked = tokio::signal::ctrl_c() => asked.map(|()| None).map_err(Into::into),
        };
        following.close().await;
        traced
    })?;
    let Some(hops) = traced else {
        note!(
            "leno: no request matched within {:?}: `leno edges` shows which workloads have \
             traffic; --for waits longer",
            trace.time
        );
        return Ok(false);
    };
    match trace.output {
        OutputForm::Json => print_json(&hops)?,
        OutputForm::Table => print(&hops.text())?,
    }
    Ok(true)
}

/// The taps with which one request is followed.
struct FollowingTaps<'a> {
    proxies: &'a TappedProxies,
    /// The proxies of the requested workloads, each with the query of its tap. The query contains a number that
    /// identifies the proxy.
    targets: Vec<(TappedProxy, String)>,
    /// The proxies that later hops may reach: all that are known.
    others: BTreeSet<TappedProxy>,
    /// The query of the taps for later hops.
    later: String,
    id: String,
    joiner: Joiner,
    hops: Vec<TappedRequest>,
}

impl<'a> FollowingTaps<'a> {
    fn new(trace: &TraceRequest, proxies: &'a TappedProxies) -> Result<Self> {
        let wanted = &trace.filter;
        // Older proxies do not know this parameter, so it is sent only if needed.
        let bodies = if trace.bodies { "&bodies=true" } else { "" };
        let shown = format!("&decisions=true&headers=true{bodies}");
        let targets = proxies.of_workloads(wanted)?;
        let mut others = proxies.all(None);
        if others.len() > MAX_PROXIES && wanted.namespace.is_some() {
            others = proxies.all(wanted.namespace.as_deref());
        }
        if others.len() > MAX_PROXIES {
            bail!(
                "a request may pass {} proxies, but at most {MAX_PROXIES} can be tapped: choose a \
                 namespace with -n",
                others.len()
            );
        }
        // The lowest 16 bits are left for the number of the target.
        #[expect(clippy::cast_possible_truncation, reason = "any number serves")]
        let base = (started() as u64) << 16;
        let mut which = wanted.query(proxies, None)?;
        if wanted.to.is_none() {
            which += "&direction=outbound";
        }
        let target = |(number, proxy): (u64, TappedProxy)| {
            let follow = base | number;
            let query = format!("&follow={follow:016x}&most=1&rate=1{shown}{which}");
            (proxy, query)
        };
        Ok(Self {
            proxies,
            targets: (0..).zip(targets).map(target).collect(),
            others,
            later: format!("&followed={base:016x}{shown}"),
            id: format!("trace-{}-{base:x}", std::process::id()),
            joiner: Joiner::default(),
            hops: Vec::new(),
        })
    }

    /// Waits for the request and its hops. `None` if no request comes in time.
    async fn request(&mut self, time: Duration) -> Result<Option<Hops>> {
        let Ok(root) = timeout(time, self.first()).await else { return Ok(None) };
        let root = root?;
        let end = Instant::now() + REST;
        while Instant::now() < end {
            self.poll_others().await;
            sleep(self.proxies.pause()).await;
        }
        self.hops.extend(self.joiner.rest(Instant::now()));
        let followed = root.followed.clone();
        let hops = std::mem::take(&mut self.hops);
        Ok(Some(Hops::new(hops.into_iter().filter(|hop| hop.followed == followed).collect())))
    }

    /// Waits for the request to be chosen and to end.
    async fn first(&mut self) -> Result<TappedRequest> {
        loop {
            let next = Instant::now() + self.proxies.pause();
            // The taps for later hops must be open before a target chooses the request.
            self.poll_others().await;
            if let Some(request) = self.poll_targets().await? {
                return Ok(request);
            }
            tokio::time::sleep_until(next.into()).await;
        }
    }

    /// Polls the proxies that later hops may reach. A proxy that cannot be tapped is not polled again.
    async fn poll_others(&mut self) {
        let others: Vec<TappedProxy> = self.others.iter().cloned().collect();
        let query = format!("id={}-later{}", self.id, self.later);
        let pages = join_all(others.iter().map(|proxy| self.proxies.poll(proxy, &query))).await;
        let mut left_out: BTreeMap<String, Vec<TappedProxy>> = BTreeMap::new();
        for (proxy, page) in others.into_iter().zip(pages) {
            match page {
                Ok(page) => self.take(page.requests),
                Err(reason) => {
                    self.others.remove(&proxy);
                    left_out.entry(reason.to_string()).or_default().push(proxy);
                }
            }
        }
        for (reason, proxies) in left_out {
            let more = match proxies.len().saturating_sub(1) {
                0 => String::new(),
                count => format!(" and {count} others"),
            };
            note!("leno: hops at {}{more} are missing: {reason}", proxies[0]);
        }
    }

    /// Polls the targets. Returns the first request that one of them has chosen.
    async fn poll_targets(&mut self) -> Result<Option<TappedRequest>> {
        let (proxies, id) = (self.proxies, &self.id);
        let polls = self.targets.iter().map(|(proxy, query)| async move {
            (proxy, proxies.poll(proxy, &format!("id={id}{query}")).await)
        });
        let (mut found, mut lost) = (Vec::new(), Vec::new());
        for (proxy, page) in join_all(polls).await {
            match page {
                Ok(page) => found.extend(page.requests),
                Err(reason) => lost.push((proxy.clone(), reason)),
            }
        }
        self.targets.retain(|(proxy, _)| !lost.iter().any(|(gone, _)| gone == proxy));
        if let (true, Some((proxy, reason))) = (self.targets.is_empty(), lost.first()) {
            bail!("cannot open a tap at the proxy of {proxy}: {reason}");
        }
        let root = found.iter().min_by_key(|request| request.at_unix_us).cloned();
        self.take(found);
        Ok(root)
    }

    fn take(&mut self, requests: Vec<TappedRequest>) {
        self.hops.extend(self.joiner.push(requests, true, Instant::now()));
    }

    async fn close(&self) {
        let all = self.targets.iter().map(|(proxy, _)| (proxy, self.id.clone()));
        let later = format!("{}-later", self.id);
        let all = all.chain(self.others.iter().map(|proxy| (proxy, later.clone())));
        let closed = join_all(all.map(|(proxy, id)| async move {
            self.proxies.poll(proxy, &format!("id={id}&close=true")).await
        }));
        let _late = timeout(CLOSE, closed).await;
    }
}
