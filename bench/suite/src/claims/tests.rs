//! Checks the verdicts on claims, from the records of a file.

use serde::Deserialize;

use super::claim::{Bound, Check, FigureCheck};
use super::*;
use crate::figures;

#[test]
fn the_table_is_read_whole_and_each_claim_ends_with_a_reason() {
    let claims = claims().unwrap();
    let of_source = |name: &str| claims.iter().filter(|one| one.source == name).count();
    let counts = ["A", "B", "C", "D", "E"].map(of_source);
    assert_eq!((counts, claims.len()), ([23, 25, 9, 10, 6], 73), "a claim is gone, or new");
    let seen = super::check(&claims, &[], &crate::cost::prices(None).unwrap());
    // Without records, only the claims that need arithmetic alone can be decided.
    let judged = seen.iter().filter(|one| one.verdict != Verdict::NotMeasurableHere);
    assert_eq!((seen.len(), judged.count()), (claims.len(), 2));
    assert!(seen.iter().all(|one| !one.because.is_empty()));
    for Claim { check, says, .. } in &claims {
        if let Check::Figure(FigureCheck { of, .. }) = check {
            figures::find(of).expect(says);
        }
        let Some(scenario) = check.scenario() else { continue };
        let scenario = scenario::find(scenario).expect(says);
        if let Check::Figure(FigureCheck { by, is: Bound::Near(_), .. }) = check {
            assert!(
                scenario.steps().contains(&by.step),
                "{says}: one of its steps has to be named"
            );
        }
    }
}

/// A check, the records, the expected verdict, and words of its reason.
#[derive(Deserialize)]
struct CheckedRecords {
    check: Check,
    records: Vec<Record>,
    says: [String; 2],
}

#[test]
fn a_claim_is_judged_by_its_bound_and_its_evidence() {
    let rows: Vec<CheckedRecords> =
        serde_saphyr::from_str(include_str!("../../data/claims.test.yaml")).unwrap();
    for CheckedRecords { check, records, says: [verdict, words] } in rows {
        let (source, says, but) = ("T".to_owned(), "it".to_owned(), None);
        let claims = [Claim { source, says, but, check }];
        let outcome =
            super::check(&claims, &records, &crate::cost::prices(None).unwrap()).remove(0);
        let [Claim { check, .. }] = claims;
        assert_eq!(outcome.verdict.to_string(), verdict, "{check:?}: {}", outcome.because);
        assert!(
            outcome.because.contains(&words),
            "{check:?}: {words} is not in {}",
            outcome.because
        );
    }
}
