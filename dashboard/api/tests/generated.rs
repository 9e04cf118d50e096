//! Tests that the generated code matches the proto files. The code is in the repository, like that of `leno-wire`.
//! With `LENO_UPDATE` set (`make proto`), the test writes the code instead.

use std::fs;
use std::path::Path;

use prost::Message as _;
use protox::prost_reflect::prost_types::field_descriptor_proto::Type;

const DASHBOARD: &str = "leno/dashboard/v1/dashboard.proto";
const REFLECTION: &str = "grpc/reflection/v1/reflection.proto";

#[test]
fn the_generated_code_is_that_of_the_proto_files() {
    let made = tempfile::tempdir().unwrap();
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let descriptors = protox::compile([DASHBOARD, REFLECTION], [root.join("proto")]).unwrap();
    let of_dashboard =
        descriptors.file.iter().find(|file| file.name.as_deref() == Some(DASHBOARD)).unwrap();
    // Reflection needs no comments.
    let mut described = of_dashboard.clone();
    described.source_code_info = None;
    fs::write(made.path().join("dashboard.bin"), described.encode_to_vec()).unwrap();
    let mut builder = tonic_prost_build::configure()
        .build_client(false)
        .build_server(false)
        .btree_map(".")
        .emit_rerun_if_changed(false)
        .out_dir(made.path());
    for message in &of_dashboard.message_type {
        let name = message.name.as_deref().unwrap();
        // Both directions pass through JSON: requests become queries, and answers are made from JSON.
        let methods = of_dashboard.service.iter().flat_map(|one| &one.method);
        let is_asked =
            methods.into_iter().any(|one| one.input_type().ends_with(&format!(".{name}")));
        let derived = if is_asked { "Serialize" } else { "Deserialize" };
        let path = format!("leno.dashboard.v1.{name}");
        builder = builder
            .message_attribute(&path, format!("#[derive(::serde::{derived})]\n#[serde(default)]"));
        for field in &message.field {
            let path = format!("{path}.{}", field.name.as_deref().unwrap());
            if field.name.as_deref() == Some("signals") {
                builder = builder.field_attribute(&path, "#[serde(flatten)]");
            }
            if field.r#type() == Type::Enum {
                let of = field.type_name().rsplit('.').next().unwrap();
                let with = format!("crate::grpc::number_of::<_, {of}>");
                let attribute = format!("#[serde(deserialize_with = \"{with}\")]");
                builder = builder.field_attribute(&path, attribute);
            }
        }
    }
    builder.compile_fds(descriptors).unwrap();
    for name in ["leno.dashboard.v1.rs", "grpc.reflection.v1.rs", "dashboard.bin"] {
        let file = root.join("src/generated").join(name);
        let bytes = fs::read(made.path().join(name)).unwrap();
        if std::env::var_os("LENO_UPDATE").is_some() {
            fs::write(&file, &bytes).unwrap();
        }
        let there = fs::read(&file).unwrap_or_default();
        assert!(there == bytes, "dashboard/api/src/generated/{name} is out of date: make proto");
    }
}
