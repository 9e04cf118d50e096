//! Captures a workload with chains of iptables and ip6tables, in the namespace of the calling thread.

use std::fmt::Write;
use std::net::IpAddr;
use std::path::Path;

use leno_bpf::abi::Counter;
use leno_types::ports;

use crate::captured::{
    CaptureCounters, CaptureTarget, INBOUND_DROPPED_UNCAPTURED, OUTBOUND_DROPPED_UNCAPTURED,
    UNCAPTURED,
};
use crate::command::run;
use crate::error::Error;

/// The option for how long to wait for the lock of the tables, in seconds. It is less than a command may take, so
/// that iptables itself reports the lock.
const LOCK_WAIT: &str = "--wait=5";

/// The prefix of the name of every chain of Leno.
const PREFIX: &str = "LENO_";

/// The prefix of the comment of every rule that counts.
const COMMENT: &str = "leno:";

/// The tables in which Leno has chains, in the order in which they are filled. They are emptied in reverse order,
/// because otherwise the filter chains would drop packets that the nat chains no longer redirect.
const TABLES: [&str; 3] = ["raw", "nat", "filter"];

/// The two programs, which share their options and their format.
#[derive(Clone, Copy)]
enum Family {
    Ipv4,
    Ipv6,
}

impl Family {
    /// Both families, or only IPv4 if the kernel was started without IPv6, because ip6tables then fails.
    fn all() -> &'static [Self] {
        if Path::new("/proc/sys/net/ipv6").exists() {
            &[Self::Ipv4, Self::Ipv6]
        } else {
            &[Self::Ipv4]
        }
    }

    fn restore(self, script: &str) -> Result<(), Error> {
        let program = match self {
            Self::Ipv4 => "iptables-restore",
            Self::Ipv6 => "ip6tables-restore",
        };
        run(program, &[LOCK_WAIT, "--noflush"], script).map(drop)
    }

    fn save(self, table: &str) -> Result<String, Error> {
        let program = match self {
            Self::Ipv4 => "iptables-save",
            Self::Ipv6 => "ip6tables-save",
        };
        run(program, &["--counters", "--table", table], "")
    }

    fn loopback(self) -> &'static str {
        match self {
            Self::Ipv4 => "127.0.0.0/8",
            Self::Ipv6 => "::1/128",
        }
    }
}

/// Installs the rules in place of older ones. If one family fails, the rules of both are removed.
pub(crate) fn install(workload: &CaptureTarget) -> Result<(), Error> {
    let all = Family::all().iter().try_for_each(|family| {
        let mut script = String::new();
        for table in TABLES {
            let rules = match table {
                "raw" => raw_rules(),
                "filter" => filter_rules(*family, workload)?,
                _ => nat_rules(*family, workload)?,
            };
            let saved = family.save(table)?;
            write!(script, "*{table}\n{}{rules}COMMIT\n", removal(&saved)).expect("takes all");
        }
        family.restore(&script)
    });
    if all.is_err()
        && let Err(error) = remove()
    {
        tracing::warn!(%error, "cannot undo failed iptables rules");
    }
    all
}

/// Removes the rules and chains. Succeeds if there are none.
pub(crate) fn remove() -> Result<(), Error> {
    for family in Family::all() {
        for table in TABLES.into_iter().rev() {
            let removal = removal(&family.save(table)?);
            if !removal.is_empty() {
                family.restore(&format!("*{table}\n{removal}COMMIT\n"))?;
            }
        }
    }
    Ok(())
}

/// Reads the counters of the rules with Leno's comments. The counts of both families are added.
pub(crate) fn counters() -> Result<CaptureCounters, Error> {
    let mut counters = CaptureCounters::new();
    for family in Family::all() {
        for table in TABLES {
            add_counters(&mut counters, &family.save(table)?);
        }
    }
    Ok(counters)
}

/// Drops connections from outside to the proxy's outbound and inbound listeners.
fn raw_rules() -> String {
    let mut rules = ":LENO_GUARD - [0:0]\n-A PREROUTING -p tcp -j LENO_GUARD\n".to_owned();
    for port in [ports::OUTBOUND, ports::INBOUND] {
        let condition = format!("! -i lo -p tcp --dport {port}");
        rules.push_str(&rule("GUARD", &condition, Counter::InboundDroppedMeshPort.name(), "DROP"));
    }
    rules
}

/// Redirects inbound and outbound connections. The rules only match SYNs. Otherwise conntrack would treat the next
/// packet of a connection that was already open as the first packet of a new one, and translate it.
fn nat_rules(family: Family, workload: &CaptureTarget) -> Result<String, Error> {
    let mut rules = ":LENO_INBOUND - [0:0]\n:LENO_OUTBOUND - [0:0]\n\
                     -A PREROUTING -p tcp --syn -j LENO_INBOUND\n-A OUTPUT -p tcp --syn -j LENO_OUTBOUND\n"
        .to_owned();
    if matches!(family, Family::Ipv6) {
        for chain in ["INBOUND", "OUTBOUND"] {
            writeln!(rules, "-A {PREFIX}{chain} -d fe80::/10 -j RETURN").expect("takes all");
        }
    }
    let mut add = |chain: &str, condition: &str, counter: Counter, target: &str| {
        rules.push_str(&rule(chain, condition, counter.name(), target));
    };
    add("INBOUND", "-i lo", Counter::InboundPassedLocal, "RETURN");
    let admin = format!("-p tcp --dport {}", ports::ADMIN);
    add("INBOUND", &admin, Counter::InboundPassedAdmin, "RETURN");
    let target = format!("REDIRECT --to-ports {}", ports::INBOUND);
    add("INBOUND", "-p tcp", Counter::InboundCaptured, &target);

    for (condition, counter) in passed_outbound(family, workload)? {
        add("OUTBOUND", &condition, counter, "RETURN");
    }
    let target = format!("REDIRECT --to-ports {}", ports::OUTBOUND);
    add("OUTBOUND", "-p tcp", Counter::OutboundCaptured, &target);
    Ok(rules)
}

/// Drops SYNs that were not redirected. Conntrack decides about the translation at a connection's first packet,
/// and any client can send a first packet that is not a SYN. These rules are inserted before those of other
/// programs, because an accepted packet skips the rest of the table.
fn filter_rules(family: Family, workload: &CaptureTarget) -> Result<String, Error> {
    let mut rules = ":LENO_INPUT - [0:0]\n:LENO_OUTPUT - [0:0]\n\
                     -I INPUT -p tcp --syn -j LENO_INPUT\n-I OUTPUT -p tcp --syn -j LENO_OUTPUT\n\
                     -A LENO_INPUT -i lo -j RETURN\n"
        .to_owned();
    for port in [ports::ADMIN, ports::INBOUND] {
        writeln!(rules, "-A LENO_INPUT -p tcp --dport {port} -j RETURN").expect("takes all");
    }
    rules.push_str(&rule("INPUT", "-p tcp", INBOUND_DROPPED_UNCAPTURED, "DROP"));
    for (condition, _) in passed_outbound(family, workload)? {
        writeln!(rules, "-A LENO_OUTPUT {condition} -j RETURN").expect("takes all");
    }
    rules.push_str(&rule("OUTPUT", "-p tcp", OUTBOUND_DROPPED_UNCAPTURED, "DROP"));
    if matches!(family, Family::Ipv6) {
        rules.push_str(&link_local_rules(workload)?);
    }
    Ok(rules)
}

/// Drops link-local IPv6 packets, except ICMPv6, which neighbour discovery needs, and packets of connections that
/// were permitted. The jumps are inserted, so these chains run before the table's other rules.
fn link_local_rules(workload: &CaptureTarget) -> Result<String, Error> {
    let mut rules = ":LENO_LINK_IN - [0:0]\n:LENO_LINK_OUT - [0:0]\n\
                     -I INPUT ! -i lo -d fe80::/10 ! -p ipv6-icmp -j LENO_LINK_IN\n\
                     -I OUTPUT ! -o lo -d fe80::/10 ! -p ipv6-icmp -j LENO_LINK_OUT\n\
                     -I LENO_OUTPUT -o lo -d fe80::/10 -j RETURN\n"
        .to_owned();
    let established = "-m conntrack --ctstate ESTABLISHED,RELATED -j RETURN";
    for chain in ["LINK_IN", "LINK_OUT"] {
        writeln!(rules, "-A {PREFIX}{chain} {established}").expect("takes all");
    }
    for (condition, _) in passed_outbound(Family::Ipv6, workload)? {
        writeln!(rules, "-A {PREFIX}LINK_OUT {condition} -j RETURN").expect("takes all");
    }
    for (chain, counter) in [
        ("LINK_IN", Counter::InboundDroppedLinkLocal),
        ("LINK_OUT", Counter::OutboundDroppedLinkLocal),
    ] {
        rules.push_str(&rule(chain, "-d fe80::/10", counter.name(), "DROP"));
    }
    Ok(rules)
}

/// The conditions for outbound packets that bypass the proxy, each with the counter for it. Redirected packets
/// also match the condition for loopback, because their destination is already a loopback address.
fn passed_outbound(
    family: Family,
    workload: &CaptureTarget,
) -> Result<Vec<(String, Counter)>, Error> {
    let mut passed = Vec::new();
    passed.push((format!("-d {}", family.loopback()), Counter::OutboundPassedLocal));
    let proxy = format!("-m owner --uid-owner {}", workload.proxy_uid);
    passed.push((proxy, Counter::OutboundPassedProxy));
    for (ip, length) in &workload.excluded {
        let (same_family, most) = match ip {
            IpAddr::V4(_) => (matches!(family, Family::Ipv4), 32),
            IpAddr::V6(_) => (matches!(family, Family::Ipv6), 128),
        };
        if *length > most {
            return Err(Error::Prefix(*ip, *length));
        }
        if same_family {
            passed.push((format!("-d {ip}/{length}"), Counter::OutboundPassedExcluded));
        }
    }
    Ok(passed)
}

/// One line of a restore script.
fn rule(chain: &str, condition: &str, counter: &str, target: &str) -> String {
    format!("-A {PREFIX}{chain} {condition} -m comment --comment {COMMENT}{counter} -j {target}\n")
}

/// The lines that remove Leno's chains, and the jumps to them, from a table that was saved.
fn removal(saved: &str) -> String {
    let (mut jumps, mut flushes, mut chains) = (String::new(), String::new(), String::new());
    for line in saved.lines() {
        if let Some(name) = line.strip_prefix(':').and_then(|rest| rest.split(' ').next()) {
            if name.starts_with(PREFIX) {
                flushes.push_str(&format!("-F {name}\n"));
                chains.push_str(&format!("-X {name}\n"));
            }
        } else if let Some((_, added)) = line.split_once("-A ")
            && !added.starts_with(PREFIX)
            && added.contains(&format!("-j {PREFIX}"))
        {
            jumps.push_str(&format!("-D {added}\n"));
        }
    }
    jumps + &flushes + &chains
}

/// Parses lines of the form `[packets:bytes] -A CHAIN ... --comment "leno:NAME" ...`.
fn add_counters(counters: &mut CaptureCounters, saved: &str) {
    for line in saved.lines() {
        let packets = line.strip_prefix('[').and_then(|rest| rest.split(':').next());
        let Some(Ok(packets)) = packets.map(str::parse::<u64>) else { continue };
        let mut known = Counter::ALL.iter().map(|counter| counter.name()).chain(UNCAPTURED);
        let named = |counter: &&str| {
            line.split([' ', '"']).any(|word| word.strip_prefix(COMMENT) == Some(*counter))
        };
        if let Some(counter) = known.find(named) {
            *counters.entry(counter).or_default() += packets;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAVED: &str = "*nat\n:PREROUTING ACCEPT [0:0]\n:LENO_INBOUND - [0:0]\n\
        [7:420] -A PREROUTING -p tcp -j LENO_INBOUND\n\
        [2:120] -A LENO_INBOUND -p tcp -m comment --comment \"leno:inbound_captured\" -j REDIRECT\n\
        [1:60] -A PREROUTING -p tcp -j OTHER\nCOMMIT\n";

    #[test]
    fn only_our_chains_are_removed() {
        let expected = "-D PREROUTING -p tcp -j LENO_INBOUND\n-F LENO_INBOUND\n-X LENO_INBOUND\n";
        assert_eq!(removal(SAVED), expected);
        assert_eq!(removal("*nat\n:PREROUTING ACCEPT [0:0]\nCOMMIT\n"), "");
    }

    #[test]
    fn counters_are_read_from_comments() {
        let mut counters = CaptureCounters::new();
        add_counters(&mut counters, SAVED);
        add_counters(&mut counters, SAVED);
        assert_eq!(counters, CaptureCounters::from([("inbound_captured", 4)]));
    }
}
