//! All connections that are followed. Their number is bounded.

use std::collections::HashMap;
use std::time::Duration;

use leno_bpf_abi::flow::FlowSample;

use super::conversation::{Conversation, Exchange, UDP};
use super::protocol::http2::TableSlots;

/// Most connections that are followed at a time, at about half a KiB each, and how many idle ones are evicted at
/// once for new ones. Because a sixteenth is evicted at once, a new connection only costs the examination of 16
/// others on average.
const MAX_TALKS: usize = 16_384;
const EVICTED: usize = MAX_TALKS / 16;
/// Most memory for waiting requests and incomplete messages in all connections. Above it, connections that use more
/// than their share of half of it keep only their latest requests.
const MAX_WAITING: usize = 8 << 20;
const LATEST: usize = 4;
/// How long a request waits for its response, and how long an idle connection is kept.
const PATIENCE: Duration = Duration::from_secs(60);
const QUIET: Duration = Duration::from_secs(600);

/// The followed connections; see the module.
#[derive(Debug, Default)]
pub(super) struct Conversations {
    /// The connections by the key of their flow, each with its workload and the other end.
    all: HashMap<u64, (ExchangePair, Conversation)>,
    places: TableSlots,
    /// The memory of all waiting requests and incomplete messages.
    waiting: usize,
    given_up: EvictionCounts,
}

/// What was evicted because of a bound, as numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct EvictionCounts {
    /// Connections that were evicted for new ones.
    pub(super) talks: u64,
    /// Evicted requests and incomplete messages of connections that are still followed.
    pub(super) requests: u64,
}

/// The key by which exchanges are summed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ExchangePair {
    pub(super) workload: u32,
    pub(super) peer: u32,
    pub(super) role: u8,
}

impl Conversations {
    /// Handles a sample.
    pub(super) fn take(
        &mut self,
        sample: &FlowSample,
        mut each: impl FnMut(ExchangePair, Exchange),
    ) {
        let now = ExchangePair { workload: sample.workload, peer: sample.peer, role: sample.role };
        if !self.all.contains_key(&sample.key) && self.all.len() >= MAX_TALKS {
            self.evict(&mut each);
        }
        let (pair, talk) =
            self.all.entry(sample.key).or_insert_with(|| (now, Conversation::new(sample)));
        let before = talk.waiting();
        if talk.opened_ns != sample.opened_ns {
            // Another connection uses the same ports now.
            talk.end(&mut |exchange| each(*pair, exchange));
            (*pair, *talk) = (now, Conversation::new(sample));
        }
        let of_pair = &mut |exchange| each(*pair, exchange);
        if sample.protocol == UDP {
            talk.take_datagram(sample, of_pair);
        } else {
            talk.take(sample, &self.places, of_pair);
        }
        self.given_up.requests += talk.take_given_up();
        let (after, is_over) = (talk.waiting(), talk.is_over());
        self.waiting = (self.waiting + after).saturating_sub(before);
        if is_over {
            self.all.remove(&sample.key);
            self.waiting = self.waiting.saturating_sub(after);
        }
        if self.waiting > MAX_WAITING {
            self.relieve(&mut each);
        }
    }

    /// The evictions since the last call.
    pub(super) fn take_given_up(&mut self) -> EvictionCounts {
        std::mem::take(&mut self.given_up)
    }

    /// In the connections with the most waiting requests, evicts all but the latest. At most half of the memory
    /// stays in use, so this is only needed again after many more samples.
    fn relieve(&mut self, each: &mut impl FnMut(ExchangePair, Exchange)) {
        let share = MAX_WAITING / 2 / self.all.len().max(1);
        self.waiting = 0;
        for (pair, talk) in self.all.values_mut() {
            if talk.waiting() > share {
                talk.relieve(LATEST, &mut |exchange| each(*pair, exchange));
                self.given_up.requests += talk.take_given_up();
            }
            self.waiting += talk.waiting();
        }
    }

    /// Evicts the connections that have been idle for the longest time.
    fn evict(&mut self, each: &mut impl FnMut(ExchangePair, Exchange)) {
        let mut times: Vec<u64> = self.all.values().map(|(_, talk)| talk.last_ns).collect();
        let (_, last, _) = times.select_nth_unstable(EVICTED - 1);
        let mut left = EVICTED;
        self.all.retain(|_, (pair, talk)| {
            // Several connections may have the same time.
            if talk.last_ns > *last || left == 0 {
                return true;
            }
            left -= 1;
            self.given_up.talks += 1;
            self.waiting = self.waiting.saturating_sub(talk.waiting());
            talk.abandon(&mut |exchange| each(*pair, exchange));
            false
        });
    }

    /// Records that samples were lost. It is not known of which connections.
    pub(super) fn doubt(&mut self) {
        self.all.values_mut().for_each(|(_, talk)| talk.doubt());
    }

    /// Ends requests that have waited for too long, and drops idle connections.
    pub(super) fn sweep(&mut self, now_ns: u64, mut each: impl FnMut(ExchangePair, Exchange)) {
        let before = |wait: Duration| {
            now_ns.saturating_sub(u64::try_from(wait.as_nanos()).unwrap_or(u64::MAX))
        };
        self.waiting = 0;
        self.all.retain(|_, (pair, talk)| {
            talk.expire(before(PATIENCE), &mut |exchange| each(*pair, exchange));
            let stays = talk.last_ns >= before(QUIET) && !talk.is_over();
            self.waiting += if stays { talk.waiting() } else { 0 };
            stays
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(key: u64, at_ns: u64, sent: bool, bytes: &[u8]) -> FlowSample {
        let mut sample = FlowSample::from_bytes(&[0; size_of::<FlowSample>()]).unwrap();
        sample.bytes[..bytes.len()].copy_from_slice(bytes);
        (sample.length, sample.payload) = (bytes.len() as u16, bytes.len() as u32);
        (sample.key, sample.at_ns, sample.sent) = (key, at_ns, u8::from(sent));
        (sample.turns, sample.remote_port) = (1, 80);
        sample
    }

    #[test]
    fn the_quietest_connections_make_room_and_what_waited_there_is_unseen() {
        let (mut talks, mut results) = (Conversations::default(), Vec::new());
        let request = b"GET / HTTP/1.1\r\nhost: a\r\n\r\n";
        let mut each = |_: ExchangePair, exchange: Exchange| results.push(exchange.result);
        for key in 0..MAX_TALKS as u64 {
            talks.take(&sample(key, key, true, request), &mut each);
        }
        assert_eq!(talks.take_given_up(), EvictionCounts::default());
        let now = MAX_TALKS as u64;
        // The first connection is no longer idle.
        talks.take(&sample(0, now, false, b""), &mut each);
        talks.take(&sample(now, now, true, request), &mut each);
        talks.take(&sample(now + 1, now, true, request), &mut each);
        let given_up = EvictionCounts { talks: EVICTED as u64, requests: 0 };
        assert_eq!(talks.take_given_up(), given_up);
        assert!(talks.all.contains_key(&0) && !talks.all.contains_key(&1));
        assert_eq!(talks.all.len(), MAX_TALKS - EVICTED + 2);
        assert_eq!(results, [super::super::conversation::UNSEEN; EVICTED]);
    }

    /// The memory of all waiting data, counted from the connections themselves.
    fn waiting(talks: &Conversations) -> usize {
        talks.all.values().map(|(_, talk)| talk.waiting()).sum()
    }

    const COMMAND: &[u8] = b"*1\r\n$4\r\nPING\r\n";
    /// The number of commands in a sample.
    const BATCH: usize = 36;

    /// Sample number `round` of a connection: commands, or as many replies. Each connection has its own workload.
    fn batch(key: u64, round: usize, sent: bool) -> FlowSample {
        let bytes = if sent { COMMAND } else { b"+PONG\r\n" }.repeat(BATCH);
        let mut sample = sample(key, round as u64, sent, &bytes);
        sample.sequence = (round * bytes.len()) as u32;
        sample.workload = key as u32;
        sample
    }

    #[test]
    fn what_waits_for_responses_has_a_bound_in_bytes_for_all_connections_together() {
        let (mut talks, mut results) = (Conversations::default(), Vec::new());
        let mut each =
            |pair: ExchangePair, one: Exchange| results.push((pair.workload, one.result));
        // The clients get no response.
        let (connections, rounds) = (2000, 8);
        let (mut given_up, mut most) = (0, 0);
        for round in 0..rounds {
            for key in 0..connections {
                talks.take(&batch(key, round, true), &mut each);
                given_up += talks.take_given_up().requests;
                most = most.max(talks.waiting);
            }
            assert_eq!(talks.waiting, waiting(&talks));
        }
        assert!(most <= MAX_WAITING && most > MAX_WAITING / 2, "{most}");
        assert_eq!(results.len() as u64, given_up, "each of them is counted");
        assert!(results.iter().all(|(_, result)| *result == super::super::conversation::UNSEEN));
        // The responses to the latest requests of each connection are still to come.
        let sent = connections * (rounds * BATCH) as u64;
        assert!(sent - given_up >= connections * LATEST as u64, "{given_up} of {sent}");
        // Replies to evicted requests are not matched to later ones.
        let before = results.len();
        let given_up = results.iter().filter(|(workload, _)| *workload == 0).count();
        assert!(given_up > 0);
        for round in 0..rounds {
            let mut each =
                |pair: ExchangePair, one: Exchange| results.push((pair.workload, one.result));
            talks.take(&batch(0, round, false), &mut each);
            let replies = (round + 1) * BATCH;
            assert_eq!(results.len() - before, replies.saturating_sub(given_up));
        }
        assert!(results[before..].iter().all(|one| *one == (0, "ok")));
        let later = u64::try_from(PATIENCE.as_nanos()).unwrap() + 10;
        talks.sweep(later, |_, _| {});
        assert_eq!(talks.waiting, waiting(&talks));
    }

    #[test]
    fn connections_where_little_waits_lose_nothing_to_those_that_read_no_response() {
        let (mut talks, mut results) = (Conversations::default(), Vec::new());
        let mut each =
            |pair: ExchangePair, one: Exchange| results.push((pair.workload, one.result));
        talks.take(&batch(0, 0, true), &mut each);
        let mut given_up = 0;
        for round in 0..8 {
            for key in 1..700 {
                talks.take(&batch(key, round, true), &mut each);
                given_up += talks.take_given_up().requests;
            }
        }
        assert!(given_up > 700 * 100, "{given_up}");
        talks.take(&batch(0, 0, false), &mut each);
        let own = results.iter().filter(|(workload, _)| *workload == 0);
        assert_eq!(own.map(|(_, result)| *result).collect::<Vec<_>>(), ["ok"; BATCH]);
    }

    #[test]
    fn begins_of_messages_that_are_given_up_are_counted() {
        let (mut talks, each) = (Conversations::default(), |_: ExchangePair, _: Exchange| {});
        let mut begun = batch(0, 0, true);
        // The last command ends before its name.
        (begun.length, begun.payload) = (begun.length - 8, begun.payload - 8);
        talks.take(&begun, each);
        let (_, talk) = talks.all.get_mut(&0).unwrap();
        talk.relieve(BATCH, &mut |_| {});
        assert_eq!(talk.take_given_up(), 1);
    }

    #[test]
    fn sockets_of_datagrams_are_remembered_while_a_query_waits() {
        let (mut talks, mut results) = (Conversations::default(), Vec::new());
        let mut each = |_: ExchangePair, exchange: Exchange| results.push(exchange.result);
        let mut datagram = |key, sent: bool, of: &mut Conversations| {
            let flags = if sent { [1, 0] } else { [0x81, 0x80] };
            let bytes = [&[0, 7][..], &flags, &[0, 1, 0, 0, 0, 0, 0, 0, 1], b"a", &[0, 0, 1, 0, 1]];
            let mut sample = sample(key, 1, sent, &bytes.concat());
            (sample.protocol, sample.remote_port) = (UDP, 53);
            of.take(&sample, &mut each);
        };
        datagram(1, true, &mut talks);
        datagram(2, true, &mut talks);
        assert_eq!(talks.all.len(), 2);
        datagram(1, false, &mut talks);
        assert_eq!(talks.all.len(), 1);
        let later = u64::try_from(PATIENCE.as_nanos()).unwrap() + 2;
        talks.sweep(later, &mut each);
        assert!(talks.all.is_empty());
        assert_eq!(results, ["NOERROR", super::super::conversation::UNANSWERED]);
    }
}
