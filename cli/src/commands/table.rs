//! Prints workloads, edges and routes as tables.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use leno_observe::stat::{EdgeReport, GoldenSignals, ProcessReport, StatReport, WorkloadReport};

use super::columns::{self, Alignment, Column};

/// The smallest width of a column of names, so that the columns of the live table do not move when edges appear.
const MIN_NAME: usize = 12;

/// Most processes that a wide table lists for the proxies of one workload.
const MAX_PROCESSES: usize = 4;

/// A table with one line for each workload. It has a column for where proxies run if at least one runs in node
/// mode. Wide tables always have that column, and list the processes.
pub(crate) fn workloads(report: &StatReport, is_wide: bool) -> String {
    let all = || report.workloads.iter();
    let has_proxies =
        is_wide || all().flat_map(|one| &one.proxies).any(|proxy| proxy.share.is_some());
    let namespaces = width("NAMESPACE", all().map(|one| one.namespace.as_str()));
    let names = width("WORKLOAD", all().map(|one| one.name.as_str()));
    let mut text = format!(
        "{:<namespaces$}{:<names$}{:>10}{:>9}{:>12}{:>9}{:>9}{:>9}  MESHED{}\n",
        "NAMESPACE",
        "WORKLOAD",
        "INSTANCES",
        "SUCCESS",
        "REQUESTS/S",
        "P50 MS",
        "P95 MS",
        "P99 MS",
        if has_proxies { "  PROXY" } else { "" }
    );
    for one in all() {
        text += &format!("{:<namespaces$}{:<names$}{}", one.namespace, one.name, of_workload(one));
        if has_proxies {
            // Aligned below the heading.
            text += if one.meshed { "     " } else { "      " };
            text += &processes(&one.proxies, is_wide);
        }
        text.push('\n');
    }
    text
}

/// Where the proxies of a workload run. If they run in different ways, also how many run in each way.
fn processes(proxies: &[ProcessReport], is_wide: bool) -> String {
    let name = |proxy: &ProcessReport| match (&proxy.share, &proxy.group) {
        (None, _) => "sidecar".to_owned(),
        (Some(_), Some(group)) if is_wide && proxy.promoted => format!("{group} promoted"),
        (Some(_), Some(group)) if is_wide => group.clone(),
        (Some(_), _) if proxy.promoted => "promoted".to_owned(),
        (Some(share), _) => format!("node/{share}"),
    };
    let mut counted: BTreeMap<String, usize> = BTreeMap::new();
    for proxy in proxies {
        *counted.entry(name(proxy)).or_default() += proxy.instances;
    }
    let further = counted.len().saturating_sub(MAX_PROCESSES);
    let mut shown: Vec<String> = match counted.len() {
        0 => vec!["-".to_owned()],
        1 => counted.into_keys().collect(),
        _ => {
            counted.iter().take(MAX_PROCESSES).map(|(name, of)| format!("{name} ({of})")).collect()
        }
    };
    if further > 0 {
        shown.push(format!("{further} more"));
    }
    shown.join(", ")
}

fn of_workload(workload: &WorkloadReport) -> String {
    let signals = &workload.signals;
    let (ready, all) = (workload.ready, workload.instances);
    let latency = signals.reliable_latency_ms();
    format!(
        "{:>10}{:>9}{:>12.1}{:>9}{:>9}{:>9}  {}",
        format!("{ready}/{all}"),
        signals.success_rate.map_or_else(|| "-".to_owned(), percent),
        signals.requests_per_s,
        ms(latency.p50),
        ms(latency.p95),
        ms(latency.p99),
        if workload.meshed { "yes" } else { "no" },
    )
}

/// A table with one line for each edge.
pub(crate) fn edges(report: &StatReport) -> String {
    let named: Vec<(String, String)> = report.edges.iter().map(|edge| ends(report, edge)).collect();
    let clients = width("CLIENT", named.iter().map(|(client, _)| client.as_str()));
    let servers = width("SERVER", named.iter().map(|(_, server)| server.as_str()));
    // The column of causes is shown only if the mesh itself failed or refused something.
    let failed = report.edges.iter().any(|edge| !edge.signals.causes.is_empty());
    let heading = if failed { "MTLS FAILED BY THE MESH" } else { "MTLS" };
    let mut text = format!(
        "{:<clients$}{:<servers$}{:>9}{:>12}{:>9}{:>9}{:>9}  {}\n",
        "CLIENT", "SERVER", "SUCCESS", "REQUESTS/S", "P50 MS", "P95 MS", "P99 MS", heading
    );
    for (edge, (client, server)) in report.edges.iter().zip(&named) {
        text.push_str(&format!("{client:<clients$}{server:<servers$}"));
        text.push_str(&row(edge));
    }
    text
}

/// The columns of the figures of requests, in the order of [`figures`].
const FIGURES: [Column; 4] = [
    ("SUCCESS", Alignment::Right),
    ("REQUESTS/S", Alignment::Right),
    ("P50 MS", Alignment::Right),
    ("P99 MS", Alignment::Right),
];
/// The columns of the further figures in wide tables, in the order of [`more_figures`].
const MORE_FIGURES: [Column; 4] = [
    ("P95 MS", Alignment::Right),
    ("RETRIES/S", Alignment::Right),
    ("GIVEN UP", Alignment::Right),
    ("DENIED", Alignment::Right),
];
const OF_CONNECTIONS: [Column; 3] =
    [("TCP OPEN", Alignment::Right), ("TCP/S", Alignment::Right), ("TCP KIB/S", Alignment::Right)];
const FAILED: Column = ("FAILED BY THE MESH", Alignment::Left);

/// A table with one line for each edge, with the identities that client and server prove. Wide tables have all
/// figures.
pub(crate) fn identified(report: &StatReport, is_wide: bool) -> String {
    let mut of = vec![("CLIENT", Alignment::Left), ("SERVER", Alignment::Left)];
    of.extend(FIGURES);
    of.extend([
        ("MTLS", Alignment::Left),
        ("CLIENT ID", Alignment::Left),
        ("SERVER ID", Alignment::Left),
    ]);
    if is_wide {
        of.extend(MORE_FIGURES);
        of.extend(OF_CONNECTIONS);
        of.push(FAILED);
    }
    let row = |edge: &EdgeReport| {
        let signals = &edge.signals;
        let (client, server) = ends(report, edge);
        let mut row = vec![client, server];
        row.extend(figures(signals));
        row.push(encrypted(signals).to_owned());
        let id = |identity: &Option<String>| match identity {
            None => "-".to_owned(),
            Some(whole) if is_wide => whole.clone(),
            Some(whole) => account(whole),
        };
        row.extend([id(&edge.client_identity), id(&edge.server_identity)]);
        if is_wide {
            row.extend(more_figures(signals));
            row.push(format!("{:.0}", signals.tcp_open));
            row.push(format!("{:.1}", signals.tcp_opened_per_s));
            row.push(format!("{:.1}", signals.tcp_bytes_per_s / 1024.0));
            row.push(causes(signals));
        }
        row
    };
    columns::lines(&of, &report.edges.iter().map(row).collect::<Vec<_>>())
}

/// A table with one line for each rule of a route. Wide tables have all figures.
pub(crate) fn routes(report: &StatReport, is_wide: bool) -> String {
    let mut of =
        vec![("SERVICE", Alignment::Left), ("ROUTE", Alignment::Left), ("RULE", Alignment::Left)];
    of.extend(FIGURES);
    if is_wide {
        of.extend(MORE_FIGURES);
        of.push(FAILED);
    }
    let rows = report.routes.iter().map(|one| {
        let (route, rule) = match one.route.is_empty() {
            true => ("(no rule matches)", "-"),
            false => (&*one.route, &*one.rule),
        };
        let service = format!("{}/{}", one.namespace, one.service);
        let mut row = vec![service, route.to_owned(), rule.to_owned()];
        row.extend(figures(&one.signals));
        if is_wide {
            row.extend(more_figures(&one.signals));
            row.push(causes(&one.signals));
        }
        row
    });
    columns::lines(&of, &rows.collect::<Vec<_>>())
}

fn figures(signals: &GoldenSignals) -> [String; 4] {
    let latency = signals.reliable_latency_ms();
    [
        signals.success_rate.map_or_else(|| "-".to_owned(), percent),
        format!("{:.1}", signals.requests_per_s),
        ms(latency.p50),
        ms(latency.p99),
    ]
}

fn more_figures(signals: &GoldenSignals) -> [String; 4] {
    [
        ms(signals.reliable_latency_ms().p95),
        format!("{:.1}", signals.retries_per_s),
        percent(signals.given_up),
        percent(signals.denied),
    ]
}

const fn encrypted(signals: &GoldenSignals) -> &'static str {
    match signals.mtls {
        Some(true) => "yes",
        Some(false) => "no",
        None => "-",
    }
}

/// How many requests and connections the mesh itself failed or refused, by cause.
fn causes(signals: &GoldenSignals) -> String {
    let causes = signals.causes.iter().map(|(cause, count)| format!("{count} {cause}"));
    causes.collect::<Vec<String>>().join(", ")
}

/// The short form of an identity: `shop/web` for `spiffe://cluster.local/ns/shop/sa/web`. Other identities are
/// returned unchanged.
fn account(identity: &str) -> String {
    let parts = || {
        let (_, path) = identity.split_once("/ns/")?;
        path.split_once("/sa/")
    };
    match parts() {
        Some((namespace, account)) => format!("{namespace}/{account}"),
        None => identity.to_owned(),
    }
}

/// One line for each edge with unanswered requests, because success rates do not show these.
pub(crate) fn unanswered(report: &StatReport) -> String {
    let mut text = String::new();
    for edge in &report.edges {
        let signals = &edge.signals;
        let (client, server) = ends(report, edge);
        if signals.given_up > 0.0 {
            let share = percent(signals.given_up);
            text += &format!(
                "{client} gives up {share} of the requests to {server} before a response\n"
            );
        }
        if signals.denied > 0.0 {
            let share = percent(signals.denied);
            text += &format!("{server} denies {share} of the requests of {client}\n");
        }
    }
    text
}

/// The width of a column: the longest of these names, and the distance to the next column.
pub(crate) fn width<'a>(heading: &str, names: impl Iterator<Item = &'a str>) -> usize {
    let longest = names.map(|name| name.chars().count()).max().unwrap_or_default();
    MIN_NAME.max(heading.len() + 1).max(longest + 2)
}

/// Client and server, with their namespaces if the report has several.
fn ends(report: &StatReport, edge: &EdgeReport) -> (String, String) {
    let workloads = report.workloads.iter().map(|workload| workload.namespace.as_str());
    let namespaces: BTreeSet<&str> = workloads.collect();
    let full = |namespace: &str, name: &str| match namespaces.len() > 1 && !namespace.is_empty() {
        true => format!("{namespace}/{name}"),
        false => name.to_owned(),
    };
    (full(&edge.client_namespace, &edge.client), full(&edge.server_namespace, &edge.server))
}

fn row(edge: &EdgeReport) -> String {
    let signals = &edge.signals;
    let success = signals.success_rate.map_or_else(|| "-".to_owned(), percent);
    let mut row = format!("{success:>9}");
    let connections = signals.tcp_open + signals.tcp_opened_per_s + signals.tcp_bytes_per_s;
    let written = if signals.success_rate.is_none() && connections > 0.0 {
        let (open, opened) = (signals.tcp_open, signals.tcp_opened_per_s);
        let kib = signals.tcp_bytes_per_s / 1024.0;
        write!(row, "{:>39}", format!("TCP: {open:.0} open, {opened:.1}/s, {kib:.1} KiB/s"))
    } else {
        let latency = signals.reliable_latency_ms();
        let (p50, p95, p99) = (ms(latency.p50), ms(latency.p95), ms(latency.p99));
        write!(row, "{:>12.1}{p50:>9}{p95:>9}{p99:>9}", signals.requests_per_s)
    };
    written.expect("a string takes every write");
    row += &format!("  {:<4}{}", encrypted(signals), causes(signals));
    row.truncate(row.trim_end().len());
    row + "\n"
}

/// A share as a percentage.
pub(crate) fn percent(share: f64) -> String {
    format!("{:.2}%", share * 100.0)
}

/// A time in milliseconds with two digits. It is interpolated in the buckets of a histogram, whose width is up to
/// half of the time, so more digits would mean nothing.
fn ms(value: Option<f64>) -> String {
    let Some(ms) = value else { return "-".to_owned() };
    if ms < 0.01 {
        return format!("{ms:.2}");
    }
    let scale = 10_f64.powf(1.0 - ms.log10().floor());
    let rounded = (ms * scale).round() / scale;
    match rounded {
        ..0.1 => format!("{rounded:.3}"),
        ..1.0 => format!("{rounded:.2}"),
        ..10.0 => format!("{rounded:.1}"),
        _ => format!("{rounded:.0}"),
    }
}

/// Why percentiles of rows with requests are missing; empty if none is missing.
pub(crate) fn missing_percentiles<'a>(
    mut all: impl Iterator<Item = &'a GoldenSignals>,
) -> &'static str {
    match all.any(|one| one.reliable_latency_ms() != one.latency_ms) {
        true => {
            "P95 needs 20 requests and P99 100; rows with fewer show `-`: use a longer --window, \
             or --since"
        }
        false => "",
    }
}

#[cfg(test)]
mod tests {
    use leno_observe::stat::{LatencyQuantiles, RouteReport};

    use super::*;

    fn signals() -> GoldenSignals {
        let (success_rate, mtls) = (Some(1.0), Some(true));
        GoldenSignals { success_rate, requests_per_s: 7.0, mtls, ..GoldenSignals::default() }
    }

    fn report(namespaces: [&str; 2], server: &str) -> StatReport {
        let workload = |namespace: &str, name: &str| WorkloadReport {
            namespace: namespace.into(),
            name: name.into(),
            instances: 1,
            ready: 1,
            meshed: true,
            proxies: Vec::new(),
            signals: signals(),
        };
        let [from, to] = namespaces;
        let edge = EdgeReport {
            client_namespace: from.into(),
            client: "web".into(),
            server_namespace: to.into(),
            server: server.into(),
            client_identity: Some("spiffe://cluster.local/ns/shop/sa/web".into()),
            server_identity: None,
            signals: signals(),
        };
        StatReport {
            mesh: "default".into(),
            window_s: 1.0,
            workloads: vec![workload(from, "web"), workload(to, server)],
            edges: vec![edge],
            routes: Vec::new(),
            ejected: Vec::new(),
            silent: Vec::new(),
        }
    }

    #[test]
    fn times_have_the_digits_that_buckets_can_carry() {
        let shown = [0.0, 0.0512, 0.4149, 1.284, 9.96, 137.2, 2_049.0].map(|one| ms(Some(one)));
        assert_eq!(shown, ["0.00", "0.051", "0.41", "1.3", "10", "140", "2000"]);
        assert_eq!(ms(None), "-");
    }

    #[test]
    fn percentiles_need_a_request_above_them() {
        let latency_ms = LatencyQuantiles { p50: Some(1.0), p95: Some(2.0), p99: Some(3.0) };
        let of = |requests| {
            let mut report = report(["shop", "shop"], "db");
            let signals = GoldenSignals { requests, latency_ms, ..signals() };
            report.workloads[1].signals = signals.clone();
            report.edges[0].signals = signals;
            let missing = missing_percentiles(report.edges.iter().map(|one| &one.signals));
            let last = |text: String| {
                let line = text.lines().last().unwrap_or_default().to_owned();
                line.split_whitespace().rev().skip(1).take(3).collect::<Vec<_>>().join(" ")
            };
            (last(edges(&report)), last(workloads(&report, false)), missing.is_empty())
        };
        for (requests, shown, is_whole) in [
            (1, "- - 1.0", false),
            (20, "- 2.0 1.0", false),
            (99, "- 2.0 1.0", false),
            (100, "3.0 2.0 1.0", true),
        ] {
            assert_eq!(of(requests), (shown.to_owned(), shown.to_owned(), is_whole), "{requests}");
        }
        assert_eq!(missing_percentiles([signals()].iter()), "", "there was no request");
    }

    #[test]
    fn names_stay_apart_however_long_they_are() {
        let long = "w".repeat(63);
        let text = edges(&report(["shop", "shop"], &long));
        assert!(text.contains(&format!("web         {long}    100.00%")), "{text}");
        let [heading, line] = text.lines().collect::<Vec<_>>()[..] else { panic!("{text}") };
        assert_eq!(heading.find("SUCCESS").unwrap() + 7, line.find('%').unwrap() + 1);
    }

    #[test]
    fn connections_have_rates_and_what_was_refused_has_its_cause() {
        let mut report = report(["shop", "shop"], "db");
        let none =
            GoldenSignals { success_rate: None, requests_per_s: 0.0, mtls: None, ..signals() };
        let opened = GoldenSignals {
            tcp_open: 2.0,
            tcp_opened_per_s: 0.5,
            tcp_bytes_per_s: 12_800.0,
            mtls: Some(true),
            ..none.clone()
        };
        let causes = [("egress-denied".to_owned(), 3)].into();
        let refused = EdgeReport {
            server: "(outside)".into(),
            signals: GoldenSignals { causes, ..none },
            ..report.edges[0].clone()
        };
        report.edges[0].signals = opened;
        report.edges.push(refused);
        assert_eq!(
            edges(&report),
            "CLIENT      SERVER        SUCCESS  REQUESTS/S   P50 MS   P95 MS   P99 MS  MTLS FAILED BY THE MESH\n\
             web         db                  -         TCP: 2 open, 0.5/s, 12.5 KiB/s  yes\n\
             web         (outside)           -         0.0        -        -        -  -   3 egress-denied\n"
        );
    }

    #[test]
    fn edges_have_the_identities_that_both_ends_prove() {
        let mut report = report(["shop", "shop"], "db");
        report.edges[0].signals.causes = [("failfast".to_owned(), 2)].into();
        assert_eq!(
            identified(&report, false),
            "CLIENT  SERVER  SUCCESS  REQUESTS/S  P50 MS  P99 MS  MTLS  CLIENT ID  SERVER ID\n\
             web     db      100.00%         7.0       -       -  yes   shop/web   -\n"
        );
        let wide = identified(&report, true);
        assert!(wide.contains("  spiffe://cluster.local/ns/shop/sa/web  -  "), "{wide}");
        assert!(wide.contains("  RETRIES/S  ") && wide.ends_with("  2 failfast\n"), "{wide}");
        assert_eq!(account("spiffe://other/path"), "spiffe://other/path");
    }

    #[test]
    fn routes_have_a_line_for_every_rule_and_one_for_requests_that_match_none() {
        let mut report = report(["shop", "shop"], "db");
        let route = |route: &str, rule: &str| RouteReport {
            namespace: "shop".to_owned(),
            service: "cart".to_owned(),
            route: route.to_owned(),
            rule: rule.to_owned(),
            signals: signals(),
        };
        report.routes = vec![route("", ""), route("HTTPRoute shop/cart", "canary")];
        assert_eq!(
            routes(&report, false),
            "SERVICE    ROUTE                RULE    SUCCESS  REQUESTS/S  P50 MS  P99 MS\n\
             shop/cart  (no rule matches)    -       100.00%         7.0       -       -\n\
             shop/cart  HTTPRoute shop/cart  canary  100.00%         7.0       -       -\n"
        );
        assert!(routes(&report, true).contains("  RETRIES/S  "));
    }

    #[test]
    fn where_proxies_run_is_a_column_once_they_differ_and_in_wide_tables() {
        let mut report = report(["shop", "shop"], "db");
        let proxy = |share: Option<&str>, group: Option<&str>, promoted, instances| ProcessReport {
            mode: if share.is_some() { "node" } else { "sidecar" },
            share: share.map(str::to_owned),
            group: group.map(str::to_owned),
            promoted,
            instances,
        };
        let column = |report: &StatReport, is_wide| {
            let text = workloads(report, is_wide);
            let (heading, lines) = text.split_once('\n').unwrap();
            let at = heading.find("PROXY")?;
            Some(lines.lines().map(|line| line[at..].to_owned()).collect::<Vec<_>>())
        };
        report.workloads[0].proxies = vec![proxy(None, None, false, 2)];
        assert_eq!(column(&report, false), None);
        report.workloads[1].meshed = false;
        assert_eq!(column(&report, true).unwrap(), ["sidecar", "-"]);
        let shared = Some("namespace.shop");
        report.workloads[1].proxies = vec![
            proxy(Some("namespace"), shared, false, 2),
            proxy(Some("workload"), Some("workload.shop.db-2"), true, 1),
        ];
        report.workloads[1].meshed = true;
        assert_eq!(
            column(&report, false).unwrap(),
            ["sidecar", "node/namespace (2), promoted (1)"]
        );
        let wide = "namespace.shop (2), workload.shop.db-2 promoted (1)";
        assert_eq!(column(&report, true).unwrap(), ["sidecar", wide]);
        report.workloads[1].proxies = vec![proxy(Some("node"), None, false, 3)];
        assert_eq!(
            column(&report, true).unwrap(),
            ["sidecar", "node/node"],
            "its process is not known"
        );
        let of = |number| {
            let group = format!("workload.shop.db-{number}");
            proxy(Some("workload"), Some(&group), false, 1)
        };
        report.workloads[1].proxies = (0..9).map(of).collect();
        assert!(column(&report, true).unwrap()[1].ends_with("db-3 (1), 5 more"));
    }

    #[test]
    fn requests_without_an_answer_have_a_line() {
        let mut report = report(["shop", "shop"], "db");
        assert_eq!(unanswered(&report), "");
        (report.edges[0].signals.given_up, report.edges[0].signals.denied) = (0.75, 0.25);
        assert_eq!(
            unanswered(&report),
            "web gives up 75.00% of the requests to db before a response\n\
             db denies 25.00% of the requests of web\n"
        );
    }

    #[test]
    fn equal_names_of_two_namespaces_are_told_apart() {
        let text = edges(&report(["blue", "green"], "web"));
        assert!(text.contains("blue/web    green/web"), "{text}");
    }
}
