//! A request, in the form in which it is matched.

/// A request's head, in whatever form the caller stores it.
pub trait Request {
    /// The method, as sent.
    fn method(&self) -> &str;

    /// The path, as sent and without its query; `*` if the request has no path.
    fn path(&self) -> &[u8];

    /// The part after the first `?`.
    fn query(&self) -> Option<&[u8]>;

    /// The value of the first header with this name, ignoring case. `host` is the authority.
    fn header(&self, name: &str) -> Option<&[u8]>;
}
