//! The certificate authority of a mesh runs in the control plane. This module asks all replicas of the control plane
//! for their reports on it, and writes operators' requests to it.

use leno_identity::OperatorRequest;
use leno_identity::report::IdentityReport;
use leno_kube::Client;
use leno_types::ports;
use serde_json::json;

use crate::pod_admin::{PodAdminClient, PodName};
use crate::pods::running;
use crate::removal::CONTROLLER;
use crate::{Error, objects};

/// The field manager of the requests.
const FIELD_MANAGER: &str = "leno";

/// The reports of the control plane's replicas, merged into one. Each replica knows only its own proxies, and only
/// the leader knows what a rotation waits for.
///
/// # Errors
/// No replica runs, or one of them does not answer.
pub async fn report(client: &Client, namespace: &str) -> Result<IdentityReport, Error> {
    let running = running(client, Some(namespace)).await?;
    let replicas = running.into_iter().filter(|pod| pod.ready && pod.owner.name == CONTROLLER);
    let reach = PodAdminClient::new(client.clone());
    let mut whole: Option<IdentityReport> = None;
    for replica in replicas {
        let report = of_replica(&reach, &replica.name).await?;
        whole = Some(match whole {
            None => report,
            Some(before) => merged(before, report),
        });
    }
    let none = || {
        let what = format!("query the control plane in {namespace}");
        let lack = format!(
            "none of its replicas is ready: kubectl -n {namespace} describe pods -l \
             app.kubernetes.io/name={CONTROLLER}"
        );
        Error::Pod(what, lack)
    };
    whole.ok_or_else(none)
}

async fn of_replica(reach: &PodAdminClient, pod: &PodName) -> Result<IdentityReport, Error> {
    let reply = reach.get_from(pod, ports::ADMIN, "/identity").await?;
    let said = |why: String| Error::Pod(format!("query /identity of pod {pod}"), why);
    if reply.status != 200 {
        return Err(said(format!("status {}", reply.status)));
    }
    serde_json::from_str(&reply.body).map_err(|error| said(error.to_string()))
}

/// Merges two reports. Proxies and what a rotation waits for are added up; a problem of either is kept. All else
/// (phase, issuer, roots and so on) is from the report whose rotation phase began later: the other replica has not
/// noticed the change yet.
fn merged(one: IdentityReport, other: IdentityReport) -> IdentityReport {
    let (mut whole, rest) =
        if one.since_unix_s >= other.since_unix_s { (one, other) } else { (other, one) };
    whole.proxies.add(rest.proxies);
    whole.waits.extend(rest.waits);
    whole.problem = whole.problem.or(rest.problem);
    whole
}

/// Writes a request to the authority, as a ConfigMap. The leader of the replicas handles it.
///
/// # Errors
/// The API server refuses the request.
pub async fn ask(client: &Client, namespace: &str, request: &OperatorRequest) -> Result<(), Error> {
    let json = serde_json::to_string(request).expect("two texts are always JSON");
    let map = json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": OperatorRequest::CONFIG_MAP, "namespace": namespace,
            "labels": {"app.kubernetes.io/part-of": "leno"}},
        "data": {OperatorRequest::KEY: json},
    });
    objects::apply(client, &map, FIELD_MANAGER).await.map(drop)
}
