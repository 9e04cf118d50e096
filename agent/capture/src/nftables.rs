//! Capture by one nftables table, in the namespace of the calling thread.

use std::fmt::Write;
use std::net::IpAddr;

use leno_bpf::abi::Counter;
use leno_types::ports;

use crate::captured::{Counters, Workload};
use crate::command::run;
use crate::error::Error;

/// What the rules count.
const COUNTED: &[Counter] = &[
    Counter::OutboundCaptured,
    Counter::OutboundPassedProxy,
    Counter::OutboundPassedLocal,
    Counter::OutboundPassedExcluded,
    Counter::InboundCaptured,
    Counter::InboundPassedAdmin,
    Counter::InboundPassedLocal,
    Counter::InboundDroppedMeshPort,
];

/// Installs the rules, in place of older ones, in one transaction.
pub(crate) fn install(workload: &Workload) -> Result<(), Error> {
    run("nft", &["-f", "-"], &ruleset(workload)?).map(drop)
}

/// Removes the table; fine if there is none.
pub(crate) fn remove() -> Result<(), Error> {
    run("nft", &["-f", "-"], &empty()).map(drop)
}

/// Reads the named counters.
pub(crate) fn counters() -> Result<Counters, Error> {
    let listing = run("nft", &["list", "counters", "table", "inet", "leno"], "")?;
    Ok(parse_counters(&listing))
}

/// Deletes the table whether it was there or not.
fn empty() -> String {
    "table inet leno\ndelete table inet leno\n".to_owned()
}

/// The whole table. Only what begins a connection is redirected: the next packet of one that was open before
/// would be translated like the first of a new one. Connections over lo never pass the nat part of prerouting
/// as new ones, but the rules do not rely on it.
fn ruleset(workload: &Workload) -> Result<String, Error> {
    let (outbound, inbound, admin) = (ports::OUTBOUND, ports::INBOUND, ports::ADMIN);
    let uid = workload.proxy_uid;
    let mut excluded = String::new();
    for (ip, length) in &workload.excluded {
        let (family, most) = match ip {
            IpAddr::V4(_) => ("ip", 32),
            IpAddr::V6(_) => ("ip6", 128),
        };
        if *length > most {
            return Err(Error::Prefix(*ip, *length));
        }
        let counter = Counter::OutboundPassedExcluded.name();
        let rule = format!("    {family} daddr {ip}/{length} counter name {counter} return");
        excluded.push_str(&rule);
        excluded.push('\n');
    }
    let mut rules = empty();
    rules.push_str("table inet leno {\n");
    for counter in COUNTED {
        writeln!(rules, "  counter {} {{ }}", counter.name()).expect("a String takes all");
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
    tcp flags & (fin | syn | rst | ack) != syn return
    iifname lo counter name inbound_passed_local return
    ip6 daddr fe80::/10 counter name inbound_passed_local return
    tcp dport {admin} counter name inbound_passed_admin return
    meta l4proto tcp counter name inbound_captured redirect to :{inbound}
  }}
  chain outbound {{
    type nat hook output priority -100; policy accept;
    meta l4proto != tcp return
    tcp flags & (fin | syn | rst | ack) != syn return
    ip daddr 127.0.0.0/8 counter name outbound_passed_local return
    ip6 daddr {{ ::1, fe80::/10 }} counter name outbound_passed_local return
    meta skuid {uid} counter name outbound_passed_proxy return
{excluded}    meta l4proto tcp counter name outbound_captured redirect to :{outbound}
  }}
}}
"
    )
    .expect("a String takes all");
    Ok(rules)
}

/// `counter NAME {` and, on the next line, `packets N bytes N`.
fn parse_counters(listing: &str) -> Counters {
    let mut counters = Counters::new();
    let mut current = None;
    for line in listing.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words.as_slice() {
            ["counter", name, ..] => current = COUNTED.iter().find(|c| c.name() == *name),
            ["packets", packets, ..] => {
                if let (Some(counter), Ok(packets)) = (current.take(), packets.parse()) {
                    counters.insert(counter.name(), packets);
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
        assert_eq!(parse_counters(listing), Counters::from([("outbound_captured", 3)]));
    }
}
