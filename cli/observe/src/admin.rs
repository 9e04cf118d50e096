//! Sends one request to an admin server, over an established connection.

use std::io;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};

/// Longest response that is read, in bytes: the metrics of a proxy at its series budget are
/// smaller.
const MAX_ANSWER: u64 = 8 * 1024 * 1024;
/// How long an admin server may take to respond.
pub const ANSWER_BOUND: Duration = Duration::from_secs(5);

/// The response of an admin server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdminReply {
    /// The HTTP status.
    pub status: u16,
    /// The body.
    pub body: String,
}

impl AdminReply {
    /// Explains why this response is no page of metrics, and what to do if the proxy shows its metrics only to
    /// other addresses.
    #[must_use]
    pub fn why_no_metrics(&self) -> String {
        match self.status {
            403 => "HTTP 403: the proxy does not show its metrics to this address: add it to \
                    --scrape-from of leno up, or to proxy.scrapeFrom of the chart"
                .to_owned(),
            status => format!("HTTP {status}"),
        }
    }

    /// The body of a successful response.
    ///
    /// # Errors
    /// The status and the body, if the server refused the request.
    pub fn page(&self) -> Result<String, String> {
        match self.status {
            200 => Ok(self.body.clone()),
            status => Err(format!("HTTP {status}: {}", self.body.trim())),
        }
    }
}

/// Requests a page. Callers should not wait for the response longer than [`ANSWER_BOUND`].
///
/// # Errors
/// The connection fails or ends before the response does, or the response is not HTTP or too large.
pub async fn ask(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    method: &str,
    path: &str,
) -> io::Result<AdminReply> {
    send(stream, (method, path), "").await
}

/// Like [`ask`], for a response of at most `most` bytes.
///
/// # Errors
/// The errors of [`ask`].
pub async fn ask_at_most(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    (method, path): (&str, &str),
    most: u64,
) -> io::Result<AdminReply> {
    exchange(stream, None, (method, path), ("", most)).await
}

/// Like [`ask`], with a body.
///
/// # Errors
/// The errors of [`ask`].
pub async fn send(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    what: (&str, &str),
    body: &str,
) -> io::Result<AdminReply> {
    send_as(stream, None, what, body).await
}

/// Like [`send`], with an authorization token if `token` is given.
///
/// # Errors
/// The errors of [`ask`].
pub async fn send_as(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    token: Option<&str>,
    what: (&str, &str),
    body: &str,
) -> io::Result<AdminReply> {
    let bearer = token.map(|token| format!("Bearer {token}"));
    send_with(stream, bearer.as_deref().map(|value| ("Authorization", value)), what, body).await
}

/// Like [`send`], with an additional header if `header` is given.
///
/// # Errors
/// The errors of [`ask`].
pub async fn send_with(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    header: Option<(&str, &str)>,
    what: (&str, &str),
    body: &str,
) -> io::Result<AdminReply> {
    exchange(stream, header, what, (body, MAX_ANSWER)).await
}

async fn exchange(
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    header: Option<(&str, &str)>,
    (method, path): (&str, &str),
    (body, most): (&str, u64),
) -> io::Result<AdminReply> {
    // A response to HTTP/1.0 ends with the connection and is never chunked.
    let length = body.len();
    let more = header.map(|(name, value)| format!("{name}: {value}\r\n")).unwrap_or_default();
    let head = format!(
        "{method} {path} HTTP/1.0\r\nHost: localhost\r\n{more}Content-Length: {length}\r\n\r\n"
    );
    stream.write_all((head + body).as_bytes()).await?;
    let mut answer = Vec::new();
    let mut rest = stream.take(most);
    // A relay between client and server may not report that the server has closed the connection, so stop at
    // Content-Length.
    while missing(&answer) != Some(0) && rest.read_buf(&mut answer).await? > 0 {}
    if rest.limit() == 0 {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "the response is too large"));
    }
    if answer.is_empty() {
        let why = "the connection was closed before a response";
        return Err(io::Error::new(io::ErrorKind::UnexpectedEof, why));
    }
    // A page that is cut off would be read as a complete page with wrong numbers.
    if missing(&answer).is_some_and(|bytes| bytes > 0) {
        return Err(io::Error::new(
            io::ErrorKind::UnexpectedEof,
            "the connection was closed in the middle of the response",
        ));
    }
    parse(&answer)
}

/// How many bytes of a response are missing; `None` if its head is incomplete or has no length.
fn missing(answer: &[u8]) -> Option<usize> {
    const END: &[u8] = b"\r\n\r\n";
    let head = answer.windows(END.len()).position(|bytes| bytes == END)?;
    let text = String::from_utf8_lossy(&answer[..head]);
    let length = text.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        let is_length = name.eq_ignore_ascii_case("content-length");
        is_length.then(|| value.trim().parse::<usize>().ok()).flatten()
    })?;
    Some(length.saturating_sub(answer.len() - head - END.len()))
}

fn parse(answer: &[u8]) -> io::Result<AdminReply> {
    let text = String::from_utf8_lossy(answer);
    let invalid = || io::Error::new(io::ErrorKind::InvalidData, "the response is not HTTP");
    let (head, body) = text.split_once("\r\n\r\n").ok_or_else(invalid)?;
    let status = head.split(' ').nth(1).and_then(|code| code.get(..3)?.parse().ok());
    Ok(AdminReply { status: status.ok_or_else(invalid)?, body: body.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_status_and_body() {
        let reply =
            parse(b"HTTP/1.0 503 Service Unavailable\r\nA: b\r\n\r\nno identity\n").unwrap();
        assert_eq!((reply.status, reply.body.as_str()), (503, "no identity\n"));
        assert!(parse(b"").is_err());
        assert!(parse(b"HTTP/1.0\r\n\r\n").is_err());
    }

    #[tokio::test]
    async fn a_connection_that_ends_without_an_answer_is_called_that() {
        let (ours, theirs) = tokio::io::duplex(1024);
        tokio::spawn(async move {
            let mut theirs = theirs;
            let mut request = [0; 1024];
            // The connection ends with this task.
            let _request = theirs.read(&mut request).await;
        });
        let error = ask(ours, "GET", "/ready").await.unwrap_err();
        assert_eq!(error.to_string(), "the connection was closed before a response");
    }

    #[tokio::test]
    async fn an_answer_that_is_whole_is_not_waited_for() {
        let (ours, mut theirs) = tokio::io::duplex(1024);
        // The server keeps the connection open until the end of the test.
        theirs.write_all(b"HTTP/1.0 200 OK\r\nContent-Length: 6\r\n\r\nready\n").await.unwrap();
        let reply = ask(ours, "GET", "/ready").await.unwrap();
        assert_eq!((reply.status, &*reply.body), (200, "ready\n"));
        assert_eq!(missing(b"HTTP/1.0 200 OK\r\n\r\nall of it"), None, "its end says so");
    }

    #[tokio::test]
    async fn a_question_is_sent_with_its_body() {
        let (ours, mut theirs) = tokio::io::duplex(1024);
        theirs.write_all(b"HTTP/1.0 202 Accepted\r\nContent-Length: 0\r\n\r\n").await.unwrap();
        assert_eq!(send(ours, ("POST", "/load"), "[1]").await.unwrap().status, 202);
        let mut asked = String::new();
        theirs.read_to_string(&mut asked).await.unwrap();
        assert!(asked.starts_with("POST /load HTTP/1.0\r\n"), "{asked}");
        assert!(asked.ends_with("Content-Length: 3\r\n\r\n[1]"), "{asked}");
        assert!(!asked.contains("Authorization"), "{asked}");
    }

    #[tokio::test]
    async fn a_client_with_a_token_sends_it() {
        let (ours, mut theirs) = tokio::io::duplex(1024);
        theirs.write_all(b"HTTP/1.0 200 OK\r\nContent-Length: 0\r\n\r\n").await.unwrap();
        send_as(ours, Some("a1"), ("GET", "/"), "").await.unwrap();
        let mut asked = String::new();
        theirs.read_to_string(&mut asked).await.unwrap();
        assert!(asked.contains("\r\nAuthorization: Bearer a1\r\n"), "{asked}");
    }

    #[tokio::test]
    async fn an_answer_that_is_cut_off_is_none() {
        let (ours, mut theirs) = tokio::io::duplex(1024);
        theirs.write_all(b"HTTP/1.0 200 OK\r\nContent-Length: 6\r\n\r\nrea").await.unwrap();
        drop(theirs);
        let error = ask(ours, "GET", "/ready").await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
    }
}
