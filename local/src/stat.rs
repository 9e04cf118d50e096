//! `leno stat`: asks the proxies of a mesh what they have counted.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use futures_util::{StreamExt as _, stream};
use leno_observe::stat::{Counted, Instance, Scrape};

use crate::admin::Admin;
use crate::error::Result;
use crate::layout::Layout;
use crate::netns::Netns;
use crate::status::Status;

/// How long a proxy may take to answer: the others answer within milliseconds and wait for it.
const BOUND: Duration = Duration::from_secs(1);
/// How many are asked at once: their answers are held in memory meanwhile.
const AT_ONCE: usize = 64;

/// Asks every proxy of the mesh.
///
/// # Errors
/// When the mesh does not run. A proxy that does not answer is noted and harms nothing.
pub async fn scrape(layout: &Layout) -> Result<Scrape> {
    let status = Status::read(layout)?;
    let switch = Netns::open(&status.switch_netns)?;
    let instances = status.instances.iter().map(|instance| {
        let named = Instance {
            namespace: instance.namespace.clone(),
            workload: instance.workload.clone(),
            name: instance.name.clone(),
            meshed: instance.meshed,
            ready: instance.ready,
        };
        (named, instance.addresses.first().copied())
    });
    Ok(ask(&status.mesh, instances, |address| Admin::at(&switch, address)).await)
}

/// Asks the proxies of these instances, a bounded number at once.
pub(crate) async fn ask<'a>(
    mesh: &str,
    instances: impl Iterator<Item = (Instance, Option<IpAddr>)>,
    admin: impl Fn(IpAddr) -> Admin<'a>,
) -> Scrape {
    let at = Instant::now();
    let asked = instances.map(|(instance, address)| {
        let admin = admin(address.unwrap_or(IpAddr::from([0, 0, 0, 0]))).bounded(BOUND);
        async move {
            let answer = if instance.meshed { Some(admin.get("/metrics").await) } else { None };
            let read = |answer: Result<_>| {
                answer.map_err(|error| error.chain()).and_then(|reply| Counted::of(&reply))
            };
            (instance, answer.map(read))
        }
    });
    let answers = stream::iter(asked).buffered(AT_ONCE).collect().await;
    Scrape::new(mesh, at, answers)
}
