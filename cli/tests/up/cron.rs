//! Tests workloads that run on a schedule.

#![expect(clippy::unwrap_used, reason = "test code")]

use std::fs;

use leno_local::status::{MeshStatus, Schedule};

use crate::mesh::{Mesh, root, unmeshed};

/// A workload without a proxy that runs a shell script on a schedule.
fn job(name: &str, script: &str, cron: &str) -> String {
    format!(
        "{}spec:\n  command: [sh, -c, '{script}']\n  cron: {cron}\n  stopGracePeriod: 100ms\n---\n",
        unmeshed(name)
    )
}

/// The schedule of a workload that runs every second.
const EACH_SECOND: &str = "{schedule: '* * * * * *'}";

/// What a schedule has done so far; the default while the mesh does not run yet.
fn schedule(mesh: &Mesh, name: &str) -> Schedule {
    let status = MeshStatus::read(mesh.layout());
    let found = status.ok().and_then(|status| status.find(None, name).ok()?.schedule.clone());
    found.unwrap_or_default()
}

/// The exit code of `leno ps`, and its line about an instance.
fn ps(mesh: &Mesh, name: &str) -> (Option<i32>, String) {
    let output = mesh.leno(&["ps", "--name", mesh.name()]).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let line = text.lines().find(|line| line.contains(name)).unwrap_or_default();
    (output.status.code(), line.to_owned())
}

fn lines(mesh: &Mesh, file: &str) -> usize {
    fs::read_to_string(mesh.directory().join(file)).unwrap_or_default().lines().count()
}

#[test]
fn a_workload_runs_at_its_times_and_ps_shows_the_last_run_and_the_next() {
    let yaml = [
        job("tick", "date >>ticks", EACH_SECOND),
        job("yearly", "date >>never", "{schedule: '@yearly', timeZone: UTC}"),
        job("off", "date >>never", "{schedule: '* * * * * *', suspend: true}"),
    ];
    let Some(mesh) = root(|| Mesh::draft(&yaml.concat())) else { return };
    let up = mesh.detached(&["--wait"]);
    let said = String::from_utf8_lossy(&up.stdout).into_owned();
    assert!(said.contains(", 0 of 3 instances ready, 3 scheduled after "), "{up:?}");
    mesh.wait_for("three runs", || lines(&mesh, "ticks") >= 3);
    mesh.wait_for("the end of a run", || schedule(&mesh, "tick").last.is_some());
    let (code, line) = ps(&mesh, "tick-0");
    let at = line.find("  scheduled, ").unwrap_or_else(|| panic!("{line}"));
    assert!(
        line[at..].contains(", last run exited with 0 ") && line.contains(", next run in "),
        "{line}"
    );
    assert_eq!(code, Some(0), "what is scheduled is well");
    // The columns are namespace, name and READY. An instance between two runs is not one that fails.
    assert_eq!(line.split_whitespace().nth(2), Some("-"), "{line}");
    let stat = mesh.leno(&["stat", "--name", mesh.name(), "--window", "100ms"]).output().unwrap();
    let stat = String::from_utf8_lossy(&stat.stdout).into_owned();
    let row = stat.lines().find(|line| line.contains(" tick ")).unwrap_or_default();
    assert_eq!(row.split_whitespace().nth(2), Some("1/1"), "{stat}");
    let (_, line) = ps(&mesh, "yearly-0");
    assert!(line.contains("  scheduled, next run in ") && !line.contains("last run"), "{line}");
    assert!(ps(&mesh, "off-0").1.ends_with("  scheduled, suspended"), "{}", ps(&mesh, "off-0").1);
    let check = mesh.check();
    let line = check.lines().find(|line| line.contains("shop/tick-0")).unwrap_or_default();
    assert!(line.starts_with("ok   ") && line.contains(", last run exited with 0 "), "{check}");

    let json = mesh.leno(&["ps", "--name", mesh.name(), "-o", "json"]).output().unwrap();
    let rows: serde_json::Value = serde_json::from_slice(&json.stdout).unwrap();
    let tick = rows.as_array().unwrap().iter().find(|row| row["name"] == "tick-0").unwrap();
    assert_eq!(tick["phase"], "scheduled");
    assert_eq!(tick["ready"], false);
    let last = &tick["schedule"]["last"];
    assert_eq!(last["succeeded"], true);
    assert_eq!(last["how"], "exited with 0");
    assert!(last["ended_unix_ms"].as_i64() >= last["started_unix_ms"].as_i64());
    assert_eq!(tick["schedule"]["next_unix_ms"].as_i64().unwrap() % 1000, 0);

    // A restart lets the schedule begin at that time.
    let restart = mesh.leno(&["restart", "--name", mesh.name(), "yearly"]).output().unwrap();
    assert!(restart.status.success(), "{restart:?}");

    let down = mesh.leno(&["down", "--name", mesh.name()]).output().unwrap();
    assert!(down.status.success(), "{down:?}");
    assert_eq!((lines(&mesh, "never"), mesh.remains()), (0, vec![]));
}

#[test]
fn a_run_that_fails_is_named_until_the_next_one_succeeds() {
    let yaml = job("import", "test -e data || { echo no data; exit 3; }", EACH_SECOND);
    let Some(mesh) = root(|| Mesh::start_unready(&yaml)) else { return };
    mesh.wait_for_line("| import-0: a run failed: exited with 3\n");
    mesh.wait_for("the result", || ps(&mesh, "import-0").1.contains(", last run exited with 3 "));
    let (code, line) = ps(&mesh, "import-0");
    assert!(line.contains(" ago (last line: no data), next run in "), "{line}");
    assert_eq!(code, Some(1));
    assert!(mesh.check().contains("BAD  shop/import-0"), "{}", mesh.check());
    fs::write(mesh.directory().join("data"), "").unwrap();
    mesh.wait_for("a run that succeeds", || ps(&mesh, "import-0").0 == Some(0));

    // A missing program makes the run fail, and the next run is still tried at its time.
    mesh.edit(&yaml.replace("sh, -c", "absent, -c"));
    mesh.wait_for_line(
        "import-0: a run failed: cannot start absent: no directory of PATH has this program",
    );
}

#[test]
fn a_failed_run_is_run_again_where_restart_is_on_failure() {
    let yaml = job(
        "again",
        "echo run >>runs; test $(wc -l <runs) -ge 2",
        "{schedule: '*/2 * * * * *', concurrencyPolicy: Forbid}\n  restart: on-failure",
    );
    let Some(mesh) = root(|| Mesh::start_unready(&yaml)) else { return };
    mesh.wait_for_line("| again-0: a run exited with 1; restarting it in 1 s\n");
    mesh.wait_for("its success", || {
        schedule(&mesh, "again").last.is_some_and(|last| last.succeeded)
    });
    assert!(!mesh.log().contains("a run failed"), "{}", mesh.log());
}

#[test]
fn runs_that_meet_run_side_by_side_or_wait_or_replace_each_other() {
    // Each run writes a line and would then last long. The file `end` lets the runs end.
    let script =
        |name: &str| format!("echo begins >>{name}; until test -e end; do sleep 0.05; done");
    let of = |name: &str, policy: &str| {
        let cron = format!("{{schedule: \"* * * * * *\", concurrencyPolicy: {policy}}}");
        job(name, &script(name), &cron)
    };
    let yaml = of("allow", "Allow") + &of("forbid", "Forbid") + &of("replace", "Replace");
    let Some(mesh) = root(|| Mesh::start_unready(&yaml)) else { return };
    mesh.wait_for("runs side by side", || schedule(&mesh, "allow").running >= 3);
    assert!(ps(&mesh, "allow-0").1.contains(" runs are under way"), "{}", ps(&mesh, "allow-0").1);
    mesh.wait_for("three replaced runs", || lines(&mesh, "replace") >= 3);
    assert!(mesh.log().contains(" replaces the one before it\n"), "{}", mesh.log());
    let replaced = schedule(&mesh, "replace");
    assert!(replaced.running <= 1 && replaced.last.is_none(), "{replaced:?}");
    assert_eq!((lines(&mesh, "forbid"), schedule(&mesh, "forbid").running), (1, 1));
    assert!(ps(&mesh, "forbid-0").1.contains(", has been running for "));
    mesh.wait_for_line("is skipped: 10 other runs have not ended\n");
    // The waiting run begins when the run before it has ended.
    fs::write(mesh.directory().join("end"), "").unwrap();
    mesh.wait_for("the run that waited", || lines(&mesh, "forbid") >= 2);
}

#[test]
fn schedules_that_cannot_be_followed_are_refused_with_their_line() {
    let yaml = "apiVersion: leno.dev/v1alpha1\nkind: Workload\nmetadata: {name: web}\nspec:\n  command: [a]\n  \
                cron: {schedule: '*/5 * * * *', timeZone: Europe/Berlim}\n---\napiVersion: leno.dev/v1alpha1\n\
                kind: Workload\nmetadata: {name: later}\nspec: {command: [a], dependsOn: {web: {}}}\n";
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("mesh.yaml");
    let analyze = |text: &str| {
        fs::write(&file, text).unwrap();
        let mut leno = std::process::Command::new(env!("CARGO_BIN_EXE_leno"));
        let output = leno.arg("analyze").arg(&file).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let said = analyze(yaml);
    assert!(
        said.contains("spec.cron.timeZone: error[invalid-document]: this machine has no time zone"),
        "{said}"
    );
    assert!(
        said.contains(
            "spec.dependsOn.web: error[invalid-document]: web runs on a schedule, so nothing can wait for it"
        ),
        "{said}"
    );
    let said = analyze(&yaml.replace("*/5 *", "*/5"));
    assert!(
        said.contains(
            "mesh.yaml:6:20: spec.cron.schedule: error[invalid-document]: \"*/5 * * *\" is not a schedule: it has 4 fields: write minute, \
             hour, day of month, month and day of week, such as */5 * * * *"
        ),
        "{said}"
    );
}
