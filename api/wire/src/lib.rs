//! Discovery and identity on the wire: the only crate that sees protobuf.
