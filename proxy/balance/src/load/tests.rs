//! Tests the estimates and the ejections of one endpoint.

use super::*;

#[test]
fn a_peak_counts_at_once_and_fades() {
    let (load, now) = (Load::default(), Instant::now());
    load.observe(Duration::from_millis(1), now);
    load.observe(Duration::from_millis(100), now);
    load.observe(Duration::from_millis(1), now);
    let peak = load.estimate.get().unwrap();
    assert!((peak.latency_us - 100_000.0).abs() < 1.0);
    let later = now + DECAY;
    assert!((peak.decayed_us(later) - 36_788.0).abs() < 10.0);
    load.observe(Duration::from_millis(1), later);
    let after = load.estimate.get().unwrap().latency_us;
    assert!((37_000.0..38_000.0).contains(&after), "{after}");
}

#[test]
fn ejections_grow_to_their_bound_and_end_with_a_connection() {
    let (load, mut now) = (Load::default(), Instant::now());
    assert_eq!(load.standing(now), Health::Good);
    let mut length = FIRST_EJECTION;
    for _ in 0..40 {
        load.connect_failed(now, now);
        assert_eq!(load.standing(now), Health::Out);
        let last_moment = now + length - Duration::from_nanos(1);
        assert_ne!(load.standing(last_moment), Health::Good);
        now += length;
        assert_eq!(load.standing(now), Health::Good);
        length = (length * 2).min(MAX_EJECTION);
    }
    load.connect_failed(now, now);
    assert_eq!(load.standing(now + LAST_RESORT), Health::LastResort);
    load.connected();
    assert_eq!(load.standing(now), Health::Good);
}

#[test]
fn failures_of_one_outage_count_once() {
    let (load, begun) = (Load::default(), Instant::now());
    for ms in 1..50 {
        load.connect_failed(begun, begun + Duration::from_millis(ms));
    }
    let first = begun + Duration::from_millis(1);
    assert_eq!(load.standing(first + FIRST_EJECTION), Health::Good);
}

#[test]
fn one_probe_at_a_time() {
    let (load, now) = (Load::default(), Instant::now());
    load.connect_failed(now, now);
    let later = now + FIRST_EJECTION;
    assert_eq!(load.standing(later), Health::Good);
    load.enter(later);
    assert_eq!(load.standing(later), Health::Out);
    load.leave();
}

#[test]
fn an_estimate_does_not_fade_while_no_endpoint_answers() {
    let (stalled, other, now) = (Load::default(), Load::default(), Instant::now());
    for load in [&stalled, &other] {
        load.observe(Duration::from_millis(1), now);
    }
    stalled.enter(now);
    let before = stalled.estimate_us(now).unwrap();
    let later = now + Duration::from_secs(20);
    assert!((stalled.estimate_us(later).unwrap() - before).abs() < 1.0);
    assert!(other.estimate_us(later).unwrap() < before / 5.0);
    // A long stream stops the decay for a limited time only.
    let long_after = now + STALL_HOLD + DECAY * 2;
    assert!(stalled.estimate_us(long_after).unwrap() < before / 5.0);
}

#[test]
fn an_ejection_ends_with_one_good_probe_and_doubles_with_a_bad_one() {
    let ejection = Ejection { base: Duration::from_secs(1), ..Ejection::default() };
    let (load, now) = (Load::default(), Instant::now());
    load.eject(ejection, now);
    let end = now + Duration::from_secs(1);
    assert_eq!(load.standing(end - Duration::from_nanos(1)), Health::Ejected);
    assert_eq!(load.standing(end), Health::Good);
    load.enter(end);
    assert_eq!(load.standing(end), Health::Ejected, "one probe at a time");
    assert!(load.was_probe(end) && !load.was_probe(now));
    load.eject(ejection, end);
    assert_eq!(load.standing(end + Duration::from_secs(1)), Health::Ejected);
    assert_eq!(load.standing(end + Duration::from_secs(2)), Health::Good);
    load.take_back();
    assert_eq!(load.standing(end), Health::Good);
}
