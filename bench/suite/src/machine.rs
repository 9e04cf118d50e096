//! The machine of a measurement; records are compared only together with it.

use std::fs;
use std::thread;

use serde::{Deserialize, Serialize};

/// The properties of a machine that affect figures.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Machine {
    /// Release of the kernel.
    pub kernel: String,
    /// Architecture of the processor.
    pub architecture: String,
    /// The processor's own name.
    pub cpu: String,
    /// Processors that may be used.
    pub cpus: usize,
    /// Memory, rounded to 16 MiB, because the amount that the kernel reserves varies from boot to
    /// boot.
    pub memory_mib: u64,
}

impl Machine {
    /// This machine. Properties that cannot be read are empty.
    pub fn this() -> Self {
        let read = |path| fs::read_to_string(path).unwrap_or_default();
        Self {
            kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
            architecture: std::env::consts::ARCH.to_owned(),
            cpu: after_colon(&read("/proc/cpuinfo"), "model name").unwrap_or_default(),
            cpus: thread::available_parallelism().map_or(0, usize::from),
            memory_mib: after_colon(&read("/proc/meminfo"), "MemTotal").map_or(0, |kib| {
                let kib: u64 = kib.trim_end_matches(" kB").parse().unwrap_or(0);
                (kib / 1024).next_multiple_of(16)
            }),
        }
    }

    /// The differences in words; empty if there are none.
    pub fn differences(&self, other: &Self) -> Vec<String> {
        let of = |one: &Self| {
            let Self { kernel, architecture, cpu, cpus, memory_mib } = one.clone();
            [
                ("kernel", kernel),
                ("architecture", architecture),
                ("processor", cpu),
                ("processors", cpus.to_string()),
                ("memory, MiB", memory_mib.to_string()),
            ]
        };
        in_words(unequal(of(self), of(other)))
    }
}

/// The properties that differ between two things, with the value of each.
pub(crate) fn unequal<const N: usize>(
    one: [(&'static str, String); N],
    two: [(&'static str, String); N],
) -> Vec<(&'static str, String, String)> {
    let both = one.into_iter().zip(two).filter(|(one, two)| one != two);
    both.map(|((what, one), (_, two))| (what, one, two)).collect()
}

pub(crate) fn in_words(unequal: Vec<(&'static str, String, String)>) -> Vec<String> {
    unequal.into_iter().map(|(what, one, two)| format!("{what}: {one} and {two}")).collect()
}

fn after_colon(text: &str, name: &str) -> Option<String> {
    let line = text.lines().find(|line| line.starts_with(name))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}
