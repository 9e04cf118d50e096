//! Tests machines on which something prevents a mesh from working.

#![expect(clippy::unwrap_used, reason = "test code")]

use std::process::Command;

use crate::mesh::{Mesh, err, out, root};

#[test]
fn a_bpffs_that_another_mount_hides_is_not_used() {
    let Some(()) = root(|| ()) else { return };
    let check = |mounts: &str| {
        // The mesh of another test may have mounted a BPF file system there.
        let script = format!(
            "umount -l /run/leno/bpf 2>/dev/null; {mounts} && exec \"$0\" check --name none -o json"
        );
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-c", &script, env!("CARGO_BIN_EXE_leno")]);
        let output = command.output().unwrap();
        let json: serde_json::Value = serde_json::from_slice(&output.stdout)
            .unwrap_or_else(|error| panic!("{error}: {output:?}"));
        json["machine"]["bpffs"].as_str().unwrap().to_owned()
    };
    assert_eq!(check("mount -t bpf bpf /sys/fs/bpf"), "mounted at /sys/fs/bpf");
    for hiding in ["/sys/fs/bpf", "/sys/fs"] {
        let found = check(&format!("mount -t bpf bpf /sys/fs/bpf && mount -t tmpfs none {hiding}"));
        assert_eq!(
            found, "not mounted, but will be below /run/leno",
            "hidden by a mount at {hiding}"
        );
    }
}

/// `web`, without a proxy.
const UNMESHED: &str = "apiVersion: leno.dev/v1alpha1\nkind: Workload\nmetadata: {name: web, labels: \
                        {leno.dev/inject: disabled}}\nspec: {command: [sleep, infinity]}\n";

/// Runs a script that sees no other mesh. `$0` is `leno`, and `$1` is an empty folder with `mesh.yaml`.
fn alone(yaml: &str, script: &str) -> std::process::Output {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("mesh.yaml"), yaml).unwrap();
    // The script gets its own /run. Otherwise, the end of another mesh would remove an empty /run/leno, together
    // with what is mounted there.
    let script = format!("mount -t tmpfs none /run && cd \"$1\" && {{ {script}; }}");
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", &script, env!("CARGO_BIN_EXE_leno")]);
    command.arg(directory.path()).output().unwrap()
}

#[test]
fn no_other_user_can_hold_a_lock() {
    let Some(()) = root(|| ()) else { return };
    let yaml = "apiVersion: leno.dev/v1alpha1\nkind: Workload\nmetadata: {name: web}\n\
                spec: {command: [sleep, infinity]}\n";
    let name = format!("k{}", std::process::id());
    let script = format!(
        "while mountpoint -q /sys/fs/bpf; do umount -l /sys/fs/bpf; done; \
         $0 up --wait --name {name} mesh.yaml >/dev/null; \
         for lock in mount.lock {name}/lock; do \
           setpriv --reuid 65534 --regid 65534 --clear-groups flock -n /run/leno/$lock echo held; done; \
         setpriv --reuid 65534 --regid 65534 --clear-groups mkdir /run/leno/bpf/mine && echo made; \
         $0 down --name {name}"
    );
    let done = alone(yaml, &script);
    let said = out(&done);
    assert_eq!(said, format!("mesh {name} has ended, 1 instance\n"), "{done:?}");
    let refused = err(&done);
    assert_eq!(refused.matches("Permission denied").count(), 3, "{refused}");
}

#[test]
fn in_a_plain_chroot_up_says_what_to_type() {
    let Some(()) = root(|| ()) else { return };
    let directory = tempfile::tempdir().unwrap();
    let script = "cd \"$1\" && for name in usr lib lib64 bin proc sys dev; do \
                  [ ! -e /$name ] || { mkdir $name && mount --rbind /$name $name; }; done && \
                  cp \"$0\" leno && exec chroot . ./leno up mesh.yaml";
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", script, env!("CARGO_BIN_EXE_leno")]);
    let output = command.arg(directory.path()).output().unwrap();
    assert_eq!(
        err(&output),
        "leno: the root directory is not a mount point, as in a plain chroot, but processes of a mesh need mounts of their own: leave the chroot, run `mount --bind DIRECTORY DIRECTORY` for its directory, and enter it again\n"
    );
}

#[test]
fn a_file_system_that_another_program_mounted_for_namespaces_outlives_the_mesh() {
    let Some(()) = root(|| ()) else { return };
    let name = format!("n{}", std::process::id());
    let script = format!(
        "mkdir /run/netns && mount -t tmpfs of-another /run/netns && \
         $0 up --wait --name {name} mesh.yaml >/dev/null; $0 down --name {name} && \
         grep -c '^of-another /run/netns ' /proc/self/mounts; umount /run/netns; rmdir /run/netns; \
         $0 up --wait --name {name} mesh.yaml >/dev/null; $0 down --name {name}; [ ! -e /run/netns ] || echo left"
    );
    let done = alone(UNMESHED, &script);
    let said = out(&done);
    let ended = format!("mesh {name} has ended, 1 instance\n");
    assert_eq!(said, format!("{ended}1\n{ended}"), "{done:?}");
}

#[test]
fn down_without_a_name_ends_the_only_mesh_and_says_which_or_none_of_several() {
    let Some(()) = root(|| ()) else { return };
    let (one, two) = (format!("d{}a", std::process::id()), format!("d{}b", std::process::id()));
    let script = format!(
        "$0 up --wait --name {one} mesh.yaml >/dev/null && $0 up --wait --name {two} mesh.yaml >/dev/null; \
         $0 down; echo $?; $0 down --name {two}; $0 down; echo $?"
    );
    let done = alone(UNMESHED, &script);
    let said = out(&done);
    let expected = format!(
        "2\nmesh {two} has ended, 1 instance\nending mesh {one}, the only one that runs on this machine\n\
         mesh {one} has ended, 1 instance\n0\n"
    );
    assert_eq!(said, expected, "{done:?}");
    let refused = err(&done);
    assert!(refused.contains(&one) && refused.contains(&two), "{refused}");
}

#[test]
fn the_only_mesh_is_taken_and_one_that_is_not_there_is_told_of() {
    let Some(()) = root(|| ()) else { return };
    let (one, two) = (format!("t{}a", std::process::id()), format!("t{}b", std::process::id()));
    let script = format!(
        "ask() {{ $0 ps; echo $?; $0 ps --name nope; echo $?; }}; exec 2>&1; unset KUBECONFIG; export HOME=/absent; ask; \
         $0 up --wait --name {one} mesh.yaml >/dev/null; $0 exec web -- hostname; $0 ps >/dev/null && echo listed; \
         $0 logs leno | grep -q ready && echo read; $0 stat >/dev/null && echo counted; \
         $0 restart web >/dev/null && echo restarted; $0 ps --name nope; \
         $0 up --wait --name {two} mesh.yaml >/dev/null; ask; $0 down --name {one} --now >/dev/null; \
         $0 down --name {two} --now >/dev/null"
    );
    let done = alone(UNMESHED, &script);
    let said = out(&done);
    let expected = format!(
        "leno: no mesh runs on this machine: start one with `leno up FILE`\n2\n\
         leno: mesh nope does not run on this machine: start it with `leno up FILE --name nope`\n2\n\
         web-0\nlisted\nread\ncounted\nrestarted\nleno: mesh nope does not run on this machine: mesh {one} runs\n\
         leno: several meshes run on this machine: choose one of {one}, {two} with --name\n2\n\
         leno: mesh nope does not run on this machine: the meshes {one}, {two} run\n2\n"
    );
    assert_eq!(said, expected, "{done:?}");
}

/// A service and its client, both with proxies.
const ELSEWHERE: &str = "
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: web, namespace: shop}
spec: {command: [python3, -m, http.server, '8080'], ports: [{name: http, port: 8080}]}
---
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: client, namespace: shop}
spec: {command: [sleep, infinity]}
";

#[test]
fn a_mesh_has_the_addresses_that_are_asked_for() {
    let ranges = ["--workload-range", "192.168.0.0/16", "--service-range", "100.70.0.0/16"];
    let mesh = root(|| {
        let mesh = Mesh::draft(ELSEWHERE);
        let up = mesh.detached(&[&["--wait"][..], &ranges].concat());
        assert!(up.status.success(), "{up:?}");
        mesh
    });
    let Some(mesh) = mesh else { return };
    let of = |command: &[&str]| mesh.text("client", command);
    assert_eq!(of(&["dig", "+short", "web.shop.svc.cluster.local"]), "100.70.0.1");
    assert!(of(&["hostname", "-I"]).starts_with("192.168.0.2 "), "{}", of(&["hostname", "-I"]));
    assert_eq!(of(&["dig", "+short", "-x", "100.70.0.1"]), "web.shop.svc.cluster.local.");
    assert_eq!(
        of(&["curl", "-s", "-o", "/dev/null", "-w", "%{http_code}", "http://web:8080/"]),
        "200"
    );
    assert!(mesh.leno(&["down", "--name", mesh.name()]).output().unwrap().status.success());
    assert_eq!(mesh.remains(), [""; 0]);

    let same =
        mesh.detached(&["--workload-range", "10.96.0.0/16", "--service-range", "10.96.0.0/16"]);
    assert_eq!(
        String::from_utf8_lossy(&same.stderr),
        "leno: workloads and services have the same address range, 10.96.0.0/16: choose different ranges with --workload-range and --service-range\n"
    );
}
