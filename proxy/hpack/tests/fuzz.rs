//! The fuzzer's corpus, replayed. `examples/fuzz.rs` makes it.

#[path = "fuzz/checks.rs"]
mod checks;

use std::fs;
use std::path::Path;

#[test]
fn the_corpus_passes() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpus");
    let mut inputs = 0;
    for file in fs::read_dir(folder).unwrap() {
        let path = file.unwrap().path();
        println!("{}", path.display());
        checks::sections(&fs::read(path).unwrap());
        inputs += 1;
    }
    assert!(inputs > 50, "the corpus has {inputs} inputs");
}
