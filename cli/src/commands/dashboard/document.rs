//! Reads the document of a route or a policy for the page that shows it: as YAML, with its status. It is read with
//! the rights of the user of `leno dashboard`: as root for `leno up`, through the API server for a cluster. Values
//! whose names suggest a secret are masked, as in taps.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow};
use leno_analysis::{Finding, Severity};
use leno_local::layout::Layout;
use leno_local::{analysis, status::MeshStatus};
use leno_observe::admin::AdminReply;
use leno_operate::{ObjectReference, documents, is_absent};
use leno_resources::{Kind, Object, ObjectKey, to_yaml};
use leno_telemetry::tap::{MASK, is_secret};
use serde::Serialize;
use serde_json::{Map, Value, json};
use tokio::sync::Mutex;

use crate::commands::{AnyMesh, ChosenMesh};

/// The kinds that have a page: routes and policies.
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
/// Most conditions that are shown: those of 16 targets. The Gateway API permits no more targets.
const MAX_CONDITIONS: usize = 128;
/// How long the documents of a mesh on this machine are cached.
const HOLDS: Duration = Duration::from_secs(10);

/// The content of the page.
#[derive(Debug, Serialize)]
struct Document {
    kind: String,
    namespace: String,
    name: String,
    yaml: String,
    status: Vec<Condition>,
    /// Why there is no status; `None` if there is one.
    no_status: Option<String>,
}

/// One condition of the status.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct Condition {
    /// The object that the condition is about, such as `Gateway shop/edge`; empty if it is the document itself.
    of: String,
    r#type: String,
    status: String,
    reason: String,
    message: String,
}

/// The documents of a mesh.
#[derive(Default)]
pub(super) struct Documents {
    /// The cached documents of a mesh on this machine. One thread at a time reads them, while others wait.
    kept: Arc<Mutex<Option<LocalDocuments>>>,
}

/// The objects that the control plane of a mesh on this machine reads, and the findings of `leno analyze` in them.
struct LocalDocuments {
    mesh: String,
    at: Instant,
    objects: BTreeMap<ObjectKey, Object>,
    findings: Result<Vec<Finding>, String>,
}

impl Documents {
    /// The document from a mesh on this machine. Runs on another thread, because reading a large mesh takes long.
    async fn of_machine(&self, mesh: String, key: ObjectKey) -> Result<Option<Document>> {
        let mut kept = self.kept.clone().lock_owned().await;
        let work = move || -> Result<Option<Document>> {
            let fresh = kept.take().filter(|one| one.mesh == mesh && one.at.elapsed() < HOLDS);
            let all = match fresh {
                Some(all) => all,
                None => LocalDocuments::read(mesh)?,
            };
            kept.insert(all).document(&key)
        };
        tokio::task::spawn_blocking(work).await?
    }
}

/// Answers a query, such as `kind=HTTPRoute&name=shop/cart`.
pub(super) async fn answer(all: &Documents, mesh: &AnyMesh, query: &str) -> AdminReply {
    let refused =
        |status, why: &str| AdminReply { status, body: json!({"error": why}).to_string() };
    let parameters: HashMap<String, String> =
        form_urlencoded::parse(query.as_bytes()).into_owned().collect();
    if let Some(name) = parameters.keys().find(|name| !["kind", "name"].contains(&name.as_str())) {
        return refused(400, &format!("there is no parameter {name:?}"));
    }
    let kind = parameters.get("kind");
    let Some(kind) = KINDS.into_iter().find(|one| kind.is_some_and(|kind| one.as_str() == kind))
    else {
        return refused(
            400,
            "the parameter kind is missing or unknown: pass the kind of a route or \
             a policy, such as kind=HTTPRoute",
        );
    };
    let name = parameters.get("name").and_then(|name| name.split_once('/'));
    let Some((namespace, name)) =
        name.filter(|(namespace, name)| is_name(namespace) && is_name(name))
    else {
        return refused(400, "the parameter name is missing: pass name=NAMESPACE/NAME");
    };
    let read = match mesh.choose() {
        Ok(ChosenMesh::Machine(mesh)) => {
            let (namespace, name) = (namespace.to_owned(), name.to_owned());
            all.of_machine(mesh, ObjectKey { kind, namespace, name }).await
        }
        Ok(ChosenMesh::Cluster(target)) => of_cluster(&target, kind, (namespace, name)).await,
        Err(error) => Err(error),
    };
    match read {
        Ok(Some(document)) => {
            let body = serde_json::to_string(&document).expect("a document has only text");
            AdminReply { status: 200, body }
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

/// Whether a text can be the name of an object. Other texts are refused, because the name becomes a part of a
/// path.
fn is_name(name: &str) -> bool {
    let fits = |byte: u8| {
        byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'-' | b'.')
    };
    (1..=253).contains(&name.len()) && name.bytes().all(fits) && !name.starts_with('.')
}

impl LocalDocuments {
    fn read(mesh: String) -> Result<Self> {
        let layout = Layout::new(&mesh)?;
        MeshStatus::read(&layout)?;
        let objects = of_state(&layout.state().join("state.yaml"))?;
        let findings = analysis::followed_by(&mesh)
            .map(|(files, ranges)| analysis::of_mesh_files(&files, ranges).findings)
            .map_err(|error| error.to_string());
        Ok(Self { mesh, at: Instant::now(), objects, findings })
    }

    fn document(&self, key: &ObjectKey) -> Result<Option<Document>> {
        let Some(object) = self.objects.get(key) else { return Ok(None) };
        let read = documents(&to_yaml(object))?
            .into_iter()
            .next()
            .context("the object has no document")?;
        let (status, no_status) = match &self.findings {
            Ok(found) => (found_in(found, &key.to_string()), None),
            Err(why) => (Vec::new(), Some(why.clone())),
        };
        Document::of(key, read, (status, no_status)).map(Some)
    }
}

/// The routes and policies of a file.
fn of_state(path: &Path) -> Result<BTreeMap<ObjectKey, Object>> {
    let read = leno_resources::load(&[path.to_owned()]).map_err(|problems| {
        let said: Vec<String> = problems.iter().map(ToString::to_string).collect();
        anyhow!("cannot read {}: {}", path.display(), said.join("; "))
    })?;
    let objects = read.objects.into_iter().map(|one| (one.value.key(), one.value));
    Ok(objects.filter(|(key, _)| KINDS.contains(&key.kind)).collect())
}

/// The findings of `leno analyze` about an object, such as `HTTPRoute shop/cart`.
fn found_in(found: &[Finding], object: &str) -> Vec<Condition> {
    let condition = |one: &Finding| {
        let is_error = one.severity == Severity::Error;
        analyzed(if is_error { "False" } else { "Unknown" }, one.code, one.to_string())
    };
    let own = found.iter().filter(|one| one.object == object);
    let all: Vec<Condition> = own.take(MAX_CONDITIONS).map(condition).collect();
    if !all.is_empty() {
        return all;
    }
    let good = "leno analyze finds no mistake in it".to_owned();
    vec![analyzed("True", "NoMistakes", good)]
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

/// The document from a cluster: the object as the API server stores it.
async fn of_cluster(
    target: &leno_operate::ClusterTarget,
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
    let key = ObjectKey { kind, namespace: namespace.to_owned(), name: name.to_owned() };
    of_api_server(&key, serde_json::to_value(object)?).map(Some)
}

/// The document for an object as the API server stores it.
fn of_api_server(key: &ObjectKey, object: Value) -> Result<Document> {
    let status = conditions(&object["status"]);
    let no_status = status.is_empty().then(|| "no control plane has written one".to_owned());
    Document::of(key, object, (status, no_status))
}

impl Document {
    /// The document without secrets, and without the fields that the API server and its clients manage.
    fn of(
        key: &ObjectKey,
        mut object: Value,
        (status, no_status): (Vec<Condition>, Option<String>),
    ) -> Result<Self> {
        if let Some(all) = object.as_object_mut() {
            all.remove("status");
        }
        if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
            metadata.retain(|field, _| KEPT.contains(&field.as_str()));
            if let Some(all) = metadata.get_mut("annotations").and_then(Value::as_object_mut) {
                mask_annotations(all);
            }
        }
        mask_values(&mut object);
        let yaml = serde_saphyr::to_string(&object).context("cannot write it as YAML")?;
        Ok(Self {
            kind: key.kind.as_str().to_owned(),
            namespace: key.namespace.clone(),
            name: key.name.clone(),
            yaml: bounded(&yaml),
            status,
            no_status,
        })
    }
}

/// The fields of the metadata that are shown.
const KEPT: [&str; 6] =
    ["name", "namespace", "labels", "annotations", "creationTimestamp", "generation"];

/// Removes annotations in which programs store the whole applied document, because that copy is not masked.
fn mask_annotations(all: &mut Map<String, Value>) {
    let is_copy = |value: &str| value.contains("apiVersion") && value.contains("kind");
    all.retain(|_, value| !value.as_str().is_some_and(is_copy));
    for (name, value) in all {
        if is_secret(name) {
            *value = MASK.into();
        }
    }
}

/// Masks the values of headers and parameters in matches and filters, if their names suggest a secret.
fn mask_values(value: &mut Value) {
    match value {
        Value::Array(all) => all.iter_mut().for_each(mask_values),
        Value::Object(fields) => {
            if fields.get("name").and_then(Value::as_str).is_some_and(is_secret) {
                for field in ["value", "values"] {
                    match fields.get_mut(field) {
                        Some(Value::Array(all)) => all.fill(MASK.into()),
                        Some(one) => *one = MASK.into(),
                        None => {}
                    }
                }
            }
            fields.values_mut().for_each(mask_values);
        }
        _ => {}
    }
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

/// The text, cut off at the maximum length.
fn bounded(yaml: &str) -> String {
    if yaml.len() <= MAX_YAML {
        return yaml.to_owned();
    }
    let cut = yaml.floor_char_boundary(MAX_YAML);
    format!("{}\n# truncated: the document has {} bytes\n", &yaml[..cut], yaml.len())
}

#[cfg(test)]
mod tests {
    use leno_dashboard::grpc::proto;

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

    fn key() -> ObjectKey {
        let (namespace, name) = ("shop".to_owned(), "web".to_owned());
        ObjectKey { kind: Kind::HttpRoute, namespace, name }
    }

    #[test]
    fn a_document_shows_neither_secrets_nor_what_programs_keep_of_it() {
        let basic = json!({"name": "Authorization", "value": "Basic c2VjcmV0"});
        let document = of_api_server(
            &key(),
            json!({
                "apiVersion": "gateway.networking.k8s.io/v1", "kind": "HTTPRoute",
                "metadata": {
                    "name": "web", "namespace": "shop", "uid": "c2VjcmV0", "resourceVersion": "9",
                    "managedFields": [{"manager": "c2VjcmV0"}],
                    "annotations": {
                        "kubectl.kubernetes.io/last-applied-configuration": "{\"apiVersion\":1,\"kind\":\"c2VjcmV0\"}",
                        "kapp.k14s.io/original": "{\"kind\":1,\"apiVersion\":\"c2VjcmV0\"}",
                        "shop.example/api-key": "c2VjcmV0",
                        "shop.example/team": "web",
                    },
                },
                "spec": {"rules": [{
                    "matches": [{
                        "headers": [{"name": "X-Api-Key", "value": "c2VjcmV0"}, {"name": "x-user", "value": "ann"}],
                        "queryParams": [{"name": "access_token", "value": "c2VjcmV0"}],
                    }],
                    "filters": [{"type": "RequestHeaderModifier", "requestHeaderModifier": {"set": [basic], "add": [basic]}}],
                    "backendRefs": [{"name": "token-service", "port": 80}],
                }]},
                "status": {"parents": [{"parentRef": {"name": "web"}, "conditions": [
                    {"type": "Accepted", "status": "True", "reason": "c2VjcmV0", "message": ""}]}]},
            }),
        )
        .unwrap();
        let yaml = &document.yaml;
        assert!(!yaml.contains("c2VjcmV0"), "{yaml}");
        for kept in ["X-Api-Key", "ann", "Authorization", "token-service", "80", "team: web"] {
            assert!(yaml.contains(kept), "{kept}: {yaml}");
        }
        assert_eq!(yaml.matches(MASK).count(), 5, "{yaml}");
        assert_eq!((document.status.len(), document.no_status), (1, None));
        let policy =
            json!({"rules": [{"headers": [{"name": "x-session", "values": ["a1", "b2"]}]}]});
        let yaml = of_api_server(&key(), policy).unwrap().yaml;
        assert!(!yaml.contains("a1") && !yaml.contains("b2") && yaml.contains(MASK), "{yaml}");
    }

    #[test]
    fn a_document_is_the_one_that_the_state_has_and_no_part_of_another() {
        let route = |more: &str| {
            format!(
                "apiVersion: gateway.networking.k8s.io/v1\nkind: HTTPRoute\n\
                 metadata: {{name: web, namespace: shop{more}}}\n\
                 spec: {{parentRefs: [{{kind: Service, group: \"\", name: web}}], hostnames: [real.example]}}\n"
            )
        };
        let text = "|\n      ---\n      kind: HTTPRoute\n      metadata: {name: web, namespace: shop}\n      \
                    spec: {hostnames: [false.example]}\n";
        let config = format!(
            "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: c, namespace: shop}}\ndata:\n    route: {text}"
        );
        let pem = ", annotations: {ca: \"-----BEGIN CERTIFICATE-----\\nMIIB\\n-----END CERTIFICATE-----\\n\"}";
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("state.yaml");
        std::fs::write(&path, format!("{config}---\n{}", route(pem))).unwrap();
        let objects = of_state(&path).unwrap();
        let all = LocalDocuments {
            mesh: String::new(),
            at: Instant::now(),
            objects,
            findings: Ok(vec![]),
        };
        let document = all.document(&key()).unwrap().unwrap();
        let yaml = &document.yaml;
        assert!(yaml.contains("real.example") && yaml.contains("MIIB"), "{yaml}");
        assert!(!yaml.contains("false.example"), "{yaml}");
        assert_eq!(document.status[0].reason, "NoMistakes");
        let other = ObjectKey { name: "none".to_owned(), ..key() };
        assert!(all.document(&other).unwrap().is_none());
    }

    #[test]
    fn a_document_has_the_fields_of_its_message() {
        let text = str::to_owned;
        let document = Document {
            kind: text("HTTPRoute"),
            namespace: text("shop"),
            name: text("web"),
            yaml: text("a: 1"),
            status: vec![Condition {
                of: text("Service shop/web"),
                ..analyzed("True", "x", text("y"))
            }],
            no_status: Some(text("none")),
        };
        let json = serde_json::to_string(&document).unwrap();
        let read: proto::Document = serde_json::from_str(&json).unwrap();
        let condition = proto::Condition {
            of: text("Service shop/web"),
            r#type: text("Analyzed"),
            status: text("True"),
            reason: text("x"),
            message: text("y"),
        };
        let expected = proto::Document {
            kind: text("HTTPRoute"),
            namespace: text("shop"),
            name: text("web"),
            yaml: text("a: 1"),
            status: vec![condition],
            no_status: Some(text("none")),
        };
        assert_eq!(read, expected, "{json}");
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
