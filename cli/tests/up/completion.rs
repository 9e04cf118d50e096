//! Tests completion in a real bash, zsh and fish, while a mesh runs.

#![expect(clippy::unwrap_used, reason = "test code")]

use std::path::Path;
use std::process::Command;

use leno_testkit::tools;

use crate::mesh::{Mesh, out, root};

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

/// Sources the completion script and presses Tab after the words in its arguments.
const BASH: &str = r#"
source <(leno completion bash)
read -r -a registered <<<"$(complete -p leno)"
for index in "${!registered[@]}"; do
  [ "${registered[index]}" = -F ] && function=${registered[index + 1]}
done
COMP_WORDS=($LINE)
[[ $LINE = *" " ]] && COMP_WORDS+=("")
COMP_CWORD=$((${#COMP_WORDS[@]} - 1)) COMP_TYPE=9
"$function" leno "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD - 1]}"
for one in "${COMPREPLY[@]}"; do printf '%s\n' "$one"; done
"#;

/// The `.zshrc` of a shell that completes its first line as the user types it, and inserts all matches.
const ZSHRC: &str = r#"
autoload -Uz compinit; compinit -u -D
source <(leno completion zsh)
all-matches() { _main_complete; compstate[insert]=all }
zle -C all-matches complete-word all-matches
zle-line-init() {
  BUFFER=$LINE CURSOR=$#LINE
  zle all-matches
  print -r -- "$BUFFER" >$ZDOTDIR/completed
  exit
}
zle -N zle-line-init
"#;

/// Prints the offered completions, each with its description.
const FISH: &str = "leno completion fish | source; complete -C \"$LINE\"";

/// The shells for which `leno completion` prints scripts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shell {
    Bash,
    Zsh,
    Fish,
}

impl Shell {
    /// All shells that are installed.
    fn all() -> Vec<Self> {
        let all = [(Self::Bash, "bash"), (Self::Zsh, "zsh"), (Self::Fish, "fish")];
        all.into_iter()
            .filter(|(_, program)| is_installed(program))
            .map(|(shell, _)| shell)
            .collect()
    }

    /// The completions that the shell offers at the end of a line, with this build's `leno` on its PATH.
    fn offers(self, directory: &Path, line: &str) -> Vec<String> {
        let home = tempfile::tempdir().unwrap();
        std::fs::write(home.path().join(".zshrc"), ZSHRC).unwrap();
        let mut shell = match self {
            Self::Bash => {
                let mut bash = Command::new("bash");
                bash.args(["--norc", "-c", BASH]);
                bash
            }
            Self::Zsh => {
                let mut terminal = Command::new("script");
                terminal.args(["-qec", "zsh -i", "/dev/null"]).env("ZDOTDIR", home.path());
                terminal.stdin(std::process::Stdio::null());
                terminal
            }
            Self::Fish => {
                let mut fish = Command::new("fish");
                fish.args(["--no-config", "-c", FISH]).env("HOME", home.path());
                fish
            }
        };
        shell.env("PATH", path()).env("LINE", line).current_dir(directory);
        let output = shell.output().unwrap();
        assert!(output.status.success() && output.stderr.is_empty(), "{line:?}: {output:?}");
        let mut offered: Vec<String> = match self {
            Self::Bash => out(&output).lines().map(str::to_owned).collect(),
            Self::Zsh => {
                let completed = std::fs::read_to_string(home.path().join("completed")).unwrap();
                let begun = line.rfind(' ').map_or(0, |space| space + 1);
                // If nothing matches, the line stays as it is.
                let changed = completed.trim_end_matches('\n') != line;
                let words = completed.get(begun..).filter(|_| changed).unwrap_or_default();
                words.split_whitespace().map(str::to_owned).collect()
            }
            Self::Fish => {
                let words = out(&output);
                words
                    .lines()
                    .filter_map(|line| line.split('\t').next())
                    .map(str::to_owned)
                    .collect()
            }
        };
        offered.sort();
        offered
    }
}

fn is_installed(program: &str) -> bool {
    tools::find_or_skip(program, program).unwrap().is_some()
}

/// The search path, with this build's `leno` first.
fn path() -> std::ffi::OsString {
    let programs = Path::new(env!("CARGO_BIN_EXE_leno")).parent().unwrap().to_owned();
    let path = std::env::var_os("PATH").unwrap_or_default();
    let path = std::env::join_paths([programs].into_iter().chain(std::env::split_paths(&path)));
    path.unwrap()
}

#[test]
fn shells_complete_commands_values_and_the_names_of_what_runs() {
    let Some(mesh) = root(|| Mesh::start(MESH)) else { return };
    let name = mesh.name();
    let of_mesh = |line: &str| line.replace("@", &format!("--name {name}"));
    let shells = Shell::all();
    for (line, expected) in [
        ("leno lo", &["logs"][..]),
        ("leno port", &["port-forward"]),
        ("leno stat -o j", &["json"]),
        ("leno up --mtls s", &["strict"]),
        ("leno bench comp", &["compare"]),
        ("leno bench run http-1k --mesh is", &["istio", "istio-ambient"]),
        ("leno up --capture ", &["auto", "ebpf", "iptables", "nftables"]),
        ("leno up mesh", &["mesh.yaml"]),
        (&format!("leno ps --name {name}"), &[name]),
        ("leno ps @ -n ", &["batch", "shop"]),
        ("leno logs @ we", &["web", "web-0", "web-1"]),
        ("leno logs @ -n batch w", &["worker", "worker-0"]),
        ("leno restart @ worker web-", &["web-0", "web-1"]),
        ("leno exec @ shop/", &["shop/web", "shop/web-0", "shop/web-1"]),
        ("leno explain @ worker-", &["worker-0"]),
        ("leno diagnostics proxy @ worker-", &["worker-0"]),
        // There is no mesh with this name.
        ("leno logs --name nope we", &[]),
        ("leno logs --t", &["--tail", "--timestamps"]),
    ] {
        let line = of_mesh(line);
        for shell in &shells {
            let offered = shell.offers(mesh.directory(), &line);
            assert_eq!(offered, expected, "{shell:?} {line:?}\n{}", mesh.log());
        }
    }
}

/// Runs a command as the user `daemon`. sudo permits this user everything without a password if `$1` is `NOPASSWD:`. A
/// mount namespace keeps the machine's own rules unchanged.
const AS_DAEMON: &str = r#"
set -e
mount --bind "$2" /mnt
printf 'root ALL=(ALL) ALL\ndaemon ALL=(ALL) %s ALL\n' "$1" >"$3/sudoers"
chmod 440 "$3/sudoers"
mount --bind "$3/sudoers" /etc/sudoers
export PATH=/mnt:$PATH
exec setpriv --reuid 1 --regid 1 --clear-groups bash --norc -c "$4"
"#;

#[test]
fn another_user_is_offered_names_where_sudo_needs_no_password() {
    let Some(mesh) = root(|| Mesh::start(MESH)) else { return };
    if !is_installed("sudo") {
        return;
    }
    let programs = Path::new(env!("CARGO_BIN_EXE_leno")).parent().unwrap();
    let line = format!("leno logs --name {} we", mesh.name());
    for (password, asked, expected) in [
        ("NOPASSWD:", "1", "web\nweb-0\nweb-1\n"),
        ("NOPASSWD:", "0", ""),
        // If sudo needs a password, the user is not asked for it.
        ("PASSWD:", "1", ""),
    ] {
        let directory = tempfile::tempdir().unwrap();
        let mut command = Command::new("unshare");
        command.args(["--mount", "bash", "-c", AS_DAEMON, "bash", password]).arg(programs);
        command.arg(directory.path()).arg(BASH);
        command.env("LINE", &line).env("LENO_COMPLETE_SUDO", asked).current_dir("/");
        let output = command.output().unwrap();
        assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
        assert_eq!(out(&output), expected, "{password} {asked}\n{}", mesh.log());
    }
}
