//! Replays inputs that found a fault once, and the cases of an adversary.

mod adversary;
mod corpus;
