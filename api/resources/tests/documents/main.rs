//! Which documents the parser accepts, what they mean, and the errors for the others.

mod authorization;
mod gateway;
mod objectives;
mod parse;
mod policies;
mod process;
mod round_trip;
