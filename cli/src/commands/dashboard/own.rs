//! The pages that are made with the rights of the user of `leno dashboard` instead of the observer's rights: the
//! output of `leno check` and `leno identity`, and documents.

use std::time::{Duration, Instant, SystemTime};

use anyhow::Result;
use leno_checks::CheckResult;
use leno_local::check::MachineHealth;
use leno_local::layout::Layout;
use leno_observe::admin::AdminReply;
use serde_json::{Value, json};
use tokio::sync::Mutex;

use super::document::{self, Documents};
use crate::commands::identity::Authority;
use crate::commands::{AnyMesh, ChosenMesh, check};

/// How long a reply is cached. All open pages request it at the same time, and a check queries each proxy.
const HOLDS: Duration = Duration::from_secs(10);
/// How long making a reply may take.
const BOUND: Duration = Duration::from_secs(60);

/// The pages and their cached replies.
pub(super) struct OwnPages {
    mesh: AnyMesh,
    /// The output of `leno check`.
    checks: Mutex<Option<CachedReply>>,
    /// The output of `leno identity`.
    authority: Mutex<Option<CachedReply>>,
    documents: Documents,
}

struct CachedReply {
    at: Instant,
    reply: AdminReply,
}

impl OwnPages {
    pub(super) fn new(mesh: AnyMesh) -> Self {
        let (checks, authority, documents) = Default::default();
        Self { mesh, checks, authority, documents }
    }

    /// The reply to a path with its query. Requests that arrive while the reply is being made wait for it and get
    /// the same reply.
    pub(super) async fn answer(&self, path: &str) -> AdminReply {
        let (path, query) = path.split_once('?').unwrap_or((path, ""));
        if path.ends_with("/document") {
            let read = document::answer(&self.documents, &self.mesh, query);
            return tokio::time::timeout(BOUND, read).await.unwrap_or_else(|_late| {
                let error = format!("it takes longer than {} s", BOUND.as_secs());
                AdminReply { status: 502, body: json!({"error": error}).to_string() }
            });
        }
        let is_checks = path.ends_with("/checks");
        let mut kept =
            if is_checks { self.checks.lock().await } else { self.authority.lock().await };
        if let Some(kept) = &*kept
            && kept.at.elapsed() < HOLDS
        {
            return AdminReply { status: kept.reply.status, body: kept.reply.body.clone() };
        }
        let look = async { if is_checks { self.checks().await } else { self.authority().await } };
        let looked = tokio::time::timeout(BOUND, look).await;
        let looked = looked.unwrap_or_else(|_late| {
            Err(anyhow::anyhow!("it takes longer than {} s", BOUND.as_secs()))
        });
        let reply = match looked {
            Ok(page) => AdminReply { status: 200, body: page.to_string() },
            Err(error) => {
                AdminReply { status: 502, body: json!({"error": format!("{error:#}")}).to_string() }
            }
        };
        let body = reply.body.clone();
        let status = reply.status;
        *kept = Some(CachedReply { at: Instant::now(), reply });
        AdminReply { status, body }
    }

    async fn checks(&self) -> Result<Value> {
        let groups: Vec<(&str, Vec<CheckResult>)> = match self.mesh.choose()? {
            ChosenMesh::Machine(name) => {
                let found = MachineHealth::run(&Layout::new(&name)?).await?;
                vec![
                    ("This machine", found.machine.findings()),
                    ("The mesh", found.mesh.unwrap_or_default()),
                ]
            }
            ChosenMesh::Cluster(target) => {
                let client = leno_operate::connect(&target).await?;
                vec![(
                    "The cluster",
                    check::of_installation(&client, &self.mesh.system_namespace).await?,
                )]
            }
        };
        let groups: Vec<Value> = groups
            .into_iter()
            .map(|(name, findings)| json!({"name": name, "findings": findings}))
            .collect();
        Ok(json!({"at_ms": now_ms(), "groups": groups}))
    }

    async fn authority(&self) -> Result<Value> {
        let report = Authority::of(&self.mesh).await?.report().await?;
        Ok(json!({"at_ms": now_ms(), "authority": report}))
    }
}

fn now_ms() -> u64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_millis()).unwrap_or(u64::MAX)
}
