//! The documents of a lab: its workloads and services, and the configuration that changes during the load.

use std::path::Path;

use anyhow::Result;
use minijinja::{Environment, context};

use super::mesh::LenoProxies;
use crate::application::{LISTEN, PORT, arguments};
use crate::real_application::program;
use crate::revision::{self, CHURNING};
use crate::scenario::{CLIENT, Disturbance, Scenario, neighbour};

pub(super) const NAMESPACE: &str = "bench";

#[derive(Clone, Copy)]
pub(super) struct Programs<'a> {
    /// This program.
    pub(super) own: &'a Path,
    /// The folder of the real application, if it replaces the suite's own services.
    pub(super) application: Option<&'a Path>,
}

/// Returns the documents with which `leno up` starts the lab, or with which it is changed to a later revision. The
/// first revision is 0. `own` is `None` if the lab runs no proxies of Leno.
pub(super) fn documents(
    programs: Programs<'_>,
    scenario: &Scenario,
    own: Option<LenoProxies>,
    revision: u64,
) -> Result<String> {
    let annotations = match own {
        None => "{leno.dev/inject: disabled}".to_owned(),
        Some(LenoProxies { share: None, .. }) => "{}".to_owned(),
        Some(LenoProxies { share: Some(share), .. }) => {
            let revision = if scenario.upgrades() { revision } else { 0 };
            format!("{{leno.dev/mode: node, leno.dev/share: {}}}", share.name(revision))
        }
    };
    let disturbance = scenario.disturbance.filter(|_| own.is_some());
    let there = disturbance.map(|one| one.endpoints(scenario.services, revision));
    let service = |nth: u32| -> Result<_> {
        let is_opaque = programs.application.is_some() && scenario.opaque.contains(&nth);
        let command = match programs.application {
            Some(folder) => program(folder, scenario, nth)?,
            None => application(programs.own, scenario, nth),
        };
        Ok(context! {
            name => scenario.service(nth),
            command,
            protocol => if is_opaque { "tcp" } else { scenario.app_protocol(nth) },
            is_there => scenario.churns() && there.as_ref().is_some_and(|there| there.contains(&nth)),
        })
    };
    let idle = (0..scenario.neighbours.len()).map(neighbour);
    let idle = std::iter::once(CLIENT.to_owned()).chain(idle);
    let idle = idle.map(|name| anyhow::Ok(context! { name, command => "[sleep, infinity]" }));
    let workloads = idle.chain((0..scenario.services).map(service)).collect::<Result<Vec<_>>>()?;
    let pushes = matches!(disturbance, Some(Disturbance::Push { .. }));
    let churns = matches!(disturbance, Some(Disturbance::Churn { .. }));
    let churning = || context! { name => CHURNING, protocol => scenario.app_protocol(0) };
    let values = context! {
        namespace => NAMESPACE,
        port => PORT,
        annotations,
        workloads,
        // JSON is valid YAML.
        route => pushes.then(|| revision::route(NAMESPACE, scenario, revision).to_string()),
        churning => churns.then(churning),
    };
    Ok(Environment::new().render_str(include_str!("../../data/lab.documents.yaml"), values)?)
}

/// The beginning of a command line. It makes the program run only on CPU time that no other program wants (sched(7),
/// `SCHED_IDLE`). It is used for clients that flood and for the services that they flood: on a machine with few CPUs
/// they would otherwise slow down everything else, even without a proxy. Proxies run normally.
pub(super) const LEFT_OVER_CPU: [&str; 3] = ["chrt", "--idle", "0"];

fn application(own: &Path, scenario: &Scenario, nth: u32) -> String {
    let address = |service: u32| format!("{}:{PORT}", scenario.service(service));
    let is_flooded = scenario.neighbours.iter().any(|one| one.service == nth);
    let mut words = if is_flooded { LEFT_OVER_CPU.map(str::to_owned).to_vec() } else { Vec::new() };
    words.push(own.display().to_string());
    words.extend(arguments(scenario, nth, LISTEN, address));
    serde_json::to_string(&words).expect("it is text")
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;
    use crate::lab::mesh::Share;

    fn sidecars() -> Option<LenoProxies> {
        Some(LenoProxies::default())
    }

    /// The documents of a scenario. Checks that each of them is valid.
    fn of(
        name: &str,
        own: Option<LenoProxies>,
        revision: u64,
        application: Option<&Path>,
    ) -> Result<String> {
        let programs = Programs { own: Path::new("/x/leno-bench"), application };
        let text = documents(programs, &crate::scenario::find(name)?, own, revision)?;
        for document in text.split("---\n") {
            serde_saphyr::from_str::<serde_json::Value>(document).expect(document);
        }
        Ok(text)
    }

    #[test]
    fn documents_are_of_the_scenario_the_proxies_and_the_revision() {
        let shared = |share| Some(LenoProxies { share: Some(share), ..LenoProxies::default() });
        let (node, account) = (shared(Share::Node), shared(Share::ServiceAccount));
        for (scenario, own, revision, words, count) in [
            ("http-1k", sidecars(), 0, "kind: Workload", 11),
            ("http-1k", sidecars(), 0, "inject: disabled", 0),
            ("http-1k", None, 0, "inject: disabled", 1),
            ("tcp-64k", sidecars(), 0, "--tcp", 1),
            ("faces", sidecars(), 0, "\"--call-grpc\",\"color:8080\"", 1),
            ("faces", sidecars(), 0, "appProtocol: grpc", 1),
            ("neighbour", sidecars(), 0, "kind: Workload", 4),
            ("neighbours", sidecars(), 0, "kind: Workload", 10),
            ("neighbours", sidecars(), 0, "[\"chrt\",\"--idle\",\"0\",", 3),
            ("teastore", sidecars(), 0, "\"recommender:8080=/product,/cartAction\"", 1),
            ("teastore", sidecars(), 0, "--call-http", 6),
            ("teastore", sidecars(), 0, "appProtocol: tcp", 0),
            // Routes and endpoints that change are written only if the lab runs proxies of Leno.
            ("push", sidecars(), 1, "\"value\":\"1\"", 1),
            ("push", sidecars(), 2, "\"value\":\"2\"", 1),
            ("push", None, 1, "HTTPRoute", 0),
            ("churn", sidecars(), 0, ", there: ", 10),
            ("churn", sidecars(), 2, ", there: ", 2),
            ("churn", None, 2, "there: ", 0),
            // An upgrade shares proxies among the same workloads by another kind of group.
            ("upgrade", node, 2, "share: node", 1),
            ("upgrade", node, 3, "share: namespace", 1),
            ("upgrade", account, 2, "share: service-account", 1),
            ("upgrade", account, 3, "share: workload", 1),
            ("upgrade", sidecars(), 1, "leno.dev/share", 0),
            ("push", node, 3, "share: node", 1),
        ] {
            let text = of(scenario, own, revision, None).unwrap();
            assert_eq!(text.matches(words).count(), count, "{scenario} {revision} {words}: {text}");
        }
    }

    #[test]
    fn the_real_application_runs_in_place_of_ours_when_all_of_it_is_there() {
        let folder = tempfile::tempdir().unwrap();
        let make = |name: &str| {
            let file = folder.path().join(name);
            fs::write(&file, "").unwrap();
            fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
        };
        let some = ["webui.jar", "auth", "persistence.jar", "image.jar", "recommender.jar"];
        some.into_iter().for_each(make);
        let teastore = || of("teastore", sidecars(), 0, Some(folder.path()));
        let missing = teastore().unwrap_err().to_string();
        assert!(missing.contains("registry.jar"), "{missing}");
        ["registry.jar", "db"].into_iter().for_each(make);
        let text = teastore().unwrap();
        // The database sends the first bytes of a connection.
        let (_, db) = text.split_once("{name: db,").unwrap();
        assert!(db.split("---").next().unwrap().contains("appProtocol: tcp"), "{db}");
        for (words, count) in [
            ("[\"java\",\"-jar\"", 5),
            ("\"serve\"", 0),
            ("appProtocol: http", 6),
            ("env: {PORT: \"8080\", ", 7),
        ] {
            assert_eq!(text.matches(words).count(), count, "{words}: {text}");
        }
        assert!(text.contains("REGISTRY_HOST: registry, REGISTRY_PORT: \"8080\""), "{text}");
    }
}
