//! Tests `leno up`: what it creates, how it is used, and that it removes everything.
//!
//! The tests in this file use unmeshed workloads, which need neither a proxy nor the control plane. Most modules test
//! commands on meshes with proxies. The network lab of `testkit` tests the proxies themselves.

mod completion;
mod compose;
mod cron;
mod daily;
mod dashboard;
mod drill;
mod ejected;
mod families;
mod flows;
mod laptop;
mod machine;
mod mcp;
mod mesh;
mod mishaps;
mod node;
mod open;
mod plain;
mod process;
mod prometheus;
mod report;
mod slo;
mod stat;
mod trace_request;
mod waits;

use std::process::Stdio;

use leno_supervise::DescriptorLimit;
use mesh::{Mesh, root};

const TWO: &str = "
apiVersion: v1
kind: Namespace
metadata: {name: shop, annotations: {leno.dev/inject: disabled}}
---
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: web, namespace: shop, labels: {app: web}}
spec:
  command: [python3, -u, -c, SERVER]
  env: {COLOUR: green}
  ports: [{name: http, port: 8080, appProtocol: http}]
---
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: client, namespace: shop}
spec: {command: [sleep, infinity]}
---
apiVersion: v1
kind: Service
metadata: {name: peers, namespace: shop}
spec: {clusterIP: None, selector: {app: web}, ports: [{name: http, port: 8080}]}
";

/// A server of files over IPv6 and IPv4.
const SERVER: &str = "import http.server as h, socket; \
    h.HTTPServer.address_family = socket.AF_INET6; \
    s = h.HTTPServer((\"::\", 8080), h.SimpleHTTPRequestHandler); \
    s.serve_forever()";

pub(crate) fn two() -> String {
    TWO.replace("SERVER", &format!("{SERVER:?}"))
}

#[test]
fn names_of_every_form_lead_to_the_workload_over_both_families() {
    let Some(mesh) = started() else { return };
    for name in [
        "web",
        "web.shop",
        "web.shop.svc",
        "web.shop.svc.cluster.local",
        "web-0.web.shop.svc.cluster.local",
        "peers",
        "web-0.peers",
    ] {
        for family in ["-4", "-6"] {
            let url = format!("http://{name}:8080/");
            let done = mesh.exec("client", &["curl", family, "-sSf", "-o", "/dev/null", &url]);
            assert!(done.status.success(), "{name} {family}: {done:?}");
        }
    }
    let srv =
        mesh.text("client", &["dig", "+short", "_http._tcp.web.shop.svc.cluster.local", "SRV"]);
    assert_eq!(srv, "0 100 8080 web-0.web.shop.svc.cluster.local.");
    let address = mesh.text("client", &["dig", "+short", "web.shop.svc.cluster.local"]);
    let name = mesh.text("client", &["dig", "+short", "-x", &address]);
    assert_eq!(name, "web-0.peers.shop.svc.cluster.local.");
    let absent = mesh.text("client", &["dig", "nothing.shop.svc.cluster.local"]);
    assert!(absent.contains("status: NXDOMAIN"), "{absent}");
    // The name server answers over TCP as well.
    let tcp = mesh.text("client", &["dig", "+tcp", "+short", "web.shop.svc.cluster.local"]);
    assert_eq!(tcp, address);
}

#[test]
fn a_command_runs_as_the_workload() {
    let Some(mesh) = started() else { return };
    let said = mesh
        .text("web-0", &["sh", "-c", "echo $LENO_WORKLOAD $LENO_NAMESPACE $COLOUR; hostname; pwd"]);
    let directory = mesh.directory().display();
    assert_eq!(said, format!("web-0 shop green\nweb-0\n{directory}"));
    let own = mesh.text("web", &["cat", "/proc/self/cgroup"]);
    assert!(own.contains("/shop.web-0/app"), "{own}");
    assert_eq!(mesh.exec("web", &["sh", "-c", "exit 7"]).status.code(), Some(7));

    let absent = mesh.exec("web", &["no-such-program"]);
    assert_eq!(absent.status.code(), Some(127), "as a shell says that no such command was found");
    let unknown = mesh.exec("db", &["true"]);
    assert_eq!(unknown.status.code(), Some(2));
    let text = String::from_utf8_lossy(&unknown.stderr).into_owned();
    assert!(text.contains("shop/client, shop/web"), "{text}");
}

#[test]
fn what_leads_out_of_the_mesh_is_refused_at_once() {
    let Some(mesh) = started() else { return };
    // The first is an address outside the mesh (RFC 5737); the second is a virtual IP address, which is not routed
    // for an unmeshed workload.
    for address in ["192.0.2.1", "10.96.200.1"] {
        let url = format!("http://{address}:8080/");
        let done = mesh.exec("client", &["curl", "-sS", "-m", "20", &url]);
        // 7 means a refused connection; a timeout would be 28.
        assert_eq!(done.status.code(), Some(7), "{done:?}");
    }
}

#[test]
fn a_mesh_has_one_owner_and_says_who() {
    let Some(mesh) = started() else { return };
    let second = mesh.leno(&["up", "--name", mesh.name()]).arg(mesh.file()).output().unwrap();
    let text = String::from_utf8_lossy(&second.stderr).into_owned();
    assert_eq!(second.status.code(), Some(2));
    let (name, pid) = (mesh.name(), mesh.pid());
    let running = format!(
        "leno: mesh {name} runs already (process {pid}): end it with `leno down --name {name}`, or choose another --name\n"
    );
    assert_eq!(text, running);

    let cleanup = mesh.leno(&["cleanup", "--name", mesh.name()]).output().unwrap();
    assert_eq!(cleanup.status.code(), Some(2));
    assert!(mesh.exec("client", &["true"]).status.success());
}

#[test]
fn an_interrupted_mesh_leaves_nothing() {
    let Some(mut mesh) = started() else { return };
    assert!(!mesh.remains().is_empty());
    mesh.interrupt();
    assert_eq!(mesh.ended().code(), Some(0));
    assert_eq!(mesh.remains(), [""; 0]);
}

#[test]
fn a_killed_mesh_is_removed_with_all_its_processes() {
    // The kernel kills the children of `leno` together with `leno`, but not its grandchildren.
    let yaml = two().replace("[sleep, infinity]", "[sh, -c, \"sleep 1000 & sleep 1001\"]");
    let Some(mut mesh) = root(|| Mesh::start(&yaml)) else { return };
    mesh.kill();
    assert!(mesh.exec("client", &["true"]).status.code() == Some(2));
    assert!(!mesh.remains().is_empty());
    let cleanup = mesh.leno(&["cleanup", "--name", mesh.name()]).output().unwrap();
    assert!(cleanup.status.success(), "{cleanup:?}");
    assert_eq!(mesh.remains(), [""; 0]);
}

#[test]
fn the_kill_of_a_mesh_ends_grandchildren_too() {
    // A process that has left its process group is killed as well, because the control group decides.
    let yaml =
        two().replace("[sleep, infinity]", "[sh, -c, \"setsid sleep 1000 & exec sleep 1001\"]");
    let Some(mut mesh) = root(|| Mesh::start(&yaml)) else { return };
    let processes = |mesh: &Mesh| mesh.remains().iter().any(|thing| thing.starts_with("process "));
    assert!(processes(&mesh));
    mesh.kill();
    mesh.wait_for("every process to end", || !processes(&mesh));
    // `leno guard`, which ended the processes of the killed mesh, leaves a new mesh with the same name alone.
    mesh.restart();
    assert!(mesh.exec("client", &["true"]).status.success());
}

#[test]
fn the_next_run_removes_what_a_killed_one_left() {
    let Some(mut mesh) = started() else { return };
    mesh.kill();
    mesh.restart();
    assert!(mesh.exec("client", &["true"]).status.success());
    mesh.interrupt();
    assert_eq!(mesh.ended().code(), Some(0));
    assert_eq!(mesh.remains(), [""; 0]);
}

#[test]
fn a_secret_of_the_shell_reaches_only_the_workloads_that_name_it() {
    let yaml = two().replace(
        "spec: {command: [sleep, infinity]}",
        "spec: {command: [sleep, infinity], inheritEnv: [LENO_TEST_SEC*], envFile: [own.env]}",
    );
    let mesh = root(|| {
        let variables = [("LENO_TEST_SECRET", "hidden"), ("OTHER_SECRET", "hidden")];
        Mesh::start_with(&yaml, &variables, &[("own.env", "FROM_FILE='of a file'\n")])
    });
    let Some(mesh) = mesh else { return };
    let own = |instance: &str| {
        let pid = mesh.application(instance);
        let environment = std::fs::read_to_string(format!("/proc/{pid}/environ")).unwrap();
        environment.split('\0').map(str::to_owned).collect::<Vec<String>>()
    };
    let has = |all: &[String], start: &str| all.iter().any(|one| one.starts_with(start));
    let web = own("web-0");
    assert!(has(&web, "PATH=") && has(&web, "COLOUR=green"), "{web:?}");
    assert!(!web.iter().any(|one| one.contains("hidden")), "{web:?}");
    let client = own("client-0");
    assert!(has(&client, "LENO_TEST_SECRET=hidden"), "{client:?}");
    assert!(has(&client, "FROM_FILE=of a file"), "{client:?}");
    assert!(!has(&client, "OTHER_SECRET"), "{client:?}");
    // A command gets the environment of its workload, not that of the shell that runs `leno exec`.
    assert!(mesh.text("client", &["env"]).contains("LENO_TEST_SECRET=hidden"));
    assert!(!mesh.text("web", &["env"]).contains("hidden"));
}

#[test]
fn files_of_variables_are_for_every_workload_and_give_way_to_its_own() {
    let yaml = two().replace(
        "spec: {command: [sleep, infinity]}",
        "spec: {command: [sleep, infinity], envFile: [own.env]}",
    );
    let Some(mesh) = root(|| Mesh::draft(&yaml)) else { return };
    let write = |name: &str, text: &str| {
        let file = mesh.directory().join(name);
        std::fs::write(&file, text).unwrap();
        file.to_str().unwrap().to_owned()
    };
    let first = write("first.env", "COLOUR=red\nPLACE=first\nONE=1\n");
    let second = write("second.env", "# The last one counts.\nPLACE=second\n");
    write("own.env", "PLACE=own\n");
    let up = mesh.detached(&["--wait", "--env-file", &first, "--env-file", &second]);
    assert!(up.status.success(), "{up:?}");
    let print = ["sh", "-c", "echo $COLOUR $PLACE $ONE"];
    assert_eq!(mesh.text("web", &print), "green second 1");
    assert_eq!(mesh.text("client", &print), "red own 1");
    assert!(mesh.run(&["down"]).status.success());

    let absent = mesh.detached(&["--env-file", "/no/such.env"]);
    assert_eq!(
        (absent.status.code(), mesh::err(&absent)),
        (Some(2), "leno: cannot read the variables in /no/such.env: No such file or directory (os error 2)\n".to_owned())
    );
}

#[test]
fn an_edit_of_a_route_restarts_nothing_and_says_so() {
    let route = "---\napiVersion: gateway.networking.k8s.io/v1\nkind: HTTPRoute\nmetadata: {name: web, namespace: \
                 shop}\nspec:\n  parentRefs: [{group: '', kind: Service, name: web}]\n  rules:\n  - backendRefs: \
                 [{name: web, port: 8080}]\n";
    let yaml = two() + route;
    let Some(mesh) = root(|| Mesh::start(&yaml)) else { return };
    let before = ["web-0", "client-0"].map(|instance| mesh.application(instance));
    mesh.edit(&yaml.replace("- backendRefs", "- matches: [{path: {value: /a}}]\n    backendRefs"));
    mesh.wait_for_line("| HTTPRoute shop/web changed; nothing restarts\n");
    assert_eq!(["web-0", "client-0"].map(|instance| mesh.application(instance)), before);
}

#[test]
fn a_bad_edit_is_refused_with_its_line_and_changes_nothing() {
    let Some(mesh) = started() else { return };
    let before = mesh.application("web-0");
    let bad = two().replace("port: 8080, appProtocol", "port: 80800, appProtocol");
    let line = 1 + bad.lines().position(|line| line.contains("80800")).unwrap();
    mesh.edit(&bad);
    mesh.wait_for_line("edit rejected");
    mesh.wait_for_line(&format!("mesh.yaml:{line}:"));
    assert!(mesh.check().contains("the last edit was rejected"));
    assert_eq!(mesh.application("web-0"), before);

    mesh.edit(&two());
    mesh.wait_for_line("| the files changed, but describe the same objects\n");
    assert!(!mesh.check().contains("refused"));
    assert_eq!(mesh.application("web-0"), before);
}

#[test]
fn an_edit_starts_and_ends_only_what_it_changes() {
    let Some(mesh) = started() else { return };
    let (web, client) = (mesh.application("web-0"), mesh.application("client-0"));
    let edited = two().replace("[sleep, infinity]", "[sleep, \"1000\"]")
        + "---\napiVersion: leno.dev/v1alpha1\nkind: Workload\n\
           metadata: {name: added, namespace: shop}\nspec: {command: [sleep, infinity]}\n";
    mesh.edit(&edited);
    mesh.wait_for_line("| Workload shop/added added; 1 instance starts\n");
    mesh.wait_for_line("| Workload shop/client changed; 1 instance is replaced\n");
    mesh.wait_for_line("| client: 1 of 1 replaced after ");
    mesh.wait_for("both to run", || {
        mesh.try_application("added-0").is_some()
            && mesh.try_application("client-0").is_some_and(|pid| pid != client)
    });
    assert_eq!(mesh.application("web-0"), web);
    let done = mesh.exec("added", &["curl", "-sSf", "-o", "/dev/null", "http://web:8080/"]);
    assert!(done.status.success(), "{done:?}");

    mesh.edit(&two());
    mesh.wait_for("what was added to go", || {
        !mesh.remains().iter().any(|thing| thing.contains("added"))
    });
    assert_eq!(mesh.application("web-0"), web);
}

#[test]
fn replicas_are_started_again_one_after_the_other() {
    let yaml = two().replace("  env: {COLOUR: green}", "  replicas: 2\n  env: {COLOUR: green}");
    let Some(mesh) = root(|| Mesh::start(&yaml)) else { return };
    let before = [mesh.application("web-0"), mesh.application("web-1")];
    for instance in ["web-0", "web-1"] {
        mesh.text("client", &["curl", "-s", &format!("http://{instance}.web:8080/")]);
    }
    mesh.edit(&yaml.replace("green", "blue"));
    mesh.wait_for("web-0 to be started again", || {
        mesh.try_application("web-0").is_some_and(|pid| pid != before[0])
    });
    // web-1 was left unchanged while web-0 did not serve; web-1 is replaced next.
    let said = "| Workload shop/web changed; 2 instances are replaced, one at a time\n";
    assert!(mesh.log().contains(said), "{}", mesh.log());
    mesh.wait_for("web-1 to be started again", || {
        let first = mesh.try_application("web-0").is_some();
        assert!(first || mesh.try_application("web-1").is_some(), "no instance serves");
        mesh.try_application("web-1").is_some_and(|pid| pid != before[1])
    });
    mesh.wait_for("web-1 to take traffic", || mesh.takes_traffic("web-1"));
    // A client that has connected before can still reach the instance, so no stale neighbour entry is left.
    for instance in ["web-0", "web-1"] {
        let url = format!("http://{instance}.web:8080/");
        let done = mesh.exec("client", &["curl", "-sSf", "-m", "20", "-o", "/dev/null", &url]);
        assert!(done.status.success(), "{done:?}");
        assert_eq!(mesh.text(instance, &["sh", "-c", "echo $COLOUR"]), "blue");
    }
}

#[test]
fn an_instance_takes_traffic_once_it_listens() {
    // No server listens on 8081, so the wait ends with a message.
    let late = two().replace("port: 8080, appProtocol: http", "port: 8081");
    let Some(mesh) = root(|| Mesh::start(&late)) else { return };
    mesh.wait_for_line("web-0 does not listen on port 8081 after 5 s");
    // An instance that listens on its port can be reached as soon as it is reported ready.
    let Some(mesh) = root(|| Mesh::start(&two())) else { return };
    let done = mesh.exec("client", &["curl", "-sSf", "-o", "/dev/null", "http://web:8080/"]);
    assert!(done.status.success(), "{done:?}");
}

#[test]
fn an_application_that_ends_is_started_again() {
    let Some(mesh) = started() else { return };
    let before = mesh.application("web-0");
    mesh.kill_process(before);
    mesh.wait_for_line("web-0 was ended by SIGKILL; restarting it in 1 s");
    mesh.wait_for("web-0 to run again", || {
        mesh.try_application("web-0").is_some_and(|pid| pid != before)
    });
    mesh.wait_for("the name to come back", || {
        mesh.exec("client", &["curl", "-sSf", "-o", "/dev/null", "http://web:8080/"])
            .status
            .success()
    });
}

#[test]
fn documents_that_cannot_run_are_refused_before_anything_is_made() {
    let refused = root(|| Mesh::refused("apiVersion: leno.dev/v1alpha1\nkind: Workload\n"));
    let Some((mesh, output)) = refused else { return };
    assert_eq!(output.status.code(), Some(2));
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(text.contains("mesh.yaml:1:1"), "{text}");
    assert_eq!(mesh.remains(), [""; 0]);
}

#[test]
fn a_reader_that_goes_away_is_no_error() {
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_leno"));
    command.args(["completion", "bash"]).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert!(output.stderr.is_empty(), "{output:?}");
}

#[test]
fn the_end_of_one_mesh_leaves_another_alone_that_has_a_similar_name() {
    // If the names of mesh, namespace and instance were joined with hyphens, the result would be the same in both
    // meshes.
    let Some((mut long, short)) = root(Mesh::similar) else { return };
    long.interrupt();
    assert_eq!(long.ended().code(), Some(0));
    assert!(short.exec("client", &["true"]).status.success(), "{}", short.log());
    assert_ne!(short.remains(), [""; 0]);
}

#[test]
fn a_workload_may_be_named_with_its_namespace() {
    let Some(mesh) = started() else { return };
    assert_eq!(mesh.text("shop/web-0", &["hostname"]), "web-0");
    assert_eq!(mesh.exec("other/web-0", &["hostname"]).status.code(), Some(2));
}

#[test]
fn what_cannot_start_says_why() {
    let yaml = two()
        + "---\napiVersion: leno.dev/v1alpha1\nkind: Workload\n\
           metadata: {name: lost, namespace: shop}\n\
           spec: {command: [sleep, infinity], workingDir: nowhere}\n\
           ---\napiVersion: leno.dev/v1alpha1\nkind: Workload\n\
           metadata: {name: absent, namespace: shop}\nspec: {command: [no-such-program]}\n";
    let Some(mesh) = root(|| Mesh::start_unready(&yaml)) else { return };
    mesh.wait_for_line("lost-0: cannot start sleep: its workingDir ");
    mesh.wait_for_line(
        "absent-0: cannot start no-such-program: no directory of PATH has this program",
    );
    // The other workloads run.
    mesh.wait_for("web-0", || mesh.takes_traffic("web-0"));
}

#[test]
fn many_instances_fit_a_small_limit_of_descriptors() {
    let many = two().replace("[sleep, infinity]}", "[sleep, infinity], replicas: 20}");
    let Some(mesh) = root(|| Mesh::with_descriptors(&many, 64)) else { return };
    // An application has the limit with which `leno` itself started.
    assert!(mesh.takes_traffic("client-19"));
    let limit = DescriptorLimit::of_process(mesh.application("client-19")).unwrap();
    assert_eq!(limit.soft(), 64);
}

#[test]
fn a_mesh_outlives_that_its_state_cannot_be_written() {
    let Some(mesh) = started() else { return };
    let web = mesh.application("web-0");
    // A directory with the name of the temporary file for mesh.json prevents the file from being written.
    let obstacle = mesh.layout().directory().join(".mesh.json.new");
    std::fs::create_dir(&obstacle).unwrap();
    mesh.kill_process(mesh.application("client-0"));
    mesh.wait_for_line("mesh.json: File exists (os error 17); retrying until it succeeds");
    std::fs::remove_dir(obstacle).unwrap();
    mesh.wait_for("client-0 to be ready again", || {
        mesh.takes_traffic("client-0") && mesh.try_application("client-0").is_some()
    });
    assert_eq!(mesh.application("web-0"), web);
}

#[test]
fn the_objects_of_the_mesh_are_written_again_if_their_file_is_removed() {
    // Without a proxy there is no control plane, and no file for it.
    let yaml = two().replacen("leno.dev/inject: disabled", "leno.dev/inject: enabled", 1);
    let Some(mesh) = root(|| Mesh::start(&yaml)) else { return };
    let file = mesh.layout().state().join("state.yaml");
    let before = std::fs::read_to_string(&file).unwrap();
    std::fs::remove_file(&file).unwrap();
    mesh.wait_for_line("state.yaml was removed; writing it again");
    mesh.wait_for("the file", || std::fs::read_to_string(&file).is_ok_and(|now| now == before));
    assert!(mesh.takes_traffic("web-0"));
}

#[test]
fn an_edit_may_remove_everything_and_bring_it_back() {
    let Some(mut mesh) = started() else { return };
    // A file that is being written is empty for a moment. That must not end any workload.
    mesh.edit("");
    mesh.wait_for_line("| edit rejected, the last valid state stays in effect:\n");
    let down = format!("`leno down --name {}`\n", mesh.name());
    mesh.wait_for_line(&format!("| the files have no document: to end the mesh, run {down}"));
    assert!(mesh.takes_traffic("web-0"), "{}", mesh.log());
    mesh.edit("apiVersion: v1\nkind: Namespace\nmetadata: {name: shop}\n");
    mesh.wait_for_line("| Workload shop/web removed; 1 instance ends\n");
    mesh.wait_for("everything to go", || mesh.try_application("web-0").is_none());
    assert!(!mesh.log().contains("0 instances ready"), "{}", mesh.log());
    mesh.edit(&two());
    mesh.wait_for("everything to come back", || mesh.takes_traffic("web-0"));
    mesh.interrupt();
    assert_eq!(mesh.ended().code(), Some(0));
    assert_eq!(mesh.remains(), [""; 0]);
}

#[test]
fn what_a_killed_mesh_left_is_told_by_check() {
    let Some(mut mesh) = started() else { return };
    mesh.kill();
    let remedy = format!("`leno cleanup --name {}` or the next `leno up` removes it", mesh.name());
    assert!(mesh.check().contains(&remedy), "{}", mesh.check());
}

#[test]
fn a_folder_without_documents_is_named() {
    let Some(mesh) = root(|| Mesh::draft("")) else { return };
    let folder = mesh.directory().join("empty");
    std::fs::create_dir(&folder).unwrap();
    let refused = mesh.leno(&["up", "--name", mesh.name()]).arg(&folder).output().unwrap();
    let expected = format!(
        "leno: {}: the directory has no *.yaml, *.yml or *.json file: name a directory that has (its subdirectories are not read)\n\
         the files have no Workload document with replicas, so there is nothing to run: add one\n",
        folder.display()
    );
    assert_eq!((refused.status.code(), mesh::err(&refused)), (Some(2), expected));
}

#[test]
fn documents_of_others_are_named_when_nothing_is_left_to_run() {
    let yaml = "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: web}\n";
    let Some((_mesh, output)) = root(|| Mesh::refused(yaml)) else { return };
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(text.contains("mesh.yaml:1:1: ignored apps/v1 Deployment"), "{text}");
    assert!(text.contains("no Workload document"), "{text}");
}

fn started() -> Option<Mesh> {
    root(|| Mesh::start(&two()))
}
