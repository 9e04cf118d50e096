//! Each test has threads of its own, since an account belongs to its thread.

use std::sync::Barrier;
use std::thread;

use proptest::prelude::*;

use super::*;

const MIB: usize = 1024 * 1024;

fn granted(budget: Budget) -> usize {
    budget.0.granted.load(Ordering::Relaxed)
}

fn in_thread<T: Send>(act: impl FnOnce() -> T + Send) -> T {
    thread::scope(|scope| scope.spawn(act).join().unwrap())
}

#[test]
fn a_thread_without_a_budget_has_no_bound() {
    in_thread(|| {
        let held = Charge::new(usize::MAX / 2);
        assert!(admits() && !is_short());
        drop(held);
        assert_eq!(charged(), 0);
    });
}

#[test]
fn new_work_is_refused_at_three_quarters_and_work_under_way_goes_on() {
    let budget = Budget::new(8 * MIB);
    in_thread(|| {
        budget.enter();
        charge(6 * MIB);
        assert!(admits() && !is_short());
        charge(1);
        assert!(!admits() && is_short());
        charge(MIB);
        assert_eq!(charged(), 7 * MIB + 1);
        credit(MIB);
        assert!(!admits());
        credit(MIB);
        assert!(admits() && !is_short());
    });
}

#[test]
fn a_charge_over_the_budget_is_counted_and_no_more_is_granted() {
    let budget = Budget::new(MIN_BUDGET);
    in_thread(|| {
        budget.enter();
        charge(3 * MIN_BUDGET);
        assert_eq!(granted(budget), MIN_BUDGET);
        assert!(!admits());
        credit(3 * MIN_BUDGET);
        assert!(admits());
        assert!(granted(budget) <= 2 * GRANT);
    });
}

#[test]
fn one_worker_feels_what_another_holds() {
    let budget = Budget::new(8 * MIB);
    let (full, seen, free) = (Barrier::new(2), Barrier::new(2), Barrier::new(2));
    thread::scope(|scope| {
        scope.spawn(|| {
            budget.enter();
            charge(7 * MIB);
            full.wait();
            seen.wait();
            credit(7 * MIB);
            free.wait();
        });
        scope.spawn(|| {
            budget.enter();
            assert!(admits());
            full.wait();
            charge(1);
            assert!(!admits());
            seen.wait();
            free.wait();
            assert!(admits());
        });
    });
}

#[test]
fn what_a_thread_held_before_it_entered_is_charged_too() {
    let budget = Budget::new(MIN_BUDGET);
    in_thread(|| {
        charge(MIB);
        budget.enter();
        assert_eq!(granted(budget), MIB);
    });
}

#[test]
fn use_that_goes_up_and_down_leaves_the_shared_count_alone() {
    let budget = Budget::new(8 * MIB);
    in_thread(|| {
        budget.enter();
        charge(GRANT);
        let before = granted(budget);
        charge(1);
        let after = granted(budget);
        for _ in 0..1000 {
            credit(GRANT / 2);
            charge(GRANT / 2);
            assert_eq!(granted(budget), after);
        }
        assert_eq!(after, before + GRANT);
    });
}

proptest! {
    /// The grants cover what is charged as far as the budget goes, never exceed it, and come back.
    #[test]
    fn grants_follow_charges(steps in proptest::collection::vec((any::<bool>(), 1..600_000usize), 1..200)) {
        let budget = Budget::new(MIN_BUDGET);
        let checked: Result<(), TestCaseError> = in_thread(|| {
            budget.enter();
            let mut held = Vec::new();
            for (take, bytes) in steps {
                if take {
                    held.push(Charge::new(bytes));
                } else {
                    held.pop();
                }
                let charged = charged();
                prop_assert!(granted(budget) <= MIN_BUDGET);
                prop_assert!(granted(budget) >= charged.min(MIN_BUDGET));
                prop_assert!(granted(budget) < charged + 2 * GRANT + GRANT);
                if admits() {
                    prop_assert!(charged <= MIN_BUDGET / 4 * 3);
                }
            }
            held.clear();
            prop_assert_eq!(charged(), 0);
            prop_assert!(admits() && !is_short());
            Ok(())
        });
        checked?;
    }
}
