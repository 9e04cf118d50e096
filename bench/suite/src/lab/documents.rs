//! The documents of a lab: its workloads and services, and what changes during the load.

use std::path::Path;

use anyhow::Result;

use super::mesh::Own;
use crate::application::{LISTEN, PORT, arguments};
use crate::real_application::program;
use crate::revision::{self, CHURNING};
use crate::scenario::{self, CLIENT, Disturbance, Scenario};

/// The namespace of all workloads.
pub(super) const NAMESPACE: &str = "bench";

/// The programs that run in a lab.
#[derive(Clone, Copy)]
pub(super) struct Programs<'a> {
    /// This program.
    pub(super) own: &'a Path,
    /// The folder of the real application, if it replaces the suite's own services.
    pub(super) application: Option<&'a Path>,
}

/// The documents of a lab in a revision; the first revision is 0. Without proxies of Leno's, `own` is `None`.
pub(super) fn documents(
    programs: Programs<'_>,
    scenario: &Scenario,
    own: Option<Own>,
    revision: u64,
) -> Result<String> {
    let annotation = match own {
        None => Some("leno.dev/inject: disabled".to_owned()),
        Some(own) => own.share.map(|share| {
            let revision = if scenario.upgrades() { revision } else { 0 };
            format!("leno.dev/mode: node, leno.dev/share: {}", share.name(revision))
        }),
    };
    let mut text = annotation.map_or_else(String::new, |annotation| {
        format!(
            "apiVersion: v1\nkind: Namespace\nmetadata: {{name: {NAMESPACE}, annotations: \
             {{{annotation}}}}}\n---\n"
        )
    });
    text += &workload(CLIENT, "[sleep, infinity]", ("", false));
    for name in (0..scenario.neighbours.len()).map(scenario::neighbour) {
        text += &format!("---\n{}", workload(&name, "[sleep, infinity]", ("", false)));
    }
    let disturbance = scenario.disturbance.filter(|_| own.is_some());
    let there = match disturbance {
        Some(disturbance) => disturbance.endpoints(scenario.services, revision),
        None => Vec::new(),
    };
    for nth in 0..scenario.services {
        let is_opaque = programs.application.is_some() && scenario.opaque.contains(&nth);
        let protocol = if is_opaque { "tcp" } else { scenario.app_protocol(nth) };
        let ports = format!("  ports: [{{name: x, port: {PORT}, appProtocol: {protocol}}}]\n");
        let is_there = scenario.churns() && there.contains(&nth);
        let command = match programs.application {
            Some(folder) => program(folder, scenario, nth)?,
            None => application(programs.own, scenario, nth),
        };
        text += &format!("---\n{}", workload(&scenario.service(nth), &command, (&ports, is_there)));
    }
    match disturbance {
        Some(Disturbance::Push { .. }) => {
            let route = revision::route(NAMESPACE, scenario, revision);
            // JSON is valid YAML.
            text += &format!("---\n{route:#}\n");
        }
        Some(Disturbance::Churn { .. }) => text += &churning(scenario),
        _ => {}
    }
    Ok(text)
}

/// The command of a service's application.
fn application(own: &Path, scenario: &Scenario, nth: u32) -> String {
    let address = |service: u32| format!("{}:{PORT}", scenario.service(service));
    let words = [own.display().to_string()];
    let words = words.into_iter().chain(arguments(scenario, nth, LISTEN, address));
    // JSON is valid YAML.
    serde_json::to_string(&words.collect::<Vec<_>>()).expect("it is text")
}

/// A service that selects workloads by a label that comes and goes.
fn churning(scenario: &Scenario) -> String {
    let protocol = scenario.app_protocol(0);
    format!(
        "---\napiVersion: v1\nkind: Service\nmetadata: {{name: {CHURNING}, namespace: {NAMESPACE}}}\n\
         spec:\n  selector: {{there: \"yes\"}}\n  \
         ports: [{{name: x, port: {PORT}, appProtocol: {protocol}}}]\n"
    )
}

fn workload(name: &str, command: &str, (ports, is_there): (&str, bool)) -> String {
    let there = if is_there { ", there: \"yes\"" } else { "" };
    format!(
        "apiVersion: leno.dev/v1alpha1\nkind: Workload\n\
         metadata: {{name: {name}, namespace: {NAMESPACE}, labels: {{app: {name}{there}}}}}\n\
         spec:\n  serviceAccount: {name}\n  command: {command}\n{ports}"
    )
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;
    use crate::lab::mesh::Share;

    fn of(name: &str, meshed: bool, revision: u64) -> String {
        with(name, meshed.then(Own::default), revision)
    }

    fn with(name: &str, proxies: Option<Own>, revision: u64) -> String {
        let programs = Programs { own: Path::new("/x/leno-bench"), application: None };
        documents(programs, &crate::scenario::find(name).unwrap(), proxies, revision).unwrap()
    }

    #[test]
    fn an_upgrade_groups_the_same_workloads_under_another_name() {
        let shared = |share| Some(Own { share: Some(share), ..Own::default() });
        for (share, names) in [
            (Share::Node, ["share: node", "share: namespace"]),
            (Share::ServiceAccount, ["share: service-account", "share: workload"]),
        ] {
            let of = |scenario, revision| with(scenario, shared(share), revision);
            assert!(of("upgrade", 2).contains(names[0]), "{}", of("upgrade", 2));
            assert!(of("upgrade", 3).contains(names[1]), "{}", of("upgrade", 3));
            assert!(of("push", 3).contains(names[0]), "routes alone change");
        }
        assert!(!of("upgrade", true, 1).contains("leno.dev/share"), "sidecars share nothing");
    }

    #[test]
    fn the_real_application_runs_in_place_of_ours_when_all_of_it_is_there() {
        let folder = tempfile::tempdir().unwrap();
        let shop = crate::scenario::find("teastore").unwrap();
        let own = Path::new("/x/leno-bench");
        let programs = Programs { own, application: Some(folder.path()) };
        let make = |name: &str| {
            let file = folder.path().join(name);
            fs::write(&file, "").unwrap();
            fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
        };
        for name in ["webui.jar", "auth", "persistence.jar", "image.jar", "recommender.jar"] {
            make(name);
        }
        let meshed = Some(Own::default());
        let missing = documents(programs, &shop, meshed, 0).unwrap_err().to_string();
        assert!(missing.contains("registry.jar"), "{missing}");
        for name in ["registry.jar", "db"] {
            make(name);
        }
        let text = documents(programs, &shop, meshed, 0).unwrap();
        assert_eq!(
            (text.matches("[\"java\",\"-jar\"").count(), text.matches("\"serve\"").count()),
            (5, 0)
        );
        let db = text.split("---\n").find(|one| one.contains("{name: db,")).unwrap();
        assert!(db.contains("appProtocol: tcp"), "it speaks first: {db}");
        assert_eq!(text.matches("appProtocol: http").count(), 6);
        assert!(!of("teastore", true, 0).contains("appProtocol: tcp"), "ours speaks HTTP");
        assert!(text.contains("REGISTRY_HOST: registry, REGISTRY_PORT: \"8080\""), "{text}");
        for document in text.split("---\n") {
            serde_saphyr::from_str::<serde_json::Value>(document).expect(document);
        }
    }

    #[test]
    fn every_service_has_a_workload_and_the_bare_lab_no_proxies() {
        assert_eq!(of("http-1k", true, 0).matches("kind: Workload").count(), 11);
        assert!(!of("http-1k", true, 0).contains("inject: disabled"));
        assert!(of("http-1k", false, 0).contains("inject: disabled"));
        assert!(of("tcp-64k", true, 0).contains("--tcp"));
        let faces = of("faces", true, 0);
        assert_eq!(faces.matches("\"--call-grpc\",\"color:8080\"").count(), 1);
        assert_eq!(faces.matches("appProtocol: grpc").count(), 1);
        assert_eq!(of("neighbour", true, 0).matches("kind: Workload").count(), 4);
        assert_eq!(of("neighbours", true, 0).matches("kind: Workload").count(), 10);
        let shop = of("teastore", true, 0);
        assert!(
            shop.contains("\"--call-http\",\"recommender:8080=/product,/cartAction\""),
            "{shop}"
        );
        assert_eq!(shop.matches("--call-http").count(), 6);
    }

    #[test]
    fn every_revision_is_a_set_of_documents_of_its_own() {
        let (one, two) = (of("push", true, 1), of("push", true, 2));
        assert_ne!(one, two);
        assert!(one.contains("\"value\": \"1\"") && one.contains("\"HTTPRoute\""), "{one}");
        for document in one.split("---\n") {
            serde_saphyr::from_str::<serde_json::Value>(document).expect(document);
        }
        assert!(!of("push", false, 1).contains("HTTPRoute"), "no proxy reads it");
        assert_eq!(of("churn", true, 0).matches(", there: ").count(), 10);
        assert_eq!(of("churn", true, 2).matches(", there: ").count(), 2);
        assert_eq!(of("churn", false, 2).matches("there: ").count(), 0);
    }
}
