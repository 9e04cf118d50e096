//! Finds pods in node mode that no node proxy serves yet, to which other proxies send plaintext meanwhile.

use k8s_openapi::api::core::v1::Pod;
use leno_checks::CheckResult;
use leno_kube::Client;

use super::served_pods;
use crate::Error;
use crate::namespaces::NamespaceModes;
use crate::pods::{all, name, phase};

/// Most pods that a message names.
const NAMED: usize = 10;

/// Whether node proxies serve all running pods in node mode; `None` if there are no such pods that are not served.
///
/// # Errors
/// The pods or the namespaces cannot be listed.
pub(super) async fn served(client: &Client) -> Result<Option<CheckResult>, Error> {
    let pods = all(client, None).await?;
    let modes = NamespaceModes::read(client, None).await?;
    Ok(finding(&pods, &modes))
}

fn finding(pods: &[Pod], modes: &NamespaceModes) -> Option<CheckResult> {
    let awaited = |pod: &&Pod| phase(pod) == "Running" && modes.awaits_node_proxy(pod);
    let mut awaited: Vec<String> =
        pods.iter().filter(awaited).map(|pod| name(pod).to_string()).collect();
    let count = awaited.len();
    if count == 0 {
        return None;
    }
    awaited.sort();
    awaited.truncate(NAMED);
    let more = match count.saturating_sub(NAMED) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let text = format!(
        "no node proxy serves {count} pods in node mode yet: {}{more}. Until then proxies send them plaintext or, where mTLS \
         is strict, do not reach them",
        awaited.join(", ")
    );
    let remedy = "if it takes longer than some seconds, see the log of leno-agent on their nodes";
    Some(served_pods().warning(text).remedy(remedy))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(name: &str, phase: &str, mode: &str, served: Option<&str>) -> Pod {
        let labels = json!({"leno.dev/inject": "enabled", "leno.dev/mode": mode});
        let condition = |status: &str| json!({"type": "leno.dev/Served", "status": status});
        let conditions: Vec<_> = served.map(condition).into_iter().collect();
        serde_json::from_value(json!({
            "metadata": {"name": name, "namespace": "shop", "labels": labels},
            "spec": {"containers": [{"name": "web"}]},
            "status": {"phase": phase, "conditions": conditions},
        }))
        .unwrap()
    }

    #[test]
    fn running_pods_in_node_mode_that_are_not_served_are_named() {
        let modes = NamespaceModes::default();
        let mut pods = vec![
            pod("served", "Running", "node", Some("True")),
            pod("starting", "Pending", "node", None),
            pod("other", "Running", "sidecar", None),
        ];
        assert_eq!(finding(&pods, &modes), None);
        pods.push(pod("left", "Running", "node", Some("False")));
        pods.extend(
            (0..NAMED).map(|number| pod(&format!("web-{number}"), "Running", "node", None)),
        );
        let found = format!("{:?}", finding(&pods, &modes).unwrap());
        assert!(
            found.contains("serves 11 pods in node mode yet: shop/left, shop/web-0"),
            "{found}"
        );
        assert!(found.contains("shop/web-8 and 1 more. Until"), "{found}");
    }
}
