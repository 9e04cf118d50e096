//! Connects the parts of the control plane, and runs them until a signal arrives.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use leno_cluster::{AffectedStatuses, KeySecrets};
use leno_identity::Authority;
use leno_index::{Index, MeshSettings as IndexSettings, ObjectChange, ObjectWriters};
use leno_keys::{DocumentStore, WebAuthorities};
use leno_program::listen;
use leno_serve::{CgroupAttestor, PlaneServer, PlaneState, ServerSettings, WorkloadApi};
use leno_sources::SourceUpdate;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;

use crate::admin::{Admin, Render};
use crate::config::{Config, FileSettings, MeshSource};
use crate::plane::{Plane, PlaneSource, WebhookServer};
use crate::reload::Reloads;
use crate::rotation::{ClusterParts, Rotation, RotationReport};
use crate::{bundle_endpoint, federation, webhook, workload_bundles};

/// How long the webhooks are still served after all other work has ended; `/ready` already fails then. In this time the
/// API server stops sending reviews to this replica, so that no pod is rejected because the replica ends.
const LINGER: Duration = Duration::from_secs(5);

/// Runs the control plane until SIGTERM or SIGINT.
pub(crate) async fn run(config: Config) -> anyhow::Result<()> {
    let mut signals = Signals {
        terminate: signal(SignalKind::terminate())?,
        interrupt: signal(SignalKind::interrupt())?,
    };
    let state = PlaneState::new(Index::new(index_settings(&config)));
    let (stop, stopped) = watch::channel(false);
    let authorities = WebAuthorities::open(config.web_authorities.as_deref());
    let authorities = Arc::new(authorities.context("--web-authorities")?);
    let plane = tokio::select! {
        plane = Plane::open(&config, (&state, &authorities), &stopped) => plane?,
        // Opening waits for a cluster that does not answer. A signal ends that wait.
        () = signals.any() => return Ok(()),
    };
    let Plane { authority, authenticator, mut source, mut metrics, details, .. } = plane;
    let Plane { webhook, rotation, bundles, .. } = plane;
    metrics.push(Box::new(authorities.render()));
    metrics.extend(exchange_bundles(&config, (&authority, &authorities), &bundles).await?);
    tokio::select! {
        () = trust_others(&config, &authority) => {}
        () = signals.any() => return Ok(()),
    }
    let identity = RotationReport::new(Arc::clone(&authority), Arc::clone(&state));
    let rendered = Arc::clone(&identity);
    metrics.push(Box::new(move |text| rendered.render(text)));
    let reloads = Arc::new(Reloads::default());
    let settings = ServerSettings { authority, authenticator, lifetime: config.cert_lifetime };
    serve_workload_api(&config, (&settings, &state), &stopped)?;
    let server = PlaneServer::bind(config.listen, settings, Arc::clone(&state)).await?;
    let server = server.with_stream_age(config.stream_age);
    if let Some(address) = config.admin {
        let shown = (&state, &reloads, &identity);
        serve_admin(address, shown, (metrics, details)).await?;
    }
    begin_rotation(&config, rotation, identity)?;
    let last = source.last.take();
    let called = webhook.as_ref().map(|hook| Arc::clone(&hook.webhook));
    let work = work((server, webhook), source, (&state, &reloads), stopped);
    tokio::pin!(work);
    tokio::select! {
        ended = &mut work => return ended,
        () = signals.any() => {}
    }
    tracing::info!("ending");
    reloads.end();
    if let Some(webhook) = &called {
        webhook.end();
    }
    stop.send_replace(true);
    let ended = work.await;
    if let Some(last) = last {
        // An error means that the task has panicked, which was logged.
        let _ = last.await;
    }
    if called.is_some() {
        tokio::select! {
            () = tokio::time::sleep(LINGER) => {}
            () = signals.any() => {}
        }
    }
    ended
}

/// The settings of the index.
fn index_settings(config: &Config) -> IndexSettings {
    IndexSettings {
        trust_domain: config.trust_domain.clone(),
        default_mtls: config.default_mtls,
        default_egress: config.default_egress,
        namespace: match &config.source {
            MeshSource::Cluster(cluster) => Some(cluster.namespace.clone()),
            MeshSource::Files(_) => None,
        },
        writers: match &config.source {
            MeshSource::Cluster(_) => ObjectWriters::Tenants,
            MeshSource::Files(_) => ObjectWriters::Operator,
        },
        // Set once the agents of all nodes report.
        agents_report: false,
    }
}

/// Serves the trust bundle of this mesh, and follows those of other trust domains. Returns two functions that append
/// the metrics of both.
async fn exchange_bundles(
    config: &Config,
    (authority, authorities): (&Arc<Authority>, &Arc<WebAuthorities>),
    store: &DocumentStore,
) -> anyhow::Result<Vec<Render>> {
    let followed = federation::begin(&config.federate, (authority, authorities), store)?;
    let served: Render = match &config.bundle_endpoint {
        Some(endpoint) => bundle_endpoint::serve(endpoint, authority, config.cert_lifetime).await?,
        None => Box::new(|text| bundle_endpoint::render(0, text)),
    };
    Ok(vec![followed, served])
}

/// Follows the trust bundles of a SPIFFE Workload API, if there is one. Returns when the first ones are in use.
async fn trust_others(config: &Config, authority: &Arc<Authority>) {
    if let Some(address) = &config.spiffe_endpoint_socket {
        let federated = federation::of_workload_api(&config.federate);
        workload_bundles::follow(address.clone(), Arc::clone(authority), federated).await;
    }
}

struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    async fn any(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}

/// Starts the rotation of the authority, in a cluster or on this machine.
fn begin_rotation(
    config: &Config,
    of_cluster: Option<ClusterParts>,
    identity: Arc<RotationReport>,
) -> anyhow::Result<()> {
    if let Some(rotation) = of_cluster {
        tokio::spawn(rotation.run(Arc::clone(&identity)));
    }
    if let MeshSource::Files(files) = &config.source {
        let rotation = Rotation::new(identity, &files.ca_dir, config.cert_lifetime)
            .with_issuer(config.issuer.clone())
            .with_roots_file(files.roots_file.clone());
        let rotation = match &config.bundle_endpoint {
            Some(endpoint) => rotation.with_phase_hold(endpoint.phase_hold()),
            None => rotation,
        };
        rotation.start()?;
    }
    Ok(())
}

async fn serve_admin(
    address: SocketAddr,
    (state, reloads, identity): (&Arc<PlaneState>, &Arc<Reloads>, &Arc<RotationReport>),
    (more, details): (Vec<Render>, Vec<Render>),
) -> anyhow::Result<()> {
    let (state, reloads) = (Arc::clone(state), Arc::clone(reloads));
    let identity = Arc::clone(identity);
    let admin = Admin { state, reloads, identity, more, details };
    let listener = listen(address).await;
    let listener = listener.with_context(|| format!("cannot listen on {address} for admin"))?;
    tracing::info!(address = %listener.local_addr()?, "serving /metrics, /ready and /live");
    let answer = move |request, ends| std::future::ready(admin.answer(&request, ends));
    tokio::spawn(leno_program::serve(listener, answer));
    Ok(())
}

/// Serves the Workload API to applications, if it is enabled.
fn serve_workload_api(
    config: &Config,
    of: (&ServerSettings, &Arc<PlaneState>),
    stop: &watch::Receiver<bool>,
) -> anyhow::Result<()> {
    let MeshSource::Files(FileSettings { workload_api: Some(path), .. }) = &config.source else {
        return Ok(());
    };
    let attestor =
        CgroupAttestor::of_own_mesh().context("cannot read the control group of this process")?;
    let api = WorkloadApi::bind(path, attestor, of)
        .with_context(|| format!("cannot listen on {} for the Workload API", path.display()))?;
    let stop = stop.clone();
    tokio::spawn(async move {
        if let Err(error) = api.run(stop).await {
            let error: &dyn std::error::Error = &error;
            tracing::error!(error, "the Workload API is no longer served");
        }
    });
    Ok(())
}

async fn serve_webhook(hook: WebhookServer) -> anyhow::Result<()> {
    let WebhookServer { address, credentials, webhook } = hook;
    let listener = listen(address).await;
    let listener = listener.with_context(|| format!("cannot listen on {address} for webhooks"))?;
    tracing::info!(address = %listener.local_addr()?, "serving /inject and /validate");
    webhook::serve(listener, Arc::new(credentials), webhook).await
}

/// Applies documents until `stop`, and begins to serve discovery, identity and the webhooks after the first valid
/// documents. If it served earlier, proxies would be informed that all their resources were removed.
async fn work(
    (server, webhook): (PlaneServer, Option<WebhookServer>),
    mut source: PlaneSource,
    (state, reloads): (&PlaneState, &Reloads),
    mut stop: watch::Receiver<bool>,
) -> anyhow::Result<()> {
    while !reloads.loaded() {
        tokio::select! {
            update = source.updates.recv() => source.take_first(update, state, reloads).await?,
            // If the sender was dropped, the process is ending.
            _ = stop.wait_for(|stop| *stop) => return Ok(()),
        }
    }
    if let Some(hook) = webhook {
        serve_webhook(hook).await?;
    }
    tracing::info!(address = %server.address(), "serving discovery and identity");
    let server = server.run(stop);
    tokio::pin!(server);
    loop {
        tokio::select! {
            ended = &mut server => return ended.map_err(Into::into),
            update = source.updates.recv() => source.take(update, state, reloads)?,
            changes = secrets_changed(&mut source.secrets) => {
                source.take(Some(SourceUpdate::Changes(changes)), state, reloads)?;
            }
            issuers = state.unknown_keys() => source.keys.refetch(&issuers),
            changes = source.keys.refreshed() => {
                state.apply(changes);
                if let Some(statuses) = &source.statuses {
                    statuses.applied(AffectedStatuses::KEYS);
                }
            }
        }
    }
}

/// Waits until Secrets with keys of token issuers change, and returns the changes.
async fn secrets_changed(secrets: &mut Option<KeySecrets>) -> Vec<ObjectChange> {
    match secrets {
        Some(secrets) => secrets.changed().await,
        None => std::future::pending().await,
    }
}

impl PlaneSource {
    /// Applies an update that arrives before serving begins. Adds the Secrets to which the policies among the changes
    /// refer, so that no token is rejected only because its keys are not known yet.
    async fn take_first(
        &mut self,
        mut update: Option<SourceUpdate>,
        state: &PlaneState,
        reloads: &Reloads,
    ) -> anyhow::Result<()> {
        if let (Some(SourceUpdate::Changes(changes)), Some(secrets)) =
            (&mut update, &mut self.secrets)
        {
            let ended = secrets.note(changes);
            changes.extend(ended);
            changes.extend(secrets.first().await);
        }
        self.take(update, state, reloads)
    }

    fn take(
        &mut self,
        update: Option<SourceUpdate>,
        state: &PlaneState,
        reloads: &Reloads,
    ) -> anyhow::Result<()> {
        match update.context("the documents are no longer watched")? {
            SourceUpdate::Early(changes) => {
                if let Some(stored) = &self.stored {
                    stored.note(&changes);
                }
                state.preload(changes);
            }
            SourceUpdate::Changes(mut changes) => {
                if let Some(secrets) = &mut self.secrets {
                    let ended = secrets.note(&changes);
                    changes.extend(ended);
                }
                tracing::info!(changes = changes.len(), "documents applied");
                if let Some(stored) = &self.stored {
                    stored.note(&changes);
                }
                let statuses = self.statuses.as_ref();
                let noted = statuses.map(|statuses| (statuses, statuses.note(&changes)));
                self.keys.fill(&mut changes);
                state.apply(changes);
                self.refused.update(state);
                if let Some((statuses, bearing)) = noted {
                    statuses.applied(bearing);
                }
                reloads.took();
            }
            SourceUpdate::Misread(misread) => {
                if let Some(statuses) = &self.statuses {
                    statuses.misread(misread.into_iter().map(|one| (one.object, one.reason)));
                }
            }
            SourceUpdate::Refused(problems) => {
                for problem in &problems {
                    tracing::error!("{problem}");
                }
                tracing::error!(
                    problems = problems.len(),
                    "documents rejected; the last valid ones stay in effect"
                );
                reloads.refused();
            }
        }
        Ok(())
    }
}
