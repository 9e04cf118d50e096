//! Implements the command `leno authz suggest`.

use anyhow::{Result, bail};
use clap::Args;
use leno_analysis::{MeshModel, RecordedRequests, Suggestion};
use leno_console::{note, note_text};
use leno_local::hint::command;
use leno_operate::{ClusterTarget, PodAdminClient, PodName};
use leno_resources::{Object, to_yaml};
use leno_types::InstanceName;
use serde_json::{Value, json};

use crate::commands::{AnyMesh, ChosenMesh, OutputForm, block_on, explain, print, print_json};

/// The admin page on which a proxy reports the requests that Audit policies have matched.
const PAGE: &str = "/audited";

/// Most proxies that are queried.
const MAX_PROXIES: usize = 256;

/// Prints the narrowest policies that permit what Audit policies have matched, and what these would deny
///
/// The proxies keep the distinct requests that Audit policies match: client, port, method, host and path. For each
/// Audit policy, prints an Allow policy for the same workloads on standard output. Then evaluates every recorded
/// request as if that policy were applied beside the others, and lists those that it would deny. Clients without an
/// identity (plaintext) are listed too, but get no rule. A proxy's records end with its process. Applies nothing.
/// Exits 1 if a recorded request would be denied.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
                        sudo leno authz suggest -n shop\n  \
                        leno authz suggest --context prod -n shop audit-orders > orders.yaml\n  \
                        leno authz -n shop --with orders.yaml")]
pub(crate) struct Suggest {
    #[command(flatten)]
    mesh: AnyMesh,

    /// Namespace of the Audit policies [default: all]
    #[arg(short, long)]
    namespace: Option<String>,

    /// Name of the Audit policy [default: all]
    policy: Option<String>,

    /// The output format
    #[arg(short, long, value_enum, default_value_t)]
    output: OutputForm,
}

pub(crate) fn run(suggest: &Suggest) -> Result<bool> {
    let (namespace, policy) = (suggest.namespace.as_deref(), suggest.policy.as_deref());
    let chosen = suggest.mesh.choose()?;
    let (mesh, recorded, notes) = recorded(suggest, &chosen)?;
    for note in notes {
        note!("note: {note}");
    }
    let suggestions = mesh.suggestions(namespace, policy, &recorded);
    if suggestions.is_empty() {
        bail!("{}", nothing_is_recorded((namespace, policy), &chosen));
    }
    let is_whole = suggestions.iter().all(|one| one.denied.is_empty());
    match suggest.output {
        OutputForm::Json => print_json(&suggestions.iter().map(value).collect::<Vec<Value>>())?,
        OutputForm::Table => {
            for one in &suggestions {
                note_text!("{}", said(one));
            }
            print(&documents(&suggestions))?;
        }
    }
    Ok(is_whole)
}

/// The message that there is no Audit policy, with what to do in this mesh.
fn nothing_is_recorded(
    (namespace, policy): (Option<&str>, Option<&str>),
    mesh: &ChosenMesh,
) -> String {
    let of =
        namespace.map(|namespace| format!(" in the namespace {namespace}")).unwrap_or_default();
    let named = policy.map(|policy| format!(" named {policy}")).unwrap_or_default();
    let (list, begin) = match mesh {
        ChosenMesh::Machine(name) => {
            (command(name, "authz"), "add one to the files of the mesh, which `leno up` follows")
        }
        ChosenMesh::Cluster(_) => {
            let of = namespace.map_or_else(|| "-A".to_owned(), |of| format!("-n {of}"));
            (format!("kubectl get authorizationpolicies {of}"), "apply one with kubectl")
        }
    };
    format!(
        "there is no AuthorizationPolicy{named} with the action Audit{of}, and only such policies \
         record requests: {begin}; `{list}` lists all policies"
    )
}

type Recorded = Vec<(InstanceName, RecordedRequests)>;

/// The mesh, the records of its proxies, and descriptions of what is unknown.
fn recorded(suggest: &Suggest, chosen: &ChosenMesh) -> Result<(MeshModel, Recorded, Vec<String>)> {
    let (namespace, policy) = (suggest.namespace.as_deref(), suggest.policy.as_deref());
    match chosen {
        ChosenMesh::Machine(name) => {
            let mesh = leno_local::analysis::running(name)?;
            let asked = mesh.recording(namespace, policy);
            let pages = leno_local::analysis::pages(name, &asked, PAGE);
            let (recorded, notes) = read(block_on(async { Ok(pages.await?) })?);
            Ok((mesh, recorded, notes))
        }
        ChosenMesh::Cluster(target) => {
            let system_namespace = &suggest.mesh.system_namespace;
            let (mesh, ignored, gaps) = explain::cluster(namespace, target, system_namespace)?;
            let asked = mesh.recording(namespace, policy);
            if asked.len() > MAX_PROXIES {
                bail!(
                    "{} proxies record requests for these policies, and one command queries at \
                     most {MAX_PROXIES}: name one policy, or choose a namespace with -n",
                    asked.len()
                );
            }
            let (recorded, notes) = read(block_on(of_pods(target, &asked))?);
            let notes = ignored.into_iter().chain(gaps).chain(notes).collect();
            Ok((mesh, recorded, notes))
        }
    }
}

type Pages = Vec<(InstanceName, std::result::Result<String, String>)>;

async fn of_pods(target: &ClusterTarget, asked: &[InstanceName]) -> Result<Pages> {
    let client = leno_operate::connect(target).await?;
    let name = |one: &InstanceName| PodName {
        namespace: one.namespace.to_string(),
        name: one.name.to_string(),
    };
    let pods: Vec<PodName> = asked.iter().map(name).collect();
    let answers = PodAdminClient::new(client).each(&pods, PAGE, |reply| reply.page()).await;
    let of_pod = |pod: &PodName| InstanceName::new(&pod.namespace, &pod.name);
    let page = |(pod, answer): (&PodName, std::result::Result<_, leno_operate::Error>)| {
        Some((of_pod(pod).ok()?, answer.map_err(|error| error.said()).and_then(|page| page)))
    };
    Ok(answers.into_iter().filter_map(page).collect())
}

fn read(pages: Pages) -> (Recorded, Vec<String>) {
    let (mut recorded, mut notes) = (Vec::new(), Vec::new());
    for (name, page) in pages {
        let page =
            page.and_then(|page| serde_json::from_str(&page).map_err(|error| error.to_string()));
        match page {
            Ok(page) => recorded.push((name, page)),
            Err(reason) => {
                notes.push(format!("the records of the proxy of {name} are unknown: {reason}"))
            }
        }
    }
    (recorded, notes)
}

fn documents(suggestions: &[Suggestion]) -> String {
    let policies = suggestions.iter().filter_map(|one| one.policy.clone());
    let text = policies.map(|policy| to_yaml(&Object::AuthorizationPolicy(Box::new(policy))));
    text.collect::<Vec<_>>().join("---\n")
}

/// Describes what a policy would do to the recorded requests.
fn said(one: &Suggestion) -> String {
    let all = one.permitted + one.denied.len();
    let mut text = format!(
        "{}: {all} distinct requests of clients with an identity were recorded",
        one.audited_by
    );
    text += &match (one.permitted, all) {
        (_, 0) => "\n".to_owned(),
        (permitted, all) if permitted == all => ", and the policy permits all of them\n".to_owned(),
        (permitted, _) => format!(", of which {permitted} would be permitted\n"),
    };
    for (request, reason) in &one.denied {
        let what = match request.method.as_str() {
            "" => "bytes".to_owned(),
            method => format!("{method} {}", request.path),
        };
        text +=
            &format!("  denied: {} to port {}, {what}: {reason}\n", request.client, request.port);
    }
    for request in &one.in_clear {
        let address = request.address.map(|address| address.to_string()).unwrap_or_default();
        text += &format!(
            "  plaintext: {address} to port {}, {} times, without an identity: it would be denied\n",
            request.port, request.count
        );
    }
    if one.not_kept > 0 {
        text += &format!("  {} further distinct requests were not recorded\n", one.not_kept);
    }
    text
}

fn value(one: &Suggestion) -> Value {
    let denied =
        one.denied.iter().map(|(request, reason)| json!({"request": request, "reason": reason}));
    let policy = one.policy.clone();
    json!({
        "audited_by": one.audited_by,
        "policy": policy.map(|policy| to_yaml(&Object::AuthorizationPolicy(Box::new(policy)))),
        "permitted": one.permitted,
        "denied": denied.collect::<Vec<_>>(),
        "in_clear": one.in_clear,
        "not_kept": one.not_kept,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_an_audit_policy_the_advice_is_for_the_mesh_that_was_asked() {
        let machine = ChosenMesh::Machine("shop".to_owned());
        let said = nothing_is_recorded((Some("eu"), None), &machine);
        assert!(said.contains(" with the action Audit in the namespace eu, "), "{said}");
        assert!(
            said.contains("`leno authz --name shop` lists") && !said.contains("kubectl"),
            "{said}"
        );
        let said =
            nothing_is_recorded((None, Some("a")), &ChosenMesh::Cluster(ClusterTarget::default()));
        assert!(said.contains("`kubectl get authorizationpolicies -A` lists"), "{said}");
        assert!(said.contains("AuthorizationPolicy named a with"), "{said}");
    }
}
