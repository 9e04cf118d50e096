//! The cases, in groups.

mod backends;
mod causes;
mod filters;
mod long;
mod matching;
mod redirects;
mod references;
mod retries;
mod sessions;
mod timeouts;
