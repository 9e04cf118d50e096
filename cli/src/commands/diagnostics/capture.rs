//! Implements the command `leno diagnostics capture`.

use anyhow::{Result, bail};
use clap::Args;
use leno_local::layout::Layout;
use leno_local::open_ways::open_ways;
use leno_local::status::MeshStatus;
use leno_operate::{ClusterTarget, PodCapture, ProxyPod, ProxyReport};
use serde::Serialize;
use serde_json::{Value, json};

use super::meshed_instance;
use super::text::{list, said, since, text_of};
use crate::commands::lines::LabelledLines;
use crate::commands::table::width;
use crate::commands::{AnyMesh, ChosenMesh, OutputForm, block_on, print, print_json};

/// Shows whether the traffic of a pod is captured, by which backend, since when and what bypasses the proxy; if it is
/// not captured, why
///
/// Queries the agent of the pod's node and the proxy itself; in a cluster through port-forwards. With --node, shows
/// all pods with a proxy on that node. Exits 1 if one of them is not captured, or if that is unknown.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  leno diagnostics capture -n shop web-7d9c-x2x4k\n  \
                  leno diagnostics capture -n shop deploy/web -o json\n  \
                  leno diagnostics capture --node worker-1")]
pub(crate) struct Capture {
    /// The pod, or its owner, such as deploy/web, for one of its pods; for `leno up`, an instance or a workload
    #[arg(value_name = "POD", required_unless_present = "node", conflicts_with = "node")]
    pod: Option<String>,

    /// Shows all pods with a proxy on this node
    #[arg(long, value_name = "NAME")]
    node: Option<String>,

    /// Namespace of the pod [default: the kubeconfig's; for `leno up`, any namespace that has the name]
    #[arg(short, long, value_name = "NAME", conflicts_with = "node")]
    namespace: Option<String>,

    #[command(flatten)]
    mesh: AnyMesh,

    /// The output format
    #[arg(short, long, value_enum, default_value_t)]
    output: OutputForm,
}

/// What is known about a pod's capture.
#[derive(Debug, Serialize)]
struct Report {
    /// The pod's state in Kubernetes; `None` for `leno up`.
    pod: Option<ProxyPod>,
    /// The report of the node's agent about the pod.
    capture: Option<Value>,
    /// The capture methods that its node supports, as the node's agent found out.
    backends: Value,
    /// Whether its proxy reports that it is captured; `None` if it reports nothing.
    proxy_captured: Option<bool>,
    /// What its proxy does with plaintext.
    proxy_mtls: Option<String>,
    /// What is not known, and why.
    unknown: Vec<String>,
}

pub(super) fn run(capture: &Capture) -> Result<bool> {
    let system = &capture.mesh.system_namespace;
    let report = match (capture.mesh.choose()?, &capture.pod, &capture.node) {
        (ChosenMesh::Cluster(target), _, Some(node)) => return of_node(capture, &target, node),
        (ChosenMesh::Cluster(target), Some(pod), None) => {
            let namespace = capture.namespace.as_deref();
            let found = block_on(async {
                let client = leno_operate::connect(&target).await?;
                Ok(leno_operate::pod_capture(&client, system, namespace, pod).await?)
            })?;
            of_pod(found)
        }
        (ChosenMesh::Machine(name), Some(pod), None) => of_machine(&name, capture, pod)?,
        (ChosenMesh::Machine(_), _, _) => bail!(
            "a mesh of leno up has no nodes: name an instance \
             or a workload instead of --node"
        ),
        (ChosenMesh::Cluster(_), None, None) => {
            bail!("neither a pod nor a node is named: pass POD, or --node NAME")
        }
    };
    if capture.output == OutputForm::Json {
        print_json(&report)?;
    } else {
        print(&text(&report))?;
    }
    Ok(report.is_captured())
}

impl Report {
    fn is_captured(&self) -> bool {
        self.capture.as_ref().is_some_and(is_captured)
    }
}

fn is_captured(capture: &Value) -> bool {
    capture["state"] == "captured"
}

fn of_pod(found: PodCapture) -> Report {
    let PodCapture { seen, agent, proxy } = found;
    let mut unknown = Vec::new();
    let page = agent.unwrap_or_else(|error| {
        unknown.push(error.said());
        Value::Null
    });
    let proxy = proxy.unwrap_or_else(|error| {
        unknown.push(error.said());
        ProxyReport::default()
    });
    let capture = page["pods"].get(0).cloned();
    if !page.is_null() && capture.is_none() {
        let known = "the agent has not received the pod from the API server yet: run the command \
                     again";
        unknown.push(page["not_ready"].as_str().unwrap_or(known).to_owned());
    }
    let backends = page["backends"].clone();
    let (proxy_captured, proxy_mtls) = (proxy.captured, proxy.mtls);
    Report { pod: Some(seen), capture, backends, proxy_captured, proxy_mtls, unknown }
}

fn of_machine(mesh: &str, capture: &Capture, pod: &str) -> Result<Report> {
    let status = MeshStatus::read(&Layout::new(mesh)?)?;
    let instance = meshed_instance(&status, capture.namespace.as_deref(), pod)?;
    let state = if instance.capture.is_some() { "captured" } else { "waiting" };
    let capture = json!({"namespace": instance.namespace, "name": instance.name, "state": state,
        "backend": instance.capture, "open_ways": open_ways(&status, instance)});
    Ok(Report {
        pod: None,
        capture: Some(capture),
        backends: Value::Null,
        proxy_captured: None,
        proxy_mtls: Some(instance.mtls.to_string()),
        unknown: Vec::new(),
    })
}

fn of_node(capture: &Capture, target: &ClusterTarget, node: &str) -> Result<bool> {
    let page = block_on(async {
        let client = leno_operate::connect(target).await?;
        let system = &capture.mesh.system_namespace;
        Ok(leno_operate::node_captures(&client, system, node).await?)
    })?;
    if capture.output == OutputForm::Json {
        print_json(&page)?;
    } else {
        print(&node_text(&page))?;
    }
    let settled = |one: &Value| is_captured(one) || one["state"] == "ended";
    Ok(page["not_ready"].is_null() && list(&page["pods"]).all(settled))
}

fn text(report: &Report) -> String {
    let mut lines = LabelledLines::default();
    if let Some(pod) = &report.pod {
        lines.add(
            "pod",
            &format!(
                "{}/{} of {} on {}, {}",
                pod.namespace, pod.name, pod.owner, pod.node, pod.phase
            ),
        );
        lines.add("asks for", &pod.capture);
    }
    if let Some(capture) = &report.capture {
        if report.pod.is_none() {
            lines.add(
                "pod",
                &format!("{}/{}", text_of(&capture["namespace"]), text_of(&capture["name"])),
            );
        }
        lines.add("captured", &how(capture));
        passes(&mut lines, &capture["passes"]);
        open(&mut lines, &capture["open_ways"]);
        if let Some(connections) = capture["connections"].as_object() {
            let seen = connections.iter().filter(|(_, count)| count.as_u64() != Some(0));
            let all: Vec<String> = seen.map(|(name, count)| format!("{name} {count}")).collect();
            if all.is_empty() {
                lines.add("connections", "none yet");
            }
            all.iter().for_each(|one| lines.add("connections", one));
        }
    }
    if let Some(mtls) = report.proxy_mtls.as_deref().filter(|mtls| *mtls != "strict") {
        let text = format!("clients in plaintext, since mtls is {mtls}: set it to strict");
        lines.add("open", &text);
    }
    match (report.proxy_captured, report.is_captured()) {
        (None, _) => {}
        (Some(true), _) => lines.add("proxy", "reports that it is captured"),
        (Some(false), true) => {
            lines.add("proxy", "reports that it is NOT captured: restart the pod")
        }
        (Some(false), false) => lines.add("proxy", "reports that it is not captured"),
    }
    backends(&mut lines, &report.backends);
    report.unknown.iter().for_each(|why| lines.add("not known", why));
    lines.text
}

/// Whether a pod is captured, and how or why not, in one line.
fn how(capture: &Value) -> String {
    let failure = &capture["failure"];
    match capture["state"].as_str().unwrap_or_default() {
        "captured" => {
            let begun = capture["since_unix_s"].as_f64().map(|begun| said(since(begun)));
            let begun = begun.map_or_else(String::new, |begun| format!(", {begun} ago"));
            let origin = match capture["origin"].as_str() {
                Some("cni") => ", before its containers started",
                Some("reconciled") => ", while it ran",
                Some("taken_over") => ", by an earlier agent",
                _ => "",
            };
            format!("by {}{begun}{origin}", text_of(&capture["backend"]))
        }
        "failed" => {
            let last = said(since(failure["last_unix_s"].as_f64().unwrap_or_default()));
            let next = match failure["next_s"].as_u64() {
                Some(next) => format!("next try in {next} s"),
                None => "next try when the kubelet creates its network".to_owned(),
            };
            let (times, why) = (&failure["times"], text_of(&failure["why"]));
            format!("NO, failed {times} times, last {last} ago, {next}: {why}")
        }
        "waiting" => "NO: its network does not exist yet; `kubectl describe pod` shows what it \
                      waits for"
            .to_owned(),
        "under_way" => {
            "not yet: it is being captured or released now: run the command again".to_owned()
        }
        "ended" => "no: its containers have ended".to_owned(),
        other => format!(
            "not known: {other:?} is a state of another version of leno: use the leno \
             of the installation"
        ),
    }
}

fn passes(lines: &mut LabelledLines, passes: &Value) {
    if passes.is_null() {
        return;
    }
    let ports: Vec<String> = list(&passes["inbound_ports"]).map(ToString::to_string).collect();
    let prefixes: Vec<String> = list(&passes["outbound_to"]).map(text_of).collect();
    lines.add("passes", &format!("inbound ports {}", ports.join(", ")));
    lines.add("passes", &format!("outbound to {}, on any port", prefixes.join(", ")));
    lines.add("passes", &format!("what user {} sends, and all that is not TCP", passes["user"]));
}

/// Prints the ways in which traffic can bypass the capture: each with the processes, connections or protocols for which
/// it is open (none if it is open to all), and the remedy. Also prints the ways that could not be checked.
fn open(lines: &mut LabelledLines, open: &Value) {
    for one in list(&open["ways"]) {
        let mut text = text_of(&one["what"]);
        let by: Vec<String> = list(&one["by"]).map(text_of).collect();
        if !by.is_empty() {
            let more = one["count"].as_u64().unwrap_or_default().saturating_sub(by.len() as u64);
            let more = if more > 0 { format!(" and {more} more") } else { String::new() };
            text += &format!(", by {}{more}", by.join(", "));
        }
        lines.add("open", &format!("{text}: {}", text_of(&one["remedy"])));
    }
    for one in list(&open["unknown"]) {
        lines.add("open?", &text_of(one));
    }
}

fn backends(lines: &mut LabelledLines, backends: &Value) {
    for one in list(backends) {
        let usable = if one["usable"] == true { "usable" } else { "NOT usable" };
        let (name, reason) = (text_of(&one["backend"]), text_of(&one["reason"]));
        lines.add("node", &format!("{name} is {usable}: {reason}"));
    }
}

fn node_text(page: &Value) -> String {
    let mut lines = LabelledLines::default();
    lines.add("node", &format!("{}, agent {}", text_of(&page["node"]), text_of(&page["version"])));
    if let Some(why) = page["not_ready"].as_str() {
        lines.add("NOT READY", why);
    }
    backends(&mut lines, &page["backends"]);
    let full = |pod: &Value| format!("{}/{}", text_of(&pod["namespace"]), text_of(&pod["name"]));
    let names: Vec<String> = list(&page["pods"]).map(full).collect();
    let wide = width("POD", names.iter().map(String::as_str));
    let mut text = format!("{}\n{:<wide$}{:<10}CAPTURED\n", lines.text, "POD", "ASKS FOR");
    for (pod, name) in list(&page["pods"]).zip(&names) {
        let asks = pod["asks"].as_str().unwrap_or("-");
        let open: Vec<String> =
            list(&pod["open_ways"]["ways"]).map(|one| text_of(&one["way"])).collect();
        let open =
            if open.is_empty() { String::new() } else { format!("; open: {}", open.join(", ")) };
        text += &format!("{name:<wide$}{asks:<10}{}{open}\n", how(pod));
    }
    if let Some(more @ 1..) = page["pods_left_out"].as_u64() {
        text += &format!("and {more} more, all like the last\n");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(agent: Result<Value, leno_operate::Error>, captured: Option<bool>) -> Report {
        let seen = ProxyPod {
            namespace: "shop".into(),
            name: "web-0".into(),
            owner: "sts/web".into(),
            node: "n1".into(),
            phase: "Running".into(),
            image: "proxy:1".into(),
            restarts: 0,
            waiting: None,
            capture: "auto".into(),
        };
        let proxy = ProxyReport { captured, mtls: Some("permissive".into()) };
        of_pod(PodCapture { seen, agent, proxy: Ok(proxy) })
    }

    fn page(pod: Value) -> Value {
        json!({"node": "n1", "version": "1", "not_ready": null, "pods_left_out": 0, "pods": [pod],
            "backends": [{"backend": "ebpf", "usable": true, "reason": "it loads"},
                {"backend": "iptables", "usable": false, "reason": "there is no iptables"}]})
    }

    fn captured() -> Value {
        json!({"namespace": "shop", "name": "web-0", "asks": "auto", "state": "captured", "backend": "ebpf",
            "origin": "cni", "since_unix_s": 0, "failure": null,
            "passes": {"inbound_ports": [15020], "outbound_to": ["127.0.0.0/8", "::1/128"], "user": 2102},
            "open_ways": {"unknown": ["the connections: cannot read"], "ways": [
                {"way": "datagrams", "what": "UDP", "remedy": "a firewall", "by": [], "count": 0},
                {"way": "raw_sockets", "what": "raw sockets", "remedy": "drop NET_RAW",
                    "by": ["12 nginx", "13 sh"], "count": 9}]},
            "connections": {"outbound_captured": 3, "inbound_captured": 0}})
    }

    fn failed() -> Value {
        json!({"namespace": "shop", "name": "web-0", "asks": "ebpf", "state": "failed",
            "failure": {"why": "ebpf: no", "reason": "unusable", "times": 3, "last_unix_s": 0, "next_s": 16}})
    }

    #[test]
    fn a_pod_that_is_captured_says_by_what_and_what_passes() {
        let report = found(Ok(page(captured())), Some(true));
        assert!(report.is_captured());
        let text = text(&report);
        for line in [
            "pod          shop/web-0 of sts/web on n1, Running\n",
            "asks for     auto\ncaptured     by ebpf, ",
            " days ago, before its containers started\n",
            "passes       inbound ports 15020\n",
            "             outbound to 127.0.0.0/8, ::1/128, on any port\n",
            "open         UDP: a firewall\n             raw sockets, by 12 nginx, 13 sh and 7 more: drop NET_RAW\n",
            "open?        the connections: cannot read\nconnections  outbound_captured 3\n",
            "open         clients in plaintext, since mtls is permissive: set it to strict\n",
            "proxy        reports that it is captured\n",
            "node         ebpf is usable: it loads\n             iptables is NOT usable: there is no iptables\n",
        ] {
            assert!(text.contains(line), "{line:?} is not in\n{text}");
        }
        assert!(!text.contains("inbound_captured"), "{text}");
    }

    #[test]
    fn a_pod_that_is_not_captured_says_why_and_what_comes_next() {
        let report = found(Ok(page(failed())), Some(false));
        assert!(!report.is_captured());
        let text = text(&report);
        assert!(text.contains("captured     NO, failed 3 times, last "), "{text}");
        assert!(text.contains(" ago, next try in 16 s: ebpf: no\n"), "{text}");
        let gone = found(Err(leno_operate::Error::OldAgent("n1".into())), None);
        assert!(!gone.is_captured());
        let said = super::text(&gone);
        assert!(
            said.contains("not known    the agent of node n1 is of an earlier version"),
            "{said}"
        );
        let mut unheard = page(failed());
        unheard["pods"] = json!([]);
        let said = super::text(&found(Ok(unheard), None));
        assert!(said.contains("not known    the agent has not received the pod"), "{said}");
    }

    #[test]
    fn the_pods_of_a_node_are_lines() {
        let mut page = page(failed());
        page["pods"].as_array_mut().unwrap().push(captured());
        page["pods_left_out"] = json!(2);
        page["not_ready"] = json!("pods are still being captured");
        let text = node_text(&page);
        for line in [
            "node         n1, agent 1\nNOT READY    pods are still being captured\n",
            "POD         ASKS FOR  CAPTURED\nshop/web-0  ebpf      NO, failed 3 times",
            "shop/web-0  auto      by ebpf, ",
            ", before its containers started; open: datagrams, raw_sockets\n",
            "and 2 more, all like the last\n",
        ] {
            assert!(text.contains(line), "{line:?} is not in\n{text}");
        }
    }
}
