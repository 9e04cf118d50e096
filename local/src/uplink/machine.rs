//! Reads and changes settings of the machine: its nftables rules, and whether it forwards IPv6.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::process::{Output, Stdio};
use std::time::Duration;

use tokio::io::AsyncWriteExt as _;
use tokio::process::Command;
use tokio::time::timeout;

use crate::error::{Attempt, Error, Result};
use crate::netns::Netns;

/// Longest time for a run of `nft`, which usually takes about ten milliseconds.
const LIMIT: Duration = Duration::from_secs(10);
/// The file that enables IPv6 forwarding.
const FORWARDING_V6: &str = "/proc/sys/net/ipv6/conf/all/forwarding";
/// The file that lists the calling thread's IPv6 routes, one per line.
const ROUTES_V6: &str = "/proc/thread-self/net/ipv6_route";

/// Whether IPv6 is forwarded.
pub(super) fn forwards_ipv6() -> bool {
    fs::read_to_string(FORWARDING_V6).is_ok_and(|text| text.trim() != "0")
}

/// Whether the machine has an IPv6 default route.
pub(super) fn has_ipv6_route() -> bool {
    fs::read_to_string(ROUTES_V6).is_ok_and(|routes| has_default(&routes))
}

/// Whether one of these routes is a default route. The fields of a line are destination, prefix length, and
/// others; the interface is last. The kernel's own routes that reject packets have the interface `lo`.
fn has_default(routes: &str) -> bool {
    routes.lines().any(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        fields.get(1) == Some(&"00") && fields.last().is_some_and(|interface| *interface != "lo")
    })
}

/// Applies rules with `nft`, in the namespace `inside` or, if it is `None`, in that of the calling thread.
pub(super) async fn nft(inside: Option<&Netns>, rules: &str) -> Result<()> {
    let output = run(inside, &["-f", "-"], rules).await?;
    match output.status.success() {
        true => Ok(()),
        false => {
            Err(Error::Refused(format!("nft rejects the rules of --uplink: {}", said(&output))))
        }
    }
}

/// The names of the tables of family `inet`.
pub(super) async fn tables() -> Result<BTreeSet<String>> {
    let listed = run(None, &["list", "tables", "inet"], "").await?;
    if !listed.status.success() {
        return Err(Error::Refused(format!("nft cannot list tables: {}", said(&listed))));
    }
    let text = String::from_utf8_lossy(&listed.stdout);
    let names = text.lines().filter_map(|line| line.trim().strip_prefix("table inet "));
    Ok(names.map(str::to_owned).collect())
}

/// Whether the error is that `nft` is missing.
pub(super) fn is_missing(error: &Error) -> bool {
    matches!(error, Error::Os { source, .. } if source.kind() == io::ErrorKind::NotFound)
}

/// The name of a chain that probably drops forwarded packets. `None` if none is found; not every firewall can be
/// recognised.
pub(super) async fn firewall() -> Option<String> {
    let listed = run(None, &["list", "chains"], "").await.ok()?;
    dropping(&String::from_utf8_lossy(&listed.stdout))
}

fn dropping(listing: &str) -> Option<String> {
    let (mut table, mut chain) = ("", "");
    for line in listing.lines().map(str::trim) {
        if let Some(name) = line.strip_prefix("table ") {
            table = name.trim_end_matches(" {");
        } else if let Some(name) = line.strip_prefix("chain ") {
            chain = name.trim_end_matches(" {");
        } else if line.contains("hook forward ") && line.contains("policy drop") {
            return Some(format!("chain {chain} of table {table}"));
        }
    }
    None
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).trim().to_owned()
}

async fn run(inside: Option<&Netns>, words: &[&str], stdin: &str) -> Result<Output> {
    let runtime = tokio::runtime::Handle::current();
    let start = || {
        let _context = runtime.enter();
        let mut nft = Command::new("nft");
        nft.args(words).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        nft.kill_on_drop(true).spawn().map_err(|source| {
            let what = match source.kind() {
                io::ErrorKind::NotFound => {
                    "--uplink needs the program `nft`: install nftables, or leave out --uplink"
                }
                _ => "cannot run nft",
            };
            Error::Os { what: what.to_owned(), source }
        })
    };
    let mut nft = match inside {
        Some(namespace) => namespace.within(start)?,
        None => start()?,
    };
    let mut pipe = nft.stdin.take().expect("stdin was asked to be a pipe");
    let ended = async {
        pipe.write_all(stdin.as_bytes()).await?;
        drop(pipe);
        nft.wait_with_output().await
    };
    match timeout(LIMIT, ended).await {
        Ok(ended) => ended.attempt(|| "cannot run nft".to_owned()),
        Err(_) => Err(Error::Refused(format!("nft did not end within {LIMIT:?}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_default_route_is_told_from_one_that_rejects() {
        let zero = "00000000000000000000000000000000";
        let rejecting =
            format!("{zero} 00 {zero} 00 {zero} ffffffff 00000001 00000000 00200200 lo\n");
        assert!(!has_default(&rejecting));
        let local = format!("fe80{} 40 {zero} 00 {zero} 00000100 0 0 00000001 eth0\n", &zero[4..]);
        assert!(!has_default(&local));
        let real = format!("{zero} 00 {zero} 00 {zero} 00000400 0 0 00000003 eth0\n");
        assert!(has_default(&format!("{rejecting}{local}{real}")));
    }

    #[test]
    fn a_firewall_that_drops_what_is_forwarded_is_seen() {
        let accepts = "table ip filter {\n\tchain FORWARD {\n\t\ttype filter hook forward priority filter; \
                       policy accept;\n\t}\n}\n";
        assert_eq!(dropping(accepts), None);
        let drops = accepts.replace("policy accept", "policy drop");
        let input = "table inet own {\n\tchain input {\n\t\ttype filter hook input priority filter; policy \
                     drop;\n\t}\n}\n";
        let found = dropping(&format!("{input}{drops}"));
        assert_eq!(found.as_deref(), Some("chain FORWARD of table ip filter"));
    }
}
