//! The network lab: the same list of cases under every capture backend.

fn main() {}
