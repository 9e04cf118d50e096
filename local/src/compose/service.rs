//! Translates one service of a Compose file into a Workload.

use serde_json::{Map, Value, json};

use super::fields::{Fields, scalar};
use crate::root;

/// Translates the fields of the service `name` into the document of a Workload.
pub(super) fn workload(fields: &mut Fields<'_>, name: &str, project: &str) -> Value {
    if fields.take("profiles").is_some() {
        fields.refuse("profiles", "leno up runs all services: remove the service or its profiles");
    }
    if fields.take("build").is_some() {
        let reason = "leno up builds no images: remove it, and set command to a program of this \
                      machine";
        fields.refuse("build", reason);
    }
    let mut spec = Map::new();
    if let Some(root) = image(fields) {
        spec.insert("root".to_owned(), json!(root));
    }
    spec.insert("command".to_owned(), json!(command(fields)));
    environment(fields, &mut spec);
    ports(fields, &mut spec);
    depends_on(fields, &mut spec);
    healthcheck(fields, &mut spec);
    volumes(fields, &mut spec);
    limits(fields, &mut spec);
    ending(fields, &mut spec);
    if let Some(directory) = fields.text("working_dir") {
        spec.insert("workingDir".to_owned(), json!(directory));
    }
    if let Some(user) = fields.text("user") {
        let (user, group) = user.split_once(':').map_or((&*user, None), |(u, g)| (u, Some(g)));
        spec.insert("user".to_owned(), json!(user));
        spec.extend(group.map(|group| ("group".to_owned(), json!(group))));
    }
    fields.rest();
    json!({
        "apiVersion": "leno.dev/v1alpha1",
        "kind": "Workload",
        "metadata": {"name": name, "namespace": project, "labels": {"app": name}},
        "spec": spec,
    })
}

/// The program and its arguments. A missing command is reported, unless `image` or `build` was rejected, because
/// the remedy for that already tells the user to write a command. In that case, returns a placeholder.
fn command(fields: &mut Fields<'_>) -> Vec<String> {
    let has_remedy = fields.has_refused("image") || fields.has_refused("build");
    let parts = ["entrypoint", "command"].map(|name| words(fields, name));
    let is_missing = parts.iter().all(|part| part.as_ref().is_some_and(Vec::is_empty));
    if is_missing && has_remedy {
        return vec!["refused".to_owned()];
    }
    if is_missing {
        fields.refuse("command", "an unpacked image has no default command: set command");
    }
    parts.map(Option::unwrap_or_default).concat()
}

/// The directory that contains the unpacked image. A value counts as a directory if it begins like a path, as with
/// volumes.
fn image(fields: &mut Fields<'_>) -> Option<String> {
    let image = fields.text("image")?;
    if image.starts_with(['.', '/']) {
        if let Err(reason) = root::check(&fields.beside(&image)) {
            fields.refuse("image", reason);
        }
        return Some(image);
    }
    let reason = "leno up pulls no images: unpack the image, for example with docker export, and \
                  set image to the directory, such as ./root; or remove it, and set command to a \
                  program of this machine";
    fields.refuse("image", reason);
    None
}

/// Takes a command: a list, or a text that is split as a shell does; `None` if it was rejected.
fn words(fields: &mut Fields<'_>, name: &str) -> Option<Vec<String>> {
    match fields.take(name) {
        Some(Value::String(text)) => {
            let words = shlex::split(&text);
            if words.is_none() {
                fields.refuse(name, "a quotation mark is not closed");
            }
            words
        }
        Some(Value::Array(items)) => Some(texts(fields, name, &items)),
        None | Some(Value::Null) => Some(Vec::new()),
        Some(_) => {
            fields.refuse(name, "it is neither a string nor a list of strings: write one of them");
            None
        }
    }
}

/// The texts of a list. Items that are not texts are rejected.
fn texts(fields: &mut Fields<'_>, name: &str, items: &[Value]) -> Vec<String> {
    let texts: Vec<String> = items.iter().filter_map(scalar).collect();
    if let Some(other) = items.iter().find(|item| scalar(item).is_none()) {
        fields.refuse(name, format!("{other} is not a string: write a list of strings"));
    }
    texts
}

fn environment(fields: &mut Fields<'_>, spec: &mut Map<String, Value>) {
    let (mut given, mut inherited) = (Map::new(), Vec::new());
    let mut set = |name: &str, value: Option<String>| match value {
        Some(value) => _ = given.insert(name.to_owned(), json!(value)),
        None => inherited.push(name.to_owned()),
    };
    match fields.take("environment") {
        Some(Value::Object(all)) => {
            all.iter().for_each(|(name, value)| set(name, scalar(value)));
        }
        Some(Value::Array(all)) => {
            if let Some(other) = all.iter().find(|item| scalar(item).is_none()) {
                let reason = format!(
                    "{other} is not a string: write a map of names to values, or a list of \
                     NAME=VALUE"
                );
                fields.refuse("environment", reason);
            }
            for line in all.iter().filter_map(scalar) {
                match line.split_once('=') {
                    Some((name, value)) => set(name, Some(value.to_owned())),
                    None => set(&line, None),
                }
            }
        }
        None | Some(Value::Null) => {}
        Some(_) => fields.refuse(
            "environment",
            "it is neither a map nor a list: write a map of \
             names to values, or a list of NAME=VALUE",
        ),
    }
    let mut files = Vec::new();
    match fields.take("env_file") {
        Some(Value::Array(all)) => {
            for file in &all {
                match (scalar(file), file.get("path").and_then(Value::as_str)) {
                    (Some(path), _) => files.push(path),
                    (None, Some(path)) if file.get("required") != Some(&json!(false)) => {
                        files.push(path.to_owned());
                    }
                    _ => fields.refuse(
                        "env_file",
                        "leno up requires every file to exist: remove \
                         `required: false`",
                    ),
                }
            }
        }
        Some(Value::String(file)) => files.push(file),
        None | Some(Value::Null) => {}
        Some(_) => fields.refuse("env_file", "it is not a path: write a path, or a list of paths"),
    }
    spec.insert("env".to_owned(), Value::Object(given));
    spec.insert("inheritEnv".to_owned(), json!(inherited));
    spec.insert("envFile".to_owned(), json!(files));
}

/// Translates `ports`, which are published on all addresses as in Compose, and `expose`, which are not published.
fn ports(fields: &mut Fields<'_>, spec: &mut Map<String, Value>) {
    let mut ports: Vec<(u16, Option<String>)> = Vec::new();
    let all = match fields.take("ports") {
        Some(Value::Array(all)) => all,
        _ => Vec::new(),
    };
    for port in &all {
        match published(port) {
            Ok(port) => ports.push(port),
            Err(reason) => fields.refuse("ports", reason),
        }
    }
    for port in fields.list("expose") {
        match port.strip_suffix("/tcp").unwrap_or(&port).parse() {
            Ok(number) => ports.push((number, None)),
            Err(_) => fields.refuse("expose", format!("{port:?} is not a TCP port")),
        }
    }
    let mut seen = std::collections::BTreeSet::new();
    ports.retain(|(port, _)| seen.insert(*port));
    let of = |(port, published): &(u16, Option<String>)| match published {
        Some(published) => {
            json!({"name": format!("p{port}"), "port": port, "published": published})
        }
        None => json!({"name": format!("p{port}"), "port": port}),
    };
    spec.insert("ports".to_owned(), ports.iter().map(of).collect());
}

/// The port of the service, and the address and port of this machine at which it is published.
fn published(port: &Value) -> Result<(u16, Option<String>), String> {
    let number = |text: &str| {
        let wrong =
            || format!("{text:?} is not a single port: write each port of a range by itself");
        text.parse::<u16>().ok().filter(|port| *port > 0).ok_or_else(wrong)
    };
    let (target, address, from, protocol) = if let Value::Object(fields) = port {
        let text = |name: &str| fields.get(name).and_then(scalar);
        let target =
            text("target").ok_or("target is missing: set it to the port of the service")?;
        (target, text("host_ip"), text("published"), text("protocol").unwrap_or_default())
    } else {
        let text = scalar(port).ok_or(
            "it does not name two ports: write PUBLISHED:TARGET, such as \
             8080:80",
        )?;
        let (text, protocol) = text.split_once('/').unwrap_or((&text, ""));
        let (rest, target) = text.rsplit_once(':').map_or((None, text), |(r, t)| (Some(r), t));
        let (address, from) = match rest.map(|rest| rest.rsplit_once(':').ok_or(rest)) {
            Some(Ok((address, from))) => (Some(address.to_owned()), Some(from.to_owned())),
            Some(Err(from)) => (None, Some(from.to_owned())),
            None => (None, None),
        };
        (target.to_owned(), address, from, protocol.to_owned())
    };
    if !matches!(&*protocol, "" | "tcp") {
        return Err(format!("{protocol} ports cannot be published: remove it"));
    }
    let Some(from) = from.filter(|from| !from.is_empty()) else {
        return Ok((number(&target)?, None));
    };
    let address = address.filter(|address| !address.is_empty()).unwrap_or("0.0.0.0".to_owned());
    Ok((number(&target)?, Some(format!("{address}:{}", number(&from)?))))
}

fn depends_on(fields: &mut Fields<'_>, spec: &mut Map<String, Value>) {
    let mut all = Map::new();
    match fields.take("depends_on") {
        Some(Value::Array(names)) => {
            for name in texts(fields, "depends_on", &names) {
                all.insert(name, json!({"condition": "started"}));
            }
        }
        Some(Value::Object(wanted)) => {
            for (name, how) in wanted {
                let condition = match how.get("condition").and_then(Value::as_str) {
                    Some("service_healthy") => "ready",
                    Some("service_completed_successfully") => "completed",
                    Some("service_started") | None => "started",
                    Some(other) => {
                        let reason = format!(
                            "{other:?} is not a condition: use service_started, service_healthy or \
                             service_completed_successfully"
                        );
                        fields.refuse("depends_on", reason);
                        "started"
                    }
                };
                all.insert(name, json!({"condition": condition}));
            }
        }
        _ => {}
    }
    spec.insert("dependsOn".to_owned(), Value::Object(all));
}

/// A health check becomes a readiness probe, because Compose does not restart unhealthy services either.
fn healthcheck(fields: &mut Fields<'_>, spec: &mut Map<String, Value>) {
    let Some(check) = fields.take("healthcheck") else { return };
    let list = |all: &[Value]| all.iter().filter_map(scalar).collect::<Vec<String>>();
    let command = match &check["test"] {
        Value::String(text) => vec!["sh".to_owned(), "-c".to_owned(), text.clone()],
        Value::Array(all) => match list(all).split_first() {
            Some((kind, rest)) if kind == "CMD" => rest.to_vec(),
            Some((kind, rest)) if kind == "CMD-SHELL" => {
                [&["sh".to_owned(), "-c".to_owned()][..], rest].concat()
            }
            Some((kind, _)) if kind == "NONE" => return,
            _ => return fields.refuse("healthcheck", "test begins with CMD or CMD-SHELL"),
        },
        _ if check["disable"] == true => return,
        _ => {
            return fields.refuse(
                "healthcheck",
                "test is missing, and there is no image with a \
                 default: set it",
            );
        }
    };
    let mut seconds = |name: &str, default: u64| match check.get(name).and_then(scalar) {
        None => default,
        Some(text) => match text.parse::<leno_resources::Duration>() {
            Ok(duration) => {
                duration.0.as_millis().div_ceil(1000).max(1).try_into().unwrap_or(default)
            }
            Err(error) => {
                fields.refuse("healthcheck", format!("{name}: {error}"));
                default
            }
        },
    };
    let (period, timeout) = (seconds("interval", 30), seconds("timeout", 30));
    let retries = check.get("retries").and_then(Value::as_u64).unwrap_or(3).max(1);
    spec.insert(
        "readiness".to_owned(),
        json!({"exec": {"command": command}, "periodSeconds": period, "timeoutSeconds": timeout,
               "failureThreshold": retries}),
    );
}

/// Volumes are paths of this machine. Named volumes, which Compose creates, are rejected.
fn volumes(fields: &mut Fields<'_>, spec: &mut Map<String, Value>) {
    let all = match fields.take("volumes") {
        Some(Value::Array(all)) => all,
        _ => return,
    };
    let mut volumes = Vec::new();
    for volume in &all {
        let (from, onto, read_only) = if let Value::String(text) = volume {
            let mut parts = text.split(':');
            let (from, onto) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
            let read_only = parts.next().is_some_and(|mode| mode.split(',').any(|one| one == "ro"));
            (from.to_owned(), onto.to_owned(), read_only)
        } else {
            let text = |name: &str| volume.get(name).and_then(scalar).unwrap_or_default();
            let from = if text("type") == "bind" { text("source") } else { String::new() };
            (from, text("target"), volume["read_only"] == true)
        };
        if onto.is_empty() || !from.starts_with(['.', '/']) {
            let reason = "a volume is a file or a directory of this machine: write ./data:/path, \
                          and create both first";
            fields.refuse("volumes", reason);
            continue;
        }
        volumes.push(json!({"path": from, "mountPath": onto, "readOnly": read_only}));
    }
    spec.insert("volumes".to_owned(), Value::Array(volumes));
}

fn limits(fields: &mut Fields<'_>, spec: &mut Map<String, Value>) {
    let deploy = fields.take("deploy").unwrap_or_default();
    for name in deploy.as_object().into_iter().flat_map(Map::keys) {
        if !matches!(&**name, "replicas" | "resources" | "mode" | "labels") {
            fields.refuse("deploy", format!("leno up does not support {name}: remove it"));
        }
    }
    let resources = &deploy["resources"];
    if !resources["reservations"].is_null() {
        fields.refuse("deploy", "leno up supports only limits: remove reservations");
    }
    let of_deploy = |name: &str| scalar(&resources["limits"][name]);
    let cpus = fields.text("cpus").or_else(|| of_deploy("cpus"));
    let memory = fields.text("mem_limit").or_else(|| of_deploy("memory"));
    let mut limits = Map::new();
    limits.extend(cpus.map(|cpus| ("cpu".to_owned(), json!(cpus))));
    if let Some(memory) = memory {
        limits.insert("memory".to_owned(), json!(quantity(&memory)));
    }
    if !limits.is_empty() {
        spec.insert("resources".to_owned(), json!({"limits": limits}));
    }
    let replicas = fields.take("scale").unwrap_or_else(|| deploy["replicas"].clone());
    if let Some(replicas) = replicas.as_u64() {
        spec.insert("replicas".to_owned(), json!(replicas));
    }
}

/// Translates an amount of memory. Compose's units are powers of 1024.
fn quantity(text: &str) -> String {
    let lower = text.to_ascii_lowercase();
    let short = lower.strip_suffix('b').unwrap_or(&lower);
    let unit = [("k", "Ki"), ("m", "Mi"), ("g", "Gi")].into_iter();
    let mut found =
        unit.filter_map(|(unit, own)| Some(format!("{}{own}", short.strip_suffix(unit)?)));
    let bytes = short.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    // An invalid amount is passed on as written, and rejected later.
    found.next().unwrap_or_else(|| if bytes { short.to_owned() } else { text.to_owned() })
}

fn ending(fields: &mut Fields<'_>, spec: &mut Map<String, Value>) {
    let restart = match fields.text("restart").as_deref() {
        None | Some("no" | "false") => "never",
        Some("always" | "unless-stopped") => "always",
        // Only Compose has a bound on the number of restarts; Workloads have none.
        Some("on-failure") => "on-failure",
        Some(_) => {
            fields.refuse(
                "restart",
                "it is not a restart policy: write no, always, on-failure or \
                 unless-stopped",
            );
            "never"
        }
    };
    spec.insert("restart".to_owned(), json!(restart));
    if let Some(signal) = fields.text("stop_signal") {
        spec.insert("stopSignal".to_owned(), json!(signal));
    }
    if let Some(grace) = fields.text("stop_grace_period") {
        spec.insert("stopGracePeriod".to_owned(), json!(grace));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_and_amounts_are_read_as_compose_reads_them() {
        let port = |value: Value| published(&value);
        let on = |address: &str| Some(address.to_owned());
        assert_eq!(port(json!("8080:80")), Ok((80, on("0.0.0.0:8080"))));
        assert_eq!(port(json!("127.0.0.1:8080:80/tcp")), Ok((80, on("127.0.0.1:8080"))));
        assert_eq!(port(json!("[::1]:8080:80")), Ok((80, on("[::1]:8080"))));
        assert_eq!(port(json!(80)), Ok((80, None)));
        assert_eq!(port(json!({"target": 80, "published": "8080"})), Ok((80, on("0.0.0.0:8080"))));
        for wrong in [json!("53:53/udp"), json!("3000-3005"), json!({"published": 1}), json!("a:b")]
        {
            assert!(port(wrong.clone()).is_err(), "{wrong}");
        }
        for (text, expected) in [("512m", "512Mi"), ("1gb", "1Gi"), ("300000000b", "300000000")] {
            assert_eq!(quantity(text), expected);
        }
    }
}
