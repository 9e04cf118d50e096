//! Checks that `values.schema.json`, with which Helm validates values, matches the type of the
//! values.

use crate::Values;

const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/leno/values.schema.json");

#[test]
fn helm_checks_values_by_their_type() {
    let settings = schemars::generate::SchemaSettings::draft07();
    let schema = settings.into_generator().into_root_schema_for::<Values>();
    let wanted = serde_json::to_string_pretty(&schema).unwrap() + "\n";
    if std::env::var_os("LENO_UPDATE").is_some() {
        std::fs::write(FILE, &wanted).unwrap();
    }
    let there = std::fs::read_to_string(FILE).unwrap();
    assert!(there == wanted, "write {FILE}: LENO_UPDATE=1 cargo test -p leno-charts schema");
}
