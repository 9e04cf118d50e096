//! Compiles the kernel programs with clang.

use std::env;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

/// What to install if a step fails because a tool or header is missing.
const PACKAGES: &str = "apt-get install clang llvm libbpf-dev libelf-dev zlib1g-dev";

fn main() -> ExitCode {
    println!("cargo:rerun-if-changed=../lib");
    println!("cargo:rerun-if-changed=../progs");
    println!("cargo:rerun-if-changed=../tests");
    println!("cargo:rerun-if-env-changed=CLANG");
    println!("cargo:rerun-if-env-changed=LENO_SYSROOT");
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    for (source, object, define) in [
        ("../progs/capture.bpf.c", "capture.bpf.o", None),
        ("../progs/flows.bpf.c", "flows.bpf.o", None),
        ("../progs/flows.bpf.c", "flows_plain.bpf.o", Some("LENO_PLAIN")),
        ("../progs/sources.bpf.c", "sources.bpf.o", None),
        ("../tests/decisions.bpf.c", "decisions.bpf.o", None),
    ] {
        if let Err(reason) = compile(Path::new(source), &out.join(object), define) {
            eprintln!("cannot compile {source}: {reason}\n\nOn Debian: {PACKAGES}\n");
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}

/// Compiles one object with BPF bytecode and BTF. llvm-strip removes the DWARF from which clang made the BTF; without
/// it the object is only larger.
fn compile(source: &Path, object: &Path, define: Option<&str>) -> Result<(), String> {
    let clang = env::var("CLANG").unwrap_or_else(|_| "clang".to_owned());
    let architecture = env::var("CARGO_CFG_TARGET_ARCH").unwrap_or_default();
    let endian = match env::var("CARGO_CFG_TARGET_ENDIAN").as_deref() {
        Ok("big") => "bpfeb",
        _ => "bpfel",
    };
    // When cross-compiling, the headers of the other architecture (scripts/programs.sh).
    let root = env::var("LENO_SYSROOT").ok();
    let include = format!("/usr/include/{architecture}-linux-gnu");
    let output = Command::new(&clang)
        .args(["-target", endian, "-mcpu=v3", "-g", "-O2", "-Wall", "-Wextra", "-Werror"])
        .args(define.map(|name| format!("-D{name}")))
        .args(root.iter().map(|root| format!("--sysroot={root}")))
        .arg(format!("-I{}{include}", root.as_deref().unwrap_or_default()))
        .arg("-c")
        .arg(source)
        .arg("-o")
        .arg(object)
        .output()
        .map_err(|error| format!("{clang} does not run: {error}"))?;
    if !output.status.success() {
        return Err(format!("{clang}: {}", String::from_utf8_lossy(&output.stderr)));
    }
    if let Err(error) = Command::new("llvm-strip").arg("-g").arg(object).status() {
        println!("cargo:warning=llvm-strip does not run ({error}); the object keeps its DWARF");
    }
    Ok(())
}
