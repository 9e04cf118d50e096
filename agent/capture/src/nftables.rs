//! Captures a workload with one nftables table, in the namespace of the calling thread.

use std::fmt::Write;
use std::net::IpAddr;

use leno_bpf::abi::Counter;
use leno_types::ports;

use crate::captured::{
    CaptureCounters, CaptureTarget, INBOUND_DROPPED_UNCAPTURED, OUTBOUND_DROPPED_UNCAPTURED,
    UNCAPTURED,
};
use crate::command::run;
use crate::error::Error;

/// The counters of the rules, besides [`UNCAPTURED`].
const COUNTED: &[Counter] = &[
    Counter::OutboundCaptured,
    Counter::OutboundPassedProxy,
    Counter::OutboundPassedLocal,
    Counter::OutboundPassedExcluded,
    Counter::InboundCaptured,
    Counter::InboundPassedAdmin,
    Counter::InboundPassedLocal,
    Counter::InboundDroppedMeshPort,
    Counter::InboundDroppedLinkLocal,
    Counter::OutboundDroppedLinkLocal,
];

/// Matches packets that must not use a link-local address: all except ICMPv6 and packets of connections that were
/// permitted. `icmpv6` is a keyword of nft. Other names, such as `ipv6-icmp`, would be looked up in
/// /etc/protocols, which the agent's image does not have.
const LINK_LOCAL: &str =
    "ip6 daddr fe80::/10 meta l4proto != icmpv6 ct state != { established, related }";

/// Matches a TCP packet that does not begin a connection. Listeners only accept a packet with SYN and without FIN,
/// RST and ACK.
const NOT_FIRST: &str = "tcp flags & (fin | syn | rst | ack) != syn";

/// Installs the rules in one transaction, in place of older ones.
pub(crate) fn install(workload: &CaptureTarget) -> Result<(), Error> {
    run("nft", &["-f", "-"], &ruleset(workload)?).map(drop)
}

/// Removes the table. Succeeds if there is none.
pub(crate) fn remove() -> Result<(), Error> {
    run("nft", &["-f", "-"], &empty()).map(drop)
}

/// Reads the named counters.
pub(crate) fn counters() -> Result<CaptureCounters, Error> {
    let listing = run("nft", &["list", "counters", "table", "inet", "leno"], "")?;
    Ok(parse_counters(&listing))
}

/// The commands that delete the table, whether it exists or not.
fn empty() -> String {
    "table inet leno\ndelete table inet leno\n".to_owned()
}

/// The commands that create the whole table. Only packets that begin a connection are redirected. Otherwise
/// conntrack would treat the next packet of a connection that was already open as the first packet of a new one,
/// and translate it. Conntrack decides about the translation at the first packet, and any client can send a first
/// packet that does not begin a connection. The resulting conntrack entry would exempt a later SYN from
/// redirection, so the chains `entered` and `left` drop such a SYN. New connections over lo never pass the nat
/// hook of prerouting, but the rules do not rely on it.
fn ruleset(workload: &CaptureTarget) -> Result<String, Error> {
    let (outbound, inbound, admin) = (ports::OUTBOUND, ports::INBOUND, ports::ADMIN);
    let (mut passed, mut unchecked) = (String::new(), String::new());
    for (condition, counter) in passed_outbound(workload)? {
        let counter = counter.name();
        writeln!(passed, "    {condition} counter name {counter} return")
            .expect("a String takes all");
        writeln!(unchecked, "    {condition} return").expect("a String takes all");
    }
    let mut rules = empty();
    rules.push_str("table inet leno {\n");
    for counter in counted() {
        writeln!(rules, "  counter {counter} {{ }}").expect("a String takes all");
    }
    write!(
        rules,
        "  chain guard {{
    type filter hook prerouting priority raw; policy accept;
    iifname != lo tcp dport {{ {outbound}, {inbound} }} counter name inbound_dropped_mesh_port drop
  }}
  chain inbound {{
    type nat hook prerouting priority dstnat; policy accept;
    meta l4proto != tcp return
    {NOT_FIRST} return
    iifname lo counter name inbound_passed_local return
    ip6 daddr fe80::/10 return
    tcp dport {admin} counter name inbound_passed_admin return
    meta l4proto tcp counter name inbound_captured redirect to :{inbound}
  }}
  chain entered {{
    type filter hook input priority filter; policy accept;
    iifname lo return
    {LINK_LOCAL} counter name inbound_dropped_link_local drop
    meta l4proto != tcp return
    {NOT_FIRST} return
    tcp dport {{ {admin}, {inbound} }} return
    counter name {INBOUND_DROPPED_UNCAPTURED} drop
  }}
  chain outbound {{
    type nat hook output priority -100; policy accept;
    meta l4proto != tcp return
    {NOT_FIRST} return
    ip6 daddr fe80::/10 return
{passed}    meta l4proto tcp counter name outbound_captured redirect to :{outbound}
  }}
  chain link_local {{
{unchecked}    counter name outbound_dropped_link_local drop
  }}
  chain left {{
    type filter hook output priority filter; policy accept;
    ip6 daddr fe80::/10 oifname lo return
    {LINK_LOCAL} jump link_local
    meta l4proto != tcp return
    {NOT_FIRST} return
{unchecked}    counter name {OUTBOUND_DROPPED_UNCAPTURED} drop
  }}
}}
"
    )
    .expect("a String takes all");
    Ok(rules)
}

/// The conditions for outbound packets that bypass the proxy, each with the counter for it. Redirected packets
/// also match the condition for loopback, because their destination is already a loopback address.
fn passed_outbound(workload: &CaptureTarget) -> Result<Vec<(String, Counter)>, Error> {
    let mut passed = vec![
        ("ip daddr 127.0.0.0/8".to_owned(), Counter::OutboundPassedLocal),
        ("ip6 daddr ::1".to_owned(), Counter::OutboundPassedLocal),
        (format!("meta skuid {}", workload.proxy_uid), Counter::OutboundPassedProxy),
    ];
    for (ip, length) in &workload.excluded {
        let (family, most) = match ip {
            IpAddr::V4(_) => ("ip", 32),
            IpAddr::V6(_) => ("ip6", 128),
        };
        if *length > most {
            return Err(Error::Prefix(*ip, *length));
        }
        passed.push((format!("{family} daddr {ip}/{length}"), Counter::OutboundPassedExcluded));
    }
    Ok(passed)
}

/// The names of the table's counters.
fn counted() -> impl Iterator<Item = &'static str> {
    COUNTED.iter().map(|counter| counter.name()).chain(UNCAPTURED)
}

/// Parses `counter NAME {` and, on the next line, `packets N bytes N`.
fn parse_counters(listing: &str) -> CaptureCounters {
    let mut counters = CaptureCounters::new();
    let mut current = None;
    for line in listing.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words.as_slice() {
            ["counter", name, ..] => current = counted().find(|counter| counter == name),
            ["packets", packets, ..] => {
                if let (Some(counter), Ok(packets)) = (current.take(), packets.parse()) {
                    counters.insert(counter, packets);
                }
            }
            _ => {}
        }
    }
    counters
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_read_from_a_listing() {
        let listing = "table inet leno {\n\tcounter outbound_captured {\n\t\tpackets 3 bytes 180\n\
                       \t}\n\tcounter other {\n\t\tpackets 9 bytes 9\n\t}\n}\n";
        assert_eq!(parse_counters(listing), CaptureCounters::from([("outbound_captured", 3)]));
    }
}
