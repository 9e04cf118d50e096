//! Tests how many requests an endpoint gets at once, and which requests wait.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use leno_testkit::peer::{Faulty, FaultyAct};
use leno_testkit::wait;

use crate::front::{FrontOptions, FrontProxy};
use crate::proxied_servers::{self, ProxiedServers};

const LIMIT: Duration = Duration::from_secs(30);

/// Two requests are in progress. Of five more, three wait and are served when there is space, and the others are
/// refused.
#[test]
fn requests_wait_as_policy_allows_and_no_more() {
    let world = ProxiedServers::outbound(
        "  limits: {requests: 2, pending: 3}\n",
        &[|number| if number < 2 { FaultyAct::Stall } else { FaultyAct::Good }],
    );
    let held: Vec<_> = (0..2).map(|id| world.send("GET", &format!("held-{id}"), "", "")).collect();
    wait::until("both to arrive", LIMIT, || Ok((world.seen().len() == 2).then_some(()))).unwrap();
    let answers = thread::scope(|scope| {
        let ask = |number: u32| {
            let world = &world;
            scope.spawn(move || world.get(&format!("late-{number}")))
        };
        let waiting: Vec<_> = (0..5).map(ask).collect();
        wait::until("two to be refused", LIMIT, || {
            let refused = world.metric(&["leno_errors_total", "cause=\"overloaded\""]);
            Ok((refused == 2.0).then_some(()))
        })
        .unwrap();
        assert_eq!(world.seen().len(), 2, "the others wait");
        drop(held);
        let answers = waiting.into_iter().map(|asked| asked.join().expect("a client"));
        answers.collect::<Vec<_>>()
    });
    let good = answers.iter().filter(|answer| answer.is_good()).count();
    let refused = |answer: &&proxied_servers::Answer| {
        (answer.status, answer.header("leno-error")) == (503, Some("overloaded"))
    };
    assert_eq!((good, answers.iter().filter(refused).count()), (3, 2), "{answers:?}");
    assert_eq!(world.seen().len(), 5);
    assert_eq!(world.metric(&["leno_errors_total", "overloaded"]), 2.0);
}

/// No endpoint may get more than its limit, even if other endpoints are idle.
#[test]
fn an_endpoint_has_no_more_than_its_own_bound() {
    let world = ProxiedServers::outbound(
        "  limits: {requestsPerEndpoint: 2}\n",
        &[|_| FaultyAct::Stall, |_| FaultyAct::Stall],
    );
    let held: Vec<_> = (0..4).map(|id| world.send("GET", &id.to_string(), "", "")).collect();
    wait::until("four to arrive", LIMIT, || Ok((world.seen().len() == 4).then_some(()))).unwrap();
    assert_eq!(world.counts(), [2, 2]);
    let answer = world.get("fifth");
    assert_eq!((answer.status, answer.header("leno-error")), (503, Some("endpoints-full")));
    drop(held);
}

/// A server that processes only a few requests at once. Further requests wait in the server.
#[derive(Default)]
struct NarrowServer {
    working: Mutex<u32>,
    free: Condvar,
    /// The number of requests that the server has received and not answered.
    inside: AtomicU32,
    /// The highest such number since it was last reset.
    most: AtomicU32,
}

const WORKERS: u32 = 4;
const WORK: Duration = Duration::from_millis(10);
/// The number of parallel clients: many more than the server can process at once.
const CLIENTS: usize = 60;

impl NarrowServer {
    fn work(&self) -> FaultyAct {
        let inside = self.inside.fetch_add(1, Ordering::SeqCst) + 1;
        self.most.fetch_max(inside, Ordering::SeqCst);
        let full = |working: &mut u32| *working >= WORKERS;
        let working = self.working.lock().expect("no holder panics");
        *self.free.wait_while(working, full).expect("no holder panics") += 1;
        thread::sleep(WORK);
        *self.working.lock().expect("no holder panics") -= 1;
        self.free.notify_one();
        self.inside.fetch_sub(1, Ordering::SeqCst);
        FaultyAct::Good
    }

    /// The most requests that the server had at once under load, once that number has settled.
    fn settled(self: &Arc<Self>, policy: &str) -> u32 {
        let narrow = Arc::clone(self);
        let address = "127.0.0.1:0".parse().expect("an address");
        let server = Faulty::start(address, move |_| narrow.work()).expect("loopback");
        let front = FrontProxy::outbound(policy, &[server.address()], &FrontOptions::default());
        // Lets the proxy measure how fast the server is without load.
        for _ in 0..50 {
            assert!(proxied_servers::get(&front, "alone").is_good());
        }
        let over = AtomicBool::new(false);
        thread::scope(|scope| {
            for _ in 0..CLIENTS {
                scope.spawn(|| {
                    while !over.load(Ordering::Relaxed) {
                        let answer = proxied_servers::get(&front, "many");
                        assert!(answer.is_good(), "{answer:?}");
                    }
                });
            }
            // Ends when the number has settled, or after a time in which it should have.
            let (began, mut most) = (Instant::now(), u32::MAX);
            while began.elapsed() < Duration::from_secs(20) && most > CLIENTS as u32 / 2 {
                self.most.store(0, Ordering::SeqCst);
                thread::sleep(Duration::from_secs(1));
                most = self.most.load(Ordering::SeqCst);
            }
            over.store(true, Ordering::Relaxed);
            most
        })
    }
}

/// With an adaptive limit, the server has few requests at once, and the others wait in the proxy. None may fail.
#[test]
fn an_adaptive_limit_follows_the_capacity_of_a_server() {
    let most = Arc::<NarrowServer>::default().settled("  limits: {adaptive: true}\n");
    assert!(most <= CLIENTS as u32 / 2, "{most} of {CLIENTS} at once");
}
