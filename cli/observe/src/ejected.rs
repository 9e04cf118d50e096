//! Endpoints that proxies currently eject, according to their metrics.

use std::fmt;

use serde::Serialize;

use crate::metrics::Sample;

/// The gauge of proxies that counts how many workers eject an endpoint, by edge and reason.
const EJECTED: &str = "leno_endpoint_ejected";

/// An endpoint that a client's proxy ejects.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct EjectedEndpoint {
    /// The client's namespace.
    pub client_namespace: String,
    /// The client's instance.
    pub client: String,
    /// The endpoint's namespace.
    pub server_namespace: String,
    /// The endpoint's instance; empty if the mesh does not know it.
    pub server: String,
    /// The service through which the client called it; empty if the client called the workload by its address.
    pub service: String,
    /// Why it is ejected: `unreachable` or `failing`.
    pub reason: String,
}

impl EjectedEndpoint {
    /// The ejected endpoints in a proxy's metrics.
    #[must_use]
    pub fn of(samples: &[Sample]) -> Vec<Self> {
        let mut all: Vec<Self> = samples.iter().filter_map(Self::of_sample).collect();
        all.sort();
        all
    }

    pub(crate) fn of_sample(sample: &Sample) -> Option<Self> {
        let label = |name: &str| sample.labels.get(name).cloned().unwrap_or_default();
        (sample.name == EJECTED && sample.value > 0.0).then(|| Self {
            client_namespace: label("client_namespace"),
            client: label("client"),
            server_namespace: label("server_namespace"),
            server: label("server"),
            service: label("service"),
            reason: label("reason"),
        })
    }

    /// The endpoint and the reason as text: `shop/web-0 of web (unreachable)`.
    #[must_use]
    pub fn endpoint(&self) -> String {
        let Self { server_namespace, server, service, reason, .. } = self;
        match (server.as_str(), service.as_str()) {
            ("", "") => format!("an address outside ({reason})"),
            ("", service) => format!("an endpoint of {server_namespace}/{service} ({reason})"),
            (server, "") => format!("{server_namespace}/{server} ({reason})"),
            (server, service) => format!("{server_namespace}/{server} of {service} ({reason})"),
        }
    }
}

impl fmt::Display for EjectedEndpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{} ejects {}", self.client_namespace, self.client, self.endpoint())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics;

    #[test]
    fn ejected_endpoints_are_named_with_the_reason() {
        let page = "# TYPE leno_endpoint_ejected gauge\n\
            leno_endpoint_ejected{direction=\"outbound\",client=\"cart-0\",client_namespace=\"shop\",\
            server=\"web-1\",server_namespace=\"shop\",service=\"web\",mtls=\"true\",reason=\"failing\"} 2\n\
            leno_endpoint_ejected{direction=\"outbound\",client=\"cart-0\",client_namespace=\"shop\",\
            server=\"\",server_namespace=\"shop\",service=\"api\",mtls=\"false\",reason=\"unreachable\"} 1\n";
        let said: Vec<String> = EjectedEndpoint::of(&metrics::parse(page))
            .iter()
            .map(EjectedEndpoint::to_string)
            .collect();
        assert_eq!(
            said,
            [
                "shop/cart-0 ejects an endpoint of shop/api (unreachable)",
                "shop/cart-0 ejects shop/web-1 of web (failing)",
            ]
        );
    }
}
