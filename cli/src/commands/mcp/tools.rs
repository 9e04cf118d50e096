//! The tools: commands that change nothing, each with the arguments that it accepts.

use std::sync::Arc;

use rmcp::model::{JsonObject, ToolAnnotations};
use serde_json::{Map, Value, json};

/// Longest text of an argument, in bytes, and the most texts in a list.
const MAX_TEXT: usize = 4096;
const MAX_TEXTS: usize = 32;

/// A tool, which is a command of `leno`.
#[derive(Debug)]
pub(super) struct Tool {
    /// The name of the tool, which is also the name of the command.
    pub(super) name: &'static str,
    description: &'static str,
    parameters: &'static [Parameter],
    /// Whether the exit code 1 counts as an answer. The command has then printed the reasons.
    pub(super) answers_no: bool,
    /// The name of the field that contains an answer that is a list, because an answer must be an object.
    pub(super) list: &'static str,
}

#[derive(Debug)]
struct Parameter {
    name: &'static str,
    place: ArgumentPosition,
    kind: ParameterKind,
    is_required: bool,
    description: &'static str,
}

/// The position of an argument on the command line.
#[derive(Clone, Copy, Debug)]
enum ArgumentPosition {
    /// `--NAME=VALUE`, with dashes where the name has underscores.
    Option,
    Positional,
    /// As the last words of the command line, after `--`.
    Last,
}

#[derive(Clone, Copy, Debug)]
enum ParameterKind {
    Text,
    Texts,
    /// One of these words.
    Choice(&'static [&'static str]),
    /// An integer within two limits; the third number is the default.
    Number(u64, u64, u64),
    /// A number of seconds; limits and default are as for `Number`.
    Seconds(u64, u64, u64),
    Flag,
}

const fn option(name: &'static str, kind: ParameterKind, description: &'static str) -> Parameter {
    Parameter { name, place: ArgumentPosition::Option, kind, is_required: false, description }
}

const fn positional(
    name: &'static str,
    kind: ParameterKind,
    description: &'static str,
) -> Parameter {
    Parameter { name, place: ArgumentPosition::Positional, kind, is_required: true, description }
}

const NAMESPACE: Parameter = option(
    "namespace",
    ParameterKind::Text,
    "Only this namespace. For explain and authz, the namespace of the client and the workload",
);
const SINCE: Parameter = option(
    "since",
    ParameterKind::Text,
    "Report on this much time up to now, from the history, such as 10m; from 5s to 24h",
);
const SORTS: &[&str] = &["name", "success", "rate", "p50", "p95", "p99", "bytes"];
const FIGURES: &[Parameter] = &[
    NAMESPACE,
    option(
        "window",
        ParameterKind::Text,
        "Report on a window of this length that begins now, such as 5s; from 100ms to 1h. Default \
         without since: 1s",
    ),
    SINCE,
    option(
        "sort",
        ParameterKind::Choice(SORTS),
        "Figure by which rows are sorted, the worst or largest first",
    ),
    option(
        "filter",
        ParameterKind::Text,
        "Only rows with this text in the name of the workload, client, server, service or route",
    ),
];
const REQUEST: Parameter = Parameter {
    name: "request",
    place: ArgumentPosition::Last,
    kind: ParameterKind::Texts,
    is_required: true,
    description: "The request: [METHOD] URL [-H 'name: value'], such as [\"GET\", \"http://cart/items\"]",
};

const fn figures(name: &'static str, description: &'static str) -> Tool {
    Tool { name, description, parameters: FIGURES, answers_no: false, list: name }
}

/// All tools. Never add a command that changes something.
pub(super) const TOOLS: [&Tool; 7] = [
    &figures(
        "stat",
        "Workloads of the mesh and the edges between them: success rate, requests per second, \
         latency, mTLS, and requests that the mesh itself failed",
    ),
    &figures(
        "edges",
        "Which workload calls which, with figures and the identities that both ends prove",
    ),
    &figures(
        "routes",
        "Requests to services by the route and the rule that they match, with figures",
    ),
    &Tool {
        name: "why",
        description: "What is broken, since when, the culprit, the evidence, and the command that \
                      shows more. The likeliest root cause comes first",
        parameters: &[NAMESPACE, SINCE],
        answers_no: true,
        list: "problems",
    },
    &Tool {
        name: "explain",
        description: "What happens to a request: service, route, rule, backends, endpoints, and \
                      why. Sends no request",
        parameters: &[
            NAMESPACE,
            positional(
                "client",
                ParameterKind::Text,
                "The client that sends the request: a workload (web, shop/web), an instance \
                 (web-1) or a service account (sa/web)",
            ),
            REQUEST,
        ],
        answers_no: false,
        list: "explanations",
    },
    &Tool {
        name: "authz",
        description: "Which clients may reach a workload and by which policy; with `from` and \
                      `request`, whether one request is permitted",
        parameters: &[
            NAMESPACE,
            Parameter {
                is_required: false,
                ..positional(
                    "workload",
                    ParameterKind::Text,
                    "The workload that receives the request (orders, shop/orders). Default: all \
                     workloads with a proxy",
                )
            },
            option(
                "from",
                ParameterKind::Text,
                "The client that sends the request: a workload, a service account (sa/web), a \
                 SPIFFE ID, an address, or `anything` for a client without an identity",
            ),
            option(
                "claim",
                ParameterKind::Texts,
                "Claims of the request's token, each as NAME=VALUE. The token is assumed to be \
                 valid",
            ),
            option(
                "certificate_age",
                ParameterKind::Text,
                "Age of the clients' certificates since the start of their validity, such as 17h, \
                 for policies with conditions on it",
            ),
            option(
                "certificate_left",
                ParameterKind::Text,
                "How long the clients' certificates are still valid, such as 2h, for policies with \
                 conditions on it",
            ),
            Parameter { is_required: false, ..REQUEST },
        ],
        answers_no: true,
        list: "workloads",
    },
    &Tool {
        name: "tap",
        description: "Live requests of workloads with identities, route, retries and the time \
                      spent at each step; secrets are masked",
        parameters: &[
            NAMESPACE,
            positional(
                "workloads",
                ParameterKind::Texts,
                "Workloads (web) or instances (web-0) whose requests are shown",
            ),
            option("to", ParameterKind::Text, "Only requests to this workload or service"),
            option(
                "from",
                ParameterKind::Text,
                "Only requests of this client, a workload or service account",
            ),
            option("method", ParameterKind::Text, "Only requests with this method"),
            option("path", ParameterKind::Text, "Only requests whose path begins with this prefix"),
            option(
                "status",
                ParameterKind::Text,
                "Only requests with this status (503) or class of statuses (5xx)",
            ),
            option(
                "headers",
                ParameterKind::Flag,
                "Include the headers of requests, with secrets masked",
            ),
            option(
                "count",
                ParameterKind::Number(1, 100, 10),
                "End after this many requests, from 1 to 100. Default: 10",
            ),
            option(
                "for",
                ParameterKind::Seconds(1, 30, 10),
                "End after this many seconds, from 1 to 30. Default: 10",
            ),
        ],
        answers_no: false,
        list: "requests",
    },
];

impl Tool {
    /// The description of the tool that clients get.
    pub(super) fn described(&self) -> rmcp::model::Tool {
        let schema = |one: &Parameter| (one.name.to_owned(), one.schema());
        let required = self.parameters.iter().filter(|one| one.is_required).map(|one| one.name);
        let schema = json!({
            "type": "object",
            "properties": self.parameters.iter().map(schema).collect::<Map<String, Value>>(),
            "required": required.collect::<Vec<_>>(),
            "additionalProperties": false,
        });
        let Value::Object(schema) = schema else { unreachable!("it is written as an object") };
        let read_only = ToolAnnotations::new().read_only(true).destructive(false);
        rmcp::model::Tool::new(self.name, self.description, Arc::new(schema))
            .with_annotations(read_only)
    }

    /// The arguments of the command, or the reason why the arguments of the call are invalid.
    pub(super) fn command_line(&self, given: &JsonObject) -> Result<Vec<String>, String> {
        let knows = |name: &&String| self.parameters.iter().any(|one| one.name == **name);
        if let Some(unknown) = given.keys().find(|name| !knows(name)) {
            let names: Vec<_> = self.parameters.iter().map(|one| one.name).collect();
            return Err(format!(
                "{} has no argument {unknown:?}: use {}",
                self.name,
                names.join(", ")
            ));
        }
        let (mut line, mut positionals, mut last) = (Vec::new(), Vec::new(), Vec::new());
        for parameter in self.parameters {
            let values =
                parameter.values(given.get(parameter.name).filter(|one| !one.is_null()))?;
            match parameter.place {
                ArgumentPosition::Option => {
                    let name = parameter.name.replace('_', "-");
                    line.extend(values.into_iter().map(|value| match parameter.kind {
                        ParameterKind::Flag => format!("--{name}"),
                        _ => format!("--{name}={value}"),
                    }))
                }
                ArgumentPosition::Positional => positionals.extend(values),
                ArgumentPosition::Last => last.extend(values),
            }
        }
        // The command would take a text that begins with a dash for an option.
        if let Some(odd) = positionals.iter().find(|value| value.starts_with('-')) {
            return Err(format!("{odd:?} begins with '-', which no name does"));
        }
        line.extend(positionals);
        if !last.is_empty() {
            line.push("--".to_owned());
            line.extend(last);
        }
        Ok(line)
    }
}

impl Parameter {
    fn schema(&self) -> Value {
        let mut schema = match self.kind {
            ParameterKind::Text => json!({"type": "string"}),
            ParameterKind::Texts => json!({"type": "array", "items": {"type": "string"}}),
            ParameterKind::Choice(names) => json!({"type": "string", "enum": names}),
            ParameterKind::Number(from, to, usual) | ParameterKind::Seconds(from, to, usual) => {
                json!({"type": "integer", "minimum": from, "maximum": to, "default": usual})
            }
            ParameterKind::Flag => json!({"type": "boolean"}),
        };
        schema["description"] = self.description.into();
        schema
    }

    /// The texts on the command line for a value of the call.
    fn values(&self, given: Option<&Value>) -> Result<Vec<String>, String> {
        let wrong = |what: &str| format!("{} is {what}", self.name);
        let text = |value: &Value| match value.as_str() {
            Some(text) if text.len() > MAX_TEXT => Err(wrong("too long")),
            Some(text) if text.contains('\0') => Err(wrong("a string with a NUL byte")),
            Some(text) => Ok(text.to_owned()),
            None => Err(wrong("not a string, or not an array of strings")),
        };
        let Some(given) = given else {
            return match self.kind {
                _ if self.is_required => Err(wrong("missing")),
                ParameterKind::Number(.., usual) => Ok(vec![usual.to_string()]),
                ParameterKind::Seconds(.., usual) => Ok(vec![format!("{usual}s")]),
                _ => Ok(Vec::new()),
            };
        };
        match self.kind {
            ParameterKind::Text => Ok(vec![text(given)?]),
            ParameterKind::Texts => {
                let all = given.as_array().ok_or_else(|| wrong("not an array of strings"))?;
                match all.len() {
                    0 if self.is_required => Err(wrong("an empty array")),
                    many if many > MAX_TEXTS => Err(wrong("an array of too many strings")),
                    _ => all.iter().map(text).collect(),
                }
            }
            ParameterKind::Choice(names) => {
                let chosen = names.iter().find(|name| given.as_str() == Some(name));
                let chosen =
                    chosen.ok_or_else(|| wrong(&format!("not one of {}", names.join(", "))))?;
                Ok(vec![(*chosen).to_owned()])
            }
            ParameterKind::Number(from, to, _) | ParameterKind::Seconds(from, to, _) => {
                let number = given.as_u64().filter(|number| (from..=to).contains(number));
                let number =
                    number.ok_or_else(|| wrong(&format!("not an integer from {from} to {to}")))?;
                let unit = if matches!(self.kind, ParameterKind::Seconds(..)) { "s" } else { "" };
                Ok(vec![format!("{number}{unit}")])
            }
            ParameterKind::Flag => match given.as_bool() {
                Some(true) => Ok(vec![String::new()]),
                Some(false) => Ok(Vec::new()),
                None => Err(wrong("neither true nor false")),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(name: &str, given: Value) -> Result<Vec<String>, String> {
        let tool = TOOLS.iter().find(|tool| tool.name == name).unwrap();
        tool.command_line(given.as_object().unwrap())
    }

    #[test]
    fn arguments_become_a_command_line() {
        assert_eq!(line("stat", json!({})).unwrap(), [""; 0]);
        let stat = json!({"since": "10m", "sort": "p99", "namespace": null});
        assert_eq!(line("stat", stat).unwrap(), ["--since=10m", "--sort=p99"]);
        let explain = json!({"client": "web", "request": ["GET", "http://cart/", "-H", "x: y"]});
        let wanted = ["web", "--", "GET", "http://cart/", "-H", "x: y"];
        assert_eq!(line("explain", explain).unwrap(), wanted);
        let authz = json!({"workload": "web", "certificate_age": "17h", "certificate_left": "2h"});
        let wanted = ["--certificate-age=17h", "--certificate-left=2h", "web"];
        assert_eq!(line("authz", authz).unwrap(), wanted);
        let tap = json!({"workloads": ["web", "cart"], "headers": true, "for": 5, "status": "5xx"});
        let wanted = ["--status=5xx", "--headers", "--count=10", "--for=5s", "web", "cart"];
        assert_eq!(line("tap", tap).unwrap(), wanted);
    }

    #[test]
    fn what_is_no_argument_is_refused_with_the_reason() {
        for (tool, given, why) in [
            ("stat", json!({"since": 5}), "since is not a string"),
            ("stat", json!({"sort": "size"}), "sort is not one of name, success"),
            ("stat", json!({"file": "x"}), "stat has no argument \"file\": use namespace"),
            ("explain", json!({"client": "web"}), "request is missing"),
            ("explain", json!({"client": "web", "request": []}), "request is an empty array"),
            ("explain", json!({"client": "-f/etc/shadow", "request": ["/"]}), "begins with '-'"),
            ("authz", json!({"workload": "--with=/etc/shadow"}), "begins with '-'"),
            (
                "tap",
                json!({"workloads": ["web"], "count": 1000}),
                "count is not an integer from 1 to 100",
            ),
            (
                "tap",
                json!({"workloads": ["web"], "headers": "yes"}),
                "headers is neither true nor false",
            ),
            ("tap", json!({"workloads": ["a\0b"]}), "a string with a NUL byte"),
            ("tap", json!({"workloads": ["x".repeat(5000)]}), "too long"),
            ("tap", json!({"workloads": vec!["x"; 33]}), "too many"),
        ] {
            let refused = line(tool, given.clone()).unwrap_err();
            assert!(refused.contains(why), "{tool} {given}: {refused}");
        }
    }

    #[test]
    fn every_tool_only_reads() {
        for tool in &TOOLS {
            let described = tool.described();
            let hints = described.annotations.unwrap();
            assert_eq!((hints.read_only_hint, hints.is_destructive()), (Some(true), false));
            assert_eq!(described.input_schema["additionalProperties"], false);
        }
    }
}
