//! Identity reports as text for people.

use std::fmt::Write;
use std::time::SystemTime;

use leno_identity::report::{CertificateReport, IdentityReport, MAX_NAMED};

use crate::commands::escaped;

/// How many digits of a hash or a fingerprint are shown: enough to distinguish a few of them.
const SHOWN: usize = 16;

/// The current Unix time in seconds.
pub(super) fn now() -> i64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_secs()).unwrap_or(i64::MAX)
}

/// The whole report.
pub(super) fn page(report: &IdentityReport, now: i64) -> String {
    let mut text = format!("trust domain  {}\n", escaped(&report.trust_domain));
    let own =
        if report.own_root { "a root that the mesh has created" } else { "the issuer of --issuer" };
    let _ = writeln!(text, "signs with    {own}, key {}", short(&report.issuer));
    if report.tls_profile == "fips" {
        text += "TLS           of the FIPS module (--tls-profile fips)\n";
    }
    text.push('\n');
    text += &certificates("CHAIN", &report.chain, now);
    text.push('\n');
    text += &certificates(&format!("TRUSTED ({})", short(&report.bundle)), &report.roots, now);
    text.push('\n');
    if !report.others.is_empty() {
        text += &certificates("TRUSTED BESIDES, OF THE WORKLOAD API", &report.others, now);
        text.push('\n');
    }
    for (domain, roots) in &report.federated {
        text += &certificates(&format!("FEDERATED {}", escaped(domain)), roots, now);
        text.push('\n');
    }
    text += &rotation(report, now);
    let proxies = &report.proxies;
    let _ = writeln!(
        text,
        "proxies       {} connected, {} of them trust the above",
        proxies.connected, proxies.current
    );
    for (bundle, count) in &proxies.bundles {
        let trusted = if *bundle == report.bundle { "  (the above)" } else { "" };
        let _ = writeln!(text, "  trust {:<18}{count}{trusted}", short(bundle));
    }
    for waiting in &proxies.waiting {
        let why = match (&waiting.bundle, &waiting.issuer) {
            (None, _) => {
                "reports nothing, because its proxy is of an earlier release: restart it".to_owned()
            }
            (Some(bundle), _) if *bundle != report.bundle => format!("trusts {}", short(bundle)),
            (_, Some(issuer)) => format!("has a certificate of key {}", short(issuer)),
            (_, None) => "has no certificate".to_owned(),
        };
        let away = if waiting.connected { "" } else { ", and is not connected" };
        let _ = writeln!(text, "  {} {why}{away}", escaped(&waiting.workload));
    }
    if proxies.waiting_total > MAX_NAMED {
        let _ = writeln!(text, "  and {} more", proxies.waiting_total - MAX_NAMED);
    }
    for waits in &report.waits {
        let _ = writeln!(text, "  {}", escaped(waits));
    }
    for identity in &report.revoked {
        let _ = writeln!(text, "revoked       earlier certificates of {}", escaped(identity));
    }
    if let Some(problem) = &report.problem {
        let _ = writeln!(text, "problem       {}", escaped(problem));
    }
    text
}

/// One line on the rotation of the root.
pub(super) fn rotation(report: &IdentityReport, now: i64) -> String {
    let begun = i64::try_from(report.since_unix_s).unwrap_or(i64::MAX);
    let back = if report.aborted { "aborted, returning to the previous root: " } else { "" };
    let does = match report.phase.as_str() {
        "add" => "add: proxies start to trust the next root",
        "switch" => "switch: proxies get certificates of the next root",
        "remove" => "remove: proxies stop trusting the old root",
        _ => return "rotation      none\n".to_owned(),
    };
    format!(
        "rotation      {back}{does}, for {}; waits for {} of {} proxies\n",
        span(now - begun),
        report.proxies.waiting_total,
        report.proxies.connected
    )
}

fn certificates(heading: &str, all: &[CertificateReport], now: i64) -> String {
    let mut text = format!("{heading:<44}{:<20}ENDS\n", "SHA-256");
    for one in all {
        let left = one.not_after_unix_s - now;
        let ends = if left > 0 { format!("in {}", span(left)) } else { "has ended".to_owned() };
        let _ = writeln!(text, "{:<44}{:<20}{ends}", escaped(&one.subject), short(&one.sha256));
    }
    text
}

fn short(hexadecimal: &str) -> String {
    escaped(&hexadecimal.chars().take(SHOWN).collect::<String>()).to_string()
}

/// A time in its two largest units.
fn span(seconds: i64) -> String {
    match seconds {
        ..60 => format!("{} s", seconds.max(0)),
        60..3_600 => format!("{} min {} s", seconds / 60, seconds % 60),
        3_600..86_400 => format!("{} h {} min", seconds / 3_600, seconds % 3_600 / 60),
        _ => format!("{} d {} h", seconds / 86_400, seconds % 86_400 / 3_600),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use leno_identity::report::{ProxiesReport, WaitingProxy};

    use super::*;

    #[test]
    fn a_page_names_what_signs_who_is_waited_for_and_why() {
        let root = CertificateReport {
            subject: "O=Leno, CN=mesh root 0a0b0c0d".to_owned(),
            sha256: "0123456789abcdef0123".to_owned(),
            not_before_unix_s: 0,
            not_after_unix_s: 1_000 + 90_061,
        };
        let proxy = |workload: &str, bundle: Option<&str>, issuer: &str, connected| WaitingProxy {
            workload: workload.to_owned(),
            bundle: bundle.map(str::to_owned),
            issuer: bundle.map(|_| issuer.to_owned()),
            connected,
        };
        let report = IdentityReport {
            trust_domain: "cluster.local".to_owned(),
            phase: "switch".to_owned(),
            aborted: true,
            since_unix_s: 940,
            tls_profile: "fips".to_owned(),
            own_root: true,
            issuer: "key".to_owned(),
            chain: vec![root.clone()],
            roots: vec![root],
            others: Vec::new(),
            federated: BTreeMap::new(),
            bundle: "both".to_owned(),
            proxies: ProxiesReport {
                connected: 3,
                current: 1,
                bundles: BTreeMap::from([("both".to_owned(), 2), ("unknown".to_owned(), 1)]),
                waiting: vec![
                    proxy("shop/a-0", Some("both"), "old", true),
                    proxy("shop/b-0", Some("one"), "key", false),
                    proxy("shop/c-0", None, "", true),
                ],
                waiting_total: 3,
            },
            waits: vec!["replica b waits for 1".to_owned()],
            revoked: vec!["spiffe://cluster.local/ns/shop/sa/b".to_owned()],
            request: None,
            problem: None,
        };
        let expected = "\
trust domain  cluster.local
signs with    a root that the mesh has created, key key
TLS           of the FIPS module (--tls-profile fips)

CHAIN                                       SHA-256             ENDS
O=Leno, CN=mesh root 0a0b0c0d               0123456789abcdef    in 1 d 1 h

TRUSTED (both)                              SHA-256             ENDS
O=Leno, CN=mesh root 0a0b0c0d               0123456789abcdef    in 1 d 1 h

rotation      aborted, returning to the previous root: switch: proxies get certificates of the next root, for 1 min 0 s; waits for 3 of 3 proxies
proxies       3 connected, 1 of them trust the above
  trust both              2  (the above)
  trust unknown           1
  shop/a-0 has a certificate of key old
  shop/b-0 trusts one, and is not connected
  shop/c-0 reports nothing, because its proxy is of an earlier release: restart it
  replica b waits for 1
revoked       earlier certificates of spiffe://cluster.local/ns/shop/sa/b
";
        assert_eq!(page(&report, 1_000), expected);
    }
}
