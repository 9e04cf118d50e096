//! A request as its matching sees it.

/// A request's head, however it is held.
pub trait Request {
    /// The method, as sent.
    fn method(&self) -> &str;

    /// The path, as sent and without its query; `*` where the request is about none.
    fn path(&self) -> &[u8];

    /// What follows the first `?`.
    fn query(&self) -> Option<&[u8]>;

    /// The value of the first header of a name, in any case. `host` is the authority.
    fn header(&self, name: &str) -> Option<&[u8]>;
}
