//! Serves the HTTP interface, which is read-only: requests are GET, and answers are JSON.

use std::borrow::Cow;
use std::collections::HashMap;

use hyper::{Method, StatusCode};
use leno_observe::stat::NamespacedName;
use leno_program::content::JSON;
use leno_program::{AdminResponse, refuse_method, respond};
use serde::Serialize;

use crate::hub::{Hub, TimeSpan};
use crate::query::SeriesSubject;
use crate::visible_namespaces::VisibleNamespaces;

/// The prefix of all paths of the interface.
pub const ROOT: &str = "/api/v1/";

/// Answers one request of a reader.
#[must_use]
pub fn answer(
    (hub, sight): (&Hub, &VisibleNamespaces),
    method: &Method,
    path: &str,
    query: Option<&str>,
) -> AdminResponse {
    if let Some(refused) = refuse_method(method, &Method::GET) {
        return refused;
    }
    let mut asked = QueryParameters::of(query.unwrap_or_default());
    // A reader may restrict the answer to some of the namespaces that they may see.
    let narrowed = asked.0.remove("namespaces").map(|names| {
        let names: Vec<&str> = names.split(',').filter(|name| !name.is_empty()).collect();
        sight.within(&names)
    });
    let sight = narrowed.as_ref().unwrap_or(sight);
    let answered = match path.strip_prefix(ROOT) {
        Some("overview") => asked.only(&[]).map(|()| json(&hub.overview(sight))),
        Some("topology") => {
            asked.only(&["at", "window"]).and_then(|()| topology((hub, sight), &asked))
        }
        Some("routes") => asked.only(&["at", "window"]).and_then(|()| routes((hub, sight), &asked)),
        Some("series") => {
            let known = ["workload", "client", "server", "from", "to", "step"];
            asked.only(&known).and_then(|()| series((hub, sight), &asked))
        }
        Some("budget") => {
            asked.only(&["servers", "window", "bound"]).and_then(|()| budget((hub, sight), &asked))
        }
        Some("changes") => {
            asked.only(&["from", "to"]).and_then(|()| Ok(json(&hub.changes(sight, asked.span()?))))
        }
        Some("proxies") => asked.only(&[]).map(|()| json(&hub.proxies(sight))),
        Some("policies") => {
            asked.only(&["at", "window"]).and_then(|()| policies((hub, sight), &asked))
        }
        Some("flows") => asked.only(&[]).map(|()| json(&hub.flows(sight))),
        Some("checks" | "authority" | "document") => Err((
            StatusCode::NOT_FOUND,
            "this is served only by leno dashboard, with the rights of its user".to_owned(),
        )),
        _ => Err((StatusCode::NOT_FOUND, format!("{path} is not a path of this API"))),
    };
    answered.unwrap_or_else(|(status, why)| refuse(status, &why))
}

/// The status and the reason of a rejected request.
type Rejection = (StatusCode, String);

fn topology(
    (hub, sight): (&Hub, &VisibleNamespaces),
    asked: &QueryParameters<'_>,
) -> Result<AdminResponse, Rejection> {
    Ok(json(&hub.topology(sight, asked.number("at")?, asked.number("window")?)))
}

fn routes(
    (hub, sight): (&Hub, &VisibleNamespaces),
    asked: &QueryParameters<'_>,
) -> Result<AdminResponse, Rejection> {
    Ok(json(&hub.routes(sight, asked.number("at")?, asked.number("window")?)))
}

fn policies(
    (hub, sight): (&Hub, &VisibleNamespaces),
    asked: &QueryParameters<'_>,
) -> Result<AdminResponse, Rejection> {
    Ok(json(&hub.policies(sight, asked.number("at")?, asked.number("window")?)))
}

fn series(
    (hub, sight): (&Hub, &VisibleNamespaces),
    asked: &QueryParameters<'_>,
) -> Result<AdminResponse, Rejection> {
    let wanted = match (asked.name("workload")?, asked.name("client")?, asked.name("server")?) {
        (Some(workload), None, None) => SeriesSubject::Workload(workload),
        (None, Some(client), Some(server)) => SeriesSubject::Edge(client, server),
        _ => return Err(bad("pass workload, or client and server, as NAMESPACE/NAME")),
    };
    match hub.series(sight, &wanted, asked.span()?, asked.number("step")?) {
        Some(points) => Ok(json(&points)),
        None => Err((StatusCode::NOT_FOUND, "the history has no data for it".to_owned())),
    }
}

fn budget(
    (hub, sight): (&Hub, &VisibleNamespaces),
    asked: &QueryParameters<'_>,
) -> Result<AdminResponse, Rejection> {
    let servers = asked.0.get("servers").ok_or_else(|| bad("say servers"))?;
    let servers: Option<Vec<NamespacedName>> = servers.split(',').map(name_of).collect();
    let servers = servers
        .ok_or_else(|| bad("servers is not a list of namespace/name separated by commas"))?;
    let window = asked
        .number("window")?
        .ok_or_else(|| bad("the parameter window is missing: pass it in milliseconds"))?;
    Ok(json(&hub.budget(sight, &servers, window, asked.number("bound")?)))
}

fn name_of(text: &str) -> Option<NamespacedName> {
    let (namespace, name) = text.split_once('/')?;
    Some((namespace.to_owned(), name.to_owned()))
}

/// The parameters of a request.
#[derive(Debug)]
struct QueryParameters<'a>(HashMap<Cow<'a, str>, Cow<'a, str>>);

impl<'a> QueryParameters<'a> {
    fn of(query: &'a str) -> Self {
        Self(form_urlencoded::parse(query.as_bytes()).collect())
    }

    fn only(&self, known: &[&str]) -> Result<(), Rejection> {
        match self.0.keys().find(|name| !known.contains(&&***name)) {
            None => Ok(()),
            Some(name) => Err(bad(&format!("there is no parameter {name:?}"))),
        }
    }

    fn number(&self, name: &str) -> Result<Option<u64>, Rejection> {
        let wrong = |_| bad(&format!("{name} is not a number of milliseconds"));
        self.0.get(name).map(|text| text.parse().map_err(wrong)).transpose()
    }

    fn span(&self) -> Result<TimeSpan, Rejection> {
        Ok(TimeSpan { from_ms: self.number("from")?, to_ms: self.number("to")? })
    }

    /// Parses `namespace/name`. The namespace is empty for names outside the mesh.
    fn name(&self, parameter: &str) -> Result<Option<NamespacedName>, Rejection> {
        let Some(text) = self.0.get(parameter) else { return Ok(None) };
        let wrong = || bad(&format!("{parameter} is not namespace/name"));
        name_of(text).ok_or_else(wrong).map(Some)
    }
}

fn bad(why: &str) -> Rejection {
    (StatusCode::BAD_REQUEST, why.to_owned())
}

fn json(value: &impl Serialize) -> AdminResponse {
    respond(StatusCode::OK, JSON, serde_json::to_vec(value).expect("answers have only text keys"))
}

/// An error of the interface: an object with a single field, `error`.
#[must_use]
pub fn refuse(status: StatusCode, why: &str) -> AdminResponse {
    let body = serde_json::json!({ "error": why });
    respond(status, JSON, body.to_string())
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::api::{ControlPlane, MeshState, Restart};
    use crate::history::{Mark, MarkKind};
    use crate::testing::{edge, growth, route, workload};
    use crate::visible_namespaces::HIDDEN;
    use http_body_util::BodyExt as _;
    use leno_observe::stat::EdgeGrowth;

    fn hub() -> (tempfile::TempDir, Hub) {
        let directory = tempfile::tempdir().unwrap();
        let hub = Hub::open("default", directory.path().join("history")).unwrap();
        let state = |control_plane| MeshState { control_plane, ..MeshState::default() };
        let mark = Mark {
            at_ms: 1_000,
            kind: MarkKind::Documents,
            lines: vec!["Service shop/cart changed".to_owned()],
        };
        let mut growth = growth(5.0, vec![edge("web", "cart", 50.0)]);
        growth.routes = vec![route("0", 20.0)];
        hub.take(Some(&growth), state(ControlPlane::Running), vec![mark.clone()]).unwrap();
        hub.take(None, state(ControlPlane::Away), vec![mark]).unwrap();
        (directory, hub)
    }

    async fn get(hub: &Hub, target: &str) -> (u16, serde_json::Value) {
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let answer = answer((hub, &VisibleNamespaces::All), &Method::GET, path, Some(query));
        let status = answer.status().as_u16();
        let body = answer.into_body().collect().await.unwrap().to_bytes();
        (status, serde_json::from_slice(&body).unwrap())
    }

    #[tokio::test]
    async fn every_page_is_json() {
        let (_directory, hub) = hub();
        let (status, overview) = get(&hub, "/api/v1/overview").await;
        assert_eq!((status, &overview["control_plane"]), (200, &"away".into()));
        let (status, topology) = get(&hub, "/api/v1/topology?window=60000").await;
        assert_eq!((status, &topology["edges"][0]["requests_per_s"]), (200, &10.0.into()));
        assert_eq!(topology["problems"][0]["about"]["kind"], "control_plane");
        let (status, routes) = get(&hub, "/api/v1/routes?window=60000").await;
        let route = &routes["routes"][0];
        assert_eq!(
            (status, &route["requests_per_s"], &route["rule"]),
            (200, &4.0.into(), &"0".into())
        );
        let target = "/api/v1/series?client=shop%2Fweb&server=shop/cart";
        let (status, series) = get(&hub, target).await;
        assert_eq!((status, &series["points"][0]["requests"]), (200, &50.into()));
        let target = "/api/v1/budget?servers=shop/web,shop%2Fcart&window=60000&bound=5";
        let (status, budget) = get(&hub, target).await;
        assert_eq!((status, &budget["requests"]), (200, &50.into()), "{budget}");
        assert_eq!((&budget["slow"], &budget["in_time_ms"]), (&0.into(), &5.0.into()), "{budget}");
        let (_, changes) = get(&hub, "/api/v1/changes?from=0").await;
        let kinds: Vec<_> =
            changes["changes"].as_array().unwrap().iter().map(|one| &one["kind"]).collect();
        assert_eq!(kinds, ["documents", "control_plane"]);
    }

    /// A history of two namespaces that call each other and fail, with data for every kind of answer.
    pub(crate) fn two_namespaces() -> (tempfile::TempDir, Hub) {
        let directory = tempfile::tempdir().unwrap();
        let hub = Hub::open("default", directory.path().join("history")).unwrap();
        let moved = |mut one: EdgeGrowth, client: &str, server: &str| {
            (one.client.0, one.server.0) = (client.to_owned(), server.to_owned());
            one.counts.classes[4] = 30.0;
            one
        };
        let edges = vec![
            moved(edge("front", "web", 50.0), "shop", "shop"),
            moved(edge("web", "ledger", 50.0), "shop", "bank"),
            moved(edge("web", "vault", 40.0), "shop", "bank"),
            moved(edge("vault", "ledger", 50.0), "bank", "bank"),
        ];
        let mut growth = growth(5.0, edges);
        for (namespace, name) in [("shop", "web"), ("bank", "ledger")] {
            let mut one = workload(name, (1, 0));
            one.name.0 = namespace.to_owned();
            growth.workloads.push(one);
        }
        let mut theirs = route("0", 20.0);
        (theirs.name.service.0, theirs.name.route) =
            ("bank".to_owned(), "HTTPRoute bank/ledger".to_owned());
        growth.routes = vec![route("0", 20.0), theirs];
        growth.identities =
            [(("bank".to_owned(), "ledger".to_owned()), "spiffe://d/ns/bank/sa/ledger".to_owned())]
                .into();
        let ended = Restart {
            namespace: "bank".to_owned(),
            workload: "ledger".to_owned(),
            instance: "ledger-0".to_owned(),
            at_ms: u64::MAX,
            times: 3,
            ended: "exited with 3".to_owned(),
        };
        let state = MeshState {
            silent: vec!["bank/vault-0: timed out".to_owned()],
            detached: vec!["bank/vault-0".to_owned()],
            restarted: vec![ended.clone()],
            ended: vec![ended],
            ..MeshState::default()
        };
        let mark = |line: &str| Mark {
            at_ms: 1_000,
            kind: MarkKind::Documents,
            lines: vec![line.to_owned(), "Service shop/web changed".to_owned()],
        };
        hub.take(Some(&growth), state, vec![mark("HTTPRoute bank/ledger changed")]).unwrap();
        crate::inventory::tests::fill(&hub);
        (directory, hub)
    }

    #[tokio::test]
    async fn a_reader_sees_nothing_of_other_namespaces_on_any_page() {
        let (_directory, hub) = two_namespaces();
        let shop = VisibleNamespaces::Namespaces([("shop".to_owned(), 0)].into());
        let none = VisibleNamespaces::Namespaces(std::collections::BTreeMap::new());
        let get = async |sight: &VisibleNamespaces, target: &str| {
            let (path, query) = target.split_once('?').unwrap_or((target, ""));
            let answer = answer((&hub, sight), &Method::GET, path, Some(query));
            let status = answer.status().as_u16();
            let body = answer.into_body().collect().await.unwrap().to_bytes();
            (status, String::from_utf8(body.to_vec()).unwrap())
        };
        for (target, is_of_shop) in [
            ("/api/v1/overview", false),
            ("/api/v1/topology?window=60000", true),
            ("/api/v1/routes?window=60000", true),
            ("/api/v1/changes?from=0", true),
            ("/api/v1/series?client=shop/web&server=bank/ledger", false),
            ("/api/v1/series?workload=bank/ledger", false),
            ("/api/v1/budget?servers=bank/ledger&window=60000", false),
            ("/api/v1/proxies", true),
            ("/api/v1/policies?window=60000", true),
            ("/api/v1/flows", true),
        ] {
            let (_, all) = get(&VisibleNamespaces::All, target).await;
            let (_, own) = get(&shop, target).await;
            let (_, nothing) = get(&none, target).await;
            for (text, hidden) in
                [(&own, ["bank", "ledger", "vault"]), (&nothing, ["bank", "shop", "web"])]
            {
                for name in hidden {
                    assert!(!text.contains(name), "{target} shows {name}: {text}");
                }
            }
            assert_eq!(own.contains("shop"), is_of_shop, "{target}: {own}");
            assert!(all != own, "{target} does not tell both namespaces apart");
        }
        // A reader who may see all namespaces can request some of them, and no reader can request more than they
        // may see.
        for target in
            ["topology?window=60000&", "proxies?", "policies?", "flows?", "changes?from=0&"]
        {
            let part = |of: &str| format!("/api/v1/{target}namespaces={of}");
            let (status, text) = get(&VisibleNamespaces::All, &part("shop")).await;
            let hidden = ["ledger", "vault", "bank"].iter().any(|name| text.contains(name));
            assert!(status == 200 && text.contains("shop") && !hidden, "{target}: {text}");
            let (_, text) = get(&shop, &part("shop,bank")).await;
            assert!(text.contains("shop") && !text.contains("ledger"), "{target}: {text}");
        }
        // For this reader, the namespace `shop` was deleted and created again after everything was observed.
        let again = VisibleNamespaces::Namespaces([("shop".to_owned(), u64::MAX)].into());
        let targets = ["topology?window=60000", "routes?window=60000", "changes?from=0", "flows"];
        for target in targets.map(|target| format!("/api/v1/{target}")) {
            let (_, text) = get(&again, &target).await;
            assert!(!text.contains("shop") && !text.contains("web"), "{target}: {text}");
        }
        let (_, own) = get(&shop, "/api/v1/topology?window=60000").await;
        let own: crate::api::Topology = serde_json::from_str(&own).unwrap();
        let ends: Vec<_> = own.edges.iter().map(|one| (&*one.client, &*one.server)).collect();
        assert_eq!(ends, [("front", "web"), ("web", HIDDEN)]);
        assert_eq!(own.edges[1].signals.requests, 150, "two hidden servers are shown as one");
        let (status, points) = get(&shop, "/api/v1/series?client=shop/front&server=shop/web").await;
        assert!(status == 200 && points.contains("\"requests\":80"), "{points}");
        let hidden = "/api/v1/series?client=shop/web&server=/(other%20namespaces)";
        assert!(get(&shop, hidden).await.1.contains("\"requests\":150"));
    }

    #[tokio::test]
    async fn invalid_requests_are_rejected_with_the_reason() {
        let (_directory, hub) = hub();
        for (target, status, why) in [
            ("/api/v1/nothing", 404, "not a path of this API"),
            ("/api/v1/topology?at=now", 400, "at is not a number"),
            ("/api/v1/topology?namespace=shop", 400, "no parameter \"namespace\""),
            ("/api/v1/routes?service=cart", 400, "no parameter \"service\""),
            ("/api/v1/series?workload=web", 400, "namespace/name"),
            ("/api/v1/series", 400, "pass workload, or client and server"),
            ("/api/v1/budget?window=5", 400, "say servers"),
            (
                "/api/v1/budget?servers=shop/web",
                400,
                "the parameter window is missing: pass it in milliseconds",
            ),
            ("/api/v1/budget?servers=shop/web,cart&window=5", 400, "namespace/name"),
            ("/api/v1/series?workload=shop/db", 404, "has no data"),
            ("/api/v1/policies?at=now", 400, "at is not a number"),
            ("/api/v1/proxies?at=1", 400, "no parameter \"at\""),
            ("/api/v1/checks", 404, "served only by leno dashboard"),
            ("/api/v1/authority", 404, "served only by leno dashboard"),
        ] {
            let (got, body) = get(&hub, target).await;
            assert_eq!(got, status, "{target}: {body}");
            assert!(body["error"].as_str().unwrap().contains(why), "{target}: {body}");
        }
        let post = answer((&hub, &VisibleNamespaces::All), &Method::POST, "/api/v1/overview", None);
        assert_eq!(post.status(), StatusCode::METHOD_NOT_ALLOWED);
    }
}
