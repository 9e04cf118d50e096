//! A control plane in a Kubernetes cluster.

use std::fmt::Write;
use std::sync::Arc;

use anyhow::Context;
use leno_cluster::{
    Declaration, Elector, Reviews, Roots, RouteStatuses, Stays, Webhooks, authority,
};
use leno_identity::Authority;
use leno_serve::{Credentials, State};
use leno_sources::{KubernetesSource, UPDATES, connect};
use tokio::sync::{mpsc, watch};

use super::{Hook, Plane, Source};
use crate::admin::Render;
use crate::config::{Cluster, Config};
use crate::known::Known;
use crate::webhook::Webhook;

/// Random bytes that tell this start of the process from others of its name.
const RUN_BYTES: usize = 8;
/// The control plane's Service, by which the API server calls it.
const SERVICE: &str = "leno-controller";

pub(super) async fn open(
    cluster: &Cluster,
    config: &Config,
    state: &Arc<State>,
    stop: &watch::Receiver<bool>,
) -> anyhow::Result<Plane> {
    let trust_domain = &config.trust_domain;
    let client = connect(cluster.kubeconfig.as_deref(), None).await?;
    let (authority, keeper) = authority(&client, &cluster.namespace, trust_domain).await?;
    let render_keeper = keeper.render();
    tokio::spawn(keeper.run());
    let source = KubernetesSource::new(client.clone());
    let followed = source.followed();
    let reviews =
        Arc::new(Reviews::new(client.clone(), &cluster.token_audience, trust_domain.clone()));
    let statuses = Arc::new(RouteStatuses::new(client.clone()));

    let (name, run) = (replica(cluster)?, run()?);
    let authority = Arc::new(authority);
    let roots = Arc::new(Roots::new(client.clone(), authority.roots_pem()));
    let hooks = Arc::new(Webhooks::new(client.clone(), authority.roots_pem()));
    let declaration = Arc::new(Declaration::new(client.clone(), &cluster.namespace));
    let stays = Stays::new(client.clone(), &cluster.namespace);
    let elector = Elector::new(client, &cluster.namespace, (&name, &run));
    let leads = elector.leads();
    let heard = Arc::clone(&followed);
    let last = tokio::spawn(elector.run(move |heard_it| heard.answered(heard_it), stop.clone()));
    let (sender, updates) = mpsc::channel(UPDATES);
    tokio::spawn(source.run(sender));
    tokio::spawn({
        let (statuses, state, leads) = (Arc::clone(&statuses), Arc::clone(state), leads.clone());
        async move { statuses.run(&state, leads).await }
    });
    tokio::spawn({
        let (roots, leads) = (Arc::clone(&roots), leads.clone());
        async move { roots.run(leads).await }
    });
    tokio::spawn({
        let (hooks, leads) = (Arc::clone(&hooks), leads.clone());
        async move { hooks.run(leads).await }
    });
    tokio::spawn({
        let (declaration, leads) = (Arc::clone(&declaration), leads.clone());
        async move { declaration.run(leads).await }
    });
    let render_stays = take_back(stays, state, leads.clone());
    let known = Arc::new(Known::default());
    let webhook = Arc::new(Webhook::new((*cluster.proxies).clone(), Arc::clone(&known)));
    let hook = Hook {
        address: cluster.webhook,
        credentials: credentials(&authority, cluster, config)?,
        webhook: Arc::clone(&webhook),
    };

    let metrics: Vec<Render> = vec![
        Box::new(move |text| followed.render(text)),
        Box::new(render_keeper),
        Box::new({
            let reviews = Arc::clone(&reviews);
            move |text| reviews.render(text)
        }),
        Box::new({
            let statuses = Arc::clone(&statuses);
            move |text| statuses.render(text)
        }),
        Box::new(move |text| roots.render(text)),
        Box::new(move |text| hooks.render(text)),
        Box::new(move |text| declaration.render(text)),
        render_stays,
        Box::new(move |text| webhook.render(text)),
        Box::new(move |text| render_lead(*leads.borrow(), text)),
    ];
    let source = Source { updates, statuses: Some(statuses), known: Some(known), last: Some(last) };
    Ok(Plane { authority, authenticator: reviews, source, metrics, webhook: Some(hook) })
}

/// Has removals taken back while this replica leads; what is counted of it.
fn take_back(stays: Stays, state: &Arc<State>, leads: watch::Receiver<bool>) -> Render {
    let (stays, state) = (Arc::new(stays), Arc::clone(state));
    let runs = Arc::clone(&stays);
    tokio::spawn(async move { runs.run(&state, leads).await });
    Box::new(move |text| stays.render(text))
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
    // Writing to a String cannot fail.
    let _ = write!(
        text,
        "# HELP leno_control_leader Whether this replica is the one that writes.\n\
         # TYPE leno_control_leader gauge\n\
         leno_control_leader {}\n",
        u8::from(leads)
    );
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
