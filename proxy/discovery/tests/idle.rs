//! The memory that a proxy keeps for its control plane while nothing changes. In a node proxy each workload has a
//! client of its own. Only the bytes of the clients' thread are counted.
#![expect(clippy::unwrap_used, reason = "a failure here is a failed test")]

use std::thread;
use std::time::Duration;

use leno_discovery::{Client, Settings};
use tokio::runtime::Builder;
use tokio::time::{sleep, timeout};

#[path = "../../../testkit/counting.rs"]
mod counting;
#[path = "control_plane/plane.rs"]
#[expect(dead_code, reason = "this control plane is not edited")]
mod plane;

use counting::BYTES;
use plane::{Plane, mesh};

/// The largest number of bytes that one client keeps, with a margin. The buffers of tonic alone were 24 KiB.
const MOST_BYTES: i64 = 76 * 1024;
/// The longest wait. It does not affect the measurement.
const LIMIT: Duration = Duration::from_secs(30);

/// Starts a client, waits until it has its certificate and its policy, and returns the number of bytes that it keeps
/// from then on.
async fn kept(settings: Settings) -> i64 {
    let before = BYTES.get();
    let (client, directory) = Client::new(settings);
    let mut policy = directory.server_policy();
    // This task ends with the runtime.
    tokio::spawn(client.run());
    timeout(LIMIT, policy.wait_for(Option::is_some)).await.unwrap().unwrap();
    let mut least = i64::MAX;
    // Responses that are still arriving take more memory for a moment.
    for _ in 0..20 {
        sleep(Duration::from_millis(50)).await;
        least = least.min(BYTES.get() - before);
    }
    assert!(directory.status().connected);
    least
}

#[test]
fn a_client_that_waits_keeps_little() {
    let runtime = Builder::new_multi_thread().enable_all().build().unwrap();
    let plane = runtime.block_on(Plane::start(&mesh(&["10.89.0.7"])));
    let settings = ["shop/web-0", "shop/web-0"].map(|instance| plane.settings(instance));
    let clients = thread::spawn(|| {
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        let [first, second] = settings;
        runtime.block_on(async {
            // The first client creates what all clients share.
            kept(first).await;
            kept(second).await
        })
    });
    let kept = clients.join().unwrap();
    println!("{kept} bytes");
    assert!(kept < MOST_BYTES, "{kept}");
}
