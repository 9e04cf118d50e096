//! Parses a text into checked objects.

mod hint;

use std::collections::HashMap;
use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::de::DeserializeOwned;

use crate::authorization::{AuthorizationPolicySpec, KEY_SET_KEY, only_keys};
use crate::check;
use crate::decode::{Decoded, decode};
use crate::exemption::PodExemptionSpec;
use crate::gateway::{
    BackendTlsPolicy, GATEWAY_GROUP, GrpcRoute, HttpRoute, ReferenceGrant, TcpRoute, TlsRoute,
};
use crate::metadata::DEFAULT_NAMESPACE;
use crate::object::{Kind, Object, ObjectKey, OwnDocument, PolicyDocument, WorkloadDocument};
use crate::objective::ServiceLevelObjectiveSpec;
use crate::problem::{Located, Position, Problem};
use crate::proxy::ProxySpec;
use crate::ratelimit::RateLimitPolicySpec;
use crate::traffic::TrafficPolicySpec;
use crate::tree::{self, TreeNode, TreeValue};

/// Kinds of Kubernetes' core group that do not concern the mesh. Files written for a cluster may
/// have them, so they are listed as ignored instead of rejected as misspelt.
const CORE_KINDS: [&str; 8] = [
    "LimitRange",
    "PersistentVolume",
    "PersistentVolumeClaim",
    "Pod",
    "PodTemplate",
    "ReplicationController",
    "ResourceQuota",
    "Secret",
];

/// Kinds of the Gateway API that are for gateways, or that Leno does not support yet. Files written for a cluster may
/// have them, so they are listed as ignored.
const GATEWAY_KINDS: [&str; 5] =
    ["Gateway", "GatewayClass", "ListenerSet", "UDPRoute", "XListenerSet"];

/// The contents of a text or of several files.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Documents {
    /// The objects, in the order of the text.
    pub objects: Vec<Located<Object>>,
    /// Documents that Leno does not read.
    pub ignored: Vec<Located<IgnoredDocument>>,
    /// The positions of the parts of each of [`objects`](Self::objects), in the same order.
    pub outlines: Vec<Outline>,
}

/// The positions of the parts of one document.
#[derive(Clone, Debug, PartialEq)]
pub struct Outline {
    node: TreeNode,
    origins: Vec<DocumentOrigin>,
}

/// The source of a part of a document that was converted from a file of another format.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DocumentOrigin {
    /// The part of the document, such as `spec.env`; empty for the document as a whole.
    pub part: &'static str,
    /// The field of that file.
    pub field: String,
    /// The position of that field.
    pub place: Position,
}

impl Outline {
    /// The position of a field such as `spec.rules[0].backendRefs[1].name`. If the document does
    /// not have the field, the position of its innermost parent that exists.
    #[must_use]
    pub fn place(&self, path: &str) -> Position {
        DocumentOrigin::of(path, &self.origins)
            .map_or_else(|| self.node.find(path).place, |origin| origin.place)
    }

    /// The field by the name that the user has written, for messages.
    #[must_use]
    pub fn field(&self, path: &str) -> String {
        DocumentOrigin::of(path, &self.origins).map_or(path, |origin| &origin.field).to_owned()
    }

    /// The outline of a document that was converted from these parts of a file.
    #[must_use]
    pub fn made_from(self, origins: Vec<DocumentOrigin>) -> Self {
        Self { origins, ..self }
    }
}

impl DocumentOrigin {
    /// The origin of the innermost part of a document that has the field at `path`.
    #[must_use]
    pub fn of<'a>(path: &str, origins: &'a [Self]) -> Option<&'a Self> {
        let within = |part: &str| {
            let rest = path.strip_prefix(part);
            part.is_empty()
                || rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
        };
        let has = origins.iter().filter(|origin| within(origin.part));
        has.max_by_key(|origin| origin.part.len())
    }
}

/// A document of an API group or kind that Leno does not read; reported as a warning.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IgnoredDocument {
    /// The document's `apiVersion`.
    pub api_version: String,
    /// The document's `kind`.
    pub kind: String,
}

/// Parses every document of `text`; positions and problems refer to it as `file`.
///
/// # Errors
/// Every problem, in the order of the text; nothing of the text may be used then.
pub fn parse(file: &str, text: &str) -> Result<Documents, Vec<Problem>> {
    let mut problems = Vec::new();
    let mut nodes = Vec::new();
    for node in tree::read(file, text, &mut problems) {
        unlisted(file, node, &mut nodes, &mut problems);
    }
    let file: Arc<str> = file.into();
    let mut documents = Documents::default();
    for node in nodes {
        let before = documents.objects.len();
        document(&file, &node, &mut documents, &mut problems);
        if documents.objects.len() > before {
            documents.outlines.push(Outline { node, origins: Vec::new() });
        }
    }
    duplicates(&documents.objects, &mut problems);
    problems.sort_by_key(|problem| problem.place);
    if problems.is_empty() {
        return Ok(documents);
    }
    Err(problems.into_iter().map(Problem::shortened).collect())
}

/// The documents of a `List`, such as `kubectl get -o yaml` writes, or the document itself if it is not a `List`.
fn unlisted(
    file: &str,
    mut node: TreeNode,
    nodes: &mut Vec<TreeNode>,
    problems: &mut Vec<Problem>,
) {
    let text = |field| node.get(field).and_then(TreeNode::text);
    if (text("apiVersion"), text("kind")) != (Some("v1"), Some("List")) {
        return nodes.push(node);
    }
    match node.take("items") {
        Some(TreeNode { value: TreeValue::List(items), .. }) => {
            items.into_iter().for_each(|item| unlisted(file, item, nodes, problems));
        }
        other => problems.push(Problem {
            file: file.into(),
            place: other.map_or(node.place, |items| items.place),
            path: "items".to_owned(),
            reason: "is missing or not a list of documents".to_owned(),
        }),
    }
}

/// Reports objects that occur twice.
pub(crate) fn duplicates(objects: &[Located<Object>], problems: &mut Vec<Problem>) {
    let mut seen: HashMap<ObjectKey, &Located<Object>> = HashMap::new();
    for object in objects {
        let key = object.value.key();
        match seen.get(&key) {
            None => {
                seen.insert(key, object);
            }
            Some(first) => problems.push(Problem {
                file: object.file.clone(),
                place: object.place,
                path: "metadata.name".to_owned(),
                reason: format!("{key} is already defined at {}:{}", first.file, first.place),
            }),
        }
    }
}

fn document(
    file: &Arc<str>,
    node: &TreeNode,
    documents: &mut Documents,
    problems: &mut Vec<Problem>,
) {
    let located = |place, path: &str, reason: String| Problem {
        file: file.clone(),
        place,
        path: path.to_owned(),
        reason,
    };
    if !matches!(node.value, TreeValue::Map(_)) {
        let reason = "a document is a map with apiVersion, kind and metadata".to_owned();
        problems.push(located(node.place, "", reason));
        return;
    }
    let mut identifying = |field: &str| {
        let text = node.get(field).and_then(TreeNode::text).filter(|text| !text.is_empty());
        if text.is_none() {
            let place = node.get(field).map_or(node.place, |value| value.place);
            problems.push(located(place, field, "is missing or not a text".to_owned()));
        }
        text
    };
    let (Some(api_version), Some(kind)) = (identifying("apiVersion"), identifying("kind")) else {
        return;
    };
    let recognised = match kind {
        // Other Secrets do not concern the mesh.
        "Secret" if api_version == "v1" && holds_keys(node) => Recognised::Ours(Kind::Secret),
        _ => recognise(api_version, kind),
    };
    match recognised {
        Recognised::Ours(known) => {
            if let Some(object) = object(known, file, node, problems) {
                documents.objects.push(Located {
                    value: object,
                    file: file.clone(),
                    place: node.place,
                });
            }
        }
        Recognised::Foreign => documents.ignored.push(Located {
            value: IgnoredDocument { api_version: api_version.to_owned(), kind: kind.to_owned() },
            file: file.clone(),
            place: node.place,
        }),
        Recognised::Wrong(field, reason) => {
            let place = node.get(field).map_or(node.place, |value| value.place);
            problems.push(located(place, field, reason));
        }
    }
}

/// Whether a Secret contains keys of tokens.
fn holds_keys(secret: &TreeNode) -> bool {
    let data = ["data", "stringData"].into_iter().filter_map(|field| secret.get(field));
    data.into_iter().any(|data| data.get(KEY_SET_KEY).is_some())
}

enum Recognised {
    Ours(Kind),
    Foreign,
    /// The field that is wrong, and the reason.
    Wrong(&'static str, String),
}

fn recognise(api_version: &str, kind: &str) -> Recognised {
    let group = |text: &str| text.split_once('/').map_or("", |(group, _)| group).to_owned();
    let exact = |k: &Kind| k.api_versions().contains(&api_version) && k.as_str() == kind;
    if let Some(known) = Kind::ALL.into_iter().find(exact) {
        return Recognised::Ours(known);
    }
    let wanted = group(api_version);
    let same_group = |k: &Kind| group(k.api_version()) == wanted;
    if let Some(known) = Kind::ALL.into_iter().filter(same_group).find(|k| k.as_str() == kind) {
        let reason = format!("{kind} is read as {}, not {api_version}", known.api_version());
        return Recognised::Wrong("apiVersion", reason);
    }
    let elsewhere = |k: &Kind| k.as_str() == kind && api_version == "v1";
    if let Some(known) = Kind::ALL.into_iter().find(elsewhere) {
        let reason = format!("{kind} belongs to {}, not {api_version}", known.api_version());
        return Recognised::Wrong("apiVersion", reason);
    }
    let foreign_kinds: &[&str] = match wanted.as_str() {
        "" if api_version == "v1" => &CORE_KINDS,
        GATEWAY_GROUP => &GATEWAY_KINDS,
        _ => &[],
    };
    if !Kind::ALL.iter().any(same_group) || foreign_kinds.contains(&kind) {
        return Recognised::Foreign;
    }
    let known: Vec<_> = Kind::ALL.into_iter().filter(same_group).map(Kind::as_str).collect();
    if let Some(meant) = leno_types::nearest(kind, known.iter().copied()) {
        let reason = format!("{kind} is not a kind of {api_version}: did you mean {meant}?");
        return Recognised::Wrong("kind", reason);
    }
    let reason = format!("{kind} is not a kind of {api_version}: use {}", known.join(", "));
    Recognised::Wrong("kind", reason)
}

/// Decodes and checks one document of a known kind.
fn object(
    kind: Kind,
    file: &Arc<str>,
    node: &TreeNode,
    problems: &mut Vec<Problem>,
) -> Option<Object> {
    let mut reader = Reader { file, node, problems, whole: true };
    let object = match kind {
        Kind::Namespace => Object::Namespace(Box::new(reader.decode()?)),
        Kind::Service => {
            Object::Service(reader.in_namespace(|it: &mut crate::Service| &mut it.metadata)?)
        }
        Kind::ServiceAccount => Object::ServiceAccount(
            reader.in_namespace(|it: &mut crate::ServiceAccount| &mut it.metadata)?,
        ),
        Kind::EndpointSlice => Object::EndpointSlice(
            reader.in_namespace(|it: &mut crate::EndpointSlice| &mut it.metadata)?,
        ),
        Kind::ConfigMap => {
            let mut object = reader.in_namespace(|it: &mut crate::ConfigMap| &mut it.metadata)?;
            crate::gateway::only_used(&mut object);
            Object::ConfigMap(object)
        }
        Kind::Secret => {
            let mut object = reader.in_namespace(|it: &mut crate::Secret| &mut it.metadata)?;
            only_keys(&mut object);
            Object::Secret(object)
        }
        Kind::BackendTlsPolicy => Object::BackendTlsPolicy(
            reader.in_namespace(|it: &mut BackendTlsPolicy| &mut it.metadata)?,
        ),
        Kind::HttpRoute => {
            Object::HttpRoute(reader.in_namespace(|it: &mut HttpRoute| &mut it.metadata)?)
        }
        Kind::GrpcRoute => {
            Object::GrpcRoute(reader.in_namespace(|it: &mut GrpcRoute| &mut it.metadata)?)
        }
        Kind::TlsRoute => {
            Object::TlsRoute(reader.in_namespace(|it: &mut TlsRoute| &mut it.metadata)?)
        }
        Kind::TcpRoute => {
            Object::TcpRoute(reader.in_namespace(|it: &mut TcpRoute| &mut it.metadata)?)
        }
        Kind::ReferenceGrant => {
            Object::ReferenceGrant(reader.in_namespace(|it: &mut ReferenceGrant| &mut it.metadata)?)
        }
        Kind::Workload => reader.decode::<WorkloadDocument>()?.into(),
        Kind::TrafficPolicy => reader.decode::<PolicyDocument<TrafficPolicySpec>>()?.into(),
        Kind::RateLimitPolicy => reader.decode::<PolicyDocument<RateLimitPolicySpec>>()?.into(),
        Kind::AuthorizationPolicy => {
            reader.decode::<PolicyDocument<AuthorizationPolicySpec>>()?.into()
        }
        Kind::PodExemption => reader.decode::<OwnDocument<PodExemptionSpec>>()?.into(),
        Kind::ServiceLevelObjective => {
            reader.decode::<OwnDocument<ServiceLevelObjectiveSpec>>()?.into()
        }
        Kind::Proxy => reader.decode::<OwnDocument<ProxySpec>>()?.into(),
    };
    let whole = reader.whole;
    let found = check::object(&object, file, node, whole);
    let good = whole && found.is_empty();
    problems.extend(found);
    good.then_some(object)
}

struct Reader<'a> {
    file: &'a Arc<str>,
    node: &'a TreeNode,
    problems: &'a mut Vec<Problem>,
    /// Whether every part of the document fits its type.
    whole: bool,
}

impl Reader<'_> {
    /// Decodes the document as an object that is in the default namespace unless it names one.
    fn in_namespace<T: DeserializeOwned>(
        &mut self,
        metadata: fn(&mut T) -> &mut ObjectMeta,
    ) -> Option<Box<T>> {
        let mut object: T = self.decode()?;
        metadata(&mut object).namespace.get_or_insert_with(|| DEFAULT_NAMESPACE.to_owned());
        Some(Box::new(object))
    }

    /// Decodes the document as `T`, without the parts that do not fit; `None` if `T` requires them.
    fn decode<T: DeserializeOwned>(&mut self) -> Option<T> {
        let Decoded { value, failures, unknown } = decode::<T>(self.node);
        self.whole = failures.is_empty() && unknown.is_empty();
        let is_workload =
            self.node.get("kind").and_then(TreeNode::text) == Some(Kind::Workload.as_str());
        for field in unknown {
            let hint = is_workload.then(|| hint::of(&field.path)).flatten();
            let reason = match (field.meant, hint) {
                (Some(meant), _) => format!("unknown field: did you mean {meant}?"),
                (None, Some(hint)) => format!("unknown field: {hint}"),
                (None, None) => "unknown field".to_owned(),
            };
            self.push(field.place, field.path, reason);
        }
        for failure in failures {
            let (place, path) = failure.at.unwrap_or((self.node.place, String::new()));
            self.push(place, path, failure.reason);
        }
        value
    }

    fn push(&mut self, place: Position, path: String, reason: String) {
        self.problems.push(Problem { file: self.file.clone(), place, path, reason });
    }
}
