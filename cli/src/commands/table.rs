//! Edges as a table, for `leno stat` and the demo.

use std::collections::BTreeSet;
use std::fmt::Write;

use leno_observe::stat::{EdgeReport, Report, WorkloadReport};

/// Narrowest column of a name, so that the live table stands still while edges come.
const MIN_NAME: usize = 12;

/// A line a workload, with a heading.
pub(crate) fn workloads(report: &Report) -> String {
    let all = || report.workloads.iter();
    let namespaces = width("NAMESPACE", all().map(|one| one.namespace.as_str()));
    let names = width("WORKLOAD", all().map(|one| one.name.as_str()));
    let mut text = format!(
        "{:<namespaces$}{:<names$}{:>10}{:>9}{:>12}{:>9}{:>9}{:>9}  MESHED\n",
        "NAMESPACE", "WORKLOAD", "INSTANCES", "SUCCESS", "REQUESTS/S", "P50 MS", "P95 MS", "P99 MS"
    );
    for one in all() {
        text +=
            &format!("{:<namespaces$}{:<names$}{}\n", one.namespace, one.name, of_workload(one));
    }
    text
}

fn of_workload(workload: &WorkloadReport) -> String {
    let signals = &workload.signals;
    let (ready, all) = (workload.ready, workload.instances);
    let latency = &signals.latency_ms;
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

/// A line an edge, with a heading.
pub(crate) fn edges(report: &Report) -> String {
    let named: Vec<(String, String)> = report.edges.iter().map(|edge| ends(report, edge)).collect();
    let clients = width("CLIENT", named.iter().map(|(client, _)| client.as_str()));
    let servers = width("SERVER", named.iter().map(|(_, server)| server.as_str()));
    // What the mesh itself failed or refused, where it did.
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

/// The edges with requests that were not answered, a line each: a success rate does not show them.
pub(crate) fn unanswered(report: &Report) -> String {
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

/// As wide as the longest of them, with the distance to the next column.
pub(crate) fn width<'a>(heading: &str, names: impl Iterator<Item = &'a str>) -> usize {
    let longest = names.map(|name| name.chars().count()).max().unwrap_or_default();
    MIN_NAME.max(heading.len() + 1).max(longest + 2)
}

/// Client and server, with their namespaces where the report has several.
fn ends(report: &Report, edge: &EdgeReport) -> (String, String) {
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
        let latency = &signals.latency_ms;
        let (p50, p95, p99) = (ms(latency.p50), ms(latency.p95), ms(latency.p99));
        write!(row, "{:>12.1}{p50:>9}{p95:>9}{p99:>9}", signals.requests_per_s)
    };
    written.expect("a string takes every write");
    row.push_str(match signals.mtls {
        Some(true) => "  yes ",
        Some(false) => "  no  ",
        None => "  -   ",
    });
    let causes = signals.causes.iter().map(|(cause, count)| format!("{count} {cause}"));
    row.push_str(&causes.collect::<Vec<String>>().join(", "));
    row.truncate(row.trim_end().len());
    row + "\n"
}

/// A share as percent.
pub(crate) fn percent(share: f64) -> String {
    format!("{:.2}%", share * 100.0)
}

/// Milliseconds, when there are any.
pub(crate) fn ms(value: Option<f64>) -> String {
    value.map_or_else(|| "-".to_owned(), |ms| format!("{ms:.2}"))
}

#[cfg(test)]
mod tests {
    use leno_observe::stat::{Latency, Signals};

    use super::*;

    fn signals() -> Signals {
        Signals {
            success_rate: Some(1.0),
            requests_per_s: 7.0,
            given_up: 0.0,
            denied: 0.0,
            latency_ms: Latency::default(),
            tcp_open: 0.0,
            tcp_opened_per_s: 0.0,
            tcp_bytes_per_s: 0.0,
            causes: std::collections::BTreeMap::new(),
            mtls: Some(true),
        }
    }

    fn report(namespaces: [&str; 2], server: &str) -> Report {
        let workload = |namespace: &str, name: &str| WorkloadReport {
            namespace: namespace.into(),
            name: name.into(),
            instances: 1,
            ready: 1,
            meshed: true,
            signals: signals(),
        };
        let [from, to] = namespaces;
        let edge = EdgeReport {
            client_namespace: from.into(),
            client: "web".into(),
            server_namespace: to.into(),
            server: server.into(),
            signals: signals(),
        };
        Report {
            mesh: "default".into(),
            window_s: 1.0,
            workloads: vec![workload(from, "web"), workload(to, server)],
            edges: vec![edge],
            ejected: Vec::new(),
            silent: Vec::new(),
        }
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
        let none = Signals { success_rate: None, requests_per_s: 0.0, mtls: None, ..signals() };
        let opened = Signals {
            tcp_open: 2.0,
            tcp_opened_per_s: 0.5,
            tcp_bytes_per_s: 12_800.0,
            mtls: Some(true),
            ..none.clone()
        };
        let causes = [("egress-denied".to_owned(), 3)].into();
        let refused = EdgeReport {
            server: "(outside)".into(),
            signals: Signals { causes, ..none },
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
