//! Calls the observer over gRPC with grpcurl, which gets the methods by reflection.

use std::io::{BufRead as _, BufReader};
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use leno_testkit::tools;
use serde_json::Value;

/// A client with the token of a reader, or without one.
struct Caller<'a> {
    grpcurl: PathBuf,
    address: &'a str,
    token: Option<&'a str>,
}

impl<'a> Caller<'a> {
    /// `None` if the client cannot be installed.
    fn new(address: &'a str, token: Option<&'a str>) -> Option<Self> {
        let folder = tools::install_or_skip("grpcurl").unwrap()?;
        Some(Self { grpcurl: folder.join("grpcurl"), address, token })
    }

    fn command(&self, method: &str, message: &str) -> Command {
        let mut command = Command::new(&self.grpcurl);
        command.args(["-plaintext", "-max-time", "600", "-d", message]);
        if let Some(token) = self.token {
            command.args(["-H", &format!("authorization: Bearer {token}")]);
        }
        command.args([self.address, &format!("leno.dashboard.v1.Dashboard/{method}")]);
        command
    }

    async fn call(&self, method: &str, message: &str) -> Output {
        let mut command = self.command(method, message);
        tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap()
    }

    /// Reads a stream until a text has occurred in it this many times, then ends it.
    async fn watch(&self, method: &str, message: &str, (wanted, often): (&str, usize)) -> String {
        let mut command = self.command(method, message);
        let wanted = wanted.to_owned();
        let watched = move || {
            let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
            let mut text = String::new();
            let lines = BufReader::new(child.stdout.take().unwrap()).lines();
            for line in lines.map_while(Result::ok) {
                text += &line;
                if text.matches(&wanted).count() >= often {
                    break;
                }
            }
            let _ended = child.kill();
            child.wait().unwrap();
            text
        };
        tokio::task::spawn_blocking(watched).await.unwrap()
    }

    async fn get(&self, method: &str, message: &str) -> Value {
        let answered = self.call(method, message).await;
        assert!(answered.status.success(), "{method}: {answered:?}");
        serde_json::from_slice(&answered.stdout).unwrap()
    }

    async fn refused(&self, method: &str, message: &str, code: &str) {
        let answered = self.call(method, message).await;
        let why = String::from_utf8_lossy(&answered.stderr).into_owned();
        assert!(!answered.status.success() && why.contains(code), "{method}: {answered:?}");
    }
}

const MINUTE: &str = r#"{"window": 60000}"#;

/// A reader of `shop` gets answers about it from unary calls and a stream, and none about `bank`.
pub(super) async fn show_shop_alone(address: &str, token: &str) {
    let Some(caller) = Caller::new(address, Some(token)) else { return };
    let topology = caller.get("GetTopology", MINUTE).await;
    let edge = &topology["edges"][0];
    assert_eq!((&edge["client"], &edge["server"]), (&"web-0".into(), &"(other namespaces)".into()));
    assert!(edge["signals"]["requests"].is_string(), "{edge}");
    let mut text = topology.to_string();
    for (method, message) in [
        ("GetOverview", "{}"),
        ("GetRoutes", MINUTE),
        ("GetProxies", "{}"),
        ("GetPolicies", MINUTE),
        ("GetFlows", r#"{"namespaces": ["shop", "bank"]}"#),
        ("GetChanges", r#"{"from": 0}"#),
    ] {
        text += &caller.get(method, message).await.to_string();
    }
    // The stream never ends by itself: it sends a response after each observation.
    let observed = r#""observedS""#;
    let watched = caller.watch("WatchTopology", MINUTE, (observed, 2)).await;
    assert!(watched.matches(observed).count() >= 2, "{watched}");
    text += &watched;
    for hidden in ["bank", "ledger", "vault", "teller"] {
        assert!(!text.contains(hidden), "{hidden}: {text}");
    }
    caller.refused("GetSeries", r#"{"workload": "bank/ledger-0"}"#, "NotFound").await;
    caller.refused("Tap", r#"{"workload": "shop/web"}"#, "NotFound").await;
}

/// A reader without rights gets empty answers, and one without a token is refused.
pub(super) async fn show_others_nothing(address: &str, stranger: &str) {
    let Some(caller) = Caller::new(address, Some(stranger)) else { return };
    let topology = caller.get("GetTopology", MINUTE).await;
    assert!(topology.get("workloads").is_none() && topology.get("edges").is_none(), "{topology}");
    for token in [None, Some("x")] {
        if let Some(caller) = Caller::new(address, token) {
            caller.refused("GetTopology", MINUTE, "Unauthenticated").await;
        }
    }
}
