//! The connections that are read, bounded.

use std::collections::HashMap;
use std::time::Duration;

use leno_bpf_abi::flow::FlowSample;

use super::talk::{Exchange, Talk, UDP};

/// Most connections that are read at a time, at about half a KiB each; samples of further ones are lost.
const MAX_TALKS: usize = 16_384;
/// How long a request waits for its response, and how long a connection is remembered without payload.
const PATIENCE: Duration = Duration::from_secs(60);
const QUIET: Duration = Duration::from_secs(600);

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Talks {
    /// By the key of their flow, with the workload and the other end.
    all: HashMap<u64, (Pair, Talk)>,
}

/// What exchanges are added up by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Pair {
    pub(super) workload: u32,
    pub(super) peer: u32,
    pub(super) role: u8,
}

impl Talks {
    /// Takes a sample in; returns whether there was room for its connection.
    pub(super) fn take(
        &mut self,
        sample: &FlowSample,
        mut each: impl FnMut(Pair, Exchange),
    ) -> bool {
        let now = Pair { workload: sample.workload, peer: sample.peer, role: sample.role };
        if !self.all.contains_key(&sample.key) && self.all.len() >= MAX_TALKS {
            return false;
        }
        let (pair, talk) = self.all.entry(sample.key).or_insert_with(|| (now, Talk::new(sample)));
        if talk.opened_ns != sample.opened_ns {
            // The ports serve another connection now.
            talk.end(&mut |exchange| each(*pair, exchange));
            (*pair, *talk) = (now, Talk::new(sample));
        }
        let each = &mut |exchange| each(*pair, exchange);
        if sample.protocol == UDP {
            talk.take_datagram(sample, each);
        } else {
            talk.take(sample, each);
        }
        true
    }

    /// Samples were lost, of whichever connections.
    pub(super) fn doubt(&mut self) {
        self.all.values_mut().for_each(|(_, talk)| talk.doubt());
    }

    /// Ends requests that have waited for too long, and forgets connections that have been quiet.
    pub(super) fn sweep(&mut self, now_ns: u64, mut each: impl FnMut(Pair, Exchange)) {
        let before = |wait: Duration| {
            now_ns.saturating_sub(u64::try_from(wait.as_nanos()).unwrap_or(u64::MAX))
        };
        self.all.retain(|_, (pair, talk)| {
            talk.expire(before(PATIENCE), &mut |exchange| each(*pair, exchange));
            talk.last_ns >= before(QUIET)
        });
    }
}
