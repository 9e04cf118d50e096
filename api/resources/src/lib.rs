//! The YAML documents that Leno takes, parsed and checked.
