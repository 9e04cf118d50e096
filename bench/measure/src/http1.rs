//! A parser of HTTP/1.1 responses that shares no code with the proxy's own.

/// The longest response head that is read; test servers send far less.
const MAX_HEAD: usize = 64 * 1024;
/// The largest number of header fields of a response; a mesh adds a handful to those of a test
/// server.
const MAX_FIELDS: usize = 128;
/// The longest chunk-size line, and the most bytes of trailers.
const MAX_LINE: usize = 8 * 1024;

/// One whole response as a client received it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Response {
    /// The status code.
    pub status: u16,
    /// 0 for HTTP/1.0, 1 for HTTP/1.1.
    pub minor: u8,
    /// Header fields in order, names in lower case.
    pub headers: Vec<(String, String)>,
    /// The body; empty if the reader discards bodies.
    pub body: Vec<u8>,
    /// The number of bytes of the body, even if the reader discards them.
    pub body_len: u64,
    /// Trailer fields in order, names in lower case.
    pub trailers: Vec<(String, String)>,
    /// Whether the connection can carry another request.
    pub keep_alive: bool,
}

impl Response {
    /// The first value of header `name` (lower case).
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(n, _)| n == name).map(|(_, v)| v.as_str())
    }

    /// The body as text; bytes that are not UTF-8 are replaced.
    #[must_use]
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
}

/// Why bytes are not a valid response.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// The head is not HTTP/1 or too long.
    #[error("malformed response head")]
    Head,
    /// Conflicting lengths, several lengths, or a length that is not a number.
    #[error("conflicting or malformed response length")]
    Length,
    /// The size or the end of a chunk, or the trailers, are malformed or too long.
    #[error("malformed chunk")]
    Chunk,
    /// The connection ended inside a response.
    #[error("connection ended inside a response")]
    Truncated,
}

/// The state of the reader. The number in a state is how many bytes are still to be read.
///
/// ```text
///   Head ─┬─ Content-Length ─► Fixed ──────────────────────────────► response
///         ├─ chunked ────────► ChunkSize ─► ChunkData ─► ChunkEnd ─► ChunkSize ...
///         │                        └─ size 0 ─► Trailers ──────────► response
///         ├─ no length ──────► UntilClose ── finish() ─────────────► response
///         └─ HEAD, 101, 204, 304 ──────────────────────────────────► response
/// ```
/// After an interim response the state stays `Head`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Head,
    Fixed(u64),
    ChunkSize,
    ChunkData(u64),
    ChunkEnd,
    Trailers,
    UntilClose,
}

/// Reads responses from bytes as they arrive.
#[derive(Debug)]
pub struct ResponseReader {
    state: State,
    head_request: bool,
    keep_body: bool,
    interim: Vec<u16>,
    response: Response,
}

impl ResponseReader {
    /// A reader for the responses of one connection. `head_request`: the requests have the method HEAD, so no response
    /// has a body. `keep_body`: whether bodies are stored, or only their bytes counted.
    #[must_use]
    pub fn new(head_request: bool, keep_body: bool) -> Self {
        ResponseReader {
            state: State::Head,
            head_request,
            keep_body,
            interim: Vec::new(),
            response: Response::default(),
        }
    }

    /// The statuses of interim responses (1xx, such as 100) that came before the final response.
    #[must_use]
    pub fn interim(&self) -> &[u16] {
        &self.interim
    }

    /// Consumes bytes from the front of `input`. Returns how many, and the response once it is complete. Without a
    /// response, more input is needed; the bytes that were not consumed must be passed again.
    pub fn read(&mut self, input: &[u8]) -> Result<(usize, Option<Response>), Malformed> {
        let mut used = 0;
        loop {
            let rest = &input[used..];
            let (taken, done) = match self.state {
                State::Head => self.read_head(rest)?,
                State::Fixed(left) => self.read_fixed(rest, left),
                State::ChunkSize => self.read_chunk_size(rest)?,
                State::ChunkData(left) => self.read_chunk_data(rest, left),
                State::ChunkEnd => self.read_chunk_end(rest)?,
                State::Trailers => self.read_trailers(rest)?,
                State::UntilClose => (self.body(rest), false),
            };
            used += taken;
            if done {
                self.state = State::Head;
                return Ok((used, Some(std::mem::take(&mut self.response))));
            }
            if taken == 0 || used == input.len() && !matches!(self.state, State::Fixed(0)) {
                return Ok((used, None));
            }
        }
    }

    /// To be called when the connection has ended: returns the response if the end of the connection marks the
    /// response's end.
    pub fn finish(&mut self) -> Result<Option<Response>, Malformed> {
        match self.state {
            State::UntilClose => {
                self.state = State::Head;
                Ok(Some(std::mem::take(&mut self.response)))
            }
            State::Head => Ok(None),
            _ => Err(Malformed::Truncated),
        }
    }

    fn body(&mut self, bytes: &[u8]) -> usize {
        self.response.body_len += bytes.len() as u64;
        if self.keep_body {
            self.response.body.extend_from_slice(bytes);
        }
        bytes.len()
    }

    fn read_head(&mut self, input: &[u8]) -> Result<(usize, bool), Malformed> {
        let mut fields = [httparse::EMPTY_HEADER; MAX_FIELDS];
        let mut parsed = httparse::Response::new(&mut fields);
        let len = match parsed.parse(input) {
            Ok(httparse::Status::Complete(len)) => len,
            Ok(httparse::Status::Partial) if input.len() < MAX_HEAD => return Ok((0, false)),
            _ => return Err(Malformed::Head),
        };
        let status = parsed.code.ok_or(Malformed::Head)?;
        if (100..200).contains(&status) && status != 101 {
            self.interim.push(status);
            return Ok((len, false));
        }
        self.response.status = status;
        self.response.minor = parsed.version.ok_or(Malformed::Head)?;
        self.response.headers = owned(parsed.headers);
        self.state = self.framing()?;
        Ok((len, self.state == State::Fixed(0)))
    }

    /// RFC 9112 section 6.3: how the end of the body is marked.
    fn framing(&mut self) -> Result<State, Malformed> {
        let r = &mut self.response;
        let has = |name: &str, value: &str| {
            r.headers.iter().any(|(n, v)| {
                n == name && v.split(',').any(|t| t.trim().eq_ignore_ascii_case(value))
            })
        };
        let (close, keep) = (has("connection", "close"), has("connection", "keep-alive"));
        let chunked = has("transfer-encoding", "chunked");
        let lengths: Vec<_> = r.headers.iter().filter(|(n, _)| n == "content-length").collect();
        r.keep_alive = if r.minor == 0 { keep } else { !close };
        if self.head_request || matches!(r.status, 101 | 204 | 304) {
            return Ok(State::Fixed(0));
        }
        match (chunked, lengths.as_slice()) {
            (true, []) => Ok(State::ChunkSize),
            (false, [(_, v)]) => v.parse().map(State::Fixed).map_err(|_| Malformed::Length),
            (false, []) => {
                r.keep_alive = false;
                Ok(State::UntilClose)
            }
            _ => Err(Malformed::Length),
        }
    }

    fn read_fixed(&mut self, input: &[u8], left: u64) -> (usize, bool) {
        let n = input.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        self.body(&input[..n]);
        self.state = State::Fixed(left - n as u64);
        (n, left == n as u64)
    }

    fn read_chunk_size(&mut self, input: &[u8]) -> Result<(usize, bool), Malformed> {
        let Some((len, size)) = whole(httparse::parse_chunk_size(input), input)? else {
            return Ok((0, false));
        };
        self.state = if size == 0 { State::Trailers } else { State::ChunkData(size) };
        Ok((len, false))
    }

    fn read_chunk_data(&mut self, input: &[u8], left: u64) -> (usize, bool) {
        let n = input.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        self.body(&input[..n]);
        self.state =
            if left == n as u64 { State::ChunkEnd } else { State::ChunkData(left - n as u64) };
        (n, false)
    }

    fn read_chunk_end(&mut self, input: &[u8]) -> Result<(usize, bool), Malformed> {
        match input {
            [b'\r', b'\n', ..] => {
                self.state = State::ChunkSize;
                Ok((2, false))
            }
            [] | [b'\r'] => Ok((0, false)),
            _ => Err(Malformed::Chunk),
        }
    }

    fn read_trailers(&mut self, input: &[u8]) -> Result<(usize, bool), Malformed> {
        let mut fields = [httparse::EMPTY_HEADER; MAX_FIELDS];
        let Some((len, fields)) = whole(httparse::parse_headers(input, &mut fields), input)? else {
            return Ok((0, false));
        };
        self.response.trailers = owned(fields);
        Ok((len, true))
    }
}

/// The parsed value; `None` if more input is needed.
fn whole<T, E>(
    parsed: Result<httparse::Status<T>, E>,
    input: &[u8],
) -> Result<Option<T>, Malformed> {
    match parsed {
        Ok(httparse::Status::Complete(value)) => Ok(Some(value)),
        Ok(httparse::Status::Partial) if input.len() < MAX_LINE => Ok(None),
        _ => Err(Malformed::Chunk),
    }
}

/// Header or trailer fields, with names in lower case.
fn owned(fields: &[httparse::Header<'_>]) -> Vec<(String, String)> {
    let value =
        |field: &httparse::Header<'_>| String::from_utf8_lossy(field.value).trim().to_owned();
    fields.iter().map(|field| (field.name.to_ascii_lowercase(), value(field))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Feeds `bytes` in pieces of `step` and collects the responses.
    fn responses(bytes: &[u8], step: usize, head: bool) -> Result<Vec<Response>, Malformed> {
        let mut reader = ResponseReader::new(head, true);
        let (mut buffer, mut out) = (Vec::new(), Vec::new());
        for piece in bytes.chunks(step) {
            buffer.extend_from_slice(piece);
            loop {
                let (used, response) = reader.read(&buffer)?;
                buffer.drain(..used);
                match response {
                    Some(r) => out.push(r),
                    None => break,
                }
            }
        }
        out.extend(reader.finish()?);
        Ok(out)
    }

    #[test]
    fn reads_every_framing_in_pieces_of_any_size() {
        let bytes = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello\
            HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 204 No Content\r\n\r\n\
            HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3;x=y\r\nabc\r\n2\r\nde\r\n0\r\n\
            X-Sum: 5\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n\
            HTTP/1.0 200 OK\r\n\r\nto the end";
        for step in 1..=bytes.len() {
            let all = responses(bytes, step, false).unwrap();
            let bodies: Vec<_> = all.iter().map(Response::text).collect();
            assert_eq!(bodies, ["hello", "", "abcde", "", "to the end"], "step {step}");
            assert_eq!(all[2].trailers, [("x-sum".to_string(), "5".to_string())]);
            let keep: Vec<_> = all.iter().map(|r| r.keep_alive).collect();
            assert_eq!(keep, [true, true, true, true, false]);
        }
    }

    #[test]
    fn a_head_response_has_no_body_whatever_it_says() {
        let all = responses(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n", 7, true).unwrap();
        assert_eq!(all.len(), 1);
        assert_eq!(all[0].body_len, 0);
    }

    #[test]
    fn lies_are_errors() {
        let both = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n";
        assert_eq!(responses(both, 99, false), Err(Malformed::Length));
        let short = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhell";
        assert_eq!(responses(short, 99, false), Err(Malformed::Truncated));
        let chunk = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n";
        assert_eq!(responses(chunk, 99, false), Err(Malformed::Chunk));
        assert_eq!(responses(b"SSH-2.0-x\r\n\r\n", 99, false), Err(Malformed::Head));
    }
}
