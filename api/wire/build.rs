//! Compiles the proto files with protox, so that no protoc needs to be installed.

use std::error::Error;

const FILES: [&str; 5] = [
    "envoy/ext_authz.proto",
    "leno/v1/discovery.proto",
    "leno/v1/identity.proto",
    "leno/v1/limits.proto",
    "leno/v1/mesh.proto",
];

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=proto");
    let descriptors = protox::compile(FILES, ["proto"])?;
    tonic_prost_build::configure()
        .build_transport(false)
        .bytes(".")
        .emit_rerun_if_changed(false)
        .compile_fds(descriptors)?;
    Ok(())
}
