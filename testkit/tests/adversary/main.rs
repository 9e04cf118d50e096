//! An adversary's cases, written from the RFCs and public CVEs alone, against real proxies: requests and responses
//! that parsers disagree about, frames of HTTP/2, filters under huge requests, beginnings of TLS, peers that stop.
//!
//! ```text
//!   cases/*.txt ──► client ──► leno-proxy ──► application that reads strictly and records
//!                     └────────── judge ──────────┘
//! ```
//! No case may panic the proxy, bring the application a request that a strict reading of the bytes does not
//! have, or a client the answer of another, stay unanswered, or keep anything of the proxy's.

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
