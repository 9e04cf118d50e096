//! Tests how applications are run: probes, dependencies, restarts, accounts, limits, volumes, and their ends.

#![expect(clippy::unwrap_used, reason = "test code")]

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};

use leno_local::status::{InstancePhase, InstanceStatus, MeshStatus};
use leno_testkit::tools;

use crate::mesh::{Mesh, root, unmeshed};

/// One workload without a proxy in the namespace `shop`.
fn workload(name: &str, spec: &str) -> String {
    format!("{}spec:\n{spec}---\n", unmeshed(name))
}

/// A server of the files in its directory on port 8080. The path of an existing file is answered with 200.
const FILES: &str =
    "  command: [python3, -m, http.server, '8080']\n  ports: [{name: http, port: 8080}]\n";

fn instance(mesh: &Mesh, name: &str) -> InstanceStatus {
    MeshStatus::read(mesh.layout()).unwrap().find(None, name).unwrap().clone()
}

fn ps(mesh: &Mesh, name: &str) -> String {
    let output = mesh.leno(&["ps", "--name", mesh.name()]).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.lines().find(|line| line.contains(name)).unwrap_or_default().to_owned()
}

/// Regression: a file that root's shell had open was open in every workload and proxy, whatever their user.
#[test]
fn what_is_open_in_the_shell_of_leno_up_is_not_open_in_workloads() {
    let script = "exec 9</proc/self/status; exec \"$0\" \"$@\"";
    let document = workload("web", "  command: [sleep, '99999']\n");
    let Some(mesh) = root(|| Mesh::start_by(&document, script)) else { return };
    mesh.wait_for_line(" ready after ");
    let opened = |pid: u32| fs::read_link(format!("/proc/{pid}/fd/9"));
    assert!(opened(mesh.pid()).unwrap().ends_with("status"), "the test passes nothing on");
    let application = u32::try_from(mesh.application("web-0")).unwrap();
    let passed_on = opened(application);
    assert!(passed_on.is_err(), "{passed_on:?}");
}

#[test]
fn an_application_takes_traffic_while_its_readiness_probe_succeeds() {
    let probe = "  readiness: {httpGet: {path: /ready, port: http}, periodSeconds: 1, failureThreshold: 2}\n";
    let Some(mesh) = root(|| Mesh::start_unready(&workload("web", &format!("{FILES}{probe}"))))
    else {
        return;
    };
    mesh.wait_for("the reason", || {
        ps(&mesh, "web-0").contains("starting, not ready: GET /ready on port 8080 answers 404")
    });
    assert!(!mesh.takes_traffic("web-0"));
    assert!(mesh.check().contains("BAD  shop/web-0"), "{}", mesh.check());
    let served = || !mesh.text("web", &["dig", "+short", "web.shop.svc.cluster.local"]).is_empty();
    assert!(!served(), "DNS names it before it is ready");

    let file = mesh.directory().join("ready");
    fs::write(&file, "").unwrap();
    mesh.wait_for_line("1 instance ready after ");
    assert!(served());

    fs::remove_file(&file).unwrap();
    mesh.wait_for_line(
        "| web-0 is no longer ready: GET /ready on port 8080 answers 404, 2 times in a row; it gets no traffic until it is ready again\n",
    );
    mesh.wait_for("it to be taken out", || !mesh.takes_traffic("web-0"));
    assert!(!served(), "DNS still names it");
    let line = ps(&mesh, "web-0");
    assert!(line.contains("running, not ready: GET /ready on port 8080 answers 404, "), "{line}");
    let pid = instance(&mesh, "web-0").pid;
    assert_eq!(instance(&mesh, "web-0").restarts, 0, "what is not ready is not restarted");

    fs::write(&file, "").unwrap();
    mesh.wait_for_line("| web-0 is ready again\n");
    mesh.wait_for("it to take traffic", || mesh.takes_traffic("web-0"));
    assert!(served());
    assert_eq!(instance(&mesh, "web-0").pid, pid);
}

#[test]
fn an_application_that_does_not_live_is_started_again() {
    // The shell waits for a child that ignores SIGTERM and would keep the port.
    let spec = "  command: [sh, -c, 'trap \"\" TERM; python3 -m http.server 8080 & wait; wait']
  ports: [{port: 8080}]
  stopGracePeriod: 100ms
  liveness: {exec: {command: [test, '!', -e, dead]}, periodSeconds: 1, failureThreshold: 2}
";
    let Some(mesh) = root(|| Mesh::start(&workload("web", spec))) else { return };
    let before = instance(&mesh, "web-0").pid;
    fs::write(mesh.directory().join("dead"), "").unwrap();
    mesh.wait_for_line(
        "| web-0 is not alive: test ! -e dead exited with 1, 2 times in a row; ending it\n",
    );
    fs::remove_file(mesh.directory().join("dead")).unwrap();
    mesh.wait_for_line(
        "| web-0 was not alive (test ! -e dead exited with 1, 2 times in a row); restarting it in 1 s\n",
    );
    mesh.wait_for("it to take traffic again", || {
        mesh.takes_traffic("web-0") && instance(&mesh, "web-0").pid != before
    });
    assert_eq!(instance(&mesh, "web-0").restarts, 1);
    // The child of the first application does not keep the port that the second one needs.
    let group = instance(&mesh, "web-0").surroundings.cgroup.join("cgroup.procs");
    let count = || fs::read_to_string(&group).unwrap().lines().count();
    mesh.wait_for("two processes", || count() == 2);
}

#[test]
fn workloads_start_in_the_order_of_their_dependencies() {
    let yaml = [
        workload(
            "web",
            "  command: [sleep, infinity]\n  dependsOn: {db: {condition: ready}, migrate: {condition: completed}}\n",
        ),
        workload(
            "migrate",
            "  command: [sh, -c, 'echo migrated; exit 0']\n  restart: on-failure\n  dependsOn: {db: {}}\n",
        ),
        workload(
            "db",
            &format!(
                "{FILES}  readiness: {{httpGet: {{path: /ready, port: 8080}}, periodSeconds: 1}}\n"
            ),
        ),
    ];
    let Some(mesh) = root(|| Mesh::start_unready(&yaml.concat())) else { return };
    mesh.wait_for("the others to wait", || {
        ps(&mesh, "web-0").contains("starting, waits for db to be ready")
            && ps(&mesh, "migrate-0").contains("starting, waits for db to be ready")
    });
    mesh.wait_for("the database to run", || ps(&mesh, "db-0").contains("not ready: "));
    assert_eq!(instance(&mesh, "web-0").pid, None);
    fs::write(mesh.directory().join("ready"), "").unwrap();
    mesh.wait_for_line("| migrate-0 has completed\n");
    mesh.wait_for_line("| 2 instances ready, 1 completed after ");
    let started = |name: &str| instance(&mesh, name).started_unix_ms.unwrap();
    assert!(started("db-0") <= started("migrate-0") && started("migrate-0") <= started("web-0"));
    assert!(ps(&mesh, "migrate-0").ends_with("  completed"), "{}", ps(&mesh, "migrate-0"));
    assert!(mesh.check().contains("ok   shop/migrate-0  completed"), "{}", mesh.check());
    let output = mesh.leno(&["ps", "--name", mesh.name()]).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "what has completed is well");

    // A job runs again when the user restarts it.
    let restart = mesh.leno(&["restart", "--name", mesh.name(), "migrate"]).output().unwrap();
    assert!(restart.status.success(), "{restart:?}");
    mesh.wait_for("its second line", || mesh.log().matches("| migrated\n").count() == 2);
}

#[test]
fn dependencies_that_cannot_come_true_are_refused_with_their_line() {
    let yaml = [
        workload(
            "web",
            "  command: [a]\n  dependsOn:\n    dbs: {}\n    cache: {condition: completed}\n",
        ),
        workload("db", "  command: [a]\n  dependsOn: {cache: {}}\n  user: no-such-user\n"),
        workload("cache", "  command: [a]\n  dependsOn: {db: {}}\n"),
    ];
    let Some((mesh, output)) = root(|| Mesh::refused(&yaml.concat())) else { return };
    let file = mesh.file();
    let expected = [
        "7:10: spec.dependsOn.dbs: there is no Workload shop/dbs: did you mean db?",
        "8:12: spec.dependsOn.cache: cache never completes, because it is restarted whenever it ends: set restart: on-failure for it",
        "16:9: spec.user: this machine has no user \"no-such-user\": create it, or write a number",
        "23:14: spec.dependsOn: these wait for each other: cache -> db -> cache: remove one of the dependencies",
    ];
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    let lines = expected.map(|line| format!("{}:{line}\n", file.display()));
    assert_eq!(text, format!("leno: {}", lines.concat()));
    assert_eq!(output.status.code(), Some(2));
}

#[test]
fn a_process_is_started_again_as_its_restart_policy_has_it() {
    let exits = |code: u32, restart: &str| {
        format!("  command: [sh, -c, 'echo bye; exit {code}']\n  restart: {restart}\n")
    };
    let yaml = [
        workload("always", &exits(0, "always")),
        workload("failing", &exits(3, "on-failure")),
        workload("once", &exits(0, "on-failure")),
        workload("never", &exits(3, "never")),
    ];
    let Some(mesh) = root(|| Mesh::start_unready(&yaml.concat())) else { return };
    mesh.wait_for_line("| always-0 exited with 0; restarting it in 1 s\n");
    mesh.wait_for_line("| failing-0 exited with 3; restarting it in 2 s\n");
    mesh.wait_for_line("| never-0 exited with 3; it is not restarted\n");
    assert!(
        ps(&mesh, "never-0").ends_with("  ended: exited with 3; last line: bye"),
        "{}",
        ps(&mesh, "never-0")
    );
    let line = ps(&mesh, "failing-0");
    assert!(line.contains("exited with 3, 2 times in a row, next try in "), "{line}");
    assert_eq!(instance(&mesh, "once-0").phase, InstancePhase::Completed);
    assert_eq!(instance(&mesh, "never-0").restarts, 0);
    assert!(mesh.check().contains("BAD  shop/never-0"), "{}", mesh.check());
}

#[test]
fn waiting_for_a_mesh_ends_when_a_job_has_failed() {
    let yaml = workload("job", "  command: [sh, -c, 'exit 3']\n  restart: never\n");
    let Some(mesh) = root(|| Mesh::draft(&yaml)) else { return };
    let up = mesh.detached(&["--wait"]);
    let said = String::from_utf8_lossy(&up.stderr).into_owned();
    let name = mesh.name();
    assert_eq!(
        said,
        format!(
            "leno: mesh {name} runs, but shop/job-0 has ended and is not restarted: exited with 3; `leno logs job-0 --name \
             {name}` prints its output, `leno down --name {name}` ends the mesh\n"
        )
    );
    assert_eq!(up.status.code(), Some(2));
}

#[test]
fn init_commands_run_before_the_application_until_they_succeed() {
    let spec = "  command: [cat, made]
  restart: on-failure
  init:
  - {command: [sh, -c, 'test -e allowed']}
  - {command: [sh, -c, 'cp allowed made']}
";
    let Some(mesh) = root(|| Mesh::start_unready(&workload("web", spec))) else { return };
    mesh.wait_for_line("| web-0: init command 1 of 2 exited with 1; restarting it in 1 s\n");
    assert!(
        ps(&mesh, "web-0").contains("init command 1 of 2 exited with 1"),
        "{}",
        ps(&mesh, "web-0")
    );
    assert!(!mesh.directory().join("made").exists());
    fs::write(mesh.directory().join("allowed"), "one line\n").unwrap();
    mesh.wait_for_line("| one line\n");
    mesh.wait_for_line("| web-0 has completed\n");
}

#[test]
fn an_application_runs_as_its_user_and_group() {
    let spec = "  command: [sleep, infinity]\n  user: daemon\n  group: 4242\n";
    let Some(mesh) = root(|| Mesh::start(&workload("web", spec))) else { return };
    let daemon = nix::unistd::User::from_name("daemon").unwrap().unwrap();
    let pid = instance(&mesh, "web-0").pid.unwrap();
    let process = fs::metadata(format!("/proc/{pid}")).unwrap();
    assert_eq!((process.uid(), process.gid()), (daemon.uid.as_raw(), 4242));
    // A command runs as the same user as its workload.
    let said = mesh.text("web", &["sh", "-c", "id -u; id -g; echo $USER"]);
    assert_eq!(said, format!("{}\n4242\ndaemon", daemon.uid));
}

#[test]
fn volumes_are_seen_at_their_places_and_read_only_ones_cannot_be_written() {
    let spec = "  command: [sh, -c, 'cat /srv/in; cp /srv/in /mnt/out; touch /srv/new || echo refused; exec sleep infinity']
  workingDir: /mnt
  volumes:
  - {path: data, mountPath: /srv, readOnly: true}
  - {path: data, mountPath: /mnt}
";
    let Some(mesh) = root(|| Mesh::draft(&workload("web", spec))) else { return };
    let data = mesh.directory().join("data");
    fs::create_dir(&data).unwrap();
    fs::set_permissions(&data, fs::Permissions::from_mode(0o777)).unwrap();
    fs::write(data.join("in"), "of the volume\n").unwrap();
    let mut mesh = mesh;
    mesh.restart();
    mesh.wait_for_line("| of the volume\n");
    mesh.wait_for_line("| refused\n");
    assert_eq!(fs::read_to_string(data.join("out")).unwrap(), "of the volume\n");
    assert!(!data.join("new").exists() && !std::path::Path::new("/srv/in").exists());
    assert_eq!(mesh.text("web", &["sh", "-c", "pwd; ls"]), "/mnt\nin\nout");

    // An instance whose user does not exist reports that, and is started again later.
    mesh.edit(&workload(
        "web",
        &spec.replace("path: data, mountPath: /mnt", "path: lost, mountPath: /mnt"),
    ));
    let lost = mesh.directory().join("lost");
    mesh.wait_for_line(&format!(
        "web-0: the volume {} does not exist: create it first\n",
        lost.display()
    ));
    fs::create_dir(&lost).unwrap();
    mesh.wait_for("it to run", || mesh.takes_traffic("web-0"));
}

#[test]
fn limits_hold_and_are_removed_with_the_instance() {
    let eat = "b = bytearray(200 << 20); print(len(b))";
    let spin = "while :; do :; done";
    let yaml = [
        workload(
            "eater",
            &format!(
                "  command: [python3, -c, '{eat}']\n  restart: never\n  resources: {{limits: {{memory: 64Mi}}}}\n"
            ),
        ),
        workload("modest", "  command: [sleep, infinity]\n  resources: {limits: {memory: 64Mi}}\n"),
        workload(
            "spinner",
            &format!("  command: [sh, -c, '{spin}']\n  resources: {{limits: {{cpu: 200m}}}}\n"),
        ),
    ];
    let Some(mut mesh) = root(|| Mesh::start_unready(&yaml.concat())) else { return };
    mesh.wait_for_line(
        "| eater-0 was ended by SIGKILL (over its limit of 64Mi of memory); it is not restarted\n",
    );
    mesh.wait_for("the others", || {
        mesh.takes_traffic("modest-0") && mesh.takes_traffic("spinner-0")
    });
    // A command in the workload has the same limits as the workload.
    let done = mesh.exec("modest", &["python3", "-c", eat]);
    assert!(!done.status.success(), "{done:?}");

    let pid = instance(&mesh, "spinner-0").pid.unwrap();
    let used_ticks = || {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
        let after = stat.rsplit(')').next().unwrap().split_whitespace().skip(11);
        after.take(2).map(|field| field.parse::<u64>().unwrap()).sum::<u64>()
    };
    let before = (used_ticks(), std::time::Instant::now());
    mesh.wait_for("two seconds", || before.1.elapsed().as_secs() >= 2);
    // There are 100 ticks a second. The limit is a fifth of them; on a machine that accounts coarsely, at most
    // half of them may be counted.
    let used = used_ticks() - before.0;
    let seconds = before.1.elapsed().as_secs_f64();
    assert!((used as f64) < seconds * 50.0, "{used} ticks in {seconds} s");

    let groups: Vec<_> = ["eater-0", "modest-0", "spinner-0"]
        .into_iter()
        .flat_map(|name| instance(&mesh, name).surroundings.limits)
        .collect();
    mesh.edit(&yaml[1..].concat());
    let gone = |group: &std::path::PathBuf| !group.exists();
    mesh.wait_for("the group of one to go", || {
        groups.iter().filter(|group| group.to_string_lossy().contains("eater")).all(gone)
    });
    mesh.interrupt();
    assert_eq!(mesh.ended().code(), Some(0));
    assert!(groups.iter().all(gone), "{groups:?}");
    assert_eq!(mesh.remains(), [""; 0]);
}

#[test]
fn an_application_is_asked_to_end_by_its_signal_within_its_grace() {
    let asked = "  command: [sh, -c, 'trap \"echo asked; exit 0\" QUIT; trap \"\" TERM; echo ready; while :; do sleep 0.05; done']\n  stopSignal: SIGQUIT\n";
    let deaf = "  command: [sh, -c, 'trap \"\" TERM; while :; do sleep 0.05; done']\n  stopGracePeriod: 200ms\n";
    let Some(mut mesh) = root(|| {
        Mesh::start_with_grace(&(workload("asked", asked) + &workload("deaf", deaf)), "1h")
    }) else {
        return;
    };
    // Before the trap is set, the signal would end the shell without any output.
    mesh.wait_for("the trap", || mesh.log().contains("| ready\n"));
    mesh.interrupt();
    // The end does not wait for the mesh's grace period.
    assert_eq!(mesh.ended().code(), Some(0));
    assert!(mesh.log().contains("| asked\n"), "{}", mesh.log());
}

#[test]
fn probes_of_grpc_and_tcp_find_out_about_the_application() {
    let listen =
        "import socket, time; s = socket.create_server((\"127.0.0.1\", 9000)); time.sleep(1e9)";
    let yaml = [
        workload(
            "tcp",
            &format!(
                "  command: [python3, -c, '{listen}']\n  readiness: {{tcpSocket: {{port: 9000}}, periodSeconds: 1}}\n"
            ),
        ),
        workload(
            "none",
            "  command: [sleep, infinity]\n  readiness: {tcpSocket: {port: 9000}, periodSeconds: 1}\n",
        ),
        workload(
            "http1",
            &format!("{FILES}  readiness: {{grpc: {{port: 8080}}, periodSeconds: 1}}\n"),
        ),
    ];
    let Some(mesh) = root(|| Mesh::start_unready(&yaml.concat())) else { return };
    mesh.wait_for("the listener", || mesh.takes_traffic("tcp-0"));
    mesh.wait_for("a reason", || {
        ps(&mesh, "none-0")
            .contains("not ready: a connection to port 9000 fails: no process listens on the port")
    });
    mesh.wait_for("another reason", || {
        ps(&mesh, "http1-0").contains("not ready: the health check of gRPC on port 8080 fails: ")
    });
    assert!(!mesh.takes_traffic("none-0") && !mesh.takes_traffic("http1-0"));
}

/// The health service of Python's gRPC. It reports healthy while the file `serving` exists.
const HEALTH: &str = "import os, grpc
from concurrent import futures
check = lambda request, _: b'\\x08\\x01' if os.path.exists('serving') else b'\\x08\\x02'
methods = {'Check': grpc.unary_unary_rpc_method_handler(check)}
server = grpc.server(futures.ThreadPoolExecutor(2))
server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler('grpc.health.v1.Health', methods),))
server.add_insecure_port('127.0.0.1:9000')
server.start()
server.wait_for_termination()
";

#[test]
fn an_application_takes_traffic_while_its_health_service_says_so() {
    let Some(library) = tools::install_or_skip("grpcio").unwrap() else { return };
    let spec = format!(
        "  command: [python3, health.py]\n  env: {{PYTHONPATH: {library:?}}}\n  readiness: {{grpc: {{port: 9000}}, \
         periodSeconds: 1, timeoutSeconds: 5, failureThreshold: 2}}\n"
    );
    let Some(mut mesh) = root(|| Mesh::draft(&workload("calls", &spec))) else { return };
    fs::write(mesh.directory().join("health.py"), HEALTH).unwrap();
    let serving = mesh.directory().join("serving");
    fs::write(&serving, "").unwrap();
    mesh.restart();
    fs::remove_file(&serving).unwrap();
    mesh.wait_for_line(
        "| calls-0 is no longer ready: the health check of gRPC on port 9000 answers NOT_SERVING, 2 times in a row; it gets no traffic until it is ready again\n",
    );
    mesh.wait_for("it to be taken out", || !mesh.takes_traffic("calls-0"));
    fs::write(&serving, "").unwrap();
    mesh.wait_for_line("| calls-0 is ready again\n");
    mesh.wait_for("it to take traffic", || mesh.takes_traffic("calls-0"));
    assert_eq!(instance(&mesh, "calls-0").restarts, 0);
}

#[test]
fn what_waits_for_a_start_waits_for_no_readiness() {
    let yaml = [
        workload("web", "  command: [sleep, infinity]\n  dependsOn: {db: {condition: started}}\n"),
        workload(
            "db",
            "  command: [sleep, infinity]\n  init: [{command: [test, -e, allowed]}]\n  readiness: {exec: {command: \
             [test, -e, well]}, periodSeconds: 1}\n",
        ),
    ];
    let Some(mesh) = root(|| Mesh::start_unready(&yaml.concat())) else { return };
    mesh.wait_for("web to wait", || {
        ps(&mesh, "web-0").contains("starting, waits for db to be started")
    });
    mesh.wait_for_line("| db-0: init command 1 of 1 exited with 1; restarting it in 1 s\n");
    assert_eq!(instance(&mesh, "web-0").pid, None);
    fs::write(mesh.directory().join("allowed"), "").unwrap();
    mesh.wait_for("web to take traffic", || mesh.takes_traffic("web-0"));
    mesh.wait_for("a probe of db", || {
        ps(&mesh, "db-0").contains("starting, not ready: test -e well exited with 1")
    });
    assert!(!mesh.takes_traffic("db-0"));
}

/// The example is meshed: the proxies and the control plane of the same build are in the same folder as `leno`.
#[test]
fn the_example_starts_in_its_order_and_serves() {
    let Some(mesh) =
        root(|| Mesh::start_unready(include_str!("../../../examples/notes/notes.yaml")))
    else {
        return;
    };
    mesh.wait_for_line("| fill-0 has completed\n");
    mesh.wait_for_line("| 2 instances ready, 1 completed after ");
    let page = mesh.text("web", &["curl", "-sf", "http://web:8080/"]);
    assert!(page.contains("Directory listing"), "{page}");
    let check = mesh.leno(&["check", "--name", mesh.name()]).output().unwrap();
    assert!(check.status.success(), "{check:?}");
}
