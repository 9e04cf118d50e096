//! `leno stat`: asks the proxies of a mesh what they have counted.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use futures_util::{StreamExt as _, stream};
use leno_observe::stat::{ProxyCounters, Scrape, StatInstance};

use crate::admin::Admin;
use crate::error::Result;
use crate::layout::Layout;
use crate::netns::Netns;
use crate::status::{MeshStatus, ProxyProcess};

/// How long a proxy may take to answer: the others answer within milliseconds and wait for it. With it
/// `leno stat`, whose window is a second, takes less than two.
const BOUND: Duration = Duration::from_millis(800);
/// How many are asked at once: their answers are held in memory meanwhile.
const AT_ONCE: usize = 64;

/// Asks every proxy of the mesh, but those that did not answer `before`: what they count now cannot be
/// compared, and each would be waited for again.
///
/// # Errors
/// When the mesh does not run. A proxy that does not answer is noted and harms nothing.
pub async fn scrape(layout: &Layout, before: Option<&Scrape>) -> Result<Scrape> {
    let status = MeshStatus::read(layout)?;
    let switch = Netns::open(&status.switch_netns)?;
    let instances = status.instances.iter().map(|instance| {
        let named = StatInstance {
            namespace: instance.namespace.clone(),
            workload: instance.workload.clone(),
            name: instance.name.clone(),
            meshed: instance.meshed,
            ready: instance.ready,
            proxy: instance.proxy.as_ref().map(ProxyProcess::reported),
        };
        (named, instance.addresses.first().copied())
    });
    Ok(ask(&status.mesh, instances, |address| Admin::at(&switch, address), before).await)
}

/// Asks the proxies of these instances, a bounded number at once, but those that did not answer `before`.
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
