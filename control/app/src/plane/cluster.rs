//! A control plane in a Kubernetes cluster.

use std::sync::Arc;
use std::time::Instant;

use anyhow::Context;

use leno_cluster::{
    AuthorityStore, FailingKind, FetchedReconciler, KeySecrets, PodCertificateSigner,
    RemovalReconciler, ReplicaReport, ReplicaReporter, Replicas, ReportSource, RootsReconciler,
    StatusReconciler, TRUST_ANNOTATION, TokenReviewer, TrustBundleReconciler,
    UNENFORCED_ANNOTATION, WaypointReconciler, WebhookReconciler, XMeshReconciler, authority,
    kinds_followed, policies_enforced, unenforced_annotation, until_agents_report,
};
use leno_identity::Authority;
use leno_keys::{DocumentStore, KeySets, WebAuthorities};
use leno_kube::{Client, Elector, connect, minor_version};
use leno_program::Family;
use leno_serve::{PlaneState, ServerCredentials};
use leno_sources::{KubernetesSource, UPDATES, UnfollowedKind, WatchStates};
use tokio::sync::{mpsc, watch};

use super::{Plane, PlaneSource, WebhookServer};
use crate::admin::Render;
use crate::config::{BundleEndpoint, ClusterSettings, Config};
use crate::refused::RefusedLog;
use crate::rotation::{ClusterParts, PublishedRoots, trust_annotation};
use crate::stored::AdmissionObjects;
use crate::webhook::{ProvenPaths, Webhook};

/// How many random bytes identify a run of the process, so that it differs from earlier runs with the same name.
const RUN_BYTES: usize = 8;
/// The control plane's Service, through which the API server calls it.
const SERVICE: &str = "leno-controller";
/// The first minor version of Kubernetes that has `preStop` hooks that sleep (KEP-3960).
const PRE_STOP_SLEEPS: u32 = 30;
/// The name of the Lease that the leader holds. Only the leader writes to the cluster.
const LEASE: &str = "leno-controller";

pub(super) async fn open(
    cluster: &ClusterSettings,
    config: &Config,
    (state, authorities): (&Arc<PlaneState>, &Arc<WebAuthorities>),
    stop: &watch::Receiver<bool>,
) -> anyhow::Result<Plane> {
    let trust_domain = &config.trust_domain;
    let client = connect(cluster.kubeconfig.as_deref(), None).await?;
    let started = Instant::now();
    let issuer = config.issuer.as_deref();
    let (authority, secret) = authority(&client, &cluster.namespace, trust_domain, issuer).await?;
    let (render_secret, store) = (secret.render(), secret.store());
    tokio::spawn(secret.run());
    let kept = Arc::new(FetchedReconciler::open(client.clone(), &cluster.namespace).await);
    let source = KubernetesSource::new(client.clone());
    let followed = source.followed();
    let reviews = Arc::new(reviewer(&client, cluster, config));
    let reviewed = Arc::clone(&reviews);
    let statuses = Arc::new(StatusReconciler::new(client.clone(), &cluster.namespace));

    let (name, run) = (replica(cluster)?, run()?);
    let elector = Elector::new(client.clone(), (&cluster.namespace, LEASE), (&name, &run));
    let leads = elector.leads();
    let heard = Arc::clone(&followed);
    let last = tokio::spawn(elector.run(move |heard_it| heard.answered(heard_it), stop.clone()));
    let (sender, updates) = mpsc::channel(UPDATES);
    tokio::spawn(source.run(sender));
    let reporter = Arc::new(ReplicaReporter::new(client.clone(), &cluster.namespace, &name));
    let reports = reports(&followed, state, (&authority, run, started));
    let report =
        start(reporter, |part| async move { part.run(reports).await }, ReplicaReporter::render);
    let published = published(&client, cluster, &authority);
    let parts = (store, published.clone(), leads.clone());
    let rotation = rotation(&client, (cluster, config), parts, (name, started));
    let has_pod_certificates = has_pod_certificates(&client, cluster).await;
    let mut led = led(&client, cluster, (published, &kept), (state, &statuses), &leads);
    led.extend(of_pods(&client, (cluster, config), (&authority, has_pod_certificates), &leads)?);
    follow_agents(&client, (cluster, config), state);
    let stored = Arc::new(AdmissionObjects::default());
    let kubernetes = minor_version(&client).await.context("reading the version of Kubernetes")?;
    let hook = hook((kubernetes, has_pod_certificates), &authority, (cluster, config), &stored)?;
    let webhook = Arc::clone(&hook.webhook);

    let ((keys, secrets), render_keys) = keys(&client, cluster, (&kept, authorities));
    let described = Arc::clone(&followed);
    let details: Vec<Render> = vec![Box::new(move |text| described.describe(text))];
    let metrics: Vec<Render> = vec![
        Box::new(move |text| followed.render(text)),
        Box::new(render_secret),
        render_keys,
        Box::new(move |text| reviewed.render(text)),
        Box::new(move |text| webhook.render(text)),
        Box::new(move |text| render_lead(*leads.borrow(), text)),
    ];
    let metrics = metrics.into_iter().chain([report]).chain(led).collect();
    let source = PlaneSource {
        updates,
        keys,
        secrets: Some(secrets),
        statuses: Some(statuses),
        stored: Some(stored),
        refused: RefusedLog::default(),
        last: Some(last),
    };
    Ok(Plane {
        authority,
        authenticator: reviews,
        source,
        metrics,
        details,
        webhook: Some(hook),
        rotation: Some(rotation),
        bundles: DocumentStore::shared(kept.bundles()),
    })
}

/// Has proxies go by what agents report, once all of them do.
fn follow_agents(
    client: &Client,
    (cluster, config): (&ClusterSettings, &Config),
    state: &Arc<PlaneState>,
) {
    if !config.agents_report {
        return;
    }
    let (client, namespace, state) = (client.clone(), cluster.namespace.clone(), Arc::clone(state));
    tokio::spawn(async move {
        until_agents_report(client, &namespace).await;
        tracing::info!("agents report which pods in node mode are served");
        state.follow_reports();
    });
}

/// Starts the parts that concern pods: signing their certificates, and creating waypoints.
fn of_pods(
    client: &Client,
    of: (&ClusterSettings, &Config),
    (authority, has_pod_certificates): (&Arc<Authority>, bool),
    leads: &watch::Receiver<bool>,
) -> anyhow::Result<Vec<Render>> {
    let signer = pod_certificates(client, of, authority, leads.clone());
    let waypoints = waypoints(client, of.0, has_pod_certificates, leads.clone())?;
    Ok(vec![signer, waypoints])
}

/// Starts the reconciler of waypoints, which does nothing if waypoints are disabled.
fn waypoints(
    client: &Client,
    cluster: &ClusterSettings,
    has_pod_certificates: bool,
    leads: watch::Receiver<bool>,
) -> anyhow::Result<Render> {
    let mut proxies = (*cluster.proxies).clone();
    if !has_pod_certificates {
        proxies.pod_certificates = None;
    }
    let pod = || serde_json::to_value(leno_admission::waypoint_pod(&proxies));
    let pod = cluster.waypoints.then(pod).transpose().context("creating the pods of waypoints")?;
    let reconciler = Arc::new(WaypointReconciler::new(client.clone(), pod));
    let run = |part: Arc<WaypointReconciler>| async move { part.run(leads).await };
    Ok(start(reconciler, run, WaypointReconciler::render))
}

/// Starts the signer of certificates that kubelets request for pods.
fn pod_certificates(
    client: &Client,
    (cluster, config): (&ClusterSettings, &Config),
    authority: &Arc<Authority>,
    leads: watch::Receiver<bool>,
) -> Render {
    let settings = (config.cert_lifetime, cluster.pod_certificates);
    let signer = PodCertificateSigner::new(client.clone(), Arc::clone(authority), settings);
    start(
        Arc::new(signer),
        |part| async move { part.run(leads).await },
        PodCertificateSigner::render,
    )
}

/// The reconcilers that publish the root certificates.
fn published(
    client: &Client,
    cluster: &ClusterSettings,
    authority: &Arc<Authority>,
) -> PublishedRoots {
    let ProvenPaths { inject, validate } = ProvenPaths::new(&authority.webhook_secret());
    let [of_roots, of_hooks, of_bundle] = std::array::from_fn(|_| Arc::clone(authority));
    let hooks = WebhookReconciler::new(client.clone(), of_hooks, (inject, validate));
    let bundle = TrustBundleReconciler::new(client.clone(), of_bundle, cluster.trust_bundle);
    PublishedRoots {
        roots: Arc::new(RootsReconciler::new(client.clone(), of_roots)),
        hooks: Arc::new(hooks),
        bundle: Arc::new(bundle),
    }
}

/// The keys of token issuers: the sets that are fetched, the watch of those in Secrets, and a function that
/// appends the metrics of both.
fn keys(
    client: &Client,
    cluster: &ClusterSettings,
    (kept, authorities): (&FetchedReconciler, &Arc<WebAuthorities>),
) -> ((KeySets, KeySecrets), Render) {
    let store = DocumentStore::shared(kept.keys());
    let sets = KeySets::new(&cluster.namespace, Some(store), Arc::clone(authorities));
    let secrets = KeySecrets::new(client.clone());
    let (of_sets, of_secrets) = (sets.render(), secrets.render());
    let render = move |text: &mut String| {
        of_sets(text);
        of_secrets(text);
    };
    ((sets, secrets), Box::new(render))
}

/// The client for TokenReviews.
fn reviewer(client: &Client, cluster: &ClusterSettings, config: &Config) -> TokenReviewer {
    let (audience, namespace) = (&cluster.token_audience, &cluster.namespace);
    TokenReviewer::new(client.clone(), audience, config.trust_domain.clone(), namespace)
}

/// The parts for rotating the authority.
fn rotation(
    client: &Client,
    (cluster, config): (&ClusterSettings, &Config),
    (store, published, leads): (AuthorityStore, PublishedRoots, watch::Receiver<bool>),
    (name, started): (String, Instant),
) -> ClusterParts {
    let replicas = Arc::new(Replicas::default());
    tokio::spawn(Arc::clone(&replicas).run(client.clone(), cluster.namespace.clone()));
    let (issuer, lifetime) = (config.issuer.clone(), config.cert_lifetime);
    let of_endpoint = config.bundle_endpoint.as_ref().map(BundleEndpoint::phase_hold);
    let phase_hold = cluster.phase_hold.max(of_endpoint.unwrap_or_default());
    ClusterParts { store, replicas, published, leads, name, issuer, lifetime, phase_hold, started }
}

/// Whether a pod gets a volume with a certificate that the kubelet requests for it.
async fn has_pod_certificates(client: &Client, cluster: &ClusterSettings) -> bool {
    if !cluster.pod_certificates {
        return false;
    }
    let reason = match PodCertificateSigner::is_ready(client).await {
        Ok(true) => return true,
        Ok(false) => {
            "the API server does not serve PodCertificateRequest and ClusterTrustBundle, which \
             Kubernetes does by default from 1.37 on, or the ValidatingAdmissionPolicy \
             leno-pod-certificates-v2 does not exist"
                .to_owned()
        }
        Err(error) => error.to_string(),
    };
    tracing::warn!(
        reason,
        "proxies get certificates by their token until this control plane is restarted"
    );
    false
}

/// The webhook for this minor version of the API server, and whether that version issues certificates for pods.
fn hook(
    (kubernetes, has_pod_certificates): (u32, bool),
    authority: &Arc<Authority>,
    (cluster, config): (&ClusterSettings, &Config),
    stored: &Arc<AdmissionObjects>,
) -> anyhow::Result<WebhookServer> {
    let secret = authority.webhook_secret();
    let mut proxies = (*cluster.proxies).clone();
    if kubernetes < PRE_STOP_SLEEPS {
        proxies.pre_stop_sleep = 0;
    }
    if !has_pod_certificates {
        proxies.pod_certificates = None;
    }
    let webhook = Webhook::new(proxies, Arc::clone(stored), &secret);
    let credentials = credentials(authority, cluster, config)?;
    Ok(WebhookServer { address: cluster.webhook, credentials, webhook: Arc::new(webhook) })
}

/// What this replica reports about itself. The kinds that cannot be watched, and the policies that are not enforced,
/// are included once each kind was listed or its listing refused.
fn reports(
    followed: &Arc<WatchStates>,
    state: &Arc<PlaneState>,
    (authority, run, started): (&Arc<Authority>, String, Instant),
) -> ReportSource {
    let (followed, state, authority) =
        (Arc::clone(followed), Arc::clone(state), Arc::clone(authority));
    Arc::new(move || {
        let trust = trust_annotation(&authority, &state, (&run, started));
        let mut report = ReplicaReport::default();
        report.annotations.insert(TRUST_ANNOTATION, trust);
        if let Some(kinds) = failing(&followed) {
            report.conditions =
                vec![kinds_followed(&kinds), policies_enforced(&state.unenforced())];
            let unenforced = unenforced_annotation(&state.unenforced_by_policy());
            report.annotations.insert(UNENFORCED_ANNOTATION, unenforced);
        }
        report
    })
}

/// The kinds that cannot be watched; `None` until each kind was listed or its listing refused.
fn failing(followed: &WatchStates) -> Option<Vec<FailingKind>> {
    let of =
        |one: UnfollowedKind| FailingKind { kind: one.kind, time: one.time, reason: one.reason };
    let kinds = || followed.unfollowed().into_iter().map(of).collect();
    (!followed.is_starting()).then(kinds)
}

/// Starts the parts that only the leader runs. Each waits until this replica leads. Returns functions that append
/// their metrics.
fn led(
    client: &Client,
    cluster: &ClusterSettings,
    (PublishedRoots { roots, hooks, bundle }, kept): (PublishedRoots, &Arc<FetchedReconciler>),
    (state, statuses): (&Arc<PlaneState>, &Arc<StatusReconciler>),
    leads: &watch::Receiver<bool>,
) -> Vec<Render> {
    let namespace = cluster.namespace.as_str();
    let of_statuses = Arc::clone(state);
    let [first, second, third, fourth, fifth, sixth, seventh] =
        std::array::from_fn(|_| leads.clone());
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
        start(roots, |part| async move { part.run(fourth).await }, RootsReconciler::render),
        start(hooks, |part| async move { part.run(fifth).await }, WebhookReconciler::render),
        start(
            Arc::clone(kept),
            |part| async move { part.run(sixth).await },
            FetchedReconciler::render,
        ),
        start(bundle, |part| async move { part.run(seventh).await }, TrustBundleReconciler::render),
    ]
}

/// Runs a part until the process ends; returns a function that appends its metrics.
fn start<P: Send + Sync + 'static, F: Future<Output = ()> + Send + 'static>(
    part: Arc<P>,
    run: impl FnOnce(Arc<P>) -> F,
    render: fn(&P, &mut String),
) -> Render {
    tokio::spawn(run(Arc::clone(&part)));
    Box::new(move |text| render(&part, text))
}

/// The certificate for serving the API server, with the names of the Service through which it connects.
fn credentials(
    authority: &Arc<Authority>,
    cluster: &ClusterSettings,
    config: &Config,
) -> anyhow::Result<ServerCredentials> {
    let name = format!("{SERVICE}.{}.svc", cluster.namespace);
    let names = vec![format!("{name}.cluster.local"), name];
    let made = ServerCredentials::of_names(Arc::clone(authority), config.cert_lifetime, names);
    made.context("creating the certificate of the webhooks")
}

fn render_lead(leads: bool, text: &mut String) {
    let help = "Whether this replica is the leader, which writes status.";
    Family::gauge(text, "leno_control_leader", help).sample(&[], u8::from(leads));
}

/// The name of this replica: the configured one, else the host name, which in a pod is the pod's name.
fn replica(cluster: &ClusterSettings) -> anyhow::Result<String> {
    if let Some(name) = &cluster.name {
        return Ok(name.clone());
    }
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname");
    Ok(name.context("cannot read the host name: pass --name")?.trim().to_owned())
}

fn run() -> anyhow::Result<String> {
    let mut bytes = [0; RUN_BYTES];
    aws_lc_rs::rand::fill(&mut bytes).context("the system provides no random bytes")?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}
