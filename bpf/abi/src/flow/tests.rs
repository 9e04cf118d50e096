//! Tests the encodings of flows.

use super::*;

#[test]
fn a_flow_survives_its_bytes() {
    let bytes: Vec<u8> = (0..size_of::<Flow>()).map(|byte| byte as u8).collect();
    let flow = Flow::from_bytes(&bytes).unwrap();
    assert_eq!(flow.to_bytes(), bytes);
    assert_eq!(Flow::from_bytes(&bytes[1..]), None);
}

#[test]
fn addresses_and_names_are_read_back() {
    let mut parts = FlowParts {
        local: "10.89.0.2:40000".parse().unwrap(),
        remote: "[fd89::3]:80".parse().unwrap(),
        state: FlowState::Closed,
        end: FlowEnd::Refused,
        role: FlowRole::Server,
        owner: FlowOwner::Wire,
    };
    let flow = Flow::new(&parts).with_bytes(7, 1 << 40);
    assert_eq!(flow.local(|_| None), parts.local);
    assert_eq!((flow.remote(), flow.local_number()), (parts.remote, None));
    assert_eq!((flow.bytes_sent(), flow.bytes_received()), (7, 1 << 40));
    assert_eq!((flow.state(), flow.end()), (Some(parts.state), Some(parts.end)));
    assert_eq!((flow.role(), flow.owner()), (Some(parts.role), Some(parts.owner)));
    parts.local = "[fd89::2]:1".parse().unwrap();
    let flow = Flow::new(&parts);
    let number = flow.local_number().unwrap();
    assert_eq!(flow.local(|one| (one == number).then(|| parts.local.ip())), parts.local);
    assert_eq!(flow.local(|_| None).to_string(), "[::]:1");
    assert_eq!(FlowName::new("shop", "web").parts(), ("shop".into(), "web".into()));
}

#[test]
fn long_times_are_in_coarse_steps_and_have_an_end() {
    for (us, read) in [
        (0, 0),
        (32_767, 32_767),
        (32_768, 32_768),
        (33_000, 32_768),
        (1_000_000, 999_424),
        (33_553_408, 33_553_408),
        (u32::MAX, 33_553_408),
    ] {
        assert_eq!(time_us(short_time(us)), read, "{us}");
    }
}
