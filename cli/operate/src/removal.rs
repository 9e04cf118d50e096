//! An installation goes: first what stands in the way of pods, then what is in the nodes, then the rest.

use std::time::{Duration, Instant};

use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::{ConfigMap, Node, Pod, PodSpec};
use kube::api::{DeleteParams, ListParams, ObjectMeta, PostParams, PropagationPolicy};
use kube::{Api, Client, ResourceExt as _};
use leno_charts::{Values, render};

use crate::Error;
use crate::objects::{Named, is_absent, named};

/// The agents, and the pods that undo their work.
const AGENT: &str = "leno-agent";
/// The ConfigMap of roots that the control plane keeps in every namespace.
const ROOTS: &str = "leno-roots";
/// Longest wait for anything to go: a node's kubelet ends a pod within its 30 s, a namespace empties slower.
const LIMIT: Duration = Duration::from_secs(180);
/// Between two looks.
const LOOK: Duration = Duration::from_millis(300);

/// What is said while it goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Removed {
    /// An object is gone.
    Object(String),
    /// Nothing of the mesh is left in the kernel, the CNI configuration and the folders of a node.
    Node(String),
    /// A node did not say that it is clean: why, and what to do there.
    NodeLeft(String, String),
}

/// Takes an installation away.
pub struct Removal {
    client: Client,
    namespace: String,
    /// Whether our definitions stay, and with them everybody's policies.
    keep_definitions: bool,
}

impl Removal {
    /// Of what is installed in `namespace`.
    #[must_use]
    pub fn new(client: Client, namespace: &str, keep_definitions: bool) -> Self {
        Self { client, namespace: namespace.to_owned(), keep_definitions }
    }

    /// Removes everything, and says each step. What is not there any more is passed over, so that it can be
    /// done again after it was interrupted.
    ///
    /// # Errors
    /// When the API server does not do it, or something does not go in time.
    pub async fn run(&self, mut say: impl FnMut(Removed)) -> Result<(), Error> {
        let mut all = named(&render(&Values::defaults(), &self.namespace)?)?;
        all.reverse();
        all.retain(|one| !(self.keep_definitions && one.kind == "CustomResourceDefinition"));
        let (webhooks, rest): (Vec<Named>, Vec<Named>) =
            all.into_iter().partition(|one| one.kind.ends_with("WebhookConfiguration"));
        for one in webhooks {
            self.delete(&one, &mut say).await?;
        }
        self.nodes(&mut say).await?;
        self.roots(&mut say).await?;
        for one in rest {
            self.delete(&one, &mut say).await?;
        }
        Ok(())
    }

    async fn delete(&self, one: &Named, say: &mut impl FnMut(Removed)) -> Result<(), Error> {
        let api = one.api(&self.client);
        let params = DeleteParams {
            propagation_policy: Some(PropagationPolicy::Foreground),
            ..DeleteParams::default()
        };
        match api.delete(&one.name, &params).await {
            Ok(_) => {}
            Err(error) if is_absent(&error) => return Ok(()),
            Err(error) => return Err(Error::Api(format!("delete {}", one.said()), error)),
        }
        let begin = Instant::now();
        loop {
            let there =
                api.get_opt(&one.name).await.map_err(Error::api(format!("get {}", one.said())))?;
            if there.is_none() {
                say(Removed::Object(one.said()));
                return Ok(());
            }
            pause(begin, || format!("{} does not go", one.said())).await?;
        }
    }

    /// Ends the agents, then has each node forget them.
    async fn nodes(&self, say: &mut impl FnMut(Removed)) -> Result<(), Error> {
        let agents: Api<DaemonSet> = Api::namespaced(self.client.clone(), &self.namespace);
        let found =
            agents.get_opt(AGENT).await.map_err(Error::api(format!("get DaemonSet {AGENT}")))?;
        let Some(spec) = found.and_then(|agent| agent.spec?.template.spec) else { return Ok(()) };
        let agent = Named {
            group: "apps".to_owned(),
            version: "v1".to_owned(),
            kind: "DaemonSet".to_owned(),
            namespace: Some(self.namespace.clone()),
            name: AGENT.to_owned(),
        };
        let nodes: Api<Node> = Api::all(self.client.clone());
        let nodes = nodes.list(&ListParams::default()).await.map_err(Error::api("list nodes"))?;
        self.delete(&agent, say).await?;
        for node in &nodes {
            let name = node.name_any();
            match self.clean(&name, &spec).await {
                Ok(()) => say(Removed::Node(name)),
                Err(reason @ (Error::Late(..) | Error::Document(_))) => {
                    say(Removed::NodeLeft(name, reason.to_string()));
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Runs the agent's `cleanup` on one node, as the agent ran there.
    async fn clean(&self, node: &str, agent: &PodSpec) -> Result<(), Error> {
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), &self.namespace);
        let mut spec = agent.clone();
        spec.node_name = Some(node.to_owned());
        spec.restart_policy = Some("OnFailure".to_owned());
        for container in &mut spec.containers {
            container.args.get_or_insert_default().insert(0, "cleanup".to_owned());
            (container.liveness_probe, container.readiness_probe, container.startup_probe) =
                (None, None, None);
        }
        let name = format!("leno-cleanup-{node}");
        let metadata = ObjectMeta { name: Some(name.clone()), ..ObjectMeta::default() };
        let pod = Pod { metadata, spec: Some(spec), status: None };
        match pods.create(&PostParams::default(), &pod).await {
            Ok(_) => {}
            // A removal that was interrupted.
            Err(kube::Error::Api(status)) if status.code == 409 => {}
            Err(error) => return Err(Error::Api(format!("create Pod {name}"), error)),
        }
        let begin = Instant::now();
        loop {
            let pod = pods.get_opt(&name).await.map_err(Error::api(format!("get Pod {name}")))?;
            let phase = pod.and_then(|pod| pod.status?.phase).unwrap_or_default();
            if phase == "Succeeded" {
                let done = pods.delete(&name, &DeleteParams::default()).await;
                return done.map(drop).map_err(Error::api(format!("delete Pod {name}")));
            }
            pause(begin, || format!("Pod {}/{name} is {phase}", self.namespace)).await?;
        }
    }

    async fn roots(&self, say: &mut impl FnMut(Removed)) -> Result<(), Error> {
        let everywhere: Api<ConfigMap> = Api::all(self.client.clone());
        let ours = ListParams::default().fields(&format!("metadata.name={ROOTS}"));
        let maps =
            everywhere.list(&ours).await.map_err(Error::api(format!("list ConfigMaps {ROOTS}")))?;
        for map in maps {
            let one = Named {
                group: String::new(),
                version: "v1".to_owned(),
                kind: "ConfigMap".to_owned(),
                namespace: map.namespace(),
                name: map.name_any(),
            };
            self.delete(&one, say).await?;
        }
        Ok(())
    }
}

/// Waits for the next look, until the limit.
async fn pause(begin: Instant, what: impl FnOnce() -> String) -> Result<(), Error> {
    if begin.elapsed() > LIMIT {
        return Err(Error::Late(what(), LIMIT.as_secs()));
    }
    tokio::time::sleep(LOOK).await;
    Ok(())
}
