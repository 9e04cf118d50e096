//! Tests real proxies against an adversary's cases, which were written only from the RFCs and public CVEs:
//! requests and responses about which parsers disagree, HTTP/2 frames, filters with huge requests, beginnings of
//! TLS, and peers that stop.
//!
//! ```text
//!   cases/*.txt ──► client ──► leno-proxy ──► application that reads strictly and records
//!                    └── compared with a strict parse of the case ──┘
//! ```
//! No case may cause a panic, a request at the application that a strict parser does not find in the bytes, an answer
//! to another client's request, a request without an answer, or resources of the proxy that are not released.

mod answers;
mod application;
mod application_h2;
mod filters;
mod frames;
mod hellos;
mod patience;
mod requests;
mod strict;
mod table;
mod worlds;

#[test]
fn the_tables_have_more_than_a_thousand_cases() {
    let tables =
        [requests::TABLE, frames::TABLE, answers::TABLE].map(|table| table::cases(table).len());
    let others = [filters::count(), hellos::count(), patience::count()];
    let all: usize = tables.iter().chain(&others).sum();
    println!("{all} cases: {tables:?} {others:?}");
    assert!(tables.iter().sum::<usize>() >= 1_000, "{tables:?}");
}
