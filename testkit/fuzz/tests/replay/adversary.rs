//! Sends all crafted cases of an adversary through both planes.

use leno_fuzz::adversary::{cases, check};
use leno_fuzz::proxy::Planes;

/// The smallest plausible number of cases. Fewer mean that a generator is broken.
const FEWEST: usize = 1000;

#[test]
fn crafted_requests_are_forwarded_with_one_meaning_or_refused() {
    let cases = cases();
    assert!(cases.len() >= FEWEST, "{} cases", cases.len());
    let mut wrong = Vec::new();
    for case in &cases {
        for planes in [Planes::Outbound, Planes::Inbound] {
            wrong.extend(check(case, planes).err());
        }
    }
    let count = wrong.len();
    assert!(wrong.is_empty(), "{count} of {} are wrong:\n{}", 2 * cases.len(), wrong.join("\n"));
}
