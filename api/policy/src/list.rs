//! The matches that share a path, and which of them can be the one for a request.

use std::collections::HashMap;

use crate::condition::{Condition, Text};
use crate::request::Request;

/// Up to so many matches are tried one by one, which costs less than a look-up.
const FEW: usize = 4;

/// Matches by their places among all conditions, in the order of precedence.
#[derive(Clone, Debug, Default)]
pub(crate) struct List {
    all: Vec<u32>,
    /// Where there are many.
    index: Option<Box<Index>>,
}

/// The same by a header whose value they ask for.
///
/// ```text
///   x-tenant: a ──► 1, 4        one look-up for each name, whatever the number of values
///   x-tenant: b ──► 2
///   the others  ──► 0, 3        one by one: no header, an expression, a query
/// ```
#[derive(Clone, Debug, Default)]
struct Index {
    by_header: Vec<(Box<str>, ByValue)>,
    others: Vec<u32>,
}

type ByValue = HashMap<Box<[u8]>, Vec<u32>>;

impl List {
    /// Takes one more, which goes after all that are there.
    pub(crate) fn push(&mut self, place: u32) {
        self.all.push(place);
    }

    /// Makes the index, once all are there.
    pub(crate) fn finish(&mut self, conditions: &[Condition]) {
        if self.all.len() > FEW {
            self.index = Some(Box::new(Index::new(&self.all, conditions)));
        }
    }

    /// All of them.
    pub(crate) fn places(&self) -> &[u32] {
        &self.all
    }

    /// The first that a request fulfils; `check` tells which it does.
    pub(crate) fn first<'c>(
        &self,
        conditions: &'c [Condition],
        request: &impl Request,
        check: impl Fn(&Condition) -> bool,
    ) -> Option<&'c Condition> {
        let fits = |place: &&u32| check(&conditions[**place as usize]);
        let place = match &self.index {
            None => self.all.iter().find(fits),
            Some(index) => {
                let asked = index.by_header.iter().filter_map(|(name, values)| {
                    values.get(request.header(name)?)?.iter().find(fits)
                });
                asked.chain(index.others.iter().find(fits)).min()
            }
        };
        place.map(|place| &conditions[*place as usize])
    }
}

impl Index {
    /// Each match goes under the header that the fewest of them ask for: one that all share tells nothing.
    fn new(all: &[u32], conditions: &[Condition]) -> Self {
        let mut shared = HashMap::<_, usize>::new();
        for key in all.iter().flat_map(|place| exact(&conditions[*place as usize])) {
            *shared.entry(key).or_default() += 1;
        }
        let mut index = Self::default();
        for place in all {
            let telling = exact(&conditions[*place as usize]).min_by_key(|key| shared[key]);
            let Some((name, value)) = telling else {
                index.others.push(*place);
                continue;
            };
            let known = index.by_header.iter().position(|(of, _)| **of == *name);
            let at = known.unwrap_or_else(|| {
                index.by_header.push((name.into(), ByValue::new()));
                index.by_header.len() - 1
            });
            index.by_header[at].1.entry(value.into()).or_default().push(*place);
        }
        index
    }
}

/// The headers whose whole value it asks for: name, in lower case, and value.
fn exact(condition: &Condition) -> impl Iterator<Item = (String, &[u8])> {
    condition.headers.iter().filter_map(|header| match &header.text {
        Text::Exact(value) => Some((header.name.to_ascii_lowercase(), &**value)),
        Text::Regex(_) => None,
    })
}
