//! Measures a large mesh on a real API server: what it costs the controller, and how soon changes arrive at
//! proxies.
//!
//! ```text
//!  this process ── stub pods, slices ──► API server, etcd ──► the controller, on CPUs of its own
//!       │  ▲                                                          │
//!       │  └──────────────── discovery over mTLS ─────────────────────┘
//!       └ clients: each subscribes as the proxy of one of the pods would
//! ```
//! Every run checks bounds of counts and bytes: what a change makes the controller send and to which proxies, what
//! it reads again after an outage, and that no proxy loses its stream. If none of the variables below is set, the
//! mesh is small, and times and memory are only printed. `make scale` runs the size in the design, with its bounds
//! of time and memory (`scripts/scale.sh`, which sets the variables):
//!
//! - `LENO_SCALE=large`: the large size, and all bounds hold. `LENO_SCALE_SERVICES`, `_NAMESPACES`, `_WIDE`, `_PROXIES`,
//!   `_CHANGES`, `_RATE`, `_ROLLOUT_RATE` and `_ROUTES` change single sizes; with one of them no bound of time or memory
//!   holds.
//! - `LENO_SCALE_CPUS`: the CPUs of the controller, as `taskset` has them.
//! - `LENO_SCALE_CONTROLLER`: the controller's program, if it is not the one that was built with this.
//! - `LENO_SCALE_ADDRESSES`: addresses of this machine, separated by commas. The clients connect to them in turn, and
//!   each connection then also comes from the address to which it leads. The controller accepts 1,024 connections from
//!   one address.
//! - `LENO_SCALE_RECORD`, `LENO_SCALE_BEFORE`: files; figures are written to the first, and printed beside those of the
//!   second.

mod clients;
mod delays;
mod figures;
mod mesh;
mod phases;
mod stub;

use std::net::IpAddr;
use std::time::Instant;

use leno_testkit_api::objects::{http_route_definition, service};
use leno_testkit_api::{binary, until};

use crate::machine::open_files;
use crate::replica::{Replica, Start};
use crate::{burst, cluster, leads};
use clients::Clients;
use figures::Figures;
use mesh::{Mesh, Size};

/// Sizes that can each be set by a variable: its name, its small value, its large value.
const SIZES: [(&str, usize, usize); 8] = [
    ("SERVICES", 24, 5_000),
    ("NAMESPACES", 6, 500),
    ("WIDE", 40, 1_000),
    ("PROXIES", 20, 2_000),
    ("CHANGES", 40, 6_000),
    ("RATE", 100, 100),
    ("ROLLOUT_RATE", 20, 20),
    ("ROUTES", 20, 200),
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_large_mesh_is_served_through_changes_a_rollout_and_an_outage() {
    let Some(kube) = binary() else { return };
    let (size, is_bounded) = size();
    let mut figures = Figures::new(is_bounded);
    println!("{size:?}");
    open_enough(size.proxies);
    let (mut bed, kubeconfig) = cluster(&kube).await;
    bed.apply(http_route_definition()).await;
    bed.apply(service("web", 80)).await;
    let begin = Instant::now();
    let mesh = Mesh::new(size);
    mesh.fill(&bed).await;
    println!("{} pods made in {:?}", mesh.pods(), begin.elapsed());

    let addresses: Vec<IpAddr> = text("LENO_SCALE_ADDRESSES")
        .map(|all| all.split(',').map(|one| one.parse().unwrap()).collect())
        .unwrap_or_default();
    let begin = Instant::now();
    let replica = Replica::start_as(&Start {
        name: "controller-0",
        kubeconfig: &kubeconfig,
        listen: if addresses.is_empty() { "127.0.0.1:0" } else { "0.0.0.0:0" },
        program: text("LENO_SCALE_CONTROLLER"),
        cpus: text("LENO_SCALE_CPUS"),
        flags: &[],
    });
    replica.line("serving discovery and identity").await;
    figures.time("cold start to serving", begin.elapsed(), Some(10_000));
    figures.time("CPU of the cold start", replica.cpu(), None);
    figures.memory("resident, filled", &replica, None);
    leads(&replica).await;
    until("all is followed", async || {
        (replica.metric("leno_control_cluster_stale_seconds").await == 0.0).then_some(())
    })
    .await;

    let mut clients = Clients::start(&bed, &replica, &mesh, &addresses, &mut figures).await;
    phases::changes(&bed, &replica, &mesh, &clients, &mut figures).await;
    phases::rollout(&bed, &replica, &mesh, &mut clients, &mut figures).await;
    phases::outage(&mut bed, &replica, &mesh, &clients, &mut figures).await;
    let burst = burst::run(&bed, &replica, size.routes).await;
    figures.count("pods created while routes are applied", burst.waits.len() as u64, None);
    figures.times("injection meanwhile", burst.waits, Some(1_000));
    clients.are_connected();
    figures.memory("resident, in the end", &replica, Some(600));
    figures.memory_peak("resident, at most", &replica, Some(600));
    figures.print();
    replica.end();
    assert_eq!(figures.missed(), [""; 0], "bounds are missed");
}

fn text(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|text| !text.is_empty())
}

/// The size of the mesh, and whether bounds of time and memory are checked.
fn size() -> (Size, bool) {
    let is_large = text("LENO_SCALE").is_some_and(|size| size == "large");
    let mut is_bounded = is_large;
    let [services, namespaces, wide, proxies, changes, rate, rollout_rate, routes] =
        SIZES.map(|(name, small, large)| match text(&format!("LENO_SCALE_{name}")) {
            Some(number) => {
                is_bounded = false;
                number.parse().unwrap()
            }
            None if is_large => large,
            None => small,
        });
    let gathered = (services / 50).max(2);
    let size =
        Size { services, namespaces, wide, gathered, proxies, changes, rate, rollout_rate, routes };
    (size, is_bounded)
}

/// Raises the limit of descriptors, so that this process and its replica can have two connections for each proxy,
/// and twice as many while pods are replaced.
pub(crate) fn open_enough(proxies: usize) {
    open_files(proxies * 4 + 1_024);
}
