//! Reads the sizes of the table of flows and of the ring buffer of flow events from the annotations of the Node
//! object.
//!
//! ```text
//!  leno.dev/flow-map-size, -ring-size of the Node ─► watch ─► else the sizes of the chart ─► the kernel
//! ```

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use k8s_openapi::api::core::v1::Node;
use leno_flows::LedgerSettings;
use leno_kube::{Api, Client, Event, WatchReport, WatchSelection, watch};
use leno_resources::{FLOW_MAP_SIZE_ANNOTATION, FLOW_RING_SIZE_ANNOTATION, flow_size};

use crate::flows::Flows;

/// The longest wait after a failed watch, without the random addition.
const LONGEST_WAIT: Duration = Duration::from_secs(60);
/// Longest wait for the API server at the start.
const ASK_LIMIT: Duration = Duration::from_secs(2);

/// The settings at the start. The annotations are read before the programs are loaded, so that a table that an
/// earlier agent has enlarged is not shrunk in between. If the API server does not answer soon, the chart's
/// settings are used.
pub(crate) async fn at_start(client: &Client, node: &str, usual: LedgerSettings) -> LedgerSettings {
    let nodes = Api::<Node>::all(client.clone());
    let asked = tokio::time::timeout(ASK_LIMIT, nodes.get_opt(node)).await;
    let found = asked.ok().and_then(Result::ok).flatten();
    let annotations = found.and_then(|node| node.metadata.annotations).unwrap_or_default();
    // The watch will report invalid annotations.
    sizes(&annotations, usual).unwrap_or(usual)
}

/// Applies each change of the annotations until the process ends.
pub(crate) async fn follow(client: Client, node: String, flows: Arc<Flows>, usual: LedgerSettings) {
    let fields = format!("metadata.name={node}");
    let selection =
        WatchSelection { fields, longest_wait: LONGEST_WAIT, ..WatchSelection::default() };
    let mut reports = pin!(watch(Api::<Node>::all(client), selection));
    let mut refused = None;
    while let Some(report) = reports.next().await {
        let node = match report {
            WatchReport::Event(Event::Apply(node) | Event::InitApply(node)) => node,
            WatchReport::Event(_) | WatchReport::Resumed => continue,
            WatchReport::Failed(error) => {
                let error = leno_program::chain(&error);
                tracing::warn!(error, "cannot watch the node's annotations; retrying");
                continue;
            }
        };
        match sizes(&node.metadata.annotations.unwrap_or_default(), usual) {
            Ok(settings) => {
                refused = None;
                let flows = Arc::clone(&flows);
                // The runtime prints a panic, and the next change is handled.
                let _ended =
                    tokio::task::spawn_blocking(move || flows.resize(settings.sizes)).await;
            }
            // The same error is only reported once, although the object changes often because of its status.
            Err(why) if refused.as_ref() == Some(&why) => {}
            Err(why) => {
                tracing::warn!("the sizes for flows are unchanged: {why}");
                refused = Some(why);
            }
        }
    }
}

/// The settings, with the sizes in these annotations applied.
fn sizes(
    annotations: &BTreeMap<String, String>,
    usual: LedgerSettings,
) -> Result<LedgerSettings, String> {
    let size = |key: &str| {
        let size = annotations.get(key).map(|text| flow_size(key, text));
        size.transpose().map_err(|why| format!("{key}: {why}"))
    };
    let given = (size(FLOW_MAP_SIZE_ANNOTATION)?, size(FLOW_RING_SIZE_ANNOTATION)?);
    usual.with(given).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use leno_flows::{FlowMetricsSource, FlowSizes};

    use super::*;

    #[test]
    fn annotations_of_the_node_win_over_the_chart_and_are_bounded() {
        let usual = LedgerSettings {
            source: FlowMetricsSource::Sockets,
            sizes: FlowSizes::new(32_768, 512).unwrap(),
            budget: None,
        };
        let of = |key: &str, value: &str| {
            let annotations = [(key.to_owned(), value.to_owned())].into();
            sizes(&annotations, usual).map(|settings| settings.sizes)
        };
        assert_eq!(of("leno.dev/flow-map-size", "65536"), Ok(FlowSizes::new(65_536, 512).unwrap()));
        assert_eq!(
            of("leno.dev/flow-ring-size", "1024"),
            Ok(FlowSizes::new(32_768, 1024).unwrap())
        );
        assert_eq!(of("other", "x"), Ok(usual.sizes));
        let refused = of("leno.dev/flow-map-size", "2000000").unwrap_err();
        assert!(
            refused.contains("leno.dev/flow-map-size: 2000000 flows are too many"),
            "{refused}"
        );
    }
}
