//! Gives proxies wrong clocks.
//!
//! Linux has one time of day for all namespaces, so a preloaded library (`clock.c`) replaces the kernel's answers.
//! This works only with programs that are linked dynamically, as debug builds are.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};

use crate::{binaries, command};

const SOURCE: &str = include_str!("clock.c");
/// How long compiling the library may take.
const COMPILE_LIMIT: Duration = Duration::from_secs(60);

/// Creates a directory of Leno's programs below `directory`, for [`LabOptions`](crate::lab::LabOptions). With
/// these programs, the clocks of the named workloads' proxies are ahead by the given number of seconds, or behind
/// if the number is negative. A node proxy has one clock for all of its instances, so its clock is changed only if
/// it serves one instance (share `workload`); its group then has the name of the workload.
pub fn programs(directory: &Path, ahead: &[(&str, i64)]) -> Result<PathBuf> {
    fs::set_permissions(directory, Permissions::from_mode(0o755))?;
    let programs = directory.join("programs");
    fs::create_dir(&programs)?;
    let (library, source) = (directory.join("clock.so"), directory.join("clock.c"));
    fs::write(&source, SOURCE)?;
    let mut compile = Command::new("cc");
    compile.args(["-shared", "-fPIC", "-O1", "-o"]).args([&library, &source]).arg("-ldl");
    command::text(&mut compile, COMPILE_LIMIT).context("cannot compile clock.c")?;
    // `leno` looks for the other programs in the folder of its own file. With a symbolic link it would look in
    // another folder.
    fs::copy(binaries::ours("leno")?, programs.join("leno"))?;
    for name in ["leno-controller", "leno-broker"] {
        symlink(binaries::ours(name)?, programs.join(name))?;
    }
    // The user that proxies run as may not have access to the build directory.
    let proxy = directory.join("leno-proxy");
    fs::copy(binaries::ours("leno-proxy")?, &proxy)?;
    let cases: String = ahead
        .iter()
        .map(|(workload, seconds)| {
            format!(
                "{workload} | *workload.*.{workload}-*) export LENO_CLOCK_OFFSET_S={seconds};;\n"
            )
        })
        .collect();
    let script = format!(
        "#!/bin/sh\ncase ${{LENO_WORKLOAD:-$(cat /etc/hosts)}} in\n{cases}esac\nLD_PRELOAD={} exec {} \"$@\"\n",
        library.display(),
        proxy.display()
    );
    let wrapper = programs.join("leno-proxy");
    fs::write(&wrapper, script)?;
    fs::set_permissions(&wrapper, Permissions::from_mode(0o755))?;
    Ok(programs)
}
