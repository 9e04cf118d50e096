//! Tests mishaps: a crash loop, a flood of log lines, and the loss of a process or file of the mesh.

use std::fs;
use std::io::Read as _;
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::time::Duration;

use leno_local::layout::Layout;
use leno_local::status::MeshStatus;

use crate::mesh::{Mesh, err, out, root, unmeshed, with_server};

/// One workload without a proxy in the namespace `shop`.
fn workload(name: &str, spec: &str) -> String {
    format!("{}spec: {{{spec}}}\n---\n", unmeshed(name))
}

fn idle() -> String {
    workload("web", "command: [sleep, infinity]")
}

#[test]
fn the_wait_for_a_mesh_names_a_crash_loop() {
    let bye = workload("bye", "command: [sh, -c, 'echo bye; exit 3']");
    let Some(mesh) = root(|| Mesh::draft(&(idle() + &bye))) else { return };
    let up = mesh.detached(&["--wait", "--wait-timeout", "10s"]);
    let text = err(&up);
    assert_eq!(up.status.code(), Some(2), "{up:?}");
    assert!(text.contains("shop/bye-0 (waiting: exited with 3"), "{text}");
    assert!(text.contains("last line: bye") && !text.contains("web-0"), "{text}");
}

#[test]
fn a_name_of_a_part_of_the_mesh_is_no_name_of_a_workload() {
    for name in ["leno", "controller", "observer"] {
        let yaml = idle() + &workload(name, "command: [sleep, infinity]");
        let Some((_mesh, output)) = root(|| Mesh::refused(&yaml)) else { return };
        let text = err(&output);
        assert_eq!(output.status.code(), Some(2), "{text}");
        assert!(text.contains("mesh.yaml:8:"), "{text}");
        assert!(text.contains(&format!("metadata.name: {name:?} is the name of a part")), "{text}");
    }
}

#[test]
fn a_command_waits_until_its_workload_is_set_up() {
    let yaml = workload("web", "replicas: 12, command: [sleep, infinity]");
    let Some(mesh) = root(|| Mesh::draft(&yaml)) else { return };
    let up = mesh.detached(&[]);
    assert!(up.status.success(), "{up:?}");
    assert_eq!(mesh.text("web-11", &["hostname"]), "web-11");
}

#[test]
fn an_instance_that_cannot_be_set_up_says_why() {
    let script = "mkdir $ETC; cp -a /etc/. $ETC; rm -f $ETC/resolv.conf $ETC/hosts; export ETC; \
                  exec unshare -m sh -c 'mount --bind $ETC /etc; exec \"$0\" \"$@\"' \"$0\" \"$@\"";
    let Some(mesh) = root(|| Mesh::start_by(&idle(), script)) else { return };
    let reason = "failed, the link /etc/resolv.conf points to no file: create an empty file there";
    mesh.wait_for("the reason", || out(&mesh.run(&["ps"])).contains(reason));
    let exec = mesh.exec("web", &["true"]);
    assert_eq!(exec.status.code(), Some(2));
    assert!(err(&exec).contains(&format!("web-0 is not set up yet ({reason}")), "{exec:?}");
}

/// Regression: the first connection without a free descriptor ended the socket, and no order could be given until the mesh
/// was started again.
#[test]
fn orders_are_taken_again_once_there_are_descriptors_again() {
    let Some(mesh) = root(|| Mesh::start(&idle())) else { return };
    let of_mesh = format!("--pid={}", mesh.pid());
    let limit = |limit: &str| {
        let mut command = Command::new("prlimit");
        command.args([&of_mesh, limit]);
        let output = command.args(["--raw", "--noheadings", "--output=SOFT"]).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        out(&output).trim().to_owned()
    };
    let before = limit("--nofile");
    limit("--nofile=3:");
    let mut silent = UnixStream::connect(Layout::new(mesh.name()).unwrap().orders()).unwrap();
    silent.set_read_timeout(Some(Duration::from_secs(2))).unwrap();
    let ended = silent.read(&mut [0]);
    limit(&format!("--nofile={before}:"));
    // The connection is still open, and sends nothing.
    let restart = mesh.leno(&["restart", "--name", mesh.name(), "web"]).output().unwrap();
    assert!(out(&restart).starts_with("1 instance restarted in "), "{restart:?}");
    assert_eq!(ended.unwrap_err().kind(), std::io::ErrorKind::WouldBlock, "it was closed");
}

#[test]
fn a_guard_that_was_killed_is_started_again() {
    let yaml = workload("web", "command: [sh, -c, 'setsid sleep 1000 & exec sleep 1001']");
    let Some(mut mesh) = root(|| Mesh::start(&yaml)) else { return };
    let guard = |mesh: &Mesh| {
        let children = format!("/proc/{0}/task/{0}/children", mesh.pid());
        let children = fs::read_to_string(children).unwrap();
        let is_guard = |pid: &&str| {
            let command = fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            command.split('\0').nth(1) == Some("guard")
        };
        children.split_whitespace().find(is_guard).and_then(|pid| pid.parse::<i32>().ok())
    };
    let first = guard(&mesh).unwrap();
    mesh.kill_process(first);
    mesh.wait_for_line("| the guard of the mesh was ended by SIGKILL; restarting it at once\n");
    mesh.wait_for("another guard", || guard(&mesh).is_some_and(|pid| pid != first));
    mesh.kill();
    mesh.wait_for("every process to end", || {
        !mesh.remains().iter().any(|thing| thing.starts_with("process "))
    });
}

#[test]
fn files_of_a_mesh_that_were_removed_are_written_again() {
    let Some(mut mesh) = root(|| Mesh::start(&idle())) else { return };
    let layout = mesh.layout().clone();
    fs::write(layout.status(), "garbage").unwrap();
    let text = err(&mesh.run(&["ps"]));
    let remedy = format!("is damaged: remove it, and process {} writes it again", mesh.pid());
    assert!(text.contains(&remedy), "{text}");
    fs::remove_file(layout.status()).unwrap();
    fs::remove_file(layout.record()).unwrap();
    let missing = err(&mesh.run(&["ps"]));
    assert!(missing.is_empty() || missing.contains(&format!("runs (process {})", mesh.pid())));
    mesh.wait_for("the files", || mesh.run(&["ps"]).status.success() && layout.record().exists());

    // The mesh can be ended even without its status and record.
    fs::write(layout.status(), "garbage").unwrap();
    fs::write(layout.record(), "garbage").unwrap();
    let down = mesh.leno(&["down", "--name", mesh.name()]).spawn().unwrap();
    assert_eq!(mesh.ended().code(), Some(0), "{}", mesh.log());
    assert!(down.wait_with_output().unwrap().status.success());
    assert_eq!(mesh.remains(), [""; 0]);
}

#[test]
fn a_mesh_whose_files_are_gone_is_found_and_removed() {
    let Some(mut mesh) = root(|| Mesh::start(&idle())) else { return };
    let remove_files = |mesh: &Mesh| {
        for entry in fs::read_dir(mesh.layout().directory()).unwrap().flatten() {
            if entry.file_type().unwrap().is_file() {
                fs::remove_file(entry.path()).unwrap();
            }
        }
    };
    remove_files(&mesh);
    let running = format!(
        "runs already (process {}): end it with `leno down --name {}`",
        mesh.pid(),
        mesh.name()
    );
    let cleanup = mesh.run(&["cleanup"]);
    assert_eq!(cleanup.status.code(), Some(2), "{cleanup:?}");
    assert!(err(&cleanup).contains(&running), "{cleanup:?}");
    mesh.wait_for("the status", || mesh.layout().status().exists());
    assert!(mesh.exec("web", &["true"]).status.success(), "{}", mesh.log());

    mesh.kill();
    remove_files(&mesh);
    assert!(!mesh.remains().is_empty());
    let cleanup = mesh.run(&["cleanup"]);
    assert!(cleanup.status.success(), "{cleanup:?}");
    assert_eq!(mesh.remains(), [""; 0]);
}

/// A killed owner holds the lock of its mesh until its last thread has ended, so `leno cleanup` waits for it.
#[test]
fn the_lock_of_a_killed_owner_is_waited_for() {
    let Some(mut mesh) = root(|| Mesh::start(&idle())) else { return };
    mesh.kill();
    let lock = fs::File::open(mesh.layout().lock()).unwrap();
    lock.lock().unwrap();
    let held = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_secs(2));
        drop(lock);
    });
    let cleanup = mesh.run(&["cleanup"]);
    assert!(held.is_finished(), "it did not wait");
    assert!(cleanup.status.success(), "{cleanup:?}");
    assert_eq!(mesh.remains(), [""; 0]);
}

#[test]
fn a_flood_of_lines_leaves_those_of_the_mesh() {
    let line = "x".repeat(1000);
    let flood = format!("yes {line} | head -c 20000000; echo; echo flooded; exec sleep infinity");
    let calm = workload("calm", "command: [sh, -c, 'echo calm; exec sleep infinity']");
    let noisy = workload("noisy", &format!("command: [sh, -c, '{flood}']"));
    let Some(mesh) = root(|| Mesh::start(&calm)) else { return };
    mesh.wait_for_line("| calm");
    mesh.edit(&(calm + &noisy));
    mesh.wait_for_line("| flooded");
    let own = mesh.run(&["logs", "leno"]);
    assert!(out(&own).contains("Workload shop/noisy added; 1 instance starts"), "{own:?}");
    assert!(out(&own).contains("1 instance ready after") && err(&own).is_empty(), "{own:?}");
    let calm = mesh.run(&["logs", "calm"]);
    assert_eq!(out(&calm), "");
    let text = err(&calm);
    let dropped =
        text.strip_prefix("leno: ").and_then(|text| text.split_once(" older lines, of all "));
    let dropped: u64 = dropped.unwrap_or_else(|| panic!("{text}")).0.parse().unwrap();
    assert!((11_000..20_000).contains(&dropped), "{text}");
    let tail = mesh.run(&["logs", "--tail", "1", "noisy"]);
    assert_eq!((out(&tail).trim(), &*err(&tail)), ("flooded", ""));
}

#[test]
fn why_names_proxies_that_were_started_again() {
    let meshed = |name: &str| {
        idle()
            .replace("name: web", &format!("name: {name}"))
            .replace("inject: disabled", "inject: enabled")
    };
    let Some(mesh) = root(|| Mesh::start(&(meshed("web") + &meshed("calm")))) else { return };
    let why = || out(&mesh.run(&["why", "--since", "1m"]));
    mesh.wait_for("a first look", || why() == "nothing is broken\n");
    let processes = || {
        let status = MeshStatus::read(mesh.layout()).unwrap();
        let group = status.find(None, "web-0").unwrap().surroundings.cgroup.with_file_name("proxy");
        fs::read_to_string(group.join("cgroup.procs")).unwrap_or_default()
    };
    for _ in 0..3 {
        mesh.wait_for("a proxy", || mesh.takes_traffic("web-0"));
        let pid = processes().lines().next().unwrap().parse().unwrap();
        mesh.kill_process(pid);
        mesh.wait_for("another one", || {
            !processes().contains(&pid.to_string()) && !processes().is_empty()
        });
    }
    mesh.wait_for("all of them", || why().contains("\n         web-0: 3 times, last "));
    let text = why();
    assert!(
        text.contains("warning  the proxy of shop/web-0 was started again 3 times\n"),
        "{text}"
    );
    assert!(text.contains(" s ago: was ended by SIGKILL\n"), "{text}");
    assert!(!text.contains("calm"), "{text}");
}

#[test]
fn errors_of_analyze_are_said_and_refused_where_that_is_asked_for() {
    let route = "apiVersion: gateway.networking.k8s.io/v1\nkind: HTTPRoute\nmetadata: {name: nowhere, namespace: \
                 shop}\nspec:\n  parentRefs: [{group: '', kind: Service, name: nowhere}]\n";
    let Some(mesh) = root(|| Mesh::draft(&(idle() + route))) else { return };
    let analyzed = mesh.leno(&["analyze"]).arg(mesh.file()).output().unwrap();
    assert_eq!(analyzed.status.code(), Some(1), "{analyzed:?}");
    let found = out(&analyzed);
    let error = found.lines().next().unwrap();
    assert!(error.contains(" error["), "{found}");

    let refused = mesh.detached(&["--refuse-errors"]);
    assert_eq!(refused.status.code(), Some(2), "{refused:?}");
    assert!(err(&refused).contains(error), "{refused:?}");
    assert_eq!(mesh.remains(), [""; 0]);

    let up = mesh.detached(&["--wait"]);
    assert!(up.status.success(), "{up:?}");
    let said = out(&mesh.run(&["logs", "leno"]));
    assert!(said.contains(error), "{said}");
    assert!(said.contains("the parts with these errors do not work, the rest runs"), "{said}");
    assert!(mesh.run(&["down"]).status.success());
}

/// Regression: if policies were too large for any message, the proxy kept the earlier policies, which permitted
/// what the new ones deny.
#[test]
fn policies_without_room_deny_every_client_and_are_named() {
    let web = "apiVersion: leno.dev/v1alpha1\nkind: Workload\nmetadata: {name: web, namespace: shop, labels: {app: web}}\n\
               spec: {command: [python3, -c, @SERVER@], ports: [{port: 8080, appProtocol: http}]}\n---\n";
    let client = "apiVersion: leno.dev/v1alpha1\nkind: Workload\nmetadata: {name: client, namespace: shop}\n\
                  spec: {command: [sleep, infinity]}\n---\n";
    let yaml = with_server(&[web, client].concat());
    let rule = format!("{{to: [{{paths: [{{prefix: /{}}}]}}]}}", "y".repeat(1_000));
    let policy = |nth: usize| {
        format!(
            "apiVersion: leno.dev/v1alpha1\nkind: AuthorizationPolicy\nmetadata: {{name: p{nth:03}, namespace: shop}}\n\
             spec: {{action: Deny, selector: {{matchLabels: {{app: web}}}}, rules: [{}]}}\n---\n",
            vec![&*rule; 60].join(", ")
        )
    };
    let Some(mesh) = root(|| Mesh::start(&yaml)) else { return };
    let status = || {
        let asked = ["curl", "-s", "-o", "/dev/null", "-w", "%{http_code}", "http://web:8080/ok"];
        out(&mesh.exec("client", &asked))
    };
    mesh.wait_for("an answer", || status() == "200");
    mesh.edit(&(yaml.clone() + &(0..150).map(policy).collect::<String>()));
    mesh.wait_for("a denial", || status() == "403");
    let reason = "the 150 policies that select it have 9 MiB, and a proxy takes at most 8 MiB";
    let said = [mesh.check(), out(&mesh.run(&["analyze"])), mesh.log()];
    assert!(said.iter().all(|said| said.contains(reason)), "{said:?}");
    let asked = ["authz", "-n", "shop", "web", "--from", "client", "--", "http://web:8080/ok"];
    let answer =
        mesh.leno(&asked[..1]).args(["--name", mesh.name()]).args(&asked[1..]).output().unwrap();
    assert_eq!(answer.status.code(), Some(1), "{answer:?}");
    assert!(out(&answer).contains(reason), "{answer:?}");
    mesh.edit(&yaml);
    mesh.wait_for("an answer", || status() == "200");
}

#[test]
fn an_interrupted_wait_says_that_the_mesh_runs_on() {
    let never = "spec: {command: [sleep, infinity], ports: [{port: 8080}]}\n";
    let Some(mesh) = root(|| Mesh::draft(&(unmeshed("web") + never))) else { return };
    let mut up = mesh.leno(&["up", "--wait", "--name", mesh.name()]);
    let up = up.arg(mesh.file()).stderr(std::process::Stdio::piped()).spawn().unwrap();
    mesh.wait_for("the mesh", || MeshStatus::read(mesh.layout()).is_ok());
    let pid = nix::unistd::Pid::from_raw(i32::try_from(up.id()).unwrap());
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGINT).unwrap();
    let up = up.wait_with_output().unwrap();
    assert_eq!(up.status.code(), Some(130), "{up:?}");
    let expected = format!("leno: mesh {} continues in the background", mesh.name());
    assert!(err(&up).contains(&expected), "{up:?}");
    assert!(mesh.run(&["down"]).status.success());
}

#[test]
fn what_has_no_such_name_is_said_by_revocation_and_tap() {
    let web = "apiVersion: leno.dev/v1alpha1\nkind: Workload\nmetadata: {name: web, namespace: shop}\n\
               spec: {command: [sleep, infinity], serviceAccount: web}\n";
    let Some(mesh) = root(|| Mesh::start(web)) else { return };
    let revoke = |account: &str| {
        let mut revoke = mesh.leno(&["identity", "revoke", "--name", mesh.name()]);
        revoke.arg(account).output().unwrap()
    };
    let wrong = revoke("shop/wep");
    assert!(wrong.status.success(), "{wrong:?}");
    let expected =
        "no workload of this mesh has the service account shop/wep: did you mean shop/web?\n";
    assert!(err(&wrong).ends_with(expected), "{wrong:?}");
    let right = revoke("shop/web");
    assert!(right.status.success() && right.stderr.is_empty(), "{right:?}");
    let tap = mesh.leno(&["tap", "--name", mesh.name(), "nosuch"]).output().unwrap();
    let expected = "leno: there is no workload nosuch with a proxy; those with one: shop/web\n";
    assert_eq!((err(&tap).as_str(), tap.status.code()), (expected, Some(2)));
}

#[test]
fn a_pipe_in_place_of_the_file_is_refused_and_the_next_edit_is_taken() {
    let Some(mesh) = root(|| Mesh::start(&idle())) else { return };
    let pipe = mesh.directory().join("pipe");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    fs::rename(&pipe, mesh.file()).unwrap();
    mesh.wait_for("the refusal", || mesh.check().contains("is a pipe, a socket or a device"));
    mesh.edit(&(idle() + &workload("next", "command: [sleep, infinity]")));
    mesh.wait_for("the next edit", || mesh.takes_traffic("next-0"));
}
