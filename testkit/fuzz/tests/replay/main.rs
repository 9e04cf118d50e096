//! What found a fault once, and what an adversary would send.

mod adversary;
mod corpus;
