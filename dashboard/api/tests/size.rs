//! Measures how much memory the history of a large mesh takes: a day of 1,000 workloads, 10,000 edges and 1,000
//! route rules, all of which carry requests all the time. Also tests a mesh with more edges than the history can
//! hold.

#![expect(unsafe_code, reason = "an allocator that counts")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use leno_dashboard::history::{History, MAX_BYTES};
use leno_dashboard::series::MAX_SERIES;
use leno_observe::stat::{
    EdgeGrowth, MeshGrowth, PairCounts, RouteGrowth, RouteName, WorkloadGrowth,
};

/// The most memory that a history may take, in bytes.
const BOUND: usize = 64 * 1024 * 1024;
const WORKLOADS: u64 = 1_000;
const EDGES: u64 = 10_000;
const ROUTES: u64 = 1_000;
/// The time between two frames: fine ones cover the last hour and one slot, coarse ones the time before.
const FINE_MS: u64 = 5_000;
const COARSE_MS: u64 = 600_000;
const DAY_MS: u64 = 24 * 3_600_000;
/// The number of frames in a short history.
const FRAMES: u64 = 30;

static LIVE: AtomicUsize = AtomicUsize::new(0);
/// Held while memory is measured, because the allocator counts the memory of all tests together.
static MEASURED: Mutex<()> = Mutex::new(());

struct Counting;

// SAFETY: every call is passed on unchanged to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LIVE.fetch_add(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller promises what the allocator requires.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller promises what the allocator requires.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// A small random number generator (xorshift), so that every run has the same traffic.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 16) % bound
    }
}

/// About 20 requests, a hundredth of which fail, spread over five duration buckets.
fn counts(random: &mut Random, seconds: u64) -> PairCounts {
    let mut counts = PairCounts::default();
    let scale = (seconds / 5).max(1);
    let mut cumulated = 0.0;
    for (bound, share) in [(0.001, 3), (0.0015, 8), (0.002, 6), (0.003, 3), (0.005, 2)] {
        cumulated += ((share + random.below(3)) * scale) as f64;
        counts.durations.add(bound, cumulated);
    }
    counts.durations.add(f64::INFINITY, cumulated);
    counts.classes[1] = cumulated;
    if random.below(100) == 0 {
        counts.classes[4] = 1.0;
        counts.causes = [("application-unreachable".to_owned(), 1.0)].into();
    }
    counts
}

fn growth(random: &mut Random, seconds: u64, edges: u64) -> MeshGrowth {
    let name = |nth: u64| (format!("namespace-{}", nth % 20), format!("workload-{nth}"));
    let workload = |nth| WorkloadGrowth {
        name: name(nth),
        instances: 3,
        ready: 3,
        meshed: true,
        counts: counts(random, seconds),
    };
    let workloads = (0..WORKLOADS).map(workload).collect();
    let edge = |nth| EdgeGrowth {
        client: name(nth % WORKLOADS),
        server: name(nth / WORKLOADS * 97 % WORKLOADS + 1),
        encrypted: true,
        counts: counts(random, seconds),
    };
    let edges = (0..edges).map(edge).collect();
    let route = |nth| RouteGrowth {
        name: RouteName {
            service: name(nth),
            route: format!("HTTPRoute namespace-{}/route-{nth}", nth % 20),
            rule: (nth % 4).to_string(),
        },
        counts: counts(random, seconds),
    };
    let routes = (0..ROUTES).map(route).collect();
    MeshGrowth { seconds: seconds as f64, workloads, edges, routes, ..MeshGrowth::default() }
}

#[test]
fn a_day_of_a_large_mesh_takes_no_more_than_its_bound() {
    let _measured = MEASURED.lock().unwrap();
    let mut random = Random(0x2545_f491_4f6c_dd1d);
    // Each frame is packed on its own, so repeating the same traffic takes as much memory as different traffic
    // would.
    let fine: Vec<MeshGrowth> =
        (0..6).map(|_| growth(&mut random, FINE_MS / 1000, EDGES)).collect();
    let coarse: Vec<MeshGrowth> =
        (0..2).map(|_| growth(&mut random, COARSE_MS / 1000, EDGES)).collect();
    let before = LIVE.load(Ordering::Relaxed);
    let mut history = History::default();
    let fine_from = DAY_MS - 3_600_000 - COARSE_MS;
    let (mut at, mut largest) = (COARSE_MS, 0);
    let mut turn = 0;
    while at < DAY_MS {
        let (step, of) = if at >= fine_from { (FINE_MS, &fine) } else { (COARSE_MS, &coarse) };
        at += step;
        turn += 1;
        history.push(at, &of[turn % of.len()]);
        largest = largest.max(LIVE.load(Ordering::Relaxed) - before);
    }
    let own = history.size();
    println!("measured {largest} bytes, by its own account {own}");
    assert!(largest <= BOUND, "{largest} bytes, of which frames may be {MAX_BYTES}");
    assert!(own * 10 >= largest * 8, "its own account leaves much out");
    assert_eq!(history.lost(), 0);
    // An hour of fine frames fits, so no frame was made coarse early.
    assert_eq!(history.frames_between(DAY_MS - 3_600_000, DAY_MS), 720);
}

/// How much memory some minutes of a mesh with this many edges take, and how many counts were lost.
fn minutes(edges: u64) -> (usize, u64) {
    let mut random = Random(0x2545_f491_4f6c_dd1d);
    let fine = growth(&mut random, FINE_MS / 1000, edges);
    let before = LIVE.load(Ordering::Relaxed);
    let mut history = History::default();
    for turn in 1..=FRAMES {
        history.push(turn * FINE_MS, &fine);
    }
    (LIVE.load(Ordering::Relaxed) - before, history.lost())
}

#[test]
fn edges_beyond_the_bound_take_no_memory_and_are_counted() {
    const FIT: u64 = MAX_SERIES as u64 - WORKLOADS - ROUTES;
    const BEYOND: u64 = 10_000;
    let _measured = MEASURED.lock().unwrap();
    let (full, none_lost) = minutes(FIT);
    let (beyond, lost) = minutes(FIT + BEYOND);
    println!("{full} bytes with as many as fit, {beyond} with {BEYOND} more");
    assert!(beyond * 10 <= full * 11, "{beyond} bytes, and {full} without those beyond the bound");
    assert_eq!((none_lost, lost), (0, FRAMES * BEYOND));
}
