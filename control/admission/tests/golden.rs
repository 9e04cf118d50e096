//! Injects the proxy into each text `NAME.in.*` of the folder `golden`, and compares the result with `NAME.out.*` and
//! the report with `NAME.said.*`. `LENO_BLESS=1` writes both files; review the difference before it is committed.
#![expect(clippy::unwrap_used, reason = "a test may panic")]

use std::fs;
use std::path::{Path, PathBuf};

use leno_admission::{
    ContainerShape, InjectionOutcome, InjectionReport, InjectionSettings, JsonValue,
    ManifestFormat, PodContext, inject_document, rewrite, uninject_document,
};

/// At least this number of texts must be found, so that the tests do not pass without any.
const TEXTS: usize = 20;

/// The texts `NAME.in.*`, each with its path.
fn texts() -> Vec<(PathBuf, String)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    let files = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let given = |file: &PathBuf| file.file_name().unwrap().to_string_lossy().contains(".in.");
    let mut files: Vec<PathBuf> = files.filter(given).collect();
    files.sort();
    assert!(files.len() >= TEXTS, "{files:?}");
    files.into_iter().map(|file| (file.clone(), fs::read_to_string(file).unwrap())).collect()
}

/// The settings for a text, by its file name: `container` stands for a cluster without native sidecars, `spire` for
/// certificates from SPIRE, `kubelet` for certificates that the kubelet requests.
fn settings(file: &Path) -> InjectionSettings {
    let file = file.to_string_lossy();
    let older = file.contains("container.in");
    let shape = if older { ContainerShape::Container } else { ContainerShape::Sidecar };
    let api = match () {
        () if file.contains("spire.in") => Some("csi:csi.spiffe.io/spire-agent.sock"),
        () if file.contains("spire-folder.in") => Some("hostPath:/run/spire/agent-sockets/a.sock"),
        () => None,
    };
    let workload_api = api.map(|text| text.parse().unwrap());
    let pod_certificates = file.contains("kubelet.in").then_some(86_520);
    let image = "leno-proxy:test".to_owned();
    InjectionSettings {
        image,
        shape,
        workload_api,
        pod_certificates,
        ..InjectionSettings::default()
    }
}

/// The namespace's settings for a text, by its file name: in `workload-api-namespace` proxies serve the Workload API,
/// in `datagrams` they carry datagrams.
fn enclosing(file: &Path) -> PodContext {
    let file = file.to_string_lossy();
    let enabled = |text| file.contains(text).then(|| "enabled".to_owned());
    let workload_api = enabled("workload-api-namespace.in");
    let udp = enabled("datagrams.in");
    let settings = [("leno.dev/workload-api", workload_api), ("leno.dev/udp", udp)];
    let settings = settings.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?)));
    PodContext::of_namespace(&settings.collect())
}

fn injected(file: &Path, text: &str) -> (String, Vec<InjectionReport>) {
    let (settings, mut reports) = (settings(file), Vec::new());
    let out = rewrite(text, None, |document| {
        note(inject_document(document, &settings, |_| enclosing(file)), &mut reports)
    });
    (out.unwrap(), reports)
}

fn uninjected(text: &str) -> String {
    let mut reports = Vec::new();
    rewrite(text, None, |document| note(uninject_document(document), &mut reports)).unwrap()
}

fn note(new: Vec<InjectionReport>, reports: &mut Vec<InjectionReport>) -> bool {
    let changed = new.iter().any(|report| report.said == InjectionOutcome::Changed);
    reports.extend(new);
    changed
}

fn values(text: &str) -> Vec<JsonValue> {
    let mut values = Vec::new();
    let read = |document: &mut JsonValue| {
        values.push(document.clone());
        false
    };
    rewrite(text, None, read).unwrap();
    values
}

fn said(reports: &[InjectionReport]) -> String {
    let line = |InjectionReport { object, said }: &InjectionReport| match said {
        InjectionOutcome::Changed => format!("{object}: changed\n"),
        InjectionOutcome::Skipped(reason) => format!("{object}: left: {reason}\n"),
        InjectionOutcome::Failed(reason) => format!("{object}: failed: {reason}\n"),
    };
    reports.iter().map(line).collect()
}

#[test]
fn every_text_becomes_exactly_what_is_written_beside_it() {
    for (file, text) in texts() {
        let (out, reports) = injected(&file, &text);
        let expected = |part: &str| PathBuf::from(file.to_string_lossy().replace(".in.", part));
        let pairs = [(expected(".out."), out), (expected(".said."), said(&reports))];
        for (path, actual) in pairs {
            if std::env::var_os("LENO_BLESS").is_some() {
                fs::write(&path, &actual).unwrap();
            }
            let wanted = fs::read_to_string(&path).unwrap_or_default();
            assert_eq!(actual, wanted, "{}", path.display());
        }
    }
}

#[test]
fn injecting_twice_changes_nothing() {
    for (file, text) in texts() {
        let once = injected(&file, &text).0;
        let (twice, reports) = injected(&file, &once);
        assert_eq!(twice, once, "{}", file.display());
        assert!(
            reports.iter().all(|report| report.said != InjectionOutcome::Changed),
            "{reports:?}"
        );
    }
}

#[test]
fn uninjecting_gives_back_what_was_injected() {
    for (file, text) in texts() {
        let (out, reports) = injected(&file, &text);
        let back = uninjected(&out);
        assert_eq!(values(&back), values(&text), "{}", file.display());
        if reports.iter().all(|report| report.said != InjectionOutcome::Changed) {
            assert_eq!(back, text, "not changed, and not as it was written: {}", file.display());
        }
        // A text into which nothing was injected is not changed at all.
        assert_eq!(uninjected(&text), text, "{}", file.display());
    }
}

#[test]
fn secrets_of_the_registry_are_added_once_and_taken_out_again() {
    let pod = |secrets: &str| {
        format!(
            "apiVersion: v1\nkind: Pod\nmetadata: {{name: web}}\nspec:\n{secrets}  containers: [{{name: web}}]\n"
        )
    };
    let pull_secrets = leno_admission::pull_secrets(r#"[{"name":"a"},{"name":"b"}]"#).unwrap();
    let settings = InjectionSettings { pull_secrets, ..InjectionSettings::default() };
    for (secrets, expected) in [("", ["a", "b"]), ("  imagePullSecrets: [{name: b}]\n", ["b", "a"])]
    {
        let text = pod(secrets);
        let out = rewrite(&text, None, |document| {
            note(inject_document(document, &settings, |_| PodContext::default()), &mut Vec::new())
        });
        let out = out.unwrap();
        let spec = values(&out).remove(0).get("spec").unwrap().clone();
        let list = spec.list("imagePullSecrets").iter();
        let names: Vec<_> = list.map(|one| one.get("name").unwrap().text().unwrap()).collect();
        assert_eq!(names, expected);
        assert_eq!(values(&uninjected(&out)), values(&text));
    }
    assert!(leno_admission::pull_secrets(r#"["a"]"#).is_err());
}

#[test]
fn yaml_and_json_say_the_same() {
    for (file, text) in texts() {
        let unchanged = |_: &mut JsonValue| false;
        let json = rewrite(&text, Some(ManifestFormat::Json), unchanged).unwrap();
        let yaml = rewrite(&json, Some(ManifestFormat::Yaml), unchanged).unwrap();
        let full = |text| -> Vec<JsonValue> {
            values(text).into_iter().filter(|value| *value != JsonValue::Null).collect()
        };
        assert_eq!(full(&json), full(&text), "{}", file.display());
        assert_eq!(full(&yaml), full(&text), "{}", file.display());
    }
}
