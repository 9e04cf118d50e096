//! Marks the bytes of each request. A request consists of one repeated lower-case letter, and its response of the
//! same letter in upper case. A run of a letter therefore shows to which request bytes belong, wherever they
//! appear.

use super::case::Mutation;
use super::case::{Change, TOKENS};

/// The shortest run that counts. Shorter runs may be ordinary text.
pub(crate) const RUN: usize = 8;

/// The letters that occur in such runs.
pub(crate) fn runs(bytes: &[u8]) -> Vec<u8> {
    let mut found: Vec<u8> = bytes
        .chunk_by(|one, other| one == other)
        .filter(|run| run.len() >= RUN && run[0].is_ascii_alphabetic())
        .map(|run| run[0])
        .collect();
    found.sort_unstable();
    found.dedup();
    found
}

pub(crate) fn filled(letter: u8, length: usize) -> Vec<u8> {
    vec![letter; length]
}

/// Applies changes to the bytes.
pub(crate) fn mutate(bytes: &mut Vec<u8>, mutations: &[Mutation]) {
    for mutation in mutations {
        let at = bytes.len() * usize::from(mutation.at) / 256 + usize::from(mutation.further);
        let at = at.min(bytes.len());
        match mutation.change {
            Change::Byte(byte) => {
                if let Some(changed) = bytes.get_mut(at) {
                    *changed = byte;
                }
            }
            Change::Delete(count) => {
                let end = bytes.len().min(at + usize::from(count));
                bytes.drain(at..end);
            }
            Change::Insert(token) => {
                let token = TOKENS[usize::from(token) % TOKENS.len()];
                bytes.splice(at..at, token.iter().copied());
            }
        }
    }
}
