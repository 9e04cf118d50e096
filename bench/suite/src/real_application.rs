//! A real application in place of the suite's own services. In the lab it is a folder of programs, in a cluster a file
//! of images.
//!
//! Only scenarios whose services have names model a real application.

pub mod images;

use std::collections::BTreeMap;
use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use aws_lc_rs::digest::{SHA256, digest};
use data_encoding::HEXLOWER;
use leno_measure::load::{Plan, Report};

use crate::application::PORT;
use crate::scenario::Scenario;
use crate::tools;

use images::is_one;

/// How long the application may take to answer after it listens, because it fills databases and looks up other
/// services.
pub(crate) const ANSWERED: Duration = Duration::from_secs(300);
/// The pause between two probes of a service.
const EACH: Duration = Duration::from_millis(100);
/// The time limit of a probe.
const TIMEOUT: Duration = Duration::from_secs(2);

/// Probes that must succeed before the measurement. They request every path of the load once, from each of these
/// services. Of a real application, only services under load are sure to speak HTTP.
pub(crate) fn questions<A: Copy + Into<SocketAddr>>(
    addresses: &[A],
    scenario: &Scenario,
) -> Vec<Plan> {
    let paths = scenario.paths_in_turn();
    let lasts = EACH * paths.len().max(1) as u32;
    let plan = |address: &A| Plan {
        protocol: scenario.protocol,
        connections: 1,
        body_size: scenario.request_bytes,
        paths: paths.to_vec(),
        timeout: TIMEOUT,
        ..Plan::new(
            format!("http://{}{}", (*address).into(), scenario.path()),
            1.0 / EACH.as_secs_f64(),
            lasts,
        )
    };
    addresses.iter().map(plan).collect()
}

/// How many probes failed, and why; `None` if all succeeded.
pub(crate) fn unanswered(report: &Report) -> Option<String> {
    (report.errors > 0)
        .then(|| format!("of {} requests: {}", report.requests, report.errors_in_words()))
}

/// Checks that a folder contains the whole real application.
///
/// # Errors
/// If the path is not a folder, a scenario has no real application, a service has neither a program nor a jar, or there
/// is a jar but no `java`.
pub(crate) fn check_folder(folder: &Path, scenarios: &[Scenario]) -> Result<()> {
    look_into(folder, scenarios, tools::find("java").is_some())
}

/// Like [`check_folder`]. `java` says whether the machine has the program `java`.
fn look_into(folder: &Path, scenarios: &[Scenario], java: bool) -> Result<()> {
    let one = scenarios.first().map(|one| one.name.as_str()).unwrap_or_default();
    ensure!(
        folder.is_dir(),
        "{} is not a directory: in the lab, --application is a directory with a program or a JAR \
         file for each service of {one}; a file of images is for --context",
        folder.display()
    );
    for scenario in scenarios {
        is_one(scenario)?;
        for nth in 0..scenario.services {
            let file = found(folder, &scenario.service(nth))?;
            ensure!(
                java || !is_jar(&file),
                "{} needs java, which is not installed: apt-get install -y default-jre-headless",
                file.display()
            );
        }
    }
    Ok(())
}

/// The program with this name in a folder, or else the jar with this name.
fn found(folder: &Path, name: &str) -> Result<PathBuf> {
    let (program, jar) = (folder.join(name), folder.join(format!("{name}.jar")));
    if program.is_file() {
        let mode = program.metadata()?.permissions().mode();
        let shown = program.display();
        ensure!(mode & 0o111 != 0, "{shown} cannot be run: chmod +x {shown}");
        return Ok(program);
    }
    ensure!(jar.is_file(), "{} has no program {name} and no {name}.jar", folder.display());
    Ok(jar)
}

fn is_jar(file: &Path) -> bool {
    file.extension().is_some_and(|extension| extension == "jar")
}

/// The command and the environment of a service of the real application. The command is a program or jar with the
/// service's name; the environment has the addresses of the other services.
///
/// # Errors
/// If the folder has neither a program nor a jar, or the path is not valid UTF-8.
pub(crate) fn program(folder: &Path, scenario: &Scenario, nth: u32) -> Result<String> {
    let name = scenario.service(nth);
    let file = found(folder, &name)?;
    let java: &[&Path] = if is_jar(&file) { &["java".as_ref(), "-jar".as_ref()] } else { &[] };
    // JSON is valid YAML.
    let command = serde_json::to_string(&[java, &[&*file]].concat());
    let command = command.with_context(|| folder.display().to_string())?;
    // First the variables that the TeaStore's images use, then those of Faces.
    let mut environment = format!("PORT: \"{PORT}\", SERVICE_PORT: \"{PORT}\", HOST_NAME: {name}");
    for other in (0..scenario.services).map(|nth| scenario.service(nth)) {
        let word = other.to_uppercase();
        environment += &format!(", {word}_HOST: {other}, {word}_PORT: \"{PORT}\"");
        environment += &format!(", {word}_SERVICE: \"{other}:{PORT}\"");
    }
    Ok(format!("{command}\n  env: {{{environment}}}"))
}

/// The digest of each service's program or jar in the folder.
pub(crate) fn digests(folder: &Path, scenario: &Scenario) -> Result<BTreeMap<String, String>> {
    let one = |name: String| {
        let file = found(folder, &name)?;
        let bytes = fs::read(&file).with_context(|| format!("cannot read {}", file.display()))?;
        Ok((name, format!("sha256:{}", HEXLOWER.encode(digest(&SHA256, &bytes).as_ref()))))
    };
    (0..scenario.services).map(|nth| one(scenario.service(nth))).collect()
}

#[cfg(test)]
mod tests {
    use super::images::{FILES, printed};
    use super::*;
    use crate::scenario;

    #[test]
    fn every_scenario_that_is_an_application_has_a_file_and_no_other() {
        for scenario in scenario::all().unwrap() {
            let has = FILES.iter().any(|(name, _)| *name == scenario.name);
            assert_eq!(scenario.is_an_application(), has, "{}", scenario.name);
        }
    }

    #[test]
    fn scenarios_without_a_real_application_are_refused_and_the_others_named() {
        let refused = printed("http-1k").unwrap_err().to_string();
        assert!(refused.contains("http-1k has no real application"), "{refused}");
        assert!(refused.contains("faces and teastore"), "{refused}");
        let unknown = printed("face").unwrap_err().to_string();
        assert!(unknown.contains("there is no scenario \"face\""), "{unknown}");
    }

    #[test]
    fn every_page_is_asked_for_once_before_any_is_measured() {
        let nowhere = [SocketAddr::from(([127, 0, 0, 1], 80))];
        let shop = questions(&nowhere, &scenario::find("teastore").unwrap());
        assert_eq!((shop.len(), shop[0].paths.len()), (1, 8));
        assert_eq!(shop[0].duration, Duration::from_millis(800));
        assert_eq!(shop[0].pace, leno_measure::load::Pace::Rate(10.0));
        let faces = questions(&nowhere, &scenario::find("faces").unwrap());
        assert_eq!((&*faces[0].url, faces[0].paths.len()), ("http://127.0.0.1:80/center/", 0));
        let mut report = Report { requests: 8, ..Report::default() };
        assert_eq!(unanswered(&report), None);
        report.errors = 2;
        report.errors_by_kind.insert("status_5xx".into(), 2);
        assert_eq!(unanswered(&report).unwrap(), "of 8 requests: 2 status_5xx");
    }

    fn may_be_run(program: &Path) {
        fs::set_permissions(program, fs::Permissions::from_mode(0o755)).unwrap();
    }

    #[test]
    fn a_folder_may_have_any_name() {
        let above = tempfile::tempdir().unwrap();
        let folder = above.path().join("a \"b\" {c}: \\d");
        fs::create_dir(&folder).unwrap();
        fs::write(folder.join("face"), "").unwrap();
        may_be_run(&folder.join("face"));
        let text = program(&folder, &scenario::find("faces").unwrap(), 0).unwrap();
        let read: serde_json::Value =
            serde_saphyr::from_str(&format!("spec:\n  command: {text}")).unwrap();
        assert_eq!(read["spec"]["command"][0], folder.join("face").to_str().unwrap());
    }

    #[test]
    fn a_folder_is_looked_at_before_anything_runs() {
        let folder = tempfile::tempdir().unwrap();
        let of = |names: &[&str]| -> Vec<Scenario> {
            names.iter().map(|name| scenario::find(name).unwrap()).collect()
        };
        let faces = of(&["faces"]);
        let why = |scenarios: &[Scenario], at: &Path| {
            check_folder(at, scenarios).unwrap_err().to_string()
        };
        assert!(why(&faces, folder.path()).contains("has no program face and no face.jar"));
        for name in ["face", "smiley.jar", "color"] {
            fs::write(folder.path().join(name), "").unwrap();
        }
        let refused = why(&faces, folder.path());
        assert!(refused.contains("face cannot be run: chmod +x "), "{refused}");
        for name in ["face", "color"] {
            may_be_run(&folder.path().join(name));
        }
        let jar = look_into(folder.path(), &faces, false).unwrap_err().to_string();
        assert!(jar.contains("needs java") && jar.contains("smiley.jar"), "{jar}");
        look_into(folder.path(), &faces, true).unwrap();
        let before = digests(folder.path(), &faces[0]).unwrap();
        assert!(before.len() == 3 && before["face"] == before["smiley"], "both are empty");
        fs::write(folder.path().join("smiley.jar"), "abc").unwrap();
        let after = digests(folder.path(), &faces[0]).unwrap();
        // The text and its digest are the example of FIPS 180.
        let abc = "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert!(before["face"] == after["face"] && after["smiley"] == abc, "{after:?}");
        let text = program(folder.path(), &faces[0], 0).unwrap();
        assert!(text.contains("SMILEY_SERVICE: \"smiley:8080\""), "{text}");
        assert!(
            why(&of(&["faces", "http-1k"]), folder.path())
                .contains("http-1k has no real application")
        );
        let file = why(&faces, &folder.path().join("face"));
        assert!(file.contains("is not a directory") && file.contains("for --context"), "{file}");
    }
}
