//! Tests `leno mcp` on a real mesh, with a client of JSON-RPC over the pipes of the real program.

#![expect(clippy::unwrap_used, reason = "test code")]

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, ChildStdin, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use leno_local::status::MeshStatus;
use serde_json::{Value, json};

use crate::mesh::{Mesh, root};
use crate::stat::ROUTED;

/// How long an answer may take: the server ends a call after a minute.
const LIMIT: Duration = Duration::from_secs(90);

/// A policy that denies clients without an identity, and clients whose certificate is older than twelve hours.
const POLICY: &str = "
---
apiVersion: leno.dev/v1alpha1
kind: AuthorizationPolicy
metadata: {name: web, namespace: shop}
spec:
  selector: {}
  rules: [{from: [{serviceAccounts: [default], certificate: {maxAge: 12h}}]}]
";

/// A client of the server.
struct Client {
    server: Child,
    stdin: Option<ChildStdin>,
    lines: Receiver<Value>,
    sent: u64,
}

impl Client {
    fn new(mesh: &Mesh) -> Self {
        let mut mcp = mesh.leno(&["mcp", "--name", mesh.name()]);
        let mut server = mcp.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (stdin, stdout) = (server.stdin.take(), server.stdout.take().unwrap());
        let (read, lines) = channel();
        // The thread ends when the server closes its output, or when the client is dropped.
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                let message = serde_json::from_str(&line).unwrap_or_else(|_| panic!("{line}"));
                if read.send(message).is_err() {
                    return;
                }
            }
        });
        Self { server, stdin, lines, sent: 0 }
    }

    fn send(&mut self, message: &Value) {
        writeln!(self.stdin.as_ref().unwrap(), "{message}").unwrap();
    }

    /// The response to a request; other messages of the server are skipped.
    fn ask(&mut self, method: &str, params: &Value) -> Value {
        self.sent += 1;
        let id = self.sent;
        self.send(&json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}));
        loop {
            let message = self.lines.recv_timeout(LIMIT);
            let message = message.unwrap_or_else(|_| panic!("no answer to {method} {params}"));
            if message["id"] == id {
                return message;
            }
        }
    }

    fn initialize(&mut self) -> Value {
        let client = json!({"name": "test", "version": "1"});
        let params =
            json!({"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": client});
        let answer = self.ask("initialize", &params);
        self.send(&json!({"jsonrpc": "2.0", "method": "notifications/initialized"}));
        answer["result"].clone()
    }

    fn call(&mut self, tool: &str, arguments: &Value) -> Value {
        self.ask("tools/call", &json!({"name": tool, "arguments": arguments}))
    }

    /// The answer of a tool.
    fn answer(&mut self, tool: &str, arguments: &Value) -> Value {
        let answer = self.call(tool, arguments);
        assert_eq!(answer["result"]["isError"], false, "{tool} {arguments}: {answer}");
        let text = answer["result"]["content"][0]["text"].as_str().unwrap();
        let structured = answer["result"]["structuredContent"].clone();
        assert_eq!(serde_json::from_str::<Value>(text).unwrap(), structured);
        structured
    }

    /// The reason why a tool does not answer.
    fn refusal(&mut self, tool: &str, arguments: &Value) -> String {
        let answer = self.call(tool, arguments);
        assert_eq!(answer["result"]["isError"], true, "{tool} {arguments}: {answer}");
        answer["result"]["content"][0]["text"].as_str().unwrap().to_owned()
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}

/// The instances, with their processes and restarts.
fn state(mesh: &Mesh) -> Vec<(String, Option<i32>, u32)> {
    let instances = MeshStatus::read(mesh.layout()).unwrap().instances;
    instances.into_iter().map(|one| (one.name, one.pid, one.restarts)).collect()
}

#[test]
fn a_client_of_mcp_reads_the_mesh_and_changes_nothing() {
    let Some(mesh) = root(|| Mesh::start(&(ROUTED.to_owned() + POLICY))) else { return };
    let before = state(&mesh);
    let mut client = Client::new(&mesh);
    let server = client.initialize();
    assert_eq!(server["serverInfo"]["name"], "leno", "{server}");
    assert!(server["capabilities"]["tools"].is_object(), "{server}");
    assert!(server["capabilities"]["prompts"].is_null(), "{server}");

    let tools = client.ask("tools/list", &json!({}))["result"]["tools"].clone();
    let tools = tools.as_array().unwrap();
    let names: Vec<&str> = tools.iter().map(|tool| tool["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["stat", "edges", "routes", "why", "explain", "authz", "tap"]);
    assert!(tools.iter().all(|tool| tool["annotations"]["readOnlyHint"] == true), "{tools:?}");

    let stat = client.answer("stat", &json!({"namespace": "shop"}));
    let names = stat["workloads"].as_array().unwrap().iter().map(|one| one["name"].clone());
    assert!(names.eq(["client", "reader", "web"]), "{stat}");
    let live = |arguments: &Value, client: &mut Client| {
        let edges = client.answer("edges", arguments);
        edges["edges"].as_array().unwrap().iter().any(|edge| edge["server"] == "web")
    };
    // A window in which the client got no processor time has no edge, so the call is repeated.
    let window = json!({"window": "5s", "filter": "shop/web", "sort": "p99"});
    assert!((0..6).any(|_| live(&window, &mut client)));
    let routes = (0..30).find_map(|_| {
        let routes = client.answer("routes", &json!({"window": "1s"}));
        let has = |one: &Value| one["rule"] == "pages" && one["route"] == "HTTPRoute shop/web";
        routes["routes"].as_array().unwrap().iter().any(has).then_some(routes)
    });
    assert!(routes.is_some(), "no request by the rule in thirty windows");
    assert!(client.answer("why", &json!({"since": "5m"}))["problems"].is_array());

    let request = ["GET", "http://web:8080/old"];
    let explained = client.answer("explain", &json!({"client": "client", "request": request}));
    assert_eq!(explained["client"]["workload"], "client", "{explained}");
    let access = client.answer("authz", &json!({"workload": "web"}));
    assert!(access.to_string().contains("shop/web"), "{access}");
    for (from, permitted) in [("client", true), ("anything", false)] {
        let asked = json!({"workload": "web", "from": from, "request": ["http://web:8080/"]});
        let check = client.answer("authz", &asked);
        assert_eq!(check["answer"]["permitted"], permitted, "{check}");
    }
    let mut asked = json!({"workload": "web", "from": "client", "request": ["http://web:8080/"]});
    for (name, value, permitted) in [
        ("certificate_age", "11h", true),
        ("certificate_age", "17h", false),
        ("certificate_left", "20h", true),
        ("certificate_left", "2h", false),
    ] {
        let mut asked = asked.clone();
        asked[name] = json!(value);
        let check = client.answer("authz", &asked);
        assert_eq!(check["answer"]["permitted"], permitted, "{name} {value}: {check}");
    }
    asked["certificate_age"] = json!("17 hours");
    let refused = client.refusal("authz", &asked);
    assert!(refused.contains("--certificate-age"), "{refused}");
    let tapped = client.answer(
        "tap",
        &json!({"workloads": ["client"], "to": "web", "path": "/", "status": "200", "headers": true, "count": 1, "for": 30}),
    );
    let request = &tapped["requests"][0];
    assert_eq!((&request["method"], &request["mtls"]), (&json!("GET"), &json!(true)), "{tapped}");
    assert_eq!(tapped["requests"].as_array().unwrap().len(), 1);

    drop(client.stdin.take());
    assert!(client.server.wait().unwrap().success(), "it ends with its input");
    assert_eq!(state(&mesh), before);
}

#[test]
fn what_mcp_does_not_understand_or_may_not_do_is_said() {
    let Some(mesh) = root(|| Mesh::start(ROUTED)) else { return };
    let before = state(&mesh);
    let mut client = Client::new(&mesh);
    client.initialize();
    for tool in ["down", "restart", "up", "exec", "cleanup", "identity"] {
        let answer = client.call(tool, &json!({}));
        let said = answer["error"]["message"].as_str().unwrap_or_default();
        let wanted = ": use one of stat, edges, routes, why, explain, authz, tap";
        assert!(said.starts_with("there is no tool") && said.ends_with(wanted), "{answer}");
    }
    for (tool, arguments, why) in [
        ("stat", json!({"namespace": "bank"}), "bank"),
        ("stat", json!({"window": "1 fortnight"}), "window"),
        ("stat", json!({"since": "1s"}), "since"),
        ("stat", json!({"output": "table"}), "stat has no argument \"output\""),
        ("explain", json!({"client": "client"}), "request is missing"),
        ("explain", json!({"client": "--file=/etc/shadow", "request": ["/"]}), "begins with '-'"),
        ("explain", json!({"client": "nothing", "request": ["http://web/"]}), "nothing"),
        ("authz", json!({"from": "client"}), "<REQUEST>"),
        ("tap", json!({"workloads": []}), "workloads is an empty array"),
        (
            "tap",
            json!({"workloads": ["web"], "count": 101}),
            "count is not an integer from 1 to 100",
        ),
        ("tap", json!({"workloads": ["web"], "for": 31}), "for is not an integer from 1 to 30"),
    ] {
        let refused = client.refusal(tool, &arguments);
        assert!(refused.contains(why), "{tool} {arguments}: {refused}");
    }
    // A tap without a request ends when its time is over.
    let quiet = client.answer("tap", &json!({"workloads": ["web"], "path": "/nowhere", "for": 1}));
    assert_eq!(quiet["requests"], json!([]), "{quiet}");
    assert_eq!(state(&mesh), before);
}
