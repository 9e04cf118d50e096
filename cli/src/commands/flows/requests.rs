//! Implements the command `leno flows --requests`.

use anyhow::Result;
use leno_flows::RequestRow;

use super::super::{OutputForm, print, print_json, table};
use super::{Flows, names};

/// Prints the requests between the clients and servers that the user asks for.
pub(super) fn show(flows: &Flows, mut all: Vec<RequestRow>) -> Result<()> {
    all.retain(|one| wants(flows, one));
    if flows.output == OutputForm::Json { print_json(&all) } else { print(&text(&all)) }
}

/// Whether the user asks for a row. The client's proxy has counted it if its direction is outbound.
fn wants(flows: &Flows, one: &RequestRow) -> bool {
    let client = (&*one.client_namespace, &*one.client);
    let server = (&*one.server_namespace, &*one.server);
    let (own, peer) = if one.direction == "outbound" { (client, server) } else { (server, client) };
    let is = |wanted: &Option<String>, (namespace, name): (&str, &str)| {
        wanted.as_ref().is_none_or(|wanted| names(wanted, namespace, name))
            || wanted.as_ref().is_some_and(|wanted| is_instance(wanted, namespace, name))
    };
    let role = if one.direction == "outbound" { "client" } else { "server" };
    is(&flows.workload, own)
        && is(&flows.peer, peer)
        && flows.namespace.as_ref().is_none_or(|namespace| namespace == own.0)
        && flows.role.is_none_or(|wanted| wanted.name() == role)
}

/// Whether a name is that of an instance or a pod of a workload. This is necessary because proxies count by
/// instance.
fn is_instance(wanted: &str, namespace: &str, name: &str) -> bool {
    let mut shorter = name;
    while let Some((workload, _)) = shorter.rsplit_once('-') {
        if names(wanted, namespace, workload) {
            return true;
        }
        shorter = workload;
    }
    false
}

fn text(all: &[RequestRow]) -> String {
    let name = |namespace: &str, name: &str| match (namespace, name) {
        ("", "") => "-".to_owned(),
        ("", name) => name.to_owned(),
        (namespace, name) => format!("{namespace}/{name}"),
    };
    let rows: Vec<[String; 2]> = all
        .iter()
        .map(|one| {
            [name(&one.client_namespace, &one.client), name(&one.server_namespace, &one.server)]
        })
        .collect();
    let clients = table::width("CLIENT", rows.iter().map(|row| &*row[0]));
    let servers = table::width("SERVER", rows.iter().map(|row| &*row[1]));
    let mut text = format!(
        "{:<10}{:<clients$}{:<servers$}{:>12}{:>12}{:>10}{:>10}{:>10}{:>10}\n",
        "DIRECTION", "CLIENT", "SERVER", "REQUESTS", "2XX", "4XX", "5XX", "P50 MS", "P99 MS"
    );
    for (one, [client, server]) in all.iter().zip(&rows) {
        let class = |name: &str| one.classes.get(name).copied().unwrap_or_default();
        text += &format!(
            "{:<10}{client:<clients$}{server:<servers$}{:>12}{:>12}{:>10}{:>10}{:>10}{:>10}\n",
            one.direction,
            one.requests,
            class("2xx"),
            class("4xx"),
            class("5xx"),
            ms(one.p50_ms),
            ms(one.p99_ms),
        );
    }
    text
}

/// The upper bound of a histogram bucket as text. The value is at most that bound.
pub(super) fn ms(bound: Option<f64>) -> String {
    bound.map_or_else(|| ">10000".to_owned(), |ms| format!("{}", (ms * 1e3).round() / 1e3))
}
