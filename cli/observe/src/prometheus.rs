//! Reads the counts of proxies from a Prometheus that scrapes them. They are the same numbers as from the proxies
//! themselves.
//!
//! There is one query for each family, `sum by (LABELS) (increase(FAMILY[WINDOW]))`, with the labels that a report
//! needs and without those of the scrape. Prometheus adds up all others, so it need not send them.

use std::time::Duration;

use serde::Deserialize;

use crate::metrics::Sample;
use crate::stat::{COUNTERS, GAUGES, IDENTITY};

/// The labels that a report needs; a family has some of them.
const LABELS: &str = "direction,client,client_namespace,server,server_namespace,service,service_namespace,mtls,status,\
                      grpc_status,le,cause,reason,route,rule";

/// A family, and the query for its counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FamilyQuery {
    /// The family.
    pub family: &'static str,
    /// The query in PromQL.
    pub text: String,
}

/// The queries for a report on the window up to now: of all namespaces, or of the edges that begin or end in one.
#[must_use]
pub fn queries(window: Duration, namespace: Option<&str>) -> Vec<FamilyQuery> {
    let ms = window.as_millis();
    let of = |family: &'static str, range: &dyn Fn(String) -> String| {
        let sum = |matched: String| {
            format!("sum by ({LABELS}) ({})", range(format!("{family}{matched}")))
        };
        let by = |label: &str, namespace: &str| {
            let namespace = namespace.replace('\\', "\\\\").replace('"', "\\\"");
            sum(format!("{{{label}=\"{namespace}\"}}"))
        };
        let text = match namespace {
            None => sum(String::new()),
            Some(name) if family.starts_with("leno_route_") => by("service_namespace", name),
            Some(name) => {
                format!("({} or {})", by("client_namespace", name), by("server_namespace", name))
            }
        };
        FamilyQuery { family, text: format!("{text} > 0") }
    };
    let counters =
        COUNTERS.iter().map(|family| of(family, &|one| format!("increase({one}[{ms}ms])")));
    // Of all namespaces, because the other end of an edge may be in any, and its proxy is not known before the answer.
    // The value is the time of Prometheus' last scrape: if a workload has two identities, the newer one is used.
    let identities =
        format!("max by (identity,workload,workload_namespace) (timestamp({IDENTITY}))");
    let identities = FamilyQuery { family: IDENTITY, text: identities };
    counters.chain(GAUGES.iter().map(|family| of(family, &|one| one))).chain([identities]).collect()
}

/// The answer of `/api/v1/query`.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Answer {
    status: String,
    #[serde(default)]
    error: String,
    data: Option<Data>,
}

#[derive(Deserialize)]
struct Data {
    result: Vec<Series>,
}

#[derive(Deserialize)]
struct Series {
    metric: std::collections::BTreeMap<String, String>,
    /// The time, and the number as text.
    value: (f64, String),
}

/// The samples of a family in the answer to its query.
///
/// # Errors
/// If Prometheus refuses the query, or the body is no answer to a query. The text gives the reason.
pub fn samples(family: &str, body: &str) -> Result<Vec<Sample>, String> {
    let answer: Answer = serde_json::from_str(body)
        .map_err(|error| format!("the response is not that of a Prometheus: {error}"))?;
    let Some(data) = answer.data.filter(|_| answer.status == "success") else {
        return Err(answer.error);
    };
    let sample = |one: Series| {
        let value = one.value.1.parse().ok().filter(|value: &f64| value.is_finite())?;
        Some(Sample { name: family.to_owned(), labels: one.metric, value })
    };
    Ok(data.result.into_iter().filter_map(sample).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_family_is_asked_for_with_what_a_report_needs() {
        let all = queries(Duration::from_secs(300), None);
        let of = |family: &str| all.iter().find(|one| one.family == family).unwrap().text.clone();
        let requests = of("leno_requests_total");
        assert!(requests.starts_with("sum by (direction,client,"), "{requests}");
        assert!(requests.ends_with("(increase(leno_requests_total[300000ms])) > 0"), "{requests}");
        assert!(of("leno_tcp_open_connections").ends_with("(leno_tcp_open_connections) > 0"));
        assert!(of(IDENTITY).ends_with("(timestamp(leno_identity_info))"), "{}", of(IDENTITY));
        let all = queries(Duration::from_secs(300), Some("a\"b"));
        let of = |family: &str| all.iter().find(|one| one.family == family).unwrap().text.clone();
        let opened = of("leno_tcp_open_total");
        let client =
            "(increase(leno_tcp_open_total{client_namespace=\"a\\\"b\"}[300000ms])) or sum by";
        assert!(opened.contains(client) && opened.ends_with("[300000ms]))) > 0"), "{opened}");
        assert!(of("leno_route_retries_total").contains("{service_namespace="));
    }

    #[test]
    fn an_answer_is_samples_or_the_reason_why_not() {
        let body = r#"{"status":"success","data":{"resultType":"vector","result":[
            {"metric":{"client":"web-0"},"value":[1700000000.5,"12.5"]},
            {"metric":{},"value":[1700000000.5,"NaN"]}]}}"#;
        let found = samples("leno_requests_total", body).unwrap();
        assert_eq!((found.len(), found[0].value, &*found[0].labels["client"]), (1, 12.5, "web-0"));
        let refused = r#"{"status":"error","errorType":"bad_data","error":"parse error"}"#;
        assert_eq!(samples("x", refused).unwrap_err(), "parse error");
        assert!(
            samples("x", "<html>")
                .unwrap_err()
                .starts_with("the response is not that of a Prometheus")
        );
    }
}
