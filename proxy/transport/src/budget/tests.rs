//! Each test uses threads of its own, because an account belongs to its thread.

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
fn new_work_is_refused_at_three_quarters_and_work_in_progress_continues() {
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
fn a_charge_beyond_the_budget_is_counted_but_not_granted() {
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
fn new_work_is_refused_if_another_worker_holds_the_budget() {
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
fn memory_that_a_thread_held_before_it_entered_is_charged_too() {
    let budget = Budget::new(MIN_BUDGET);
    in_thread(|| {
        charge(MIB);
        budget.enter();
        assert_eq!(granted(budget), MIB);
    });
}

#[test]
fn use_that_rises_and_falls_does_not_change_the_shared_counter() {
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

/// A budget of 8 MiB, 1 MiB of which it owns.
fn pooled(pool: Pool) -> Budget {
    Budget::with_pool(8 * MIB, MIB, pool)
}

#[test]
fn a_workload_that_takes_the_whole_pool_leaves_the_own_parts_of_others() {
    let pool = Pool::new(8 * MIB);
    let (greedy, second, quiet) = (pooled(pool), pooled(pool), pooled(pool));
    let (full, seen, free) = (Barrier::new(2), Barrier::new(2), Barrier::new(2));
    thread::scope(|scope| {
        scope.spawn(|| {
            greedy.enter();
            charge(6 * MIB);
            assert!(admits(), "5 of 8 MiB of the pool are taken");
            full.wait();
            seen.wait();
            charge(1);
            assert!(!admits(), "the others have taken the rest");
            credit(6 * MIB + 1);
            leave();
            free.wait();
        });
        scope.spawn(|| {
            full.wait();
            in_thread(|| {
                second.enter();
                charge(20 * MIB);
                assert!(!admits() && is_short());
                assert_eq!(granted(second), 4 * MIB, "its own, and the last 3 of the pool");
                assert_eq!(pool.taken(), pool.bytes());
                // An idle workload still has its own part, and three quarters of it for new work.
                in_thread(|| {
                    quiet.enter();
                    charge(MIB / 4 * 3);
                    assert!(admits() && !is_short());
                    charge(1);
                    assert!(!admits());
                    credit(GRANT + 1);
                    assert!(admits());
                    leave();
                });
                seen.wait();
                free.wait();
                assert!(!admits(), "its work still takes more than its budget");
                credit(19 * MIB);
                assert!(admits());
                credit(MIB);
                leave();
            });
        });
    });
    assert_eq!((pool.taken(), granted(greedy), granted(second), granted(quiet)), (0, 0, 0, 0));
}

#[test]
fn a_thread_that_leaves_returns_all_its_grants() {
    let pool = Pool::new(8 * MIB);
    let budget = pooled(pool);
    in_thread(|| {
        budget.enter();
        charge(3 * MIB);
        assert_eq!((granted(budget), pool.taken()), (3 * MIB, 2 * MIB));
        leave();
        assert_eq!((granted(budget), pool.taken()), (0, 0));
        credit(3 * MIB);
        assert!(admits());
    });
}

proptest! {
    /// Whatever two workloads do at the same time, exactly the bytes beyond their own parts come from the pool, and
    /// never more than it has.
    #[test]
    fn the_pool_lends_what_exceeds_the_own_parts(
        steps in proptest::collection::vec((any::<bool>(), 1..3_000_000usize), 1..60),
    ) {
        let pool = Pool::new(6 * MIB);
        let budgets = [pooled(pool), pooled(pool)];
        thread::scope(|scope| {
            for budget in budgets {
                let steps = &steps;
                scope.spawn(move || {
                    budget.enter();
                    let mut held = Vec::new();
                    for (take, bytes) in steps {
                        if *take {
                            held.push(Charge::new(*bytes));
                        } else {
                            held.pop();
                        }
                        assert!(pool.taken() <= pool.bytes());
                        assert!(granted(budget) <= 8 * MIB);
                        assert!(granted(budget) >= charged().min(MIB), "its own is there");
                    }
                    drop(held);
                    leave();
                });
            }
        });
        prop_assert_eq!(pool.taken(), 0);
        prop_assert_eq!(budgets.map(granted), [0, 0]);
    }

    /// Grants cover the charges as far as the budget permits, never exceed the budget, and are returned.
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
