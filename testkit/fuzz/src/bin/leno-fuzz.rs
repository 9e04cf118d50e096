//! libFuzzer over the target that `LENO_FUZZ_TARGET` names; `scripts/fuzz.sh` runs it.
#![no_main]

use std::sync::LazyLock;

use leno_fuzz::Target;

static TARGET: LazyLock<&'static Target> = LazyLock::new(|| {
    let name = std::env::var("LENO_FUZZ_TARGET").expect("LENO_FUZZ_TARGET names a target");
    leno_fuzz::target(&name).expect("there is such a target")
});

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| (TARGET.run)(bytes));
