//! Replays inputs that once found a fault, and the cases of an adversary.

mod adversary;
mod corpus;
