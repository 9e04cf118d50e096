//! The list of cases: the properties of a mesh on one machine.

use anyhow::Result;
use leno_testkit::lab::{Capture, Lab};

mod address_blocks;
mod addressing;
mod authorization;
mod authorizers;
mod awaited;
mod beyond;
mod bodies;
mod calls;
mod causes;
mod certificate_times;
mod claims;
mod clocks;
mod conformance;
mod connect;
mod datagrams;
mod departures;
mod disturbance;
mod egress;
mod encryption;
mod explain;
mod external;
mod fairness;
mod federation;
mod flows;
mod guests;
mod handover;
mod hbone;
mod holes;
mod http;
mod http2;
mod identity;
mod intruders;
mod lies;
mod life;
mod neighbours;
mod node;
mod one_pass;
mod open_ways;
mod pairs;
mod programs;
mod readings;
mod reauthorization;
mod routes;
mod scale;
mod shared_limits;
mod sign_in;
mod soak;
mod spire;
mod stalled;
mod strangers;
mod streams;
mod suggest;
mod tap;
mod tokens;
mod traces;
mod traffic;
mod uplink;
mod waypoint;
mod workload_api;
mod zones;

/// A case: one property, with its test.
pub(crate) struct Case {
    pub(crate) name: &'static str,
    pub(crate) run: Run,
}

/// The mesh on which a case runs.
#[derive(Clone, Copy)]
pub(crate) enum Run {
    /// The mesh that all shared cases of a backend use. The case leaves it as it was.
    SharedMesh(fn(&Lab) -> Result<()>),
    /// Meshes that the case starts itself, because it breaks or measures something to which the capture backend
    /// belongs.
    Alone(fn(Capture) -> Result<()>),
    /// Meshes that the case starts itself, to test a property that does not depend on how connections reach the
    /// proxy. The case runs only with [`ONCE`].
    Once(fn(Capture) -> Result<()>),
}

/// The backend with which cases run that do not depend on the backend. It is the one that `leno up` prefers.
pub(crate) const ONCE: Capture = Capture::Ebpf;

/// A case on the shared mesh. Its name is that of its function.
macro_rules! shared {
    ($name:ident) => {
        $crate::cases::Case { name: stringify!($name), run: $crate::cases::Run::SharedMesh($name) }
    };
}

/// A case with its own mesh under each capture backend. Its name is that of its function.
macro_rules! alone {
    ($name:ident) => {
        $crate::cases::Case { name: stringify!($name), run: $crate::cases::Run::Alone($name) }
    };
}

/// A case with its own mesh that runs with only one capture backend. Its name is that of its function.
macro_rules! once {
    ($name:ident) => {
        $crate::cases::Case { name: stringify!($name), run: $crate::cases::Run::Once($name) }
    };
}

pub(crate) use {alone, once, shared};

/// All cases by group.
pub(crate) fn all() -> [(&'static str, Vec<Case>); 18] {
    [
        ("programs", programs::cases()),
        ("addressing", addressing::cases()),
        ("http", joined([http::cases(), departures::cases()])),
        ("http2", joined([http2::cases(), stalled::cases(), causes::cases()])),
        (
            "routes",
            joined([
                routes::cases(),
                calls::cases(),
                connect::cases(),
                streams::cases(),
                scale::cases(),
            ]),
        ),
        ("conformance", conformance::cases()),
        ("explain", joined([explain::cases(), pairs::cases()])),
        ("traffic", joined([traffic::cases(), shared_limits::cases(), zones::cases()])),
        (
            "egress",
            joined([egress::cases(), external::cases(), uplink::cases(), open_ways::cases()]),
        ),
        ("authorization", of_authorization()),
        (
            "encryption",
            joined([
                encryption::cases(),
                hbone::cases(),
                waypoint::cases(),
                beyond::cases(),
                neighbours::cases(),
                datagrams::cases(),
            ]),
        ),
        (
            "identity",
            joined([
                identity::cases(),
                lies::cases(),
                clocks::cases(),
                workload_api::cases(),
                spire::cases(),
                federation::cases(),
            ]),
        ),
        ("strangers", strangers::cases()),
        ("flows", joined([flows::cases(), tap::cases(), traces::cases()])),
        ("disturbance", disturbance::cases()),
        ("life", life::cases()),
        (
            "node",
            joined([
                node::cases(),
                handover::cases(),
                awaited::cases(),
                one_pass::cases(),
                guests::cases(),
                intruders::cases(),
                fairness::cases(),
            ]),
        ),
        ("soak", soak::cases()),
    ]
}

fn of_authorization() -> Vec<Case> {
    joined([
        authorization::cases(),
        address_blocks::cases(),
        reauthorization::cases(),
        tokens::cases(),
        claims::cases(),
        authorizers::cases(),
        sign_in::cases(),
        bodies::cases(),
        holes::cases(),
        readings::cases(),
        certificate_times::cases(),
        suggest::cases(),
    ])
}

/// The cases of several modules, in one group.
fn joined<const N: usize>(cases: [Vec<Case>; N]) -> Vec<Case> {
    cases.into_iter().flatten().collect()
}
