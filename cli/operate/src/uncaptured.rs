//! Pods with a proxy past which everything goes: their proxies say so of themselves.

use std::collections::BTreeSet;

use kube::Client;
use serde_json::Value;

use crate::Error;
use crate::leaving::with_proxy;
use crate::reach::{PodName, Reach};

/// Most proxies that are asked: at sixteen at once a minute or so.
const MAX_PROXIES: usize = 5_000;
/// Most pods that are named.
const NAMED: usize = 10;

/// What is known of the capture of all pods that have a proxy and run.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Captures {
    /// How many there are.
    pub(crate) pods: usize,
    /// Those whose proxy serves, and is not captured.
    pub(crate) missing: Vec<PodName>,
    /// How many proxies have not answered.
    pub(crate) silent: usize,
}

/// Asks the proxies of a cluster, by port-forwards.
///
/// # Errors
/// Where pods cannot be listed, there are too many, or none of them may be asked.
pub(crate) async fn captures(client: &Client) -> Result<Captures, Error> {
    let pods = with_proxy(client).await?;
    if pods.len() > MAX_PROXIES {
        return Err(Error::TooMany(pods.len(), MAX_PROXIES));
    }
    let mut captures = Captures { pods: pods.len(), ..Captures::default() };
    let reach = Reach::new(client.clone());
    for (pod, answer) in reach.each(&pods, "/config", |reply| is_missing(&reply.body)).await {
        match answer {
            Ok(true) => captures.missing.push(pod.clone()),
            Ok(false) => {}
            Err(error) if error.is_forbidden() => return Err(error),
            Err(_silent) => captures.silent += 1,
        }
    }
    captures.missing.sort();
    Ok(captures)
}

impl Captures {
    /// Which pods have none, and what to do; none where all have one.
    pub(crate) fn lack(&self) -> Option<String> {
        if self.missing.is_empty() {
            return None;
        }
        let named: Vec<String> = self.missing.iter().take(NAMED).map(ToString::to_string).collect();
        let more = match self.missing.len().saturating_sub(NAMED) {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        let namespaces: BTreeSet<&str> =
            self.missing.iter().map(|pod| pod.namespace.as_str()).collect();
        let restart: Vec<String> = namespaces
            .iter()
            .map(|name| {
                format!("kubectl rollout restart -n {name} deployment,statefulset,daemonset")
            })
            .collect();
        Some(format!(
            "{} of {} pods with a proxy are not captured, and clients with mTLS do not reach them: {}{more}; \
             restart them: {}",
            self.missing.len(),
            self.pods,
            named.join(", "),
            restart.join("; ")
        ))
    }
}

/// Whether a proxy's `/config` says that it serves without being captured. One that waits to be captured
/// holds its pod back meanwhile; one of an older version does not say.
fn is_missing(config: &str) -> bool {
    let Ok(config) = serde_json::from_str::<Value>(config) else { return false };
    config["ready"] == true && config["captured"] == false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proxy_that_serves_and_is_not_captured_says_so() {
        assert!(is_missing(r#"{"ready":true,"captured":false}"#));
        for other in [
            r#"{"ready":false,"captured":false}"#,
            r#"{"ready":true,"captured":true}"#,
            r#"{"ready":true,"captured":null}"#,
            r#"{"ready":true}"#,
            "no proxy",
        ] {
            assert!(!is_missing(other), "{other}");
        }
    }

    #[test]
    fn pods_without_a_capture_are_named_with_what_to_do() {
        let pod = |namespace: &str, name: String| PodName { namespace: namespace.into(), name };
        let mut captures = Captures { pods: 20, ..Captures::default() };
        assert_eq!(captures.lack(), None);
        captures.missing = (0..12).map(|number| pod("shop", format!("web-{number}"))).collect();
        captures.missing.insert(0, pod("office", "desk".into()));
        let text = captures.lack().unwrap();
        assert!(text.starts_with("13 of 20 pods with a proxy are not captured"), "{text}");
        assert!(
            text.contains("office/desk, shop/web-0, ") && text.contains("and 3 more"),
            "{text}"
        );
        for namespace in ["office", "shop"] {
            assert!(text.contains(&format!("restart -n {namespace} ")), "{text}");
        }
    }
}
