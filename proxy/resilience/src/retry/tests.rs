//! A table of endings and facts, and properties that hold for all of them.

use leno_balance::Rng;
use leno_types::traffic::{RetryBackoff, RetryConditions, StatusRange};
use proptest::prelude::*;

use super::*;

fn policy() -> Retries {
    Retries {
        attempts: 2,
        statuses: vec![StatusRange { from: 502, to: 504 }, StatusRange::one(429)],
        grpc_statuses: vec![14],
        on: RetryConditions {
            connect_failure: true,
            reset: true,
            refused_stream: true,
            timeout: true,
        },
        non_idempotent: false,
        per_try_timeout: None,
        backoff: RetryBackoff::default(),
        budget: leno_types::traffic::RetryBudget::default(),
        max_retry_after: Duration::from_secs(2),
    }
}

fn facts() -> Facts {
    Facts { is_idempotent: true, is_replayable: true, ..Facts::default() }
}

fn decide(policy: &Retries, ending: Ending, facts: Facts) -> Decision {
    let (now, mut rng) = (Instant::now(), Rng::seeded(2));
    let mut budget = Budget::new(policy.budget);
    budget.request(now);
    let mut retry = Retry::default();
    retry.decide(policy, (ending, facts), (&mut budget, &mut rng), now)
}

#[test]
fn what_policy_names_is_sent_again() {
    use Ending::{ConnectFailed, Grpc, RefusedStream, Reset, Status, TimedOut};
    let all = policy();
    let none = Retries {
        on: RetryConditions::default(),
        statuses: vec![],
        grpc_statuses: vec![],
        ..policy()
    };
    let named = [
        Status(502),
        Status(504),
        Status(429),
        Grpc(14),
        ConnectFailed,
        Reset,
        RefusedStream,
        TimedOut,
    ];
    for ending in named {
        assert!(matches!(decide(&all, ending, facts()), Decision::Again(_)), "{ending:?}");
        let refused = Decision::Final(Why::NoFailure);
        assert_eq!(decide(&none, ending, facts()), refused, "{ending:?}");
    }
    for ending in
        [Status(200), Status(500), Status(501), Status(505), Status(404), Grpc(0), Grpc(13)]
    {
        let refused = Decision::Final(Why::NoFailure);
        assert_eq!(decide(&all, ending, facts()), refused, "{ending:?}");
    }
}

#[test]
fn what_might_be_done_twice_is_not() {
    let post = Facts { is_idempotent: false, ..facts() };
    for ending in [Ending::Status(503), Ending::Reset, Ending::TimedOut, Ending::Grpc(14)] {
        assert_eq!(decide(&policy(), ending, post), Decision::Final(Why::Method), "{ending:?}");
        let unseen = Facts { is_unprocessed: true, ..post };
        assert!(matches!(decide(&policy(), ending, unseen), Decision::Again(_)), "{ending:?}");
        let allowed = Retries { non_idempotent: true, ..policy() };
        assert!(matches!(decide(&allowed, ending, post), Decision::Again(_)), "{ending:?}");
    }
    for ending in [Ending::ConnectFailed, Ending::RefusedStream] {
        assert!(matches!(decide(&policy(), ending, post), Decision::Again(_)), "{ending:?}");
    }
    let too_large = Facts { is_replayable: false, ..facts() };
    let refused = Decision::Final(Why::Body);
    assert_eq!(decide(&policy(), Ending::Status(503), too_large), refused);
}

#[test]
fn a_server_that_asks_for_time_gets_it() {
    let after = |seconds| Facts { retry_after: Some(Duration::from_secs(seconds)), ..facts() };
    let again = Decision::Again(Duration::from_secs(2));
    assert_eq!(decide(&policy(), Ending::Status(429), after(2)), again);
    let refused = Decision::Final(Why::Time);
    assert_eq!(decide(&policy(), Ending::Status(429), after(3)), refused);
    let short = Facts { time_left: Some(Duration::from_secs(1)), ..after(2) };
    assert_eq!(decide(&policy(), Ending::Status(429), short), refused);
    assert!(matches!(decide(&policy(), Ending::Status(429), after(0)), Decision::Again(_)));
}

#[test]
fn attempts_and_budget_bound_it() {
    let (now, mut rng) = (Instant::now(), Rng::seeded(2));
    let only_min = leno_types::traffic::RetryBudget { percent: 0, min_per_second: 3 };
    let policy = Retries { budget: only_min, ..policy() };
    let mut budget = Budget::new(policy.budget);
    let mut decisions = Vec::new();
    for _ in 0..2 {
        budget.request(now);
        let mut retry = Retry::default();
        for _ in 0..3 {
            let what = (Ending::Reset, facts());
            decisions.push(retry.decide(&policy, what, (&mut budget, &mut rng), now));
        }
    }
    let why: Vec<Option<Why>> = decisions
        .iter()
        .map(|decision| match decision {
            Decision::Again(_) => None,
            Decision::Final(why) => Some(*why),
        })
        .collect();
    let budget = Some(Why::Budget);
    assert_eq!(why, [None, None, Some(Why::Attempts), None, budget, budget]);
}

fn endings() -> impl Strategy<Value = Ending> {
    prop_oneof![
        (100..600_u16).prop_map(Ending::Status),
        (0..17_u8).prop_map(Ending::Grpc),
        Just(Ending::ConnectFailed),
        Just(Ending::Reset),
        Just(Ending::RefusedStream),
        Just(Ending::TimedOut),
    ]
}

proptest! {
    /// A request that an application may have seen is sent twice only if its method or the policy allows it. No request
    /// is sent more often than the policy allows, or without its body.
    #[test]
    fn nothing_is_sent_twice_that_policy_does_not_allow(
        attempts in 0..5_u32, non_idempotent in any::<bool>(),
        tries in proptest::collection::vec(
            (endings(), any::<bool>(), any::<bool>(), any::<bool>(), 0..4_000_u64), 1..10),
    ) {
        let policy = Retries { attempts, non_idempotent, ..policy() };
        let (now, mut rng) = (Instant::now(), Rng::seeded(2));
        let mut budget = Budget::new(policy.budget);
        budget.request(now);
        let mut retry = Retry::default();
        let mut again = 0;
        for (ending, is_idempotent, is_unprocessed, is_replayable, left) in tries {
            let time_left = Some(Duration::from_millis(left));
            let facts =
                Facts { is_idempotent, is_unprocessed, is_replayable, retry_after: None, time_left };
            let resources = (&mut budget, &mut rng);
            let Decision::Again(wait) = retry.decide(&policy, (ending, facts), resources, now) else {
                continue;
            };
            again += 1;
            let unseen = is_unprocessed
                || matches!(ending, Ending::ConnectFailed | Ending::RefusedStream);
            prop_assert!(is_idempotent || non_idempotent || unseen);
            prop_assert!(is_replayable && again <= attempts && wait < Duration::from_millis(left));
        }
        prop_assert_eq!(retry.made(), again);
    }
}
