//! Peak-EWMA balancing over power of two choices.
