//! Prints what is known about a proxy, as text for people.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::Value;

use super::Report;
use crate::commands::lines::LabelledLines;

pub(super) fn text(report: &Report) -> String {
    let mut lines = LabelledLines::default();
    if let Some(pod) = &report.pod {
        let node = if pod.node.is_empty() { "no node" } else { &pod.node };
        lines.add(
            "pod",
            &format!("{}/{} of {} on {node}, {}", pod.namespace, pod.name, pod.owner, pod.phase),
        );
        match pod.image.as_str() {
            "" => lines.add("mode", "node"),
            image => lines.add("image", &format!("{image}, restarted {} times", pod.restarts)),
        }
        if let Some(waiting) = &pod.waiting {
            lines.add("waiting", waiting);
        }
        lines.add("capture", &format!("asks for {}", pod.capture));
    }
    lines.add("ready", report.not_ready.as_deref().map_or("yes", |why| why));
    if let Some(config) = &report.config {
        of_config(&mut lines, config);
    }
    for endpoint in report.ejected.iter().flatten() {
        lines.add("ejects", &endpoint.endpoint());
    }
    if let Some(reason) = &report.unknown {
        lines.add("proxy", &format!("does not report its state: {reason}"));
    }
    lines.text
}

fn of_config(lines: &mut LabelledLines, config: &Value) {
    let number = |value: &Value| value.as_f64().unwrap_or_default();
    let up = since(number(&config["started_unix_s"]));
    lines.add(
        "proxy",
        &format!(
            "{} {}, up {}",
            text_of(&config["workload"]),
            text_of(&config["version"]),
            said(up)
        ),
    );
    let listening = list(&config["listening"]).map(text_of).collect::<Vec<_>>().join(", ");
    lines.add(
        "listening",
        &format!("{listening} with {}", counted(&config["workers"], "worker", "workers")),
    );
    let (connections, busy) = (&config["connections"], &config["busy"]);
    let connections = counted(connections, "connection", "connections");
    lines.add("load", &format!("{connections}; requests and relays in progress: {busy}"));
    let identity = &config["identity"];
    match identity["name"].as_str() {
        Some(name) => lines
            .add("identity", &format!("{name}, {}", ends(number(&identity["not_after_unix_s"])))),
        None => lines.add("identity", "none yet"),
    }
    let discovery = &config["discovery"];
    let connected = if discovery["connected"] == true { "connected" } else { "NOT CONNECTED" };
    let age = said(Duration::from_secs_f64(number(&discovery["age_s"]).max(0.0)));
    lines.add(
        "discovery",
        &format!(
            "{connected}, last message {age} ago; {}, {}",
            counted(&discovery["connects"], "connection", "connections"),
            counted(&discovery["nacks"], "refused update", "refused updates")
        ),
    );
    let policy = &config["policy"];
    let ports = list(&policy["ports"])
        .map(|port| format!("{} {}", port["port"], text_of(&port["protocol"])));
    let ports = match ports.collect::<Vec<_>>().join(", ") {
        none if none.is_empty() => "no port declared".to_owned(),
        ports => format!("ports {ports}"),
    };
    lines.add(
        "policy",
        &match policy.is_null() {
            true => "none yet".to_owned(),
            false => format!(
                "mtls {}, egress {}; {ports}",
                text_of(&policy["mtls"]),
                text_of(&policy["egress"])
            ),
        },
    );
    for service in list(&config["services"]) {
        let routes = counted(&service["routes"], "route", "routes");
        let policies = counted(&service["policies"], "policy", "policies");
        lines.add("service", &format!("{}: {routes}, {policies}", text_of(&service["name"])));
        for port in list(&service["ports"]) {
            of_port(lines, port);
        }
    }
}

fn counted(number: &Value, one: &str, several: &str) -> String {
    let what = if number.as_u64() == Some(1) { one } else { several };
    format!("{number} {what}")
}

fn of_port(lines: &mut LabelledLines, port: &Value) {
    let endpoints = counted(&port["endpoints"], "endpoint", "endpoints");
    lines.add(
        "service",
        &format!("  port {} {}: {endpoints}", port["port"], text_of(&port["protocol"])),
    );
    let shown = list(&port["first_endpoints"]);
    for one in shown {
        let who = one["workload"].as_str().unwrap_or("outside of the mesh");
        let addresses = list(&one["addresses"]).map(text_of).collect::<Vec<_>>().join(", ");
        let how =
            one["identity"].as_str().map_or("plaintext".to_owned(), |id| format!("mTLS, {id}"));
        lines.add("service", &format!("    {who} {addresses} port {} ({how})", one["port"]));
    }
    let rest = port["endpoints"]
        .as_u64()
        .unwrap_or_default()
        .saturating_sub(list(&port["first_endpoints"]).count() as u64);
    if rest > 0 {
        lines.add("service", &format!("    and {rest} more"));
    }
}

/// A text in a page; empty if it is missing.
pub(super) fn text_of(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

pub(super) fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

pub(super) fn since(unix_s: f64) -> Duration {
    let then = UNIX_EPOCH + Duration::from_secs_f64(unix_s.max(0.0));
    SystemTime::now().duration_since(then).unwrap_or_default()
}

/// When a certificate expires.
fn ends(unix_s: f64) -> String {
    let then = UNIX_EPOCH + Duration::from_secs_f64(unix_s.max(0.0));
    match then.duration_since(SystemTime::now()) {
        Ok(left) => format!("for {} more", said(left)),
        Err(over) => format!("ENDED {} ago", said(over.duration())),
    }
}

/// A duration in the unit that people would use.
pub(super) fn said(time: Duration) -> String {
    let seconds = time.as_secs_f64();
    match time.as_secs() {
        0..60 => format!("{seconds:.1} s"),
        60..3600 => format!("{:.1} min", seconds / 60.0),
        3600..172_800 => format!("{:.1} h", seconds / 3600.0),
        _ => format!("{:.1} days", seconds / 86_400.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proxys_beliefs_are_lines_and_what_is_wrong_stands_out() {
        let config = serde_json::json!({
            "workload": "shop/web-0", "version": "0.1.0", "workers": 1, "listening": ["127.0.0.1:15001"],
            "connections": 3, "busy": 1, "started_unix_s": 0.0,
            "identity": {"name": "spiffe://a/ns/shop/sa/web", "not_after_unix_s": 1.0},
            "discovery": {"connected": false, "age_s": 90.0, "connects": 1, "nacks": 0},
            "policy": {"mtls": "strict", "egress": "allow", "ports": [{"port": 80, "protocol": "http1"}]},
            "services": [{"name": "shop/cart", "routes": 1, "policies": 2, "ports": [
                {"port": 80, "protocol": "http1", "endpoints": 5, "first_endpoints": [
                    {"workload": "shop/cart-0", "addresses": ["10.0.0.1"], "port": 8080, "identity": null}]}]}],
        });
        let not_ready = Some("draining".to_owned());
        let text = text(&Report {
            pod: None,
            not_ready,
            config: Some(config),
            ejected: None,
            unknown: None,
        });
        for line in [
            "ready        draining\n",
            "identity     spiffe://a/ns/shop/sa/web, ENDED ",
            "discovery    NOT CONNECTED, last message 1.5 min ago; 1 connection, 0 refused updates\n",
            "policy       mtls strict, egress allow; ports 80 http1\n",
            "service      shop/cart: 1 route, 2 policies\n               port 80 http1: 5 endpoints\n",
            "                 shop/cart-0 10.0.0.1 port 8080 (plaintext)\n                 and 4 more\n",
        ] {
            assert!(text.contains(line), "{line:?} is not in\n{text}");
        }
    }

    #[test]
    fn a_proxy_that_is_ready_and_does_not_say_what_it_believes_is_told_of() {
        let unknown = Some("HTTP 404: use /metrics".to_owned());
        let text =
            text(&Report { pod: None, not_ready: None, config: None, ejected: None, unknown });
        let expected =
            "ready        yes\nproxy        does not report its state: HTTP 404: use /metrics\n";
        assert_eq!(text, expected);
    }
}
