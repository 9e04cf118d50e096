//! A queue of requests that wait for the signer. It is bounded, and fair between nodes.

use std::collections::BTreeMap;

use tokio::time::{Duration, Instant};

use super::request::{PendingRequest, RequestKey};

/// Most requests in the queue. It is enough for a cluster of 4,000 pods in which all are replaced at once.
pub(super) const MAX_WAITING: usize = 4096;
/// Most requests of one node in the queue. A kubelet has 110 pods by default, and 500 at most in practice.
pub(super) const MAX_OF_NODE: usize = 512;
/// The wait before the second attempt. It doubles with each further attempt, up to [`LONGEST_BACKOFF`].
const FIRST_BACKOFF: Duration = Duration::from_secs(1);
/// The longest wait between attempts. Attempts stop when Kubernetes removes the request, a quarter of an hour after
/// its creation.
const LONGEST_BACKOFF: Duration = Duration::from_secs(60);

/// The queue. Requests that find no room are not kept; when the queue is empty, all requests are listed again.
#[derive(Default)]
pub(super) struct RequestQueue {
    nodes: BTreeMap<String, BTreeMap<RequestKey, QueuedRequest>>,
    /// How many requests are in `nodes`.
    waiting: usize,
    left_out: usize,
    /// The node that was served last. The next round begins with the node after it.
    last: String,
}

struct QueuedRequest {
    request: PendingRequest,
    attempts: u32,
    /// The earliest time of the next attempt.
    due: Instant,
}

impl RequestQueue {
    pub(super) fn clear(&mut self) {
        *self = Self { last: std::mem::take(&mut self.last), ..Self::default() };
    }

    /// Adds a request, or replaces an older version of the same request.
    pub(super) fn put(&mut self, request: PendingRequest) {
        let of_node = self.nodes.get(&request.spec.node_name);
        if of_node.is_some_and(|all| all.contains_key(&request.key)) {
            self.remove(&request.key);
        }
        let of_node = self.nodes.get(&request.spec.node_name).map_or(0, BTreeMap::len);
        if self.waiting >= MAX_WAITING || of_node >= MAX_OF_NODE {
            self.leave_out();
            return;
        }
        let node = self.nodes.entry(request.spec.node_name.clone()).or_default();
        let queued = QueuedRequest { request, attempts: 0, due: Instant::now() };
        node.insert(queued.request.key.clone(), queued);
        self.waiting += 1;
    }

    /// Records that a request found no room, so that all requests will be listed again.
    pub(super) fn leave_out(&mut self) {
        self.left_out += 1;
    }

    /// Removes a request that has an answer or does not exist any more.
    pub(super) fn remove(&mut self, key: &RequestKey) {
        let mut removed = 0;
        self.nodes.retain(|_, node| {
            removed += usize::from(node.remove(key).is_some());
            !node.is_empty()
        });
        self.waiting -= removed;
    }

    /// Delays the next attempt for a request.
    pub(super) fn put_off(&mut self, key: &RequestKey, now: Instant) {
        let queued = self.nodes.values_mut().find_map(|node| node.get_mut(key));
        let Some(queued) = queued else { return };
        let backoff = FIRST_BACKOFF.saturating_mul(2_u32.saturating_pow(queued.attempts));
        queued.attempts += 1;
        queued.due = now + backoff.min(LONGEST_BACKOFF);
    }

    /// At most `most` requests that are due. Nodes take turns, so that a node with a thousand requests does not
    /// delay others.
    pub(super) fn round(&mut self, most: usize, now: Instant) -> Vec<PendingRequest> {
        let mut turns: Vec<(&str, Vec<&PendingRequest>)> = Vec::new();
        for (node, queued) in &self.nodes {
            let due = queued.values().filter(|one| one.due <= now).map(|one| &one.request);
            let due: Vec<&PendingRequest> = due.take(most).collect();
            if !due.is_empty() {
                turns.push((node, due));
            }
        }
        let first = turns.iter().position(|(node, _)| **node > *self.last).unwrap_or(0);
        turns.rotate_left(first);
        let mut round = Vec::new();
        for turn in 0..most {
            let of_turn = turns.iter().filter_map(|(_, due)| due.get(turn));
            round.extend(of_turn.take(most - round.len()).map(|one| (*one).clone()));
        }
        if let Some(one) = round.last() {
            self.last.clone_from(&one.spec.node_name);
        }
        round
    }

    /// When the next request is due; `None` if there is none.
    pub(super) fn next(&self) -> Option<Instant> {
        self.nodes.values().flat_map(BTreeMap::values).map(|one| one.due).min()
    }

    pub(super) fn waiting(&self) -> usize {
        self.waiting
    }

    /// How many requests found no room since all were last listed.
    pub(super) fn left_out(&self) -> usize {
        self.left_out
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pod_certificates::request::tests::request;

    fn names(round: &[PendingRequest]) -> Vec<&str> {
        round.iter().map(|one| one.key.name.as_str()).collect()
    }

    #[tokio::test]
    async fn nodes_take_turns_and_a_flood_of_one_is_bounded() {
        let mut queue = RequestQueue::default();
        for number in 0..MAX_OF_NODE + 10 {
            queue.put(request(&format!("flood-{number:04}"), "n1"));
        }
        assert_eq!((queue.waiting(), queue.left_out()), (MAX_OF_NODE, 10));
        queue.put(request("calm-0", "n2"));
        queue.put(request("calm-1", "n3"));
        let now = Instant::now();
        let first = queue.round(4, now);
        assert_eq!(names(&first), ["flood-0000", "calm-0", "calm-1", "flood-0001"]);
        // The next round begins with another node.
        assert_eq!(names(&queue.round(2, now)), ["calm-0", "calm-1"]);
        assert_eq!(names(&queue.round(1, now)), ["flood-0000"]);
        assert_eq!(names(&queue.round(1, now)), ["calm-0"]);
        for one in first {
            queue.remove(&one.key);
        }
        assert_eq!(queue.waiting(), MAX_OF_NODE - 2);
        for node in 0..MAX_WAITING {
            queue.put(request(&format!("wide-{node}"), &format!("w{node}")));
        }
        assert_eq!(queue.waiting(), MAX_WAITING);
        queue.clear();
        assert_eq!((queue.waiting(), queue.left_out(), queue.next()), (0, 0, None));
    }

    #[tokio::test]
    async fn an_attempt_that_failed_is_repeated_later_each_time_and_holds_up_no_other() {
        let mut queue = RequestQueue::default();
        queue.put(request("bad", "n1"));
        queue.put(request("good", "n1"));
        let mut now = Instant::now();
        let mut waits = Vec::new();
        let bad = queue.round(1, now).remove(0).key;
        for _ in 0..8 {
            queue.put_off(&bad, now);
            assert_eq!(names(&queue.round(9, now)), ["good"]);
            let due = queue.nodes.values().flat_map(BTreeMap::values).map(|one| one.due).max();
            waits.push((due.unwrap() - now).as_secs());
            now = due.unwrap();
        }
        assert_eq!(waits, [1, 2, 4, 8, 16, 32, 60, 60]);
        // A new version of the object replaces the old one.
        queue.put(request("bad", "n1"));
        assert_eq!((queue.waiting(), queue.round(9, now).len()), (2, 2));
    }
}
