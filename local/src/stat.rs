//! `leno stat`: asks the proxies of a mesh what they have counted.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use leno_observe::stat::{Counted, Instance, Scrape};

use crate::admin::Admin;
use crate::error::Result;
use crate::layout::Layout;
use crate::netns::Netns;
use crate::status::Status;

/// How long a proxy may take to answer: the others answer within milliseconds and wait for it.
const BOUND: Duration = Duration::from_secs(1);

/// Asks every proxy of the mesh.
///
/// # Errors
/// When the mesh does not run. A proxy that does not answer is noted and harms nothing.
pub async fn scrape(layout: &Layout) -> Result<Scrape> {
    let status = Status::read(layout)?;
    let switch = Netns::open(&status.switch_netns)?;
    let at = Instant::now();
    let asked = status.instances.iter().map(|instance| {
        let address = instance.addresses.first().copied();
        let admin = Admin::at(&switch, address.unwrap_or(IpAddr::from([0, 0, 0, 0])));
        let admin = admin.bounded(BOUND);
        let named = Instance {
            namespace: instance.namespace.clone(),
            workload: instance.workload.clone(),
            name: instance.name.clone(),
            meshed: instance.meshed,
            ready: instance.ready,
        };
        async move {
            let answer = if named.meshed { Some(admin.get("/metrics").await) } else { None };
            let read = |answer: Result<_>| {
                answer.map_err(|error| error.chain()).and_then(|reply| Counted::of(&reply))
            };
            (named, answer.map(read))
        }
    });
    Ok(Scrape::new(&status.mesh, at, join_all(asked).await))
}
