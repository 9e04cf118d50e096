//! Objects in, snapshots out; no I/O.
