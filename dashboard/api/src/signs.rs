//! Keeps the signs that an observer has seen, as long as they may explain a problem.

use std::collections::HashMap;

use crate::api::{Sign, SignKind};
use crate::fair::surplus;

/// How long a sign is kept after it was last seen, in milliseconds.
const KEPT_MS: u64 = 60 * 60 * 1000;
/// Most signs that are kept. Beyond this number, the namespace with the most signs loses the one that was last
/// seen the longest time ago.
const MAX_SIGNS: usize = 256;

/// The kind, namespace, workload and subject of a sign.
type Key = (SignKind, String, String, String);

/// The signs that are kept.
#[derive(Debug, Default)]
pub struct Signs {
    all: HashMap<Key, Sign>,
}

impl Signs {
    /// Adds the signs that were seen at this time.
    pub fn take(&mut self, seen: impl IntoIterator<Item = Sign>, now_ms: u64) {
        for sign in seen {
            self.all.insert(key(&sign), Sign { at_ms: now_ms, ..sign });
        }
        self.all.retain(|_, sign| sign.at_ms.saturating_add(KEPT_MS) > now_ms);
        if self.all.len() > MAX_SIGNS {
            let all = self.all();
            for index in surplus(all.iter().map(|sign| &*sign.namespace), MAX_SIGNS) {
                self.all.remove(&key(&all[index]));
            }
        }
    }

    /// All signs, the newest last.
    #[must_use]
    pub fn all(&self) -> Vec<Sign> {
        let mut all: Vec<Sign> = self.all.values().cloned().collect();
        all.sort_by(|a, b| (a.at_ms, a.kind, &a.line).cmp(&(b.at_ms, b.kind, &b.line)));
        all
    }
}

impl Sign {
    /// A sign of a workload that is seen now.
    #[must_use]
    pub fn seen(
        kind: SignKind,
        (namespace, workload): (&str, &str),
        subject: String,
        line: String,
    ) -> Self {
        let (namespace, workload) = (namespace.to_owned(), workload.to_owned());
        Self { kind, namespace, workload, subject, at_ms: 0, line }
    }

    /// The sign of an instance whose certificate has expired.
    #[must_use]
    pub fn expired((namespace, workload): (&str, &str), instance: &str) -> Self {
        let line = format!("the certificate of {instance} has expired, and was not renewed");
        let subject = format!("{namespace}/{instance}");
        Self::seen(SignKind::Expired, (namespace, workload), subject, line)
    }
}

fn key(sign: &Sign) -> Key {
    (sign.kind, sign.namespace.clone(), sign.workload.clone(), sign.subject.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sign_is_kept_once_and_for_an_hour() {
        let mut signs = Signs::default();
        let sign = |name: &str| Sign::expired(("shop", "web"), name);
        signs.take([sign("web-0"), sign("web-1")], 1_000);
        signs.take([sign("web-0")], 2_000);
        let seen = |signs: &Signs| signs.all().into_iter().map(|one| one.at_ms).collect::<Vec<_>>();
        assert_eq!(seen(&signs), [1_000, 2_000]);
        signs.take([], KEPT_MS + 1_500);
        assert_eq!(seen(&signs), [2_000]);
        signs.take((0..2 * MAX_SIGNS).map(|nth| sign(&format!("web-{nth}"))), KEPT_MS + 1_600);
        assert_eq!(signs.all().len(), MAX_SIGNS);
        signs.take([Sign::expired(("bank", "vault"), "vault-0")], KEPT_MS + 1_500);
        assert!(
            signs.all().iter().any(|sign| sign.namespace == "bank"),
            "its own signs are the oldest"
        );
    }
}
