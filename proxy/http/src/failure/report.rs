//! What a server's proxy reports to the client's proxy about a response that it truncates.
//!
//! RST_STREAM can carry only a number. Between two proxies of the mesh it is one of [`Code::of_mesh`], each of which
//! means a cause (decision 058). On an HTTP/1 connection the same number is in a final TLS record
//! ([`Io::cut`](leno_transport::Io::cut)).

use leno_h2::Code;

/// The names of causes for which the application's message is to blame. A name's index is its number. The proxies of a
/// mesh may have different releases, so new causes are appended, and none is removed.
const FAULTS: [&str; 24] = [
    "chunk-size",
    "chunk-end",
    "chunk-line",
    "chunk-extensions",
    "trailers-too-large",
    "trailer",
    "trailer-forbidden",
    "body-length",
    "status-line",
    "version",
    "head-too-large",
    "too-many-headers",
    "bare-lf",
    "bare-cr",
    "folded-header",
    "header-name",
    "space-before-colon",
    "header-value",
    "content-length",
    "content-length-conflict",
    "content-length-and-transfer-encoding",
    "transfer-encoding",
    "transfer-coding",
    "transfer-encoding-in-http-1.0",
];

/// The names of the other causes. Their numbers begin at [`Code::OTHER_OF_MESH`].
const OTHERS: [&str; 9] = [
    "closed",
    "broken",
    "head-timeout",
    "deadline",
    "stream-timeout",
    "stalled",
    "unasked-upgrade",
    "upgrade-ignored",
    "authorization-denied",
];

/// A cause that another proxy has reported.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Report {
    code: Code,
    label: &'static str,
}

impl Report {
    /// The report of the cause with this name, if it has a number.
    pub(crate) fn of_label(label: &str) -> Option<Self> {
        let numbered = |labels: &[&'static str], first: u8| {
            let mut numbers = (first..).zip(labels);
            let (number, known) = numbers.find(|(_, known)| **known == label)?;
            Some(Self { code: Code::of_mesh(number), label: *known })
        };
        numbered(&FAULTS, 0).or_else(|| numbered(&OTHERS, Code::OTHER_OF_MESH))
    }

    /// The cause of a code. `None` if the code is one of RFC 9113, or only later releases know it.
    pub(crate) fn of_code(code: Code) -> Option<Self> {
        let number = code.mesh_number()?;
        let label = match number.checked_sub(Code::OTHER_OF_MESH) {
            None => FAULTS.get(usize::from(number)),
            Some(number) => OTHERS.get(usize::from(number)),
        };
        label.map(|label| Self { code, label: *label })
    }

    /// The cause with a number. `None` if only later releases know the number.
    pub(crate) fn of_number(number: u8) -> Option<Self> {
        Self::of_code(Code::of_mesh(number))
    }

    /// The number of the cause among the codes of the mesh.
    pub(crate) fn number(self) -> u8 {
        self.code.mesh_number().unwrap_or(Code::OTHER_OF_MESH)
    }

    /// The code of RST_STREAM.
    pub(crate) fn code(self) -> Code {
        self.code
    }

    /// The name of the cause.
    #[must_use]
    pub fn label(self) -> &'static str {
        self.label
    }
}

#[cfg(test)]
mod tests {
    use super::super::reference::{BODIES, HEADS};
    use super::*;

    #[test]
    fn every_number_is_read_as_it_was_written() {
        for label in FAULTS.iter().chain(&OTHERS) {
            let report = Report::of_label(label).unwrap();
            assert_eq!(Report::of_code(report.code()).unwrap().label(), *label);
        }
        assert_eq!(Report::of_label("chunk-extensions").unwrap().code(), Code(0x4c65_6e03));
        assert_eq!(Report::of_label("closed").unwrap().code(), Code(0x4c65_6e80));
        for code in [Code::INTERNAL_ERROR, Code(0x4c65_6e7f), Code(0x4c65_6eff), Code(0x4c65_6f00)]
        {
            assert!(Report::of_code(code).is_none(), "{code:?}");
        }
    }

    #[test]
    fn every_fault_of_a_message_has_a_number() {
        let labels = || BODIES.map(|body| body.label()).into_iter();
        for label in labels() {
            assert!(FAULTS.contains(&label), "{label}");
        }
        for fault in FAULTS {
            assert!(labels().chain(HEADS.map(|head| head.label())).any(|label| label == fault));
        }
    }
}
