//! A control plane in a Kubernetes cluster.

use std::fmt::Write;
use std::sync::Arc;

use anyhow::Context;
use leno_cluster::{Elector, Reviews, RouteStatuses, authority};
use leno_serve::State;
use leno_sources::{KubernetesSource, UPDATES, connect};
use leno_types::TrustDomain;
use tokio::sync::{mpsc, watch};

use super::{Plane, Source};
use crate::admin::Render;
use crate::config::Cluster;

/// Random bytes that tell this start of the process from others of its name.
const RUN_BYTES: usize = 8;

pub(super) async fn open(
    cluster: &Cluster,
    trust_domain: &TrustDomain,
    state: &Arc<State>,
    stop: &watch::Receiver<bool>,
) -> anyhow::Result<Plane> {
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
        Box::new(move |text| render_lead(*leads.borrow(), text)),
    ];
    let source = Source { updates, statuses: Some(statuses), last: Some(last) };
    Ok(Plane { authority, authenticator: reviews, source, metrics })
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
