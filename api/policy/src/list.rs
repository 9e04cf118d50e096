//! The matches that have the same path, and a search for the first match that a request fulfils.
#![expect(
    clippy::arithmetic_side_effects,
    clippy::indexing_slicing,
    reason = "the list holds places of these conditions"
)]

use std::collections::HashMap;

use crate::condition::{RuleCondition, TextCondition};
use crate::request::Request;

/// A list of up to this many matches is tried one by one, which is cheaper than a lookup.
const FEW: usize = 4;

/// Matches, as their positions in the list of all conditions, in the order of precedence.
#[derive(Clone, Debug, Default)]
pub(crate) struct MatchList {
    all: Vec<u32>,
    /// The index; present if there are more than `FEW` matches.
    index: Option<Box<Index>>,
}

/// The matches of a [`MatchList`], grouped by a header whose exact value they require.
///
/// ```text
///   x-tenant: a ──► 1, 4        one lookup per header name, whatever the number of values
///   x-tenant: b ──► 2
///   others      ──► 0, 3        one by one: matches that require no exact value of a header
/// ```
#[derive(Clone, Debug, Default)]
struct Index {
    by_header: Vec<(Box<str>, ByValue)>,
    others: Vec<u32>,
}

type ByValue = HashMap<Box<[u8]>, Vec<u32>>;

impl MatchList {
    /// Appends a match, which ranks after all earlier ones.
    pub(crate) fn push(&mut self, place: u32) {
        self.all.push(place);
    }

    /// Builds the index, when all matches have been appended.
    pub(crate) fn finish(&mut self, conditions: &[RuleCondition]) {
        if self.all.len() > FEW {
            self.index = Some(Box::new(Index::new(&self.all, conditions)));
        }
    }

    /// All matches.
    pub(crate) fn places(&self) -> &[u32] {
        &self.all
    }

    /// The first match that a request fulfils, according to `check`.
    pub(crate) fn first<'c>(
        &self,
        conditions: &'c [RuleCondition],
        request: &impl Request,
        check: impl Fn(&RuleCondition) -> bool,
    ) -> Option<&'c RuleCondition> {
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
    /// Puts each match under the header value that the fewest matches require, because a value that all matches share
    /// would not make the search shorter.
    fn new(all: &[u32], conditions: &[RuleCondition]) -> Self {
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

/// The headers for which a match requires an exact value: the name in lower case, and the value.
fn exact(condition: &RuleCondition) -> impl Iterator<Item = (String, &[u8])> {
    condition.headers.iter().filter_map(|header| match &header.text {
        TextCondition::Exact(value) => Some((header.name.to_ascii_lowercase(), &**value)),
        TextCondition::Regex(_) => None,
    })
}
