//! A control plane in a Kubernetes cluster.

use std::sync::Arc;

use anyhow::Context;

use leno_cluster::{
    FailingKind, RemovalReconciler, ReplicaReport, ReplicaReporter, Reports, RootsReconciler,
    StatusReconciler, TokenReviewer, WebhookReconciler, XMeshReconciler, authority, kinds_followed,
    policies_enforced, unenforced_annotation,
};
use leno_identity::Authority;
use leno_keys::KeySets;
use leno_kube::{Client, Elector, connect};
use leno_program::Family;
use leno_serve::{Credentials, State};
use leno_sources::{Followed, KubernetesSource, UPDATES, UnfollowedKind};
use tokio::sync::{mpsc, watch};

use super::{Hook, Plane, Source};
use crate::admin::Render;
use crate::config::{Cluster, Config};
use crate::refused::RefusedLog;
use crate::stored::AdmissionObjects;
use crate::webhook::{ProvenPaths, Webhook};

/// Random bytes that tell this start of the process from others of its name.
const RUN_BYTES: usize = 8;
/// The control plane's Service, by which the API server calls it.
const SERVICE: &str = "leno-controller";
/// The Lease of the replica that writes, in the control plane's namespace.
const LEASE: &str = "leno-controller";

pub(super) async fn open(
    cluster: &Cluster,
    config: &Config,
    state: &Arc<State>,
    stop: &watch::Receiver<bool>,
) -> anyhow::Result<Plane> {
    let trust_domain = &config.trust_domain;
    let client = connect(cluster.kubeconfig.as_deref(), None).await?;
    let (authority, secret) = authority(&client, &cluster.namespace, trust_domain).await?;
    let render_secret = secret.render();
    tokio::spawn(secret.run());
    let source = KubernetesSource::new(client.clone());
    let followed = source.followed();
    let reviews =
        Arc::new(TokenReviewer::new(client.clone(), &cluster.token_audience, trust_domain.clone()));
    let statuses = Arc::new(StatusReconciler::new(client.clone(), &cluster.namespace));

    let (name, run) = (replica(cluster)?, run()?);
    let authority = Arc::new(authority);
    let elector = Elector::new(client.clone(), (&cluster.namespace, LEASE), (&name, &run));
    let leads = elector.leads();
    let heard = Arc::clone(&followed);
    let last = tokio::spawn(elector.run(move |heard_it| heard.answered(heard_it), stop.clone()));
    let (sender, updates) = mpsc::channel(UPDATES);
    tokio::spawn(source.run(sender));
    let reporter = Arc::new(ReplicaReporter::new(client.clone(), &cluster.namespace, &name));
    let reports = reports(&followed, state);
    let report =
        start(reporter, |part| async move { part.run(reports).await }, ReplicaReporter::render);
    let led = led(&client, cluster, &authority, (state, &statuses), &leads);
    let stored = Arc::new(AdmissionObjects::default());
    let webhook = Arc::new(Webhook::new(
        (*cluster.proxies).clone(),
        Arc::clone(&stored),
        &authority.webhook_secret(),
    ));
    let hook = Hook {
        address: cluster.webhook,
        credentials: credentials(&authority, cluster, config)?,
        webhook: Arc::clone(&webhook),
    };

    let keys = KeySets::new(&cluster.namespace, None);
    let render_keys = keys.render();
    let described = Arc::clone(&followed);
    let details: Vec<Render> = vec![Box::new(move |text| described.describe(text))];
    let metrics: Vec<Render> = vec![
        Box::new(move |text| followed.render(text)),
        Box::new(render_secret),
        Box::new(render_keys),
        Box::new({
            let reviews = Arc::clone(&reviews);
            move |text| reviews.render(text)
        }),
        Box::new(move |text| webhook.render(text)),
        Box::new(move |text| render_lead(*leads.borrow(), text)),
    ];
    let metrics = metrics.into_iter().chain([report]).chain(led).collect();
    let source = Source {
        updates,
        keys,
        statuses: Some(statuses),
        stored: Some(stored),
        refused: RefusedLog::default(),
        last: Some(last),
    };
    Ok(Plane { authority, authenticator: reviews, source, metrics, details, webhook: Some(hook) })
}

/// What this replica says of itself; of its kinds and policies once each kind was read or refused.
fn reports(followed: &Arc<Followed>, state: &Arc<State>) -> Reports {
    let (followed, state) = (Arc::clone(followed), Arc::clone(state));
    Arc::new(move || {
        let Some(kinds) = failing(&followed) else { return ReplicaReport::default() };
        ReplicaReport {
            conditions: vec![kinds_followed(&kinds), policies_enforced(&state.unenforced())],
            unenforced: unenforced_annotation(&state.unenforced_by_policy()),
        }
    })
}

/// The kinds that cannot be followed; `None` until each was read or refused once.
fn failing(followed: &Followed) -> Option<Vec<FailingKind>> {
    let of =
        |one: UnfollowedKind| FailingKind { kind: one.kind, time: one.time, reason: one.reason };
    let kinds = || followed.unfollowed().into_iter().map(of).collect();
    (!followed.is_starting()).then(kinds)
}

/// Starts what only the leader does. Each part waits until this replica leads; what each appends to the
/// metrics.
fn led(
    client: &Client,
    cluster: &Cluster,
    authority: &Authority,
    (state, statuses): (&Arc<State>, &Arc<StatusReconciler>),
    leads: &watch::Receiver<bool>,
) -> Vec<Render> {
    let namespace = cluster.namespace.as_str();
    let trust = authority.trust();
    let roots = RootsReconciler::new(client.clone(), trust.roots_pem());
    let ProvenPaths { inject, validate } = ProvenPaths::new(&authority.webhook_secret());
    let hooks = WebhookReconciler::new(client.clone(), trust.roots_pem(), (inject, validate));
    let of_statuses = Arc::clone(state);
    let [first, second, third, fourth, fifth] = std::array::from_fn(|_| leads.clone());
    vec![
        start(
            Arc::clone(statuses),
            |part| async move { part.run(&of_statuses, first).await },
            StatusReconciler::render,
        ),
        start(
            Arc::new(RemovalReconciler::new(client.clone(), namespace)),
            |part| async move { part.run(second).await },
            RemovalReconciler::render,
        ),
        start(
            Arc::new(XMeshReconciler::new(client.clone(), namespace)),
            |part| async move { part.run(third).await },
            XMeshReconciler::render,
        ),
        start(
            Arc::new(roots),
            |part| async move { part.run(fourth).await },
            RootsReconciler::render,
        ),
        start(
            Arc::new(hooks),
            |part| async move { part.run(fifth).await },
            WebhookReconciler::render,
        ),
    ]
}

/// Runs a part until the process ends; what appends its metrics.
fn start<P: Send + Sync + 'static, F: Future<Output = ()> + Send + 'static>(
    part: Arc<P>,
    run: impl FnOnce(Arc<P>) -> F,
    render: fn(&P, &mut String),
) -> Render {
    tokio::spawn(run(Arc::clone(&part)));
    Box::new(move |text| render(&part, text))
}

/// The certificate that the API server sees, by the names of the Service that it calls.
fn credentials(
    authority: &Arc<Authority>,
    cluster: &Cluster,
    config: &Config,
) -> anyhow::Result<Credentials> {
    let name = format!("{SERVICE}.{}.svc", cluster.namespace);
    let names = vec![format!("{name}.cluster.local"), name];
    let made = Credentials::of_names(Arc::clone(authority), config.cert_lifetime, names);
    made.context("making the certificate of the webhooks")
}

fn render_lead(leads: bool, text: &mut String) {
    let help = "Whether this replica is the leader, which writes status.";
    Family::gauge(text, "leno_control_leader", help).sample(&[], u8::from(leads));
}

/// The name of this replica: what it is told, else the host's, which in a pod is the pod's.
fn replica(cluster: &Cluster) -> anyhow::Result<String> {
    if let Some(name) = &cluster.name {
        return Ok(name.clone());
    }
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname");
    Ok(name.context("the host's name cannot be read: say --name")?.trim().to_owned())
}

fn run() -> anyhow::Result<String> {
    let mut bytes = [0; RUN_BYTES];
    aws_lc_rs::rand::fill(&mut bytes).context("the system yields no random bytes")?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}
