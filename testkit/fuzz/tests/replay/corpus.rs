//! Replays the corpus of every target. An input that has once failed stays in the corpus.

use std::fs;
use std::path::Path;

use leno_fuzz::TARGETS;

/// The smallest plausible number of inputs of a target. All targets have been fuzzed, so fewer inputs mean that a
/// corpus is missing.
const FEWEST: usize = 10;

#[test]
fn every_input_of_the_corpus_holds() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus");
    for target in &TARGETS {
        let mut inputs = 0;
        for file in fs::read_dir(corpus.join(target.name)).expect("a folder for the target") {
            let path = file.expect("a file").path();
            // Printed so that the output of a failed test names the input.
            println!("{}", path.display());
            (target.run)(&fs::read(&path).expect("a file that can be read"));
            inputs += 1;
        }
        assert!(inputs >= FEWEST, "{}: {inputs} inputs", target.name);
    }
    assert!(leno_tls::made_in_process() > 0, "no two workloads of one process have talked");
}

#[test]
fn no_folder_is_without_its_target() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus");
    for folder in fs::read_dir(corpus).expect("the corpus") {
        let name = folder.expect("a folder").file_name();
        let known = name.to_str().and_then(leno_fuzz::target);
        assert!(known.is_some(), "{}", name.display());
    }
}
