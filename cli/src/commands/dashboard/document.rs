//! A route or a policy for its page: the document as YAML, and its status. It is read with the rights of the user of
//! `leno dashboard`: as root in `leno up`, on a cluster by the API server.

use std::collections::HashMap;

use anyhow::{Context as _, Result};
use leno_analysis::Severity;
use leno_local::layout::Layout;
use leno_local::{analysis, status::Status};
use leno_observe::admin::Reply;
use leno_operate::{ObjectReference, documents, is_absent};
use leno_resources::Kind;
use serde::Serialize;
use serde_json::{Value, json};

use crate::commands::{AnyMesh, ChosenMesh};

/// The kinds that have a page: routes and policies, none of which holds a secret.
const KINDS: [Kind; 8] = [
    Kind::HttpRoute,
    Kind::GrpcRoute,
    Kind::TlsRoute,
    Kind::TcpRoute,
    Kind::BackendTlsPolicy,
    Kind::TrafficPolicy,
    Kind::RateLimitPolicy,
    Kind::AuthorizationPolicy,
];
/// Longest YAML that is shown, in bytes; the rest is left out. Objects of a cluster have up to 1.5 MB.
const MAX_YAML: usize = 64 * 1024;
/// Most conditions that are shown: those of 16 targets, which is as many as Gateway API permits.
const MAX_CONDITIONS: usize = 128;

/// What the page shows.
#[derive(Debug, Serialize)]
struct Document {
    kind: String,
    namespace: String,
    name: String,
    yaml: String,
    status: Vec<Condition>,
    no_status: Option<String>,
}

/// One condition of the status.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct Condition {
    of: String,
    r#type: String,
    status: String,
    reason: String,
    message: String,
}

/// Answers for a query, `kind=HTTPRoute&name=shop/cart`.
pub(super) async fn answer(mesh: &AnyMesh, query: &str) -> Reply {
    let refused = |status, why: &str| Reply { status, body: json!({"error": why}).to_string() };
    let parameters: HashMap<String, String> =
        form_urlencoded::parse(query.as_bytes()).into_owned().collect();
    if let Some(name) = parameters.keys().find(|name| !["kind", "name"].contains(&name.as_str())) {
        return refused(400, &format!("there is no parameter {name:?}"));
    }
    let kind = parameters.get("kind");
    let Some(kind) = KINDS.into_iter().find(|one| kind.is_some_and(|kind| one.as_str() == kind))
    else {
        return refused(400, "say the kind of a route or a policy, such as kind=HTTPRoute");
    };
    let name = parameters.get("name").and_then(|name| name.split_once('/'));
    let Some((namespace, name)) =
        name.filter(|(namespace, name)| is_name(namespace) && is_name(name))
    else {
        return refused(400, "say its name, name=namespace/name");
    };
    let read = match mesh.choose() {
        Ok(ChosenMesh::Machine(mesh)) => of_machine(&mesh, kind, (namespace, name)),
        Ok(ChosenMesh::Cluster(target)) => of_cluster(&target, kind, (namespace, name)).await,
        Err(error) => Err(error),
    };
    match read {
        Ok(Some(document)) => {
            let body = serde_json::to_string(&document).expect("a document has only text");
            Reply { status: 200, body }
        }
        Ok(None) => refused(404, &format!("there is no {} {namespace}/{name}", kind.as_str())),
        Err(error) => {
            let forbidden = error.downcast_ref::<leno_operate::Error>();
            let status =
                if forbidden.is_some_and(leno_operate::Error::is_forbidden) { 403 } else { 502 };
            refused(status, &format!("{error:#}"))
        }
    }
}

/// Whether it can be the name of an object. It becomes a part of a path.
fn is_name(name: &str) -> bool {
    let fits = |byte: u8| {
        byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'-' | b'.')
    };
    (1..=253).contains(&name.len()) && name.bytes().all(fits) && !name.starts_with('.')
}

/// Of a mesh of this machine: what its control plane reads, and what `leno analyze` finds in it.
fn of_machine(mesh: &str, kind: Kind, (namespace, name): (&str, &str)) -> Result<Option<Document>> {
    let layout = Layout::new(mesh)?;
    Status::read(&layout)?;
    let path = layout.state().join("state.yaml");
    let text = std::fs::read_to_string(&path)
        .with_context(|| format!("cannot read {}", path.display()))?;
    let is_one = |one: &&str| {
        documents(one).is_ok_and(|all| {
            all.iter().any(|one| {
                let of = &one["metadata"];
                one["kind"] == kind.as_str() && of["namespace"] == namespace && of["name"] == name
            })
        })
    };
    let Some(yaml) = text.split("---\n").find(is_one) else { return Ok(None) };
    let object = format!("{} {namespace}/{name}", kind.as_str());
    let (status, no_status) = match analysis::followed_by(mesh) {
        Ok((files, ranges)) => {
            let found = analysis::findings(&files, ranges);
            let own = found.into_iter().filter(|one| one.object == object);
            let condition = |one: leno_analysis::Finding| {
                let is_error = one.severity == Severity::Error;
                let message = one.to_string();
                analyzed(if is_error { "False" } else { "Unknown" }, one.code, message)
            };
            let all: Vec<Condition> = own.take(MAX_CONDITIONS).map(condition).collect();
            let good = || {
                let message = "leno analyze finds no mistake in it".to_owned();
                vec![analyzed("True", "NoMistakes", message)]
            };
            (if all.is_empty() { good() } else { all }, None)
        }
        Err(error) => (Vec::new(), Some(error.to_string())),
    };
    let (kind, namespace, name) = (kind.as_str().to_owned(), namespace.to_owned(), name.to_owned());
    Ok(Some(Document { kind, namespace, name, yaml: bounded(yaml), status, no_status }))
}

fn analyzed(status: &str, reason: &str, message: String) -> Condition {
    Condition {
        of: String::new(),
        r#type: "Analyzed".to_owned(),
        status: status.to_owned(),
        reason: reason.to_owned(),
        message,
    }
}

/// Of a cluster: the object as the API server has it.
async fn of_cluster(
    target: &leno_operate::Target,
    kind: Kind,
    (namespace, name): (&str, &str),
) -> Result<Option<Document>> {
    let (group, version) = kind.api_version().split_once('/').unwrap_or(("", kind.api_version()));
    let of = ObjectReference {
        group: group.to_owned(),
        version: version.to_owned(),
        kind: kind.as_str().to_owned(),
        namespace: Some(namespace.to_owned()),
        name: name.to_owned(),
    };
    let client = leno_operate::connect(target).await?;
    let object = match of.api(&client).get(name).await {
        Ok(object) => object,
        Err(error) if is_absent(&error) => return Ok(None),
        Err(error) => {
            return Err(leno_operate::Error::api(format!("get {}", of.said()))(error).into());
        }
    };
    let mut object = serde_json::to_value(object)?;
    let status = conditions(&object["status"]);
    let no_status = status.is_empty().then(|| "no control plane has written one".to_owned());
    // What the API server and its clients keep of it.
    if let Some(all) = object.as_object_mut() {
        all.remove("status");
    }
    if let Some(metadata) = object["metadata"].as_object_mut() {
        metadata.retain(|field, _| {
            matches!(
                field.as_str(),
                "name"
                    | "namespace"
                    | "labels"
                    | "annotations"
                    | "creationTimestamp"
                    | "generation"
            )
        });
        if let Some(all) = metadata.get_mut("annotations").and_then(Value::as_object_mut) {
            all.remove("kubectl.kubernetes.io/last-applied-configuration");
        }
    }
    let yaml = serde_saphyr::to_string(&object).context("cannot write the document as YAML")?;
    Ok(Some(Document {
        kind: of.kind,
        namespace: namespace.to_owned(),
        name: name.to_owned(),
        yaml: bounded(&yaml),
        status,
        no_status,
    }))
}

/// The conditions of a route (`parents`) or a policy (`ancestors`), or of the object itself.
fn conditions(status: &Value) -> Vec<Condition> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let read = |of: &str, all: &Value| -> Vec<Condition> {
        let condition = |one: &Value| Condition {
            of: of.to_owned(),
            r#type: text(&one["type"]),
            status: text(&one["status"]),
            reason: text(&one["reason"]),
            message: text(&one["message"]),
        };
        all.as_array().into_iter().flatten().map(condition).collect()
    };
    let attached = [("parents", "parentRef"), ("ancestors", "ancestorRef")];
    let entries = attached.into_iter().flat_map(|(list, reference)| {
        let all = status[list].as_array().into_iter().flatten();
        all.map(move |entry| (&entry[reference], &entry["conditions"]))
    });
    let of_entries = entries.flat_map(|(reference, all)| {
        let kind = reference["kind"].as_str().unwrap_or("Gateway");
        let name = [&reference["namespace"], &reference["name"]].map(text);
        let name =
            name.iter().filter(|part| !part.is_empty()).cloned().collect::<Vec<_>>().join("/");
        let section =
            reference["sectionName"].as_str().map(|one| format!(" {one}")).unwrap_or_default();
        read(&format!("{kind} {name}{section}"), all)
    });
    read("", &status["conditions"]).into_iter().chain(of_entries).take(MAX_CONDITIONS).collect()
}

/// The text up to the bound.
fn bounded(yaml: &str) -> String {
    if yaml.len() <= MAX_YAML {
        return yaml.to_owned();
    }
    let cut = yaml.floor_char_boundary(MAX_YAML);
    format!("{}\n# the rest is left out: the document has {} bytes\n", &yaml[..cut], yaml.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_conditions_of_each_target_are_read() {
        let condition =
            json!({"type": "Accepted", "status": "False", "reason": "NoMatch", "message": "x"});
        let read = conditions(&json!({
            "parents": [{"parentRef": {"kind": "Service", "namespace": "shop", "name": "cart"}, "conditions": [condition]}],
            "ancestors": [{"ancestorRef": {"name": "web", "sectionName": "http"}, "conditions": [condition]}],
        }));
        let of: Vec<&str> = read.iter().map(|one| &*one.of).collect();
        assert_eq!(of, ["Service shop/cart", "Gateway web http"]);
        assert_eq!((&*read[0].status, &*read[0].reason), ("False", "NoMatch"));
        assert!(conditions(&Value::Null).is_empty());
    }

    #[test]
    fn a_name_is_no_path() {
        for wrong in ["", "..", ".", "a/b", "A", "a?b", "a%2f"] {
            assert!(!is_name(wrong), "{wrong}");
        }
        assert!(is_name("cart-v2.internal"));
        let long = "é".repeat(MAX_YAML);
        assert!(bounded(&long).len() < MAX_YAML + 100 && bounded("a: 1\n") == "a: 1\n");
    }
}
