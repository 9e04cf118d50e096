//! The observer over gRPC, called by grpcurl, which learns the methods by reflection.

use std::path::PathBuf;
use std::process::{Command, Output};

use leno_testkit::tools;
use serde_json::Value;

/// A client with the token of a reader, or without one.
struct Caller<'a> {
    grpcurl: PathBuf,
    address: &'a str,
    token: Option<&'a str>,
}

impl<'a> Caller<'a> {
    /// `None` where the client cannot be installed.
    fn new(address: &'a str, token: Option<&'a str>) -> Option<Self> {
        let folder = tools::install_or_skip("grpcurl").unwrap()?;
        Some(Self { grpcurl: folder.join("grpcurl"), address, token })
    }

    /// A call that ends after so many seconds at the latest.
    async fn call(&self, seconds: u32, method: &str, message: &str) -> Output {
        let mut command = Command::new(&self.grpcurl);
        command.args(["-plaintext", "-max-time", &seconds.to_string(), "-d", message]);
        if let Some(token) = self.token {
            command.args(["-H", &format!("authorization: Bearer {token}")]);
        }
        command.args([self.address, &format!("leno.dashboard.v1.Dashboard/{method}")]);
        tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap()
    }

    async fn get(&self, method: &str, message: &str) -> Value {
        let answered = self.call(60, method, message).await;
        assert!(answered.status.success(), "{method}: {answered:?}");
        serde_json::from_slice(&answered.stdout).unwrap()
    }

    async fn refused(&self, method: &str, message: &str, code: &str) {
        let answered = self.call(60, method, message).await;
        let why = String::from_utf8_lossy(&answered.stderr).into_owned();
        assert!(!answered.status.success() && why.contains(code), "{method}: {answered:?}");
    }
}

const MINUTE: &str = r#"{"window": 60000}"#;

/// A reader of `shop` is answered about it, by unary calls and by a stream, and about nothing of `bank`.
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
    // It never ends by itself: an answer at each observation.
    let watched = caller.call(12, "WatchTopology", MINUTE).await;
    let watched = String::from_utf8(watched.stdout).unwrap();
    assert!(watched.matches(r#""observedS""#).count() >= 2, "{watched}");
    text += &watched;
    for hidden in ["bank", "ledger", "vault", "teller"] {
        assert!(!text.contains(hidden), "{hidden}: {text}");
    }
    caller.refused("GetSeries", r#"{"workload": "bank/ledger-0"}"#, "NotFound").await;
    caller.refused("Tap", r#"{"workload": "shop/web"}"#, "NotFound").await;
}

/// A reader without rights is answered with nothing, and one without a token is refused.
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
