//! Closed loops that saturate a proxy: other people's generators where there are good ones.

pub(crate) mod h2load;
pub(crate) mod tcp;
pub(crate) mod wrk;

/// What a generator counted.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Count {
    /// Requests that were answered.
    pub(crate) requests: u64,
    /// Requests that failed.
    pub(crate) errors: u64,
    /// Answered requests a second.
    pub(crate) requests_per_s: f64,
}
