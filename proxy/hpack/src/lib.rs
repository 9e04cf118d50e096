//! HPACK (RFC 7541), the header compression of HTTP/2, for a relay. The relay decodes a field
//! section from one connection and encodes it, with few changes, for another.
//!
//! ```text
//! section ──► Decoder ──► Block ──(a few edits)──► Encoder ──► section
//!             its table    one buffer, spans       its table
//! ```
//!
//! A [`Block`] is one buffer and a list of spans. Each field carries what the decoder has computed
//! (the token of a well-known name, the hashes), so encoding it again computes little. A
//! [`Decoder`] or an [`Encoder`] handles one direction of one connection and has its dynamic table.
//! In steady state neither allocates.
//!
//! The crate does not interpret fields: pseudo-headers and forbidden names and characters are the
//! business of `leno-h2`. It does no I/O, and expects a section as a whole.
//!
//! The work for any input is bounded: [`Limits`] bound what a section may put into a block,
//! [`DecodeError::Bomb`] bounds the cost beyond that, and a lookup in the encoder's table examines
//! a fixed number of entries whatever the names are.

#![cfg_attr(
    not(test),
    deny(
        clippy::arithmetic_side_effects,
        clippy::indexing_slicing,
        clippy::panic,
        clippy::unwrap_used
    )
)]

mod block;
mod decode;
mod encode;
mod hash;
mod huffman;
mod index;
mod integer;
mod repeat;
mod table;
mod token;

pub use block::{Block, Field, Fields};
pub use decode::{DecodeError, Decoder, Inserts, Limits, Outcome};
pub use encode::Encoder;
pub use token::Token;
