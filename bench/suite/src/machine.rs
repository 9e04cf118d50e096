//! The machine of a measurement. Records of different machines are not compared without a note.

use std::fs;
use std::thread;

use procfs::{CpuInfo, Current as _, Meminfo};
use serde::{Deserialize, Serialize};

/// The properties of a machine that affect figures.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Machine {
    /// The release of the kernel.
    pub kernel: String,
    /// Architecture of the processor.
    pub architecture: String,
    /// The processor's name for itself.
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
        let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        let cpu = CpuInfo::current().ok().and_then(|all| Some(all.model_name(0)?.to_owned()));
        let memory = Meminfo::current().map_or(0, |memory| memory.mem_total);
        Self {
            kernel: kernel.trim().to_owned(),
            architecture: std::env::consts::ARCH.to_owned(),
            cpu: cpu.unwrap_or_default(),
            cpus: thread::available_parallelism().map_or(0, usize::from),
            memory_mib: (memory / 1024 / 1024).next_multiple_of(16),
        }
    }

    /// The differences between two machines in words; empty if there are none.
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
