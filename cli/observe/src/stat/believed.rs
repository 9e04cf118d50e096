//! Limits which parts of a pod's metrics page are used, because an application in the pod may have written the
//! page.
//!
//! A proxy counts only the requests that its own workload sends and answers. Samples about other workloads are
//! therefore left out, and the number and length of names are limited.

use std::time::Instant;

use super::proxy_counters::{IDENTITY, KNOWN};
use super::{NamespacedName, ProxyCounters, StatInstance};
use crate::admin::AdminReply;
use crate::metrics::{self, Sample};

/// Most edges that are read from one proxy. Each of its workers counts 256 edges.
pub(super) const MAX_EDGES: usize = 2_048;
/// Most route rules that are read from one proxy.
pub(super) const MAX_ROUTES: usize = 1_024;
/// Most causes that are read for one edge or rule.
const MAX_CAUSES: usize = 64;
/// Most bounds of the duration histogram that are read for one edge or rule.
const MAX_BOUNDS: usize = 64;
/// Longest label, in bytes. The longest label of a real proxy names a route by kind, namespace and name.
const MAX_LABEL: usize = 400;
/// Longest identity, in bytes. SPIFFE sets the same limit.
const MAX_IDENTITY: usize = 2_048;
/// The name that a proxy gives to both ends of the edges beyond its own limit.
const OTHER: &str = "other";

impl ProxyCounters {
    /// The part of a response to `/metrics` that the proxy of this instance can know itself, and the number of
    /// samples that were left out. The response must have just arrived.
    ///
    /// # Errors
    /// If the response is not a page of metrics. The text gives the reason.
    pub fn of_instance(reply: &AdminReply, own: &StatInstance) -> Result<(Self, u64), String> {
        if reply.status != 200 {
            return Err(reply.why_no_metrics());
        }
        let mut samples = metrics::parse(&reply.body);
        let all = samples.len();
        samples.retain_mut(|sample| is_believed(sample, own));
        let left_out = (all - samples.len()) as u64;
        let mut counters = Self::of_samples(&samples, Instant::now());
        let beyond = counters.bound();
        Ok((counters, left_out + beyond))
    }

    /// Removes entries beyond the limits. Returns how many were removed.
    fn bound(&mut self) -> u64 {
        let before = self.edges.len() + self.routes.len();
        let last = self.edges.keys().nth(MAX_EDGES).cloned();
        if let Some(last) = last {
            self.edges.split_off(&last);
        }
        let last = self.routes.keys().nth(MAX_ROUTES).cloned();
        if let Some(last) = last {
            self.routes.split_off(&last);
        }
        let mut beyond = before - self.edges.len() - self.routes.len();
        for counts in self.edges.values_mut().chain(self.routes.values_mut()) {
            while counts.causes.len() > MAX_CAUSES {
                counts.causes.pop_last();
                beyond += 1;
            }
            beyond += counts.durations.keep(MAX_BOUNDS);
        }
        beyond as u64
    }
}

/// Whether a sample is about this instance or about no instance. An edge beyond the proxy's own limit is
/// attributed to this instance.
fn is_believed(sample: &mut Sample, own: &StatInstance) -> bool {
    if !sample.value.is_finite() || sample.value < 0.0 {
        return false;
    }
    if sample.name == IDENTITY {
        let within = format!("/ns/{}/", own.namespace);
        let identity = sample.labels.get("identity");
        return identity.is_some_and(|name| name.len() <= MAX_IDENTITY && name.contains(&within));
    }
    if sample.labels.values().any(|value| value.len() > MAX_LABEL) {
        return false;
    }
    if !KNOWN.contains(&sample.name.as_str()) {
        return true;
    }
    let is_inbound = sample.labels.get("direction").is_some_and(|one| one == "inbound");
    let (namespace, name) = match is_inbound {
        true => ("server_namespace", "server"),
        false => ("client_namespace", "client"),
    };
    let label = |name: &str| sample.labels.get(name).cloned().unwrap_or_default();
    let of: NamespacedName = (label(namespace), label(name));
    if of.0.is_empty() && of.1 == OTHER {
        sample.labels.insert(namespace.to_owned(), own.namespace.clone());
        sample.labels.insert(name.to_owned(), own.name.clone());
        return true;
    }
    of.0 == own.namespace && (of.1 == own.name || of.1 == own.workload)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own() -> StatInstance {
        StatInstance {
            namespace: "shop".to_owned(),
            workload: "web".to_owned(),
            name: "web-7d9-a".to_owned(),
            meshed: true,
            ready: true,
            proxy: None,
        }
    }

    fn of(text: &str) -> (ProxyCounters, u64) {
        let reply = AdminReply { status: 200, body: text.to_owned() };
        ProxyCounters::of_instance(&reply, &own()).unwrap()
    }

    #[test]
    fn a_proxy_that_shows_its_metrics_to_others_is_said_to_with_the_remedy() {
        let of = |status| {
            let reply = AdminReply { status, body: "leno_busy 1\n".to_owned() };
            let why = ProxyCounters::of_instance(&reply, &own()).unwrap_err();
            assert_eq!(ProxyCounters::of(&reply).unwrap_err(), why);
            why
        };
        assert!(of(403).contains("proxy.scrapeFrom of the chart"), "{}", of(403));
        assert_eq!(of(500), "HTTP 500");
    }

    fn line(direction: &str, (client, of_client): (&str, &str), server: (&str, &str)) -> String {
        format!(
            "leno_requests_total{{direction=\"{direction}\",client=\"{client}\",client_namespace=\"{of_client}\",\
             server=\"{}\",server_namespace=\"{}\",mtls=\"true\",status=\"200\"}} 7\n",
            server.0, server.1
        )
    }

    #[test]
    fn a_page_tells_of_its_own_pod_alone() {
        let (web, vault) = (("web-7d9-a", "shop"), ("vault-0", "bank"));
        let (counters, left_out) = of(&[
            line("outbound", web, vault),
            line("outbound", vault, web),
            line("outbound", ("web-7d9-a", "bank"), vault),
            line("outbound", ("cart-0", "shop"), vault),
            line("inbound", vault, web),
            line("inbound", web, vault),
            line("outbound", ("other", ""), ("other", "")),
        ]
        .concat());
        assert_eq!(left_out, 4);
        let ends = counters.edges.keys().map(|ends| match ends.inbound {
            true => (&*ends.server.0, &*ends.server.1),
            false => (&*ends.client.0, &*ends.client.1),
        });
        assert_eq!(ends.collect::<Vec<_>>(), [("shop", "web-7d9-a"); 3]);
    }

    #[test]
    fn an_identity_is_of_the_namespace_of_the_pod() {
        let page = |namespace: &str| {
            format!("leno_identity_info{{identity=\"spiffe://a/ns/{namespace}/sa/web\"}} 1\n")
        };
        assert!(of(&page("shop")).0.identity.is_some());
        assert_eq!(of(&page("bank")).0.identity, None);
    }

    #[test]
    fn names_and_numbers_are_bounded() {
        let web = ("web-7d9-a", "shop");
        let mut page: String = (0..MAX_EDGES + 5)
            .map(|nth| line("outbound", web, (&format!("s{nth}"), "x")))
            .collect();
        page += &line("outbound", web, (&"s".repeat(MAX_LABEL + 1), "x"));
        page += &line("outbound", web, ("nan", "x")).replace("} 7", "} NaN");
        for nth in 0..MAX_CAUSES + 3 {
            let cause = format!("mtls=\"true\",cause=\"{nth}\"");
            let text = line("outbound", web, ("s0", "x")).replace("requests_total", "errors_total");
            page += &text.replace("mtls=\"true\"", &cause);
        }
        for nth in 0..MAX_BOUNDS + 2 {
            let bound = format!("mtls=\"true\",le=\"{nth}\"");
            let text = line("outbound", web, ("s0", "x"));
            let text = text.replace("requests_total", "request_duration_seconds_bucket");
            page += &text.replace("mtls=\"true\"", &bound);
        }
        let (counters, left_out) = of(&page);
        assert_eq!((counters.edges.len(), left_out), (MAX_EDGES, 5 + 2 + 3 + 2));
    }
}
