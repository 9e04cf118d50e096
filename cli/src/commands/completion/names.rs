//! Completes names of meshes, namespaces and workloads on this machine. Options that are already on the line limit
//! the choice.

use std::collections::BTreeSet;
use std::ffi::OsStr;

use clap_complete::engine::{ArgValueCompleter, CompletionCandidate};
use leno_local::layout::Layout;
use leno_local::record;
use leno_local::status::{InstanceStatus, MeshStatus};

/// Completes the name of a running mesh.
pub(super) fn meshes() -> ArgValueCompleter {
    ArgValueCompleter::new(|begun: &OsStr| candidates(begun, record::running()))
}

/// Completes the name of a namespace.
pub(super) fn namespaces() -> ArgValueCompleter {
    ArgValueCompleter::new(|begun: &OsStr| {
        let line = Line::of_this_process();
        candidates(begun, line.instances().into_iter().map(|one| one.namespace))
    })
}

/// Completes the name of a workload or an instance. If the word already begins with a namespace, the completed
/// name includes the namespace.
pub(super) fn instances() -> ArgValueCompleter {
    ArgValueCompleter::new(|begun: &OsStr| {
        let line = Line::of_this_process();
        let qualified = begun.to_string_lossy().contains('/');
        let fits = |one: &InstanceStatus| {
            line.namespace.as_ref().is_none_or(|wanted| *wanted == one.namespace)
        };
        let names = line.instances().into_iter().filter(fits).flat_map(|one| {
            let InstanceStatus { namespace, workload, name, .. } = one;
            match qualified {
                true => [format!("{namespace}/{workload}"), format!("{namespace}/{name}")],
                false => [workload, name],
            }
        });
        candidates(begun, names)
    })
}

/// Completes one of these words.
pub(super) fn values(all: &'static [&'static str]) -> ArgValueCompleter {
    ArgValueCompleter::new(move |begun: &OsStr| {
        candidates(begun, all.iter().map(|&value| value.to_owned()))
    })
}

fn candidates(begun: &OsStr, names: impl IntoIterator<Item = String>) -> Vec<CompletionCandidate> {
    let begun = begun.to_string_lossy();
    let fitting: BTreeSet<String> =
        names.into_iter().filter(|name| name.starts_with(&*begun)).collect();
    fitting.into_iter().map(CompletionCandidate::new).collect()
}

/// The options on the line that is being completed.
#[derive(Debug, Default, PartialEq, Eq)]
struct Line {
    mesh: Option<String>,
    namespace: Option<String>,
}

impl Line {
    /// Reads the line from the arguments of this process, where it follows the first `--`.
    fn of_this_process() -> Self {
        let words = std::env::args_os().map(|word| word.to_string_lossy().into_owned());
        Self::of(words.skip_while(|word| word != "--").skip(1))
    }

    fn of(words: impl Iterator<Item = String>) -> Self {
        let mut line = Self::default();
        let mut words = words.peekable();
        while let Some(word) = words.next() {
            let (option, value) = match word.split_once('=') {
                Some((option, value)) => (option.to_owned(), Some(value.to_owned())),
                None => (word.clone(), words.peek().cloned()),
            };
            match option.as_str() {
                // The words after this `--` belong to another program's command line.
                "--" => break,
                "--name" | "--mesh" => line.mesh = value,
                "-n" | "--namespace" => line.namespace = value,
                _ => {}
            }
        }
        line
    }

    /// The instances of the mesh that the line names, or of all meshes.
    fn instances(&self) -> Vec<InstanceStatus> {
        let meshes = record::running().into_iter();
        let wanted = meshes.filter(|name| self.mesh.as_ref().is_none_or(|wanted| wanted == name));
        let read = wanted.filter_map(|name| MeshStatus::read(&Layout::new(&name).ok()?).ok());
        read.flat_map(|status| status.instances).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_says_which_mesh_and_namespace_are_meant() {
        let of = |line: &str| Line::of(line.split(' ').map(str::to_owned));
        let some = |text: &str| Some(text.to_owned());
        assert_eq!(of("leno logs -f w"), Line::default());
        assert_eq!(
            of("leno logs --name shop -n eu w"),
            Line { mesh: some("shop"), namespace: some("eu") }
        );
        assert_eq!(
            of("leno exec --mesh=shop web -- ls -n x"),
            Line { mesh: some("shop"), namespace: None }
        );
    }
}
