//! Files with the expected output of tests. With LENO_UPDATE=1, tests write these files instead of comparing them; then
//! check the changes.

use std::path::Path;

/// Checks that a text equals a file in `data`.
#[track_caller]
pub(crate) fn check(name: &str, text: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("data").join(name);
    if std::env::var_os("LENO_UPDATE").is_some() {
        std::fs::write(&path, text).unwrap();
    }
    let golden = std::fs::read_to_string(path).unwrap();
    assert_eq!(text, golden, "{name}: LENO_UPDATE=1 writes it again");
}
