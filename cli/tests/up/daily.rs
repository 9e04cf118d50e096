//! Tests the everyday commands, on a mesh in the background.

use std::fs::Permissions;
use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::PermissionsExt as _;
use std::process::Stdio;

use leno_testkit::proxy::reserved;

use crate::mesh::{Mesh, err, out, root, unmeshed};

const MESH: &str = "
apiVersion: v1
kind: Namespace
metadata: {name: shop, annotations: {leno.dev/inject: disabled}}
---
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: web, namespace: shop}
spec: {replicas: 2, command: [sh, -c, 'echo begins; exec sleep infinity']}
---
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: job, namespace: batch, labels: {leno.dev/inject: disabled}}
spec: {command: [sleep, infinity]}
";

/// A workload that always fails immediately.
const FAILING: &str = "---
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: broken, namespace: shop}
spec: {command: [sh, -c, 'echo no database >&2; exit 3'], ports: [{port: 80}]}
";

#[test]
fn a_workload_cannot_command_the_terminal_of_leno_up() {
    let yaml = MESH.replace("echo begins;", r"printf ''\033[2Jbegins\033]0;title\007\n'';");
    let Some(mesh) = root(|| Mesh::on_terminal(&yaml)) else { return };
    let written = r"\x1b[2Jbegins\x1b]0;title\x07";
    mesh.wait_for_line(written);
    let all = mesh.log();
    assert!(!all.contains("\x1b[2J") && !all.contains('\x07'), "{all:?}");
    // The labels are coloured, because the output is a terminal.
    assert!(all.contains(" |\x1b[0m "), "{all:?}");
    // A pipe gets the bytes as they were written.
    let logs = mesh.run(&["logs", "shop/web"]);
    assert!(out(&logs).contains("\x1b[2Jbegins"), "{logs:?}");
}

#[test]
fn a_mesh_in_the_background_is_listed_read_restarted_and_ended() {
    let Some(mesh) = root(|| Mesh::draft(MESH)) else { return };
    let up = mesh.detached(&["--wait"]);
    assert!(up.status.success(), "{up:?}");
    let said = out(&up);
    let name = mesh.name();
    let start = format!("mesh {name} runs in the background (process ");
    assert!(said.starts_with(&start) && said.contains(", 3 of 3 instances ready after "), "{said}");
    let next = ["ps", "logs -f", "down"].map(|command| format!("leno {command} --name {name}"));
    assert!(said.ends_with(&format!(" s: {}\n", next.join(", "))), "{said}");

    // A second mesh with the same name is refused.
    let again = mesh.detached(&[]);
    let owner = said.split(['(', ')']).nth(1).unwrap();
    let refused = format!(
        "leno: mesh {name} runs already ({owner}): end it with `leno down --name {name}`, or choose another --name\n"
    );
    assert_eq!((again.status.code(), err(&again)), (Some(2), refused));

    let of = |arguments: &[&str]| {
        let (command, rest) = arguments.split_first().unwrap();
        mesh.leno(&[command, "--name", name]).args(rest).output().unwrap()
    };
    let ps: serde_json::Value = serde_json::from_str(&out(&of(&["ps", "-o", "json"]))).unwrap();
    let names: Vec<&str> =
        ps.as_array().unwrap().iter().map(|one| one["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["job-0", "web-0", "web-1"]);
    assert_eq!(ps[1]["pid"], mesh.application("web-0"));

    mesh.wait_for("both lines", || out(&of(&["logs", "web"])).lines().count() == 2);
    assert_eq!(out(&of(&["logs", "web-1"])), "begins\n");
    assert_eq!(out(&of(&["logs", "--tail", "1", "job"])), "");
    assert!(out(&of(&["logs", "leno"])).contains(" ready after "));

    let before = ["web-0", "web-1"].map(|instance| mesh.application(instance));
    let restart = of(&["restart", "web"]);
    assert!(out(&restart).starts_with("2 instances restarted in "), "{restart:?}");
    for (instance, before) in ["web-0", "web-1"].into_iter().zip(before) {
        assert_ne!(mesh.application(instance), before);
    }
    mesh.wait_for("the count of the restart", || {
        out(&of(&["logs", "leno"])).contains("web: 2 of 2 replaced after ")
    });

    let down = of(&["down"]);
    assert_eq!(out(&down), format!("mesh {name} has ended, 3 instances\n"), "{down:?}");
    assert_eq!(mesh.remains(), [""; 0]);
}

#[test]
fn what_is_not_there_is_named_with_what_is() {
    let Some(mesh) = root(|| Mesh::start(MESH)) else { return };
    let name = mesh.name();
    for (command, code, expected) in [
        (
            &["exec", "--name", name, "web", "--", "nosuchcmd"][..],
            127,
            "leno: cannot start nosuchcmd: no directory of PATH has this program: write its full path, or start leno with `sudo env PATH=$PATH`, which keeps your PATH: No such file or directory (os error \
             2)\n"
                .to_owned(),
        ),
        (
            &["exec", "--name", name, "-n", "shoop", "web", "--", "true"],
            2,
            format!("leno: mesh {name} has no namespace shoop: use one of batch, shop\n"),
        ),
        (
            &["stat", "--name", name, "-n", "shoop"],
            2,
            format!("leno: mesh {name} has no namespace shoop: use one of batch, shop\n"),
        ),
        (
            &["slo", "--name", name, "-n", "shoop"],
            2,
            format!("leno: mesh {name} has no namespace shoop: use one of batch, shop\n"),
        ),
        (
            &["authz", "--name", name, "-n", "shoop"],
            2,
            format!("leno: mesh {name} has no namespace shoop: use one of batch, shop\n"),
        ),
        (
            &["why", "--name", name],
            2,
            format!("leno: no workload of mesh {name} has a proxy, so its traffic is not counted: set leno.dev/inject: enabled\n"),
        ),
        (
            &["cleanup", "--name", name],
            2,
            format!(
                "leno: mesh {name} runs already (process {}): end it with `leno down --name {name}`, or choose another --name\n\
                 leno: 1 of the meshes could not be cleaned up, for the reasons above: run leno cleanup again once these are \
                 gone\n",
                mesh.pid()
            ),
        ),
    ] {
        let output = mesh.leno(command).output().unwrap();
        assert_eq!((output.status.code(), err(&output)), (Some(code), expected), "{command:?}");
    }
    // Other tests may run their own meshes.
    for command in ["ps", "check"] {
        let nope = mesh.leno(&[command, "--name", "nope"]).output().unwrap();
        let said = err(&nope);
        assert!(
            said.starts_with("leno: mesh nope does not run on this machine: ")
                && said.contains(name),
            "{said}"
        );
        assert_eq!(nope.status.code(), Some(2), "{command}");
    }
    let tail = mesh.leno(&["logs", "--tail", "x"]).output().unwrap();
    assert!(err(&tail).contains("not a number of lines: write for example 20"), "{}", err(&tail));
}

#[test]
fn check_and_ps_say_why_a_workload_does_not_run() {
    let Some(mesh) = root(|| Mesh::start_unready(&(MESH.to_owned() + FAILING))) else { return };
    let ps = || out(&mesh.leno(&["ps", "--name", mesh.name()]).output().unwrap());
    mesh.wait_for("the second failure", || ps().contains("2 times in a row"));
    let line = ps().lines().find(|line| line.contains("broken-0")).unwrap().to_owned();
    for part in
        ["waiting: exited with 3, 2 times in a row, next try in ", " s; last line: no database"]
    {
        assert!(line.contains(part), "{line}");
    }
    mesh.wait_for("the same in check", || {
        let check = mesh.check();
        let line = check.lines().find(|line| line.contains("broken-0") && line.contains("waiting"));
        line.is_some_and(|line| {
            let parts =
                ["exited with 3, ", " times in a row, next try in ", "; last line: no database"];
            parts.iter().all(|part| line.contains(part))
        })
    });
}

#[test]
fn published_and_forwarded_ports_lead_to_the_application() {
    // While this socket is bound, the kernel assigns its port to no other program, but `leno up` may bind it.
    let (address, _reservation) = reserved().unwrap();
    let free = address.port();
    let yaml = format!(
        "{}spec:\n  command: [python3, -m, http.server, --bind, 127.0.0.1, '8080']\n  \
         ports: [{{port: 8080, published: {free}}}]\n",
        unmeshed("web")
    );
    let Some(mesh) = root(|| Mesh::start(&yaml)) else { return };
    let status = |address: &str| {
        let url = format!("http://{address}/");
        let mut curl = std::process::Command::new("curl");
        out(&curl.args(["-s", "-o", "/dev/null", "-w", "%{http_code}", &url]).output().unwrap())
    };
    assert_eq!(status(&format!("127.0.0.1:{free}")), "200");
    let ps = out(&mesh.leno(&["ps", "--name", mesh.name()]).output().unwrap());
    assert!(ps.contains(&format!("  127.0.0.1:{free}->8080  running\n")), "{ps}");

    let mut forward = mesh.leno(&["port-forward", "--name", mesh.name(), "web", ":8080"]);
    let mut forward = forward.stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(forward.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let (address, to) = line.split_once(" -> ").unwrap();
    assert_eq!((to, status(address)), ("shop/web-0 port 8080\n", "200".to_owned()));
    forward.kill().unwrap();
    forward.wait().unwrap();

    // The application may listen on a port that its workload does not declare.
    let name = mesh.name();
    let mut forward = mesh.leno(&["port-forward", "--name", name, "web", ":9999"]);
    let mut forward = forward.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    BufReader::new(forward.stdout.take().unwrap()).read_line(&mut line).unwrap();
    forward.kill().unwrap();
    let warning = err(&forward.wait_with_output().unwrap());
    assert_eq!(
        warning,
        format!(
            "leno: shop/web-0 declares no port 9999, only 8080, so connections fail unless its application listens on \
             9999: `leno port-forward shop/web-0 8080 --name {name}` uses a declared one\n"
        )
    );
    assert!(line.ends_with("shop/web-0 port 9999\n"), "{line}");

    // The port is free again once no document publishes it.
    mesh.edit(&yaml.replace(&format!(", published: {free}"), ""));
    mesh.wait_for("the port to be closed", || status(&format!("127.0.0.1:{free}")) == "000");
}

#[test]
fn a_port_that_another_program_has_is_named_with_its_workload() {
    let holder = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = holder.local_addr().unwrap();
    let yaml = format!(
        "apiVersion: leno.dev/v1alpha1\nkind: Workload\nmetadata: {{name: web, namespace: shop}}\nspec: {{command: \
         [sleep, infinity], ports: [{{port: 8080, published: {}}}]}}\n",
        taken.port()
    );
    let Some((mesh, output)) = root(|| Mesh::refused(&yaml)) else { return };
    let errors = err(&output);
    let expected = format!(
        "leno: cannot publish {taken} for shop/web: cannot listen on {taken}: Address already in use (os error 98): end the \
         program that listens there, or publish another port\n"
    );
    assert!(errors.ends_with(&expected), "{errors}");
    assert_eq!(mesh.remains(), [""; 0]);
}

#[test]
fn logs_are_followed_until_the_mesh_ends() {
    let yaml =
        unmeshed("ticker") + "spec: {command: [sh, -c, 'while sleep 0.1; do echo tick; done']}\n";
    let Some(mesh) = root(|| Mesh::draft(&yaml)) else { return };
    assert!(mesh.detached(&["--wait"]).status.success());
    let mut follow = mesh.leno(&["logs", "-f", "--tail", "0", "--name", mesh.name(), "ticker"]);
    let mut follow = follow.stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(follow.stdout.take().unwrap()).lines();
    for _ in 0..3 {
        assert_eq!(lines.next().unwrap().unwrap(), "tick");
    }
    assert!(mesh.leno(&["down", "--name", mesh.name()]).output().unwrap().status.success());
    assert!(lines.all(|line| line.unwrap() == "tick"));
    assert!(follow.wait().unwrap().success());
}

#[test]
fn what_stops_a_command_at_once_is_said_once() {
    let needs_root = "leno: this command needs root: put `sudo env PATH=$PATH` before it\n";
    let leno = env!("CARGO_BIN_EXE_leno");
    // A folder in which every user can run the program.
    let directory = tempfile::tempdir().unwrap();
    let copy = directory.path().join("leno");
    std::fs::set_permissions(directory.path(), Permissions::from_mode(0o755)).unwrap();
    std::fs::copy(leno, &copy).unwrap();
    let user = ["setpriv", "--reuid", "65534", "--clear-groups", copy.to_str().unwrap()];
    for (line, expected) in [
        (&[&user[..], &["up", "mesh.yaml"]].concat()[..], needs_root),
        (&[&user[..], &["stat", "--name", "x"]].concat(), needs_root),
        (
            &[leno, "stat", "--kubeconfig", "/absent"],
            "leno: cannot use /absent: failed to read kubeconfig from '\"/absent\"': No such file or directory (os \
             error 2)\n",
        ),
    ] {
        let output = std::process::Command::new(line[0]).args(&line[1..]).output().unwrap();
        assert_eq!(
            (output.status.code(), err(&output)),
            (Some(2), expected.to_owned()),
            "{line:?}"
        );
    }
}
