//! The control plane that reads files of one machine.

use std::path::Path;
use std::sync::Arc;

use anyhow::Context;
use leno_identity::{Authority, TokenStore};
use leno_keys::{DocumentStore, KeySets, WebAuthorities};
use leno_serve::LocalTokens;
use leno_sources::{FilesSource, UPDATES};
use leno_types::TrustDomain;
use tokio::sync::mpsc;

use super::{Plane, PlaneSource};
use crate::admin::Render;
use crate::config::FileSettings;
use crate::federation;
use crate::refused::RefusedLog;

/// The operator's namespace. An annotation of this namespace says from which origins keys of tokens may be fetched. The
/// name is the same as the default in a cluster.
const NAMESPACE: &str = "leno-system";

pub(super) fn open(
    files: &FileSettings,
    (issuer, trust_domain): (Option<&Path>, &TrustDomain),
    authorities: &Arc<WebAuthorities>,
) -> anyhow::Result<Plane> {
    let authority = Authority::open(&files.ca_dir, issuer, trust_domain)
        .with_context(|| format!("opening the authority in {}", files.ca_dir.display()))?;
    let tokens = TokenStore::open(&files.tokens)
        .with_context(|| format!("opening the tokens in {}", files.tokens.display()))?;
    let source = FilesSource::open(&files.documents).context("cannot follow the documents")?;
    let store = |name: &str, is_document| {
        let directory = files.ca_dir.join(name);
        DocumentStore::open(&directory, is_document)
            .with_context(|| format!("opening {}", directory.display()))
    };
    let bundles = store("federation", federation::is_document)?;
    let keys = KeySets::new(
        NAMESPACE,
        Some(store("keys", KeySets::is_document)?),
        Arc::clone(authorities),
    );
    let metrics: Vec<Render> = vec![Box::new(keys.render())];
    let (sender, updates) = mpsc::channel(UPDATES);
    tokio::spawn(source.run(sender));
    Ok(Plane {
        authority: Arc::new(authority),
        authenticator: Arc::new(LocalTokens::new(Arc::new(tokens))),
        source: PlaneSource {
            updates,
            keys,
            secrets: None,
            statuses: None,
            stored: None,
            refused: RefusedLog::default(),
            last: None,
        },
        metrics,
        details: Vec::new(),
        webhook: None,
        rotation: None,
        bundles,
    })
}
