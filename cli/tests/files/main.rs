//! Tests `leno` on files, from the command line.

mod analysis;
mod inject;
mod messages;
