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
        let mut found = Vec::new();
        let mut look = |what: &str, one: String, two: String| {
            if one != two {
                found.push(format!("{what}: {one} and {two}"));
            }
        };
        look("kernel", self.kernel.clone(), other.kernel.clone());
        look("architecture", self.architecture.clone(), other.architecture.clone());
        look("processor", self.cpu.clone(), other.cpu.clone());
        look("processors", self.cpus.to_string(), other.cpus.to_string());
        look("memory, MiB", self.memory_mib.to_string(), other.memory_mib.to_string());
        found
    }
}

fn after_colon(text: &str, name: &str) -> Option<String> {
    let line = text.lines().find(|line| line.starts_with(name))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}
