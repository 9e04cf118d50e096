//! Removes users' private values from objects, such as values of environment variables, headers and annotations.

use serde_json::{Map, Value};

use super::scrub::{REMOVED, scrubbed};

/// The prefix of the names of Leno's own containers, whose commands are kept.
const OURS: &str = "leno-";
/// The prefixes of annotations that are kept: the mesh's own, Kubernetes' about rollouts, and those for
/// Prometheus.
const KEPT: [&str; 3] = ["leno.dev/", "deployment.kubernetes.io/", "prometheus.io/"];
/// Parts of names of fields. The texts of fields with such names are removed, whatever they contain.
const NAMES: [&str; 9] = [
    "password",
    "passwd",
    "passphrase",
    "apikey",
    "accesskey",
    "privatekey",
    "credential",
    "authorization",
    "cookie",
];

/// Endings of names of fields whose texts are removed.
const ENDINGS: [&str; 4] = ["secret", "token", "secretkey", "pass"];
/// Names of fields that contain other software's settings under arbitrary names.
const OPAQUE: [&str; 2] = ["volumeattributes", "options"];

/// The object without private values, as it may leave the cluster.
pub(crate) fn cleaned(mut object: Value) -> Value {
    if let Some(metadata) = object.get_mut("metadata") {
        without_notes(metadata);
    }
    if let Some(spec) = object.pointer_mut("/spec/template/metadata") {
        without_notes(spec);
    }
    if object["kind"] == "Secret" {
        for part in ["data", "stringData"] {
            object[part] = REMOVED.into();
        }
    }
    walk(&mut object);
    object
}

/// Removes what kubectl and other tools store in the metadata, because it repeats the whole object as the user
/// wrote it.
fn without_notes(metadata: &mut Value) {
    let Some(fields) = metadata.as_object_mut() else { return };
    fields.remove("managedFields");
    if let Some(Value::Object(notes)) = fields.get_mut("annotations") {
        for (name, value) in notes.iter_mut() {
            if !KEPT.iter().any(|kept| name.starts_with(kept)) {
                *value = REMOVED.into();
            }
        }
    }
}

fn walk(value: &mut Value) {
    match value {
        Value::Object(fields) => of_fields(fields),
        Value::Array(all) => all.iter_mut().for_each(walk),
        Value::String(text) => *text = scrubbed(text),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

fn of_fields(fields: &mut Map<String, Value>) {
    // An environment variable, a header, or a query parameter: only the name is kept.
    if fields.contains_key("name") && fields.get("value").is_some_and(|value| !value.is_null()) {
        fields.insert("value".to_owned(), REMOVED.into());
    }
    let is_container = fields.contains_key("image") && fields.contains_key("name");
    let image = fields.get("image").and_then(Value::as_str).unwrap_or_default();
    let is_ours = image.rsplit('/').next().is_some_and(|name| name.starts_with(OURS));
    for (name, value) in fields.iter_mut() {
        let plain: String = name.chars().filter(|one| one.is_ascii_alphanumeric()).collect();
        let plain = plain.to_ascii_lowercase();
        let of_another = is_container && !is_ours && matches!(&*plain, "command" | "args");
        let is_hook = plain == "exec" && value.get("command").is_some();
        let is_secret = value.is_string()
            && (NAMES.iter().any(|part| plain.contains(part))
                || ENDINGS.iter().any(|end| plain.ends_with(end)));
        let is_opaque = value.is_object() && OPAQUE.contains(&&*plain);
        // With `terminationMessagePolicy`, this message can be the end of the application's log.
        let last_word = value.pointer_mut("/terminated/message");
        if let Some(last_word) = last_word.filter(|_| is_container && !is_ours) {
            *last_word = REMOVED.into();
        }
        if of_another || is_hook || is_secret || is_opaque {
            *value = REMOVED.into();
        } else {
            walk(value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn an_object_keeps_its_shape_and_loses_what_is_somebodys_own() {
        let pod = json!({"kind": "Pod",
            "metadata": {"name": "web-0", "managedFields": [{"manager": "kubectl"}], "annotations": {
                "kubectl.kubernetes.io/last-applied-configuration": "{\"env\":\"hunter2-a\"}",
                "vault.example/role": "hunter2-b", "leno.dev/capture": "ebpf"}},
            "spec": {"serviceAccountName": "web", "containers": [{"name": "web", "image": "web:1",
                "command": ["run", "hunter2-c"], "args": ["hunter2-d"],
                "env": [{"name": "MODE", "value": "hunter2-e"},
                    {"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "web", "key": "k"}}}],
                "livenessProbe": {"httpGet": {"path": "/", "httpHeaders": [{"name": "x", "value": "hunter2-f"}]}},
                "lifecycle": {"preStop": {"exec": {"command": ["sh", "hunter2-g"]}}}},
                {"name": "leno-proxy", "image": "r/leno-proxy:1", "args": ["--workers", "1"],
                    "env": [{"name": "LENO_PROBES", "value": "hunter2-h"}]}],
                "volumes": [{"csi": {"volumeAttributes": {"dbPassword": "hunter2-i"}}},
                    {"csi": {"volumeAttributes": {"anything": "hunter2-j"}}},
                    {"flexVolume": {"options": {"k": "hunter2-k"}, "clientSecret": "hunter2-l"}}]},
            "status": {"containerStatuses": [
                {"name": "web", "image": "web:1", "lastState": {"terminated": {"exitCode": 1, "message": "hunter2-m"}}},
                {"name": "leno-proxy", "image": "r/leno-proxy:1", "state": {"terminated": {"message": "cannot listen"}}}]}});
        let cleaned = cleaned(pod);
        let text = cleaned.to_string();
        assert!(!text.contains("hunter2") && !text.contains("managedFields"), "{text}");
        let containers = &cleaned["spec"]["containers"];
        assert_eq!(containers[0]["env"][0]["name"], "MODE");
        assert_eq!(containers[0]["env"][1]["valueFrom"]["secretKeyRef"]["name"], "web");
        assert_eq!(containers[1]["args"], json!(["--workers", "1"]));
        assert_eq!(cleaned["metadata"]["annotations"]["leno.dev/capture"], "ebpf");
        let ended = |nth: usize| &cleaned["status"]["containerStatuses"][nth];
        assert_eq!(ended(0)["lastState"]["terminated"]["exitCode"], 1);
        assert_eq!(ended(1)["state"]["terminated"]["message"], "cannot listen");
    }

    #[test]
    fn headers_of_routes_lose_their_values_and_paths_stay() {
        let route = json!({"kind": "HTTPRoute", "metadata": {"name": "r"}, "spec": {"rules": [{
            "matches": [{"path": {"type": "Exact", "value": "/items"},
                "headers": [{"name": "x-key", "value": "hunter2-a"}]}],
            "filters": [{"requestHeaderModifier": {"set": [{"name": "x", "value": "hunter2-b"}]}}]}]}});
        let cleaned = cleaned(route);
        assert!(!cleaned.to_string().contains("hunter2"), "{cleaned}");
        assert_eq!(cleaned["spec"]["rules"][0]["matches"][0]["path"]["value"], "/items");
    }

    #[test]
    fn a_secret_is_nothing_but_its_name() {
        let secret =
            json!({"kind": "Secret", "metadata": {"name": "s"}, "data": {"k": "aHVudGVyMg=="}});
        assert_eq!(cleaned(secret)["data"], REMOVED);
    }
}
