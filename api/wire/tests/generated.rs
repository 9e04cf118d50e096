//! Checks that the generated code in the repository corresponds to the proto files. It is in the repository so that a
//! build of the programs needs neither protoc nor the crates that replace it, which take longer to compile than the
//! proxy.
//!
//! If `LENO_UPDATE` is set (`make proto`), the test writes the code.

use std::fs;
use std::path::Path;

const FILES: [&str; 8] = [
    "envoy/ext_authz.proto",
    "leno/v1/discovery.proto",
    "leno/v1/identity.proto",
    "leno/v1/limits.proto",
    "leno/v1/mesh.proto",
    "opentelemetry/otlp.proto",
    "prometheus/metrics.proto",
    "spiffe/workload.proto",
];

#[test]
fn the_generated_code_matches_the_proto_files() {
    let made = tempfile::tempdir().unwrap();
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let descriptors = protox::compile(FILES, [root.join("proto")]).unwrap();
    tonic_prost_build::configure()
        .build_transport(false)
        .codec_path("crate::codec::SmallBuffers")
        .bytes(".")
        // Few services have a waypoint, and this field is larger than all others.
        .boxed(".leno.v1.Service.waypoint")
        .emit_rerun_if_changed(false)
        .out_dir(made.path())
        .compile_fds(descriptors)
        .unwrap();
    // SPIFFE's proto file has no package.
    fs::rename(made.path().join("_.rs"), made.path().join("spiffe.rs")).unwrap();
    for name in
        ["envoy.service.auth.v3.rs", "leno.v1.rs", "opentelemetry.rs", "prometheus.rs", "spiffe.rs"]
    {
        let file = root.join("src/generated").join(name);
        let text = fs::read_to_string(made.path().join(name)).unwrap();
        if std::env::var_os("LENO_UPDATE").is_some() {
            fs::write(&file, &text).unwrap();
        }
        let there = fs::read_to_string(&file).unwrap_or_default();
        assert!(there == text, "api/wire/src/generated/{name} is out of date: make proto");
    }
}
