//! Finds pods whose traffic bypasses their proxy, from the reports of the proxies.

use std::collections::BTreeSet;
use std::pin::pin;
use std::time::Duration;

use futures_util::stream::{self, StreamExt as _};
use leno_kube::Client;
use leno_types::Removal;
use serde_json::Value;
use tokio::time::{Instant, timeout, timeout_at};

use crate::Error;
use crate::pod_admin::{PodAdminClient, PodName};
use crate::proxy_removal::with_proxy;

/// How long querying all proxies may take: enough for some thousands that answer, or for two hundred that do not.
const LIMIT: Duration = Duration::from_secs(30);
/// Longest wait for the answer of one proxy.
const ANSWER: Duration = Duration::from_secs(5);
/// How many proxies are queried at the same time; limited to protect the API server.
const AT_ONCE: usize = 32;
/// Most pods that a message names.
const NAMED: usize = 10;

/// Whether the running pods with a proxy are captured.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct CaptureStates {
    /// The number of these pods.
    pub(crate) pods: usize,
    /// The pods whose proxy serves but is not captured.
    pub(crate) missing: Vec<PodName>,
    /// The number of proxies that did not answer.
    pub(crate) silent: usize,
    /// The number of proxies that were not queried before [`LIMIT`] had passed.
    pub(crate) unasked: usize,
}

/// Queries the proxies of a cluster through port-forwards, for at most half a minute.
///
/// # Errors
/// The pods cannot be listed, or the user may not query proxies.
pub(crate) async fn captures(client: &Client) -> Result<CaptureStates, Error> {
    let pods = with_proxy(client).await?;
    let reach = PodAdminClient::new(client.clone());
    of_all(&pods, async |pod: &PodName| Ok(is_missing(&reach.get(pod, "/config").await?.body)))
        .await
}

/// Queries whether each pod with a proxy is captured, until all were queried or [`LIMIT`] has passed.
async fn of_all(
    pods: &[PodName],
    ask: impl AsyncFn(&PodName) -> Result<bool, Error>,
) -> Result<CaptureStates, Error> {
    let end = Instant::now() + LIMIT;
    let mut captures =
        CaptureStates { pods: pods.len(), unasked: pods.len(), ..CaptureStates::default() };
    let ask = &ask;
    let answers = pods.iter().map(|pod| async move { (pod, timeout(ANSWER, ask(pod)).await) });
    let mut answers = pin!(stream::iter(answers).buffer_unordered(AT_ONCE));
    while let Ok(Some((pod, answer))) = timeout_at(end, answers.next()).await {
        captures.unasked -= 1;
        match answer {
            Ok(Ok(true)) => captures.missing.push(pod.clone()),
            Ok(Ok(false)) => {}
            Ok(Err(error)) if error.is_forbidden() => return Err(error),
            Ok(Err(_)) | Err(_) => captures.silent += 1,
        }
    }
    captures.missing.sort();
    Ok(captures)
}

impl CaptureStates {
    /// A message that names the pods that are not captured, with a remedy that depends on the step of a removal;
    /// `None` if all pods are captured.
    pub(crate) fn lack(&self, step: Removal) -> Option<String> {
        if self.missing.is_empty() {
            return None;
        }
        let missing = self.missing.len();
        if step >= Removal::Plaintext {
            return Some(format!(
                "{missing} of {} pods with a proxy are not captured: the removal of the mesh ends their capture, and \
                 at step {step} no client uses mTLS to reach them. Restart them only once the mesh is installed \
                 again",
                self.pods
            ));
        }
        let named: Vec<String> = self.missing.iter().take(NAMED).map(ToString::to_string).collect();
        let more = match missing.saturating_sub(NAMED) {
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
            "{missing} of {} pods with a proxy are not captured, and clients with mTLS do not reach them: \
             {}{more}; restart them: {}",
            self.pods,
            named.join(", "),
            restart.join("; ")
        ))
    }

    /// The number of pods whose state is unknown, and the reason; `None` if the state of all is known.
    pub(crate) fn gap(&self) -> Option<String> {
        let Self { pods, silent, unasked, .. } = self;
        let silent = (*silent > 0).then(|| {
            format!(
                "{silent} of {pods} proxies do not answer, so it is unknown whether they are \
                 captured: `leno stat` names them"
            )
        });
        let unasked = (*unasked > 0).then(|| {
            let limit = LIMIT.as_secs();
            format!(
                "{unasked} of {pods} proxies were not queried within {limit} s: the others answered too slowly"
            )
        });
        let gaps: Vec<String> = [silent, unasked].into_iter().flatten().collect();
        (!gaps.is_empty()).then(|| gaps.join("; "))
    }
}

/// Whether a proxy's `/config` reports that the proxy serves without being captured. A proxy that still waits for
/// its capture is not ready, so it does not count; nor does an older version, which does not report its capture.
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
        let mut captures = CaptureStates { pods: 20, ..CaptureStates::default() };
        assert_eq!(captures.lack(Removal::None), None);
        captures.missing = (0..12).map(|number| pod("shop", format!("web-{number}"))).collect();
        captures.missing.insert(0, pod("office", "desk".into()));
        let text = captures.lack(Removal::Permissive).unwrap();
        assert!(text.starts_with("13 of 20 pods with a proxy are not captured"), "{text}");
        assert!(
            text.contains("office/desk, shop/web-0, ") && text.contains("and 3 more"),
            "{text}"
        );
        for namespace in ["office", "shop"] {
            assert!(text.contains(&format!("restart -n {namespace} ")), "{text}");
        }
    }
    #[test]
    fn during_a_removal_that_has_ended_mtls_no_pod_is_to_be_restarted() {
        let pod = PodName { namespace: "shop".into(), name: "web-0".into() };
        let captures = CaptureStates { pods: 2, missing: vec![pod], ..CaptureStates::default() };
        for step in [Removal::Plaintext, Removal::Released] {
            let text = captures.lack(step).unwrap();
            assert!(text.starts_with("1 of 2 pods with a proxy are not captured"), "{text}");
            assert!(text.contains("no client uses mTLS") && !text.contains("rollout"), "{text}");
        }
    }

    fn pods(count: usize) -> Vec<PodName> {
        let pod = |number| PodName { namespace: "shop".into(), name: format!("web-{number}") };
        (0..count).map(pod).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn many_silent_proxies_are_left_out_once_the_time_is_over_and_counted() {
        let begin = Instant::now();
        // Only the last proxy would answer.
        let ask = async |pod: &PodName| {
            if pod.name != "web-1999" {
                std::future::pending::<()>().await;
            }
            Ok(true)
        };
        let some = of_all(&pods(2_000), ask).await.unwrap();
        assert_eq!(begin.elapsed(), LIMIT);
        assert_eq!((some.pods, some.missing.len()), (2_000, 0));
        assert!(some.silent >= AT_ONCE, "{some:?}");
        assert_eq!(some.silent + some.unasked, 2_000);
        let gap = some.gap().unwrap();
        assert!(gap.contains(" do not answer") && gap.contains(" were not queried"), "{gap}");

        let all =
            of_all(&pods(2_000), async |pod: &PodName| Ok(pod.name == "web-7")).await.unwrap();
        assert_eq!((all.missing.len(), all.gap()), (1, None));
    }
}
