//! The list of a workload's guests: workers that serve its connections on the threads of its clients in the same
//! process (see the parent module). The workload's tasks on the control thread use the list to add up counts and to
//! end the guests.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use leno_telemetry::{EndedCounts, Snapshot};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{Instant, timeout_at};

use crate::worker::{Command, Departure, Load};

/// How long to wait for the answers of guests, because the thread of one may stall.
const ANSWERS: Duration = Duration::from_secs(1);

/// The guests of one workload while this process serves it (one membership), at most one on each thread of a client.
#[derive(Debug, Default)]
pub(crate) struct GuestBook {
    book: Mutex<Book>,
    /// How many times a guest could not be started, because a thread had no place for it or did not start it in time.
    refused: AtomicU64,
    /// Set once the workload begins to leave this process; guests then drain. The value says what becomes of its
    /// listeners.
    leaves: watch::Sender<Option<Departure>>,
    /// Set once the membership is over; guests then end at once.
    ended: watch::Sender<bool>,
}

/// Ends all guests when this is dropped, at the end of the membership. The workload's own thread might stall at that
/// moment and not end them.
#[derive(Debug)]
pub(crate) struct EndOfGuests(pub(crate) Arc<GuestBook>);

impl Drop for EndOfGuests {
    fn drop(&mut self) {
        self.0.ended.send_replace(true);
    }
}

#[derive(Debug, Default)]
struct Book {
    /// The number of the guest that was started last.
    last: u64,
    /// The guests that run, by their numbers.
    open: BTreeMap<u64, Entry>,
    /// The counts of guests that have ended.
    ended: EndedCounts,
}

#[derive(Debug)]
struct Entry {
    commands: mpsc::Sender<Command>,
    /// The guest's counts in its latest answer.
    counted: Snapshot,
}

impl GuestBook {
    fn lock(&self) -> MutexGuard<'_, Book> {
        // No code panics while this is locked.
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The sum of the counts of all guests, including those that have ended.
    pub(crate) async fn counted(&self) -> Snapshot {
        let answers = self.ask(Command::Snapshot).await;
        let mut book = self.lock();
        for (number, counted) in answers {
            if let Some((entry, counted)) = book.open.get_mut(&number).zip(counted) {
                entry.counted = counted;
            }
        }
        let mut sum = book.ended.counts(std::time::Instant::now()).clone();
        book.open.values().for_each(|entry| sum.add(entry.counted.clone()));
        sum
    }

    /// How many requests and relays guests have in progress. A guest that does not answer counts as busy.
    pub(crate) async fn busy(&self) -> usize {
        let answers = self.ask(Command::Load).await;
        let busy = |answer: Option<Load>| answer.map_or(1, |load| load.busy);
        answers.into_iter().map(|(_, answer)| busy(answer)).fold(0, usize::saturating_add)
    }

    /// The number of guests that run, and how many times one could not be started.
    pub(crate) fn counts(&self) -> (usize, u64) {
        (self.lock().open.len(), self.refused.load(Ordering::Relaxed))
    }

    pub(super) fn count_refused(&self) {
        self.refused.fetch_add(1, Ordering::Relaxed);
    }

    /// Makes all guests drain, and also those that start later.
    pub(crate) fn leave(&self, departure: Departure) {
        self.leaves.send_replace(Some(departure));
    }

    pub(super) fn leaves(&self) -> watch::Receiver<Option<Departure>> {
        let mut leaves = self.leaves.subscribe();
        // A guest may start after its workload has begun to leave.
        leaves.mark_changed();
        leaves
    }

    pub(super) fn ended(&self) -> watch::Receiver<bool> {
        self.ended.subscribe()
    }

    async fn ask<T>(
        &self,
        command: impl Fn(oneshot::Sender<T>) -> Command,
    ) -> Vec<(u64, Option<T>)> {
        let ask = |(number, entry): (&u64, &Entry)| {
            let (answer, answered) = oneshot::channel();
            // A full queue means that the guest's thread stalls. The command is lost, and the guest counts as one
            // that does not answer.
            let _stalls = entry.commands.try_send(command(answer));
            (*number, answered)
        };
        let asked: Vec<_> = self.lock().open.iter().map(ask).collect();
        let until = Instant::now().checked_add(ANSWERS).unwrap_or_else(Instant::now);
        let mut answers = Vec::new();
        for (number, answered) in asked {
            let answer = timeout_at(until, answered).await;
            answers.push((number, answer.ok().and_then(Result::ok)));
        }
        answers
    }
}

/// The entry of one guest in the list.
#[derive(Debug)]
pub(crate) struct Listing {
    book: Arc<GuestBook>,
    number: u64,
}

impl Listing {
    pub(super) fn new(book: &Arc<GuestBook>, commands: mpsc::Sender<Command>) -> Self {
        let mut listed = book.lock();
        listed.last = listed.last.saturating_add(1);
        let number = listed.last;
        listed.open.insert(number, Entry { commands, counted: Snapshot::default() });
        drop(listed);
        Self { book: Arc::clone(book), number }
    }

    /// Removes the guest from the list, and adds its last counts to those of the guests that have ended.
    pub(crate) fn end(self, counted: Snapshot) {
        let mut book = self.book.lock();
        let Book { open, ended, .. } = &mut *book;
        open.remove(&self.number);
        let others: Vec<_> = open.values().map(|entry| &entry.counted).collect();
        ended.add(counted, &others, std::time::Instant::now());
    }
}
