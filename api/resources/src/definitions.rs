//! The CustomResourceDefinitions of Leno's resources, generated from the types that parse them.
//!
//! The test below compares them with `charts/leno/templates/definitions.yaml`; `LENO_UPDATE=1`
//! writes that file.

mod reference;

use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, SchemaGenerator};
use serde_json::{Map, Value, json};

use crate::authorization::AuthorizationPolicySpec;
use crate::exemption::PodExemptionSpec;
use crate::ratelimit::RateLimitPolicySpec;
use crate::traffic::TrafficPolicySpec;
use crate::workload::{WorkloadSpec, WorkloadStatus};

const FILE: &str =
    concat!(env!("CARGO_MANIFEST_DIR"), "/../../charts/leno/templates/definitions.yaml");
const HEAD: &str =
    "# Made from api/resources by `LENO_UPDATE=1 cargo test -p leno-resources definitions`.\n";

/// The length of the longest IPv6 address, which ends with an IPv4 address.
const LONGEST_ADDRESS: usize = 45;

struct Definition {
    kind: &'static str,
    plural: &'static str,
    short: &'static str,
    about: &'static str,
    columns: &'static [Column],
    spec: Value,
    status: Option<Value>,
}

/// A column that `kubectl get` prints for an object.
struct Column {
    name: &'static str,
    kind: &'static str,
    path: &'static str,
    /// Whether the column is only printed with `-o wide`.
    wide: bool,
}

const TARGET: Column = text("Target", ".spec.targetRefs[*].name");
/// If there are several targets, the column shows the first: the control plane lists failing targets first.
const ACCEPTED: Column =
    text("Accepted", r#".status.ancestors[*].conditions[?(@.type=="Accepted")].status"#);
const PROGRAMMED: Column =
    text("Programmed", r#".status.ancestors[*].conditions[?(@.type=="Programmed")].status"#);
const REASON: Column =
    text("Reason", r#".status.ancestors[*].conditions[?(@.status=="False")].reason"#);
const MESSAGE: Column = Column {
    wide: true,
    ..text("Message", r#".status.ancestors[*].conditions[?(@.status=="False")].message"#)
};
const REPLICAS: Column = Column { kind: "integer", ..text("Replicas", ".spec.replicas") };
const SETTINGS: Column = text("Settings", ".spec.settings");
const ACTION: Column = text("Action", ".spec.action");
const OF_AUTHORIZATION: [Column; 6] = [TARGET, ACTION, ACCEPTED, PROGRAMMED, REASON, MESSAGE];
const OF_POLICIES: [Column; 5] = [TARGET, ACCEPTED, PROGRAMMED, REASON, MESSAGE];

const fn text(name: &'static str, path: &'static str) -> Column {
    Column { name, kind: "string", path, wide: false }
}

fn definitions() -> Vec<Definition> {
    vec![
        Definition {
            kind: "RateLimitPolicy",
            plural: "ratelimitpolicies",
            short: "rlp",
            about: "Limits how many requests the workloads to which it is attached accept.",
            columns: &OF_POLICIES,
            spec: schema_of::<RateLimitPolicySpec>(),
            status: Some(policy_status()),
        },
        Definition {
            kind: "AuthorizationPolicy",
            plural: "authorizationpolicies",
            short: "azp",
            about: "Decides which clients may connect to the workloads to which it is attached, \
                    and what they may request.",
            columns: &OF_AUTHORIZATION,
            spec: schema_of::<AuthorizationPolicySpec>(),
            status: Some(policy_status()),
        },
        Definition {
            kind: "TrafficPolicy",
            plural: "trafficpolicies",
            short: "tp",
            about: "Sets how clients treat the Services and routes to which it is attached: \
                    retries, timeouts, hedging, limits, ejection, balancing and faults.",
            columns: &OF_POLICIES,
            spec: schema_of::<TrafficPolicySpec>(),
            status: Some(policy_status()),
        },
        Definition {
            kind: "PodExemption",
            plural: "podexemptions",
            short: "pex",
            about: "Permits some pods of its namespace to loosen settings that the namespace or \
                    the mesh requires.",
            columns: &[SETTINGS],
            spec: schema_of::<PodExemptionSpec>(),
            status: None,
        },
        Definition {
            kind: "Workload",
            plural: "workloads",
            short: "wl",
            about: "A set of processes that `leno up` runs, or a machine outside of Kubernetes.",
            columns: &[REPLICAS],
            spec: schema_of::<WorkloadSpec>(),
            status: Some(schema_of::<WorkloadStatus>()),
        },
    ]
}

impl Definition {
    fn document(&self) -> Value {
        let mut properties = json!({
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"type": "object"},
            "spec": self.spec,
        });
        if let Some(status) = &self.status {
            properties["status"] = status.clone();
        }
        let columns = self.columns.iter().map(|Column { name, kind, path, wide }| {
            let mut column = json!({"name": name, "type": kind, "jsonPath": path});
            if *wide {
                column["priority"] = json!(1);
            }
            column
        });
        let columns = columns
            .chain([
                json!({"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"}),
            ])
            .collect::<Vec<_>>();
        let mut document = json!({
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": {
                "name": format!("{}.leno.dev", self.plural),
                "labels": {"app.kubernetes.io/part-of": "leno"},
                // Without this, uninstalling the chart would delete all users' policies.
                "annotations": {"helm.sh/resource-policy": "keep"},
            },
            "spec": {
                "group": "leno.dev",
                "scope": "Namespaced",
                "names": {
                    "kind": self.kind,
                    "listKind": format!("{}List", self.kind),
                    "plural": self.plural,
                    "singular": self.kind.to_lowercase(),
                    "shortNames": [self.short],
                    "categories": ["leno"],
                },
                "versions": [{
                    "name": "v1alpha1",
                    "served": true,
                    "storage": true,
                    "additionalPrinterColumns": columns,
                    "schema": {"openAPIV3Schema": {
                        "type": "object",
                        "description": self.about,
                        "properties": properties,
                        "required": ["spec"],
                    }},
                }],
            },
        });
        if self.status.is_some() {
            // Permission for the resource does not include its status, which needs permission for the subresource
            // `status`.
            document["spec"]["versions"][0]["subresources"] = json!({"status": {}});
        }
        document
    }
}

/// The schema of `PolicyStatus`, with the bounds of GEP-713 and of Kubernetes' conditions.
fn policy_status() -> Value {
    let condition = json!({
        "type": "object",
        "description": "One condition of the policy: `Accepted` (it applies to the target), \
                        `ResolvedRefs` (what it refers to exists) or `Programmed` (proxies have been sent it).",
        "required": ["type", "status", "reason", "message", "lastTransitionTime"],
        "properties": {
            "type": bounded_text(316, "The type: `Accepted`, `ResolvedRefs` or `Programmed`."),
            "status": {
                "type": "string", "enum": ["True", "False", "Unknown"],
                "description": "Whether the condition holds.",
            },
            "reason": bounded_text(1_024, "The reason for the status, as one word for programs."),
            "message": bounded_text(32_768, "The reason for the status, as a text for people."),
            "lastTransitionTime": {
                "type": "string", "format": "date-time",
                "description": "When the status changed last.",
            },
            "observedGeneration": {
                "type": "integer", "format": "int64", "minimum": 0,
                "description": "The `metadata.generation` of the policy that was judged.",
            },
        },
    });
    let target = json!({
        "type": "object",
        "description": "The target of the policy to which this entry applies.",
        "required": ["name"],
        "properties": {
            "group": bounded_text(253, "The API group of the target."),
            "kind": bounded_text(63, "The kind of the target."),
            "namespace": bounded_text(63, "The namespace of the target, which is the policy's own."),
            "name": bounded_text(253, "The name of the target."),
            "sectionName": bounded_text(253, "The port or rule of the target, if the policy names one."),
            "port": {"type": "integer", "description": "A port number. Leno does not set it."},
        },
    });
    let ancestor = json!({
        "type": "object",
        "required": ["ancestorRef", "controllerName"],
        "properties": {
            "ancestorRef": target,
            "controllerName": bounded_text(253, "The writer of the entry; Leno's is `leno.dev/controller`."),
            "conditions": {
                "description": "The conditions of the policy for this target, at most 8.",
                "type": "array", "maxItems": 8, "items": condition,
                "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"],
            },
        },
    });
    json!({
        "type": "object",
        "description": "Whether the policy takes effect, as the control plane reports it.",
        "required": ["ancestors"],
        "properties": {"ancestors": {
            "type": "array", "maxItems": 16, "items": ancestor,
            "description": "One entry per target and controller, at most 16; failing targets first.",
        }},
    })
}

/// The schema of a text of at most `most` characters.
fn bounded_text(most: u32, description: &str) -> Value {
    json!({"type": "string", "maxLength": most, "description": description})
}

/// The schema of a type in the form that Kubernetes requires ("structural": every value has one
/// type, and there are no references).
fn schema_of<T: JsonSchema>() -> Value {
    let settings = SchemaSettings::default().with(|settings| {
        settings.inline_subschemas = true;
        settings.meta_schema = None;
    });
    let mut schema = SchemaGenerator::new(settings).into_root_schema_for::<T>().to_value();
    make_structural(&mut schema);
    schema
}

fn make_structural(schema: &mut Value) {
    let Value::Object(fields) = schema else { return };
    // An API server would write defaults into stored objects.
    for unused in ["title", "default"] {
        fields.remove(unused);
    }
    one_of_them(fields);
    if let Some(Value::String(text)) = fields.get_mut("description") {
        // Removes the brackets of links between doc comments, and their line breaks: `kubectl explain` would keep them
        // when it wraps the text to the width of a terminal.
        *text = text.replace("[`", "`").replace("`]", "`").replace('\n', " ");
    }
    if let Some(Value::Array(types)) = fields.get("type") {
        let given = types.iter().find(|kind| *kind != "null").expect("more than null").clone();
        fields.insert("type".to_owned(), given);
    }
    if fields.get("type") == Some(&json!("integer")) {
        // Kubernetes only has signed numbers.
        fields.remove("format");
    }
    if fields.get("format") == Some(&json!("ip")) {
        // The API server only knows formats for a single address family, and warns about any other format.
        fields.remove("format");
        fields.insert("pattern".to_owned(), json!("^[0-9A-Fa-f:.]+$"));
        fields.insert("maxLength".to_owned(), json!(LONGEST_ADDRESS));
    }
    if fields.get("x-kubernetes-int-or-string").is_some() {
        fields.remove("type");
    }
    if let Some(Value::Object(properties)) = fields.get_mut("properties") {
        properties.values_mut().for_each(make_structural);
    }
    for inner in ["items", "additionalProperties"] {
        if let Some(inner) = fields.get_mut(inner) {
            make_structural(inner);
        }
    }
}

/// Replaces an optional value by the value, and a choice of several words by an enumeration.
fn one_of_them(fields: &mut Map<String, Value>) {
    if let Some(Value::Array(choices)) = fields.remove("anyOf") {
        let given = choices.into_iter().find(|choice| choice["type"] != "null");
        let Some(Value::Object(given)) = given else { panic!("a choice of nothing") };
        for (key, value) in given {
            // A field's own description wins over that of its type.
            fields.entry(key).or_insert(value);
        }
    }
    if let Some(Value::Array(words)) = fields.remove("oneOf") {
        let words = words.iter().map(|word| match &word["const"] {
            Value::String(word) => json!(word),
            other => panic!("{other} is no word"),
        });
        fields.insert("enum".to_owned(), words.collect());
        fields.insert("type".to_owned(), json!("string"));
    }
}

#[test]
fn definitions_are_those_of_the_types() {
    let mut wanted = HEAD.to_owned();
    for definition in definitions() {
        wanted.push_str("---\n");
        wanted.push_str(&serde_saphyr::to_string(&definition.document()).unwrap());
    }
    if std::env::var_os("LENO_UPDATE").is_some() {
        std::fs::write(FILE, &wanted).unwrap();
    }
    let there = std::fs::read_to_string(FILE).unwrap();
    assert!(there == wanted, "{FILE} is of other types: {HEAD}");
}

/// Every field of the documents is in the schema, because an API server drops unknown fields.
#[test]
fn schemas_have_what_documents_have() {
    let policies = definitions().into_iter().find(|one| one.kind == "TrafficPolicy").unwrap();
    let spec = &policies.document()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]
        ["spec"];
    let retries = &spec["properties"]["retries"];
    assert_eq!(retries["properties"]["perTryTimeout"]["type"], "string");
    assert_eq!(retries["properties"]["on"]["items"]["x-kubernetes-int-or-string"], true);
    assert_eq!(retries["properties"]["budget"]["properties"]["percent"]["type"], "integer");
    let algorithm = &spec["properties"]["balancing"]["properties"]["algorithm"];
    assert_eq!((&algorithm["type"], &algorithm["enum"][0]), (&json!("string"), &json!("PeakEwma")));
    assert!(spec["required"].is_null());
}

/// Regression: kubectl printed a warning about the format of addresses when the definitions were applied. An API server
/// warns about every format that it does not know (apiextensions-apiserver, `supportedFormats`).
#[test]
fn definitions_have_only_formats_that_an_api_server_knows() {
    let text = std::fs::read_to_string(FILE).unwrap();
    let formats = text.lines().filter_map(|line| line.trim().strip_prefix("format: "));
    for format in formats {
        assert!(["date-time", "int64", "double"].contains(&format), "{format}");
    }
    assert!(text.contains("pattern: ^[0-9A-Fa-f:.]+$"), "addresses have a pattern");
}
