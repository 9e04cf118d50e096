//! HPACK (RFC 7541), the header compression of HTTP/2, for a relay that decodes a field section
//! from one connection and encodes it, hardly changed, for another.
//!
//! ```text
//! section ──► Decoder ──► Block ──(a few edits)──► Encoder ──► section
//!             its table    one buffer, spans       its table
//! ```
//!
//! A [`Block`] is one buffer and a list of spans. Each field carries what the decoder learnt on
//! the way (the number of a well-known name, the hashes), so encoding it again computes little.
//! A [`Decoder`] or [`Encoder`] is one direction of one connection and keeps the dynamic table.
//! In steady state neither allocates.
//!
//! The crate knows nothing of what a field means: pseudo-headers, forbidden names and characters
//! are the business of HTTP/2 itself. It does no I/O, and a section is given whole.
//!
//! Every input costs bounded work: what a section may put into a block is limited by [`Limits`],
//! what it may cost beyond them by [`DecodeError::Bomb`], and a lookup in the encoder's table
//! looks at a fixed number of places however the names were chosen.

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
pub use decode::{DecodeError, Decoder, Limits, Outcome};
pub use encode::{Coding, Encoder};
pub use token::Token;
