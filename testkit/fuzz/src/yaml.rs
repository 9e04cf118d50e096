//! Fuzzes YAML documents: accepted documents must be the same after they are written and parsed again; for
//! rejected ones, at least one problem must be named.

use leno_resources::{parse, to_yaml};

pub(crate) fn run(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let documents = match parse("fuzz.yaml", text) {
        Ok(documents) => documents,
        Err(problems) => {
            assert!(!problems.is_empty(), "refused for no reason");
            for problem in problems {
                assert!(!problem.to_string().is_empty());
            }
            return;
        }
    };
    for located in documents.objects {
        let again = to_yaml(&located.value);
        let read = parse("again.yaml", &again).expect("what was written can be read");
        assert_eq!(read.objects.len(), 1, "{again}");
        assert_eq!(read.objects[0].value, located.value, "{again}");
    }
}
