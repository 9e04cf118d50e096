//! Polls the metrics of a mesh's proxies, for `leno stat`.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use futures_util::{StreamExt as _, stream};
use leno_observe::stat::{ProxyCounters, Scrape, StatInstance};

use crate::admin::Admin;
use crate::error::Result;
use crate::layout::Layout;
use crate::netns::Netns;
use crate::status::MeshStatus;

/// How long a proxy may take to answer. Most answer within milliseconds, but the result must wait for the slowest.
/// With this bound, `leno stat` with its window of one second takes less than two seconds.
const BOUND: Duration = Duration::from_millis(800);
/// How many proxies are polled at a time. Their answers are held in memory, by this process and by a node proxy
/// that serves many instances: some 40 kB for each with its connection (decision 215).
const AT_ONCE: usize = 16;

/// Polls every proxy of the mesh, except those that did not answer in `before`. There is nothing to compare their
/// counters with, and waiting for them again takes time.
///
/// # Errors
/// When the mesh does not run. A proxy that does not answer is recorded in the result.
pub async fn scrape(layout: &Layout, before: Option<&Scrape>) -> Result<Scrape> {
    let status = MeshStatus::read(layout)?;
    let switch = Netns::open(&status.switch_netns)?;
    let instances =
        status.instances.iter().map(|one| (one.reported(), one.addresses.first().copied()));
    Ok(ask(&status.mesh, instances, |address| Admin::at(&switch, address), before).await)
}

/// Polls the proxies of these instances, at most [`AT_ONCE`] at a time, except those that did not answer in
/// `before`.
pub(crate) async fn ask<'a>(
    mesh: &str,
    instances: impl Iterator<Item = (StatInstance, Option<IpAddr>)>,
    admin: impl Fn(IpAddr) -> Admin<'a>,
    before: Option<&Scrape>,
) -> Scrape {
    let at = Instant::now();
    let asked = instances.map(|(instance, address)| {
        let admin = admin(address.unwrap_or(IpAddr::from([0, 0, 0, 0]))).bounded(BOUND);
        let silence = before.and_then(|before| before.silence(&instance)).map(str::to_owned);
        async move {
            let answer = match silence {
                _ if !instance.meshed => None,
                Some(silence) => Some(Err(silence)),
                None => Some(match admin.get("/metrics").await {
                    Ok(reply) => ProxyCounters::of(&reply),
                    Err(error) => Err(error.chain()),
                }),
            };
            (instance, answer)
        }
    });
    let answers = stream::iter(asked).buffered(AT_ONCE).collect().await;
    Scrape::new(mesh, at, answers)
}
