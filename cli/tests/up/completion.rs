//! Completion in a real bash, beside a mesh that runs.

#![expect(clippy::unwrap_used, reason = "test code")]

use std::path::Path;
use std::process::Command;

use crate::mesh::{Mesh, root};

const MESH: &str = "
apiVersion: v1
kind: Namespace
metadata: {name: shop, annotations: {leno.dev/inject: disabled}}
---
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: web, namespace: shop}
spec: {replicas: 2, command: [sleep, infinity]}
---
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: worker, namespace: batch, labels: {leno.dev/inject: disabled}}
spec: {command: [sleep, infinity]}
";

/// Sources the script and presses Tab behind the words that are its arguments.
const TAB: &str = r#"
source <(leno completion bash)
read -r -a registered <<<"$(complete -p leno)"
for index in "${!registered[@]}"; do
  [ "${registered[index]}" = -F ] && function=${registered[index + 1]}
done
COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)) COMP_TYPE=9
"$function" leno "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD - 1]}"
for one in "${COMPREPLY[@]}"; do printf '%s\n' "$one"; done
"#;

/// What bash offers for the last word of a line.
fn offered(directory: &Path, line: &[&str]) -> Vec<String> {
    let programs = Path::new(env!("CARGO_BIN_EXE_leno")).parent().unwrap().to_owned();
    let path = std::env::var_os("PATH").unwrap_or_default();
    let path = std::env::join_paths([programs].into_iter().chain(std::env::split_paths(&path)));
    let mut bash = Command::new("bash");
    bash.args(["--norc", "-c", TAB, "bash", "leno"]).args(line);
    bash.env("PATH", path.unwrap()).current_dir(directory);
    let output = bash.output().unwrap();
    assert!(output.status.success() && output.stderr.is_empty(), "{line:?}: {output:?}");
    String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect()
}

#[test]
fn bash_completes_commands_values_and_the_names_of_what_runs() {
    let Some(mesh) = root(|| Mesh::start(MESH)) else { return };
    let name = mesh.name();
    for (line, expected) in [
        (&["lo"][..], &["logs"][..]),
        (&["port"], &["port-forward"]),
        (&["stat", "-o", "j"], &["json"]),
        (&["up", "--mtls", "s"], &["strict"]),
        (&["up", "--capture", ""], &["auto", "ebpf", "iptables", "nftables"]),
        (&["up", "mesh"], &["mesh.yaml"]),
        (&["ps", "--name", name], &[name]),
        (&["ps", "--name", name, "-n", ""], &["batch", "shop"]),
        (&["logs", "--name", name, "we"], &["web", "web-0", "web-1"]),
        (&["logs", "--name", name, "-n", "batch", "w"], &["worker", "worker-0"]),
        (&["restart", "--name", name, "worker", "web-"], &["web-0", "web-1"]),
        (&["exec", "--name", name, "shop/"], &["shop/web", "shop/web-0", "shop/web-1"]),
        (&["explain", "--name", name, "worker-"], &["worker-0"]),
        (&["diagnostics", "proxy", "--name", name, "worker-"], &["worker-0"]),
        // No such mesh.
        (&["logs", "--name", "nope", "we"], &[]),
    ] {
        assert_eq!(offered(mesh.directory(), line), expected, "{line:?}\n{}", mesh.log());
    }
    let options = offered(mesh.directory(), &["logs", "--t"]);
    assert_eq!(options, ["--tail", "--timestamps"]);
}
