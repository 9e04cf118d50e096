//! What the parser accepts, what it means, and the errors of the rest.

mod authorization;
mod gateway;
mod objectives;
mod parse;
mod policies;
mod process;
mod round_trip;
