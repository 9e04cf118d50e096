//! Assigns numbers to workloads, edges and causes, for use in frames.

use std::collections::HashMap;
use std::sync::Arc;

use leno_observe::stat::{NamespacedName, RouteName};

use crate::bytes::{ByteReader, put, put_text};

/// Most workloads, edges and route rules that are distinguished. The counts of further ones are dropped, and
/// counted as lost. This is enough for a mesh of 1,000 workloads, 10,000 edges, half of which have series both
/// with and without mTLS, and 4,000 route rules.
pub const MAX_SERIES: usize = 20_480;
/// Most causes that are distinguished. All causes are constants in the code of proxies.
const MAX_CAUSES: usize = 256;
/// The name that all further causes share.
const OTHER_CAUSE: &str = "other";

/// What a series is about.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum SeriesKey {
    /// A workload as a server, by namespace and name.
    Workload(NamespacedName),
    /// A client and a server.
    Edge {
        /// Namespace and name of the client.
        client: NamespacedName,
        /// Namespace and name of the server.
        server: NamespacedName,
        /// Whether the connections between their proxies use mTLS.
        encrypted: bool,
    },
    /// A service and a rule of one of its routes.
    Route(RouteName),
}

/// Assigns numbers to subjects and causes. A number that no frame uses any more is assigned again.
#[derive(Debug, Default)]
pub(crate) struct SeriesNumbers {
    subjects: Vec<Option<Arc<SeriesKey>>>,
    numbers: HashMap<Arc<SeriesKey>, u32>,
    free: Vec<u32>,
    causes: Vec<String>,
    /// The records of new names that are not in the file yet.
    fresh: Vec<NewName>,
}

/// The record of a name that has just got a number.
#[derive(Clone, Debug)]
pub(crate) enum NewName {
    Subject(Vec<u8>),
    Cause(Vec<u8>),
}

impl SeriesNumbers {
    /// The number of a subject; `None` if there are too many subjects.
    pub(crate) fn number(&mut self, subject: SeriesKey) -> Option<u32> {
        if let Some(number) = self.numbers.get(&subject) {
            return Some(*number);
        }
        let number = match self.free.pop() {
            Some(number) => number,
            None if self.subjects.len() < MAX_SERIES => {
                self.subjects.push(None);
                u32::try_from(self.subjects.len() - 1).ok()?
            }
            None => return None,
        };
        self.fresh.push(NewName::Subject(record(number, &subject)));
        self.assign(number, subject);
        Some(number)
    }

    /// The records of the names that are new since the last call.
    pub(crate) fn take_fresh(&mut self) -> Vec<NewName> {
        std::mem::take(&mut self.fresh)
    }

    fn assign(&mut self, number: u32, subject: SeriesKey) {
        let subject = Arc::new(subject);
        self.numbers.insert(subject.clone(), number);
        self.subjects[number as usize] = Some(subject);
    }

    pub(crate) fn find(&self, subject: &SeriesKey) -> Option<u32> {
        self.numbers.get(subject).copied()
    }

    pub(crate) fn subject(&self, number: u32) -> Option<&SeriesKey> {
        self.subjects.get(number as usize)?.as_deref()
    }

    /// All subjects by number; `None` for numbers that are free.
    pub(crate) fn subjects(&self) -> impl Iterator<Item = Option<&SeriesKey>> {
        self.subjects.iter().map(Option::as_deref)
    }

    /// A copy without subjects, but with the same causes.
    pub(crate) fn with_causes(&self) -> Self {
        Self { causes: self.causes.clone(), ..Self::default() }
    }

    pub(crate) fn cause(&mut self, name: &str) -> u32 {
        let name = if self.causes.len() < MAX_CAUSES { name } else { OTHER_CAUSE };
        let known = self.causes.iter().position(|known| known == name);
        let number = known.unwrap_or_else(|| {
            self.fresh.push(NewName::Cause(name.as_bytes().to_vec()));
            self.causes.push(name.to_owned());
            self.causes.len() - 1
        });
        u32::try_from(number).unwrap_or(u32::MAX)
    }

    pub(crate) fn cause_name(&self, number: u32) -> &str {
        self.causes.get(number as usize).map_or(OTHER_CAUSE, String::as_str)
    }

    pub(crate) fn is_full(&self) -> bool {
        self.free.is_empty() && self.subjects.len() >= MAX_SERIES
    }

    /// Frees the numbers for which `used` returns false.
    pub(crate) fn keep(&mut self, used: impl Fn(u32) -> bool) {
        for (number, subject) in (0_u32..).zip(&mut self.subjects) {
            if used(number) {
                continue;
            }
            if let Some(subject) = subject.take() {
                self.numbers.remove(&subject);
                self.free.push(number);
            }
        }
    }

    /// The approximate memory of the names, in bytes: the texts, and three words for each entry of a table.
    pub(crate) fn size(&self) -> usize {
        let name = |name: &NamespacedName| name.0.capacity() + name.1.capacity();
        let texts = |subject: &Arc<SeriesKey>| match &**subject {
            SeriesKey::Workload(own) => name(own),
            SeriesKey::Edge { client, server, .. } => name(client) + name(server),
            SeriesKey::Route(RouteName { service, route, rule }) => {
                name(service) + route.capacity() + rule.capacity()
            }
        };
        let all: usize = self.subjects.iter().flatten().map(texts).sum();
        all + self.numbers.len() * (size_of::<SeriesKey>() + 6 * size_of::<usize>())
    }

    /// The records of all subjects and causes, in the form that [`read_subject`](Self::read_subject) and
    /// [`read_cause`](Self::read_cause) read.
    pub(crate) fn records(&self) -> impl Iterator<Item = NewName> {
        let subjects = (0_u32..).zip(&self.subjects);
        let subjects = subjects.filter_map(|(number, subject)| Some((number, subject.as_ref()?)));
        let subjects = subjects.map(|(number, subject)| NewName::Subject(record(number, subject)));
        let causes = self.causes.iter().map(|cause| NewName::Cause(cause.clone().into_bytes()));
        subjects.chain(causes)
    }

    pub(crate) fn read_subject(&mut self, bytes: &[u8]) -> Option<()> {
        let mut reader = ByteReader::new(bytes);
        let number = reader.small()?;
        let name = |reader: &mut ByteReader<'_>| Some((text(reader)?, text(reader)?));
        let subject = match reader.number()? {
            0 => SeriesKey::Workload(name(&mut reader)?),
            form @ 1..=2 => SeriesKey::Edge {
                client: name(&mut reader)?,
                server: name(&mut reader)?,
                encrypted: form == 2,
            },
            3 => SeriesKey::Route(RouteName {
                service: name(&mut reader)?,
                route: text(&mut reader)?,
                rule: text(&mut reader)?,
            }),
            _ => return None,
        };
        if number >= MAX_SERIES {
            return None;
        }
        while self.subjects.len() <= number {
            self.free.push(self.subjects.len().try_into().ok()?);
            self.subjects.push(None);
        }
        let number = number.try_into().ok()?;
        self.free.retain(|free| *free != number);
        if let Some(earlier) = self.subjects[number as usize].take() {
            self.numbers.remove(&earlier);
        }
        self.assign(number, subject);
        Some(())
    }

    pub(crate) fn read_cause(&mut self, bytes: &[u8]) -> Option<()> {
        let name = std::str::from_utf8(bytes).ok()?;
        (self.causes.len() < MAX_CAUSES + 1).then(|| self.causes.push(name.to_owned()))
    }
}

fn record(number: u32, subject: &SeriesKey) -> Vec<u8> {
    let mut bytes = Vec::new();
    put(&mut bytes, u64::from(number));
    match subject {
        SeriesKey::Workload(name) => {
            put(&mut bytes, 0);
            put_name(&mut bytes, name);
        }
        SeriesKey::Edge { client, server, encrypted } => {
            put(&mut bytes, 1 + u64::from(*encrypted));
            put_name(&mut bytes, client);
            put_name(&mut bytes, server);
        }
        SeriesKey::Route(RouteName { service, route, rule }) => {
            put(&mut bytes, 3);
            put_name(&mut bytes, service);
            put_text(&mut bytes, route);
            put_text(&mut bytes, rule);
        }
    }
    bytes
}

fn text(reader: &mut ByteReader<'_>) -> Option<String> {
    reader.text().map(str::to_owned)
}

fn put_name(bytes: &mut Vec<u8>, (namespace, name): &NamespacedName) {
    put_text(bytes, namespace);
    put_text(bytes, name);
}
