//! Output that several commands print in the same way.

use leno_console::note;
use leno_suite::compare::{real_applications, within};
use leno_suite::record::Record;

/// What readers must know before they compare figures of a run, one line each.
pub(super) fn caveats(records: &[Record]) -> String {
    let differ = within(records).into_iter().map(|what| format!("DIFFERENT: {what}\n"));
    let real = real_applications(records).into_iter().map(|what| format!("! {what}\n"));
    differ.chain(real).collect()
}

pub(super) fn say_scale(scale: f64) {
    note!("rates are the published rates times {scale} (--scale)");
}
