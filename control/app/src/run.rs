//! The parts put together, until a signal ends them.

use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::Context;
use leno_identity::{Authority, TokenStore};
use leno_index::{Index, Settings as IndexSettings};
use leno_serve::{LocalTokens, Server, Settings, State};
use leno_sources::{FilesSource, UPDATES, Update};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{mpsc, watch};

use crate::admin::{self, Admin};
use crate::config::Config;
use crate::reload::Reloads;

/// Runs the control plane until SIGTERM or SIGINT.
pub(crate) async fn run(config: Config) -> anyhow::Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let authority = Authority::open(&config.ca_dir, &config.trust_domain)
        .with_context(|| format!("opening the authority in {}", config.ca_dir.display()))?;
    let tokens = TokenStore::open(&config.tokens)
        .with_context(|| format!("opening the tokens in {}", config.tokens.display()))?;
    let index = IndexSettings {
        trust_domain: config.trust_domain.clone(),
        default_mtls: config.default_mtls,
        default_egress: config.default_egress,
    };
    let state = State::new(Index::new(index));
    let reloads = Arc::new(Reloads::default());
    let settings = Settings {
        authority: Arc::new(authority),
        authenticator: Arc::new(LocalTokens::new(Arc::new(tokens))),
        lifetime: config.cert_lifetime,
    };
    let server = Server::bind(config.listen, settings, Arc::clone(&state)).await?;
    if let Some(address) = config.admin {
        let admin = Admin { state: Arc::clone(&state), reloads: Arc::clone(&reloads) };
        serve_admin(address, admin).await?;
    }
    let (stop, stopped) = watch::channel(false);
    let source = FilesSource::open(&config.files).context("cannot follow the documents")?;
    let (sender, updates) = mpsc::channel(UPDATES);
    tokio::spawn(source.run(sender));
    let work = work(server, updates, (&state, &reloads), stopped);
    tokio::pin!(work);
    tokio::select! {
        ended = &mut work => return ended,
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    tracing::info!("ending");
    stop.send_replace(true);
    work.await
}

async fn serve_admin(address: SocketAddr, admin: Admin) -> anyhow::Result<()> {
    let listener = TcpListener::bind(address).await;
    let listener = listener.with_context(|| format!("cannot listen on {address} for admin"))?;
    tracing::info!(address = %listener.local_addr()?, "serving /metrics, /ready and /live");
    tokio::spawn(admin::serve(listener, Arc::new(admin)));
    Ok(())
}

/// Takes in documents, and serves once there were good ones: before that, every proxy would be told
/// that nothing of what it holds exists any more.
async fn work(
    server: Server,
    mut updates: mpsc::Receiver<Update>,
    (state, reloads): (&State, &Reloads),
    mut stop: watch::Receiver<bool>,
) -> anyhow::Result<()> {
    while !reloads.loaded() {
        tokio::select! {
            update = updates.recv() => take(update, state, reloads)?,
            // A dropped sender says the same.
            _ = stop.wait_for(|stop| *stop) => return Ok(()),
        }
    }
    tracing::info!(address = %server.address(), "serving discovery and identity");
    let server = server.run(stop);
    tokio::pin!(server);
    loop {
        tokio::select! {
            ended = &mut server => return ended.map_err(Into::into),
            update = updates.recv() => take(update, state, reloads)?,
        }
    }
}

fn take(update: Option<Update>, state: &State, reloads: &Reloads) -> anyhow::Result<()> {
    match update.context("the documents are not followed any more")? {
        Update::Changes(changes) => {
            tracing::info!(changes = changes.len(), "documents taken in");
            state.apply(changes);
            reloads.took();
        }
        Update::Refused(problems) => {
            for problem in &problems {
                tracing::error!("{problem}");
            }
            tracing::error!(
                problems = problems.len(),
                "documents refused; the last good ones stay"
            );
            reloads.refused();
        }
    }
    Ok(())
}
