//! Records for the instance's status why the proxy that it should have does not serve it yet.

use std::cell::RefCell;

use super::{InstanceChange, InstanceTask};

/// What the instance waits for while its present proxy serves it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Awaited {
    /// A proxy of the other mode.
    ProxyMode,
    /// Another process in the same mode.
    Process,
}

/// The last reported reason for each kind of wait.
#[derive(Debug, Default)]
pub(super) struct Waits {
    mode: RefCell<Option<String>>,
    process: RefCell<Option<String>>,
}

impl Waits {
    /// All reasons joined, after this one was changed; `None` if it is unchanged.
    fn with(&self, awaited: Awaited, why: Option<&str>) -> Option<Option<String>> {
        if self.of(awaited).borrow().as_deref() == why {
            return None;
        }
        let other = match awaited {
            Awaited::ProxyMode => self.process.borrow(),
            Awaited::Process => self.mode.borrow(),
        };
        let reasons: Vec<&str> = why.into_iter().chain(other.as_deref()).collect();
        Some((!reasons.is_empty()).then(|| reasons.join("; ")))
    }

    fn of(&self, awaited: Awaited) -> &RefCell<Option<String>> {
        match awaited {
            Awaited::ProxyMode => &self.mode,
            Awaited::Process => &self.process,
        }
    }
}

impl InstanceTask {
    /// Reports why the instance waits, or with `None` that it does not wait any more. Cancel safe: a reason that was
    /// not reported is reported by the next call.
    pub(super) async fn waits_for(&self, awaited: Awaited, why: Option<String>) {
        if let Some(all) = self.waits.with(awaited, why.as_deref()) {
            self.report(InstanceChange::ProxyWaits(all)).await;
            self.waits.of(awaited).replace(why);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_to_wait_is_reported_once_and_hides_no_other_reason() {
        let waits = Waits::default();
        assert_eq!(waits.with(Awaited::Process, None), None);
        let of_process = || Some("it exited with 9");
        let all = waits.with(Awaited::Process, of_process()).unwrap();
        assert_eq!(all.as_deref(), of_process());
        waits.process.replace(all);
        assert_eq!(waits.with(Awaited::Process, of_process()), None);
        let all = waits.with(Awaited::ProxyMode, Some("user 2102")).unwrap();
        assert_eq!(all.as_deref(), Some("user 2102; it exited with 9"));
        waits.mode.replace(Some("user 2102".to_owned()));
        assert_eq!(waits.with(Awaited::Process, None), Some(Some("user 2102".to_owned())));
        waits.process.take();
        assert_eq!(waits.with(Awaited::ProxyMode, None), Some(None));
    }
}
