//! A strict parser for HTTP/1.1 (RFC 9112). What both sides of a proxy receive must agree with its result. It
//! shares no code with the proxy.

/// A message that was read completely, or only its head.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Message {
    /// The three words of the first line.
    pub(crate) line: [String; 3],
    /// The names in lower case, and the values.
    pub(crate) fields: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
    pub(crate) is_whole: bool,
}

/// The reason why bytes are not a message.
pub(crate) type Fault = &'static str;

/// How the end of a message's body is determined.
enum Framing {
    Length(usize),
    Chunked,
    UntilEnd,
}

impl Message {
    pub(crate) fn method(&self) -> &str {
        &self.line[0]
    }

    pub(crate) fn target(&self) -> &str {
        &self.line[1]
    }

    /// The status of a response.
    pub(crate) fn status(&self) -> u16 {
        self.line[1].parse().unwrap_or_default()
    }

    /// The value of the field with this name, if there is exactly one.
    pub(crate) fn field(&self, name: &str) -> Option<&str> {
        self.fields.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    fn values(&self, name: &str) -> Vec<&str> {
        self.fields.iter().filter(|(key, _)| key == name).map(|(_, value)| value.as_str()).collect()
    }
}

/// Reads a request. Returns it and its length in bytes, or `None` if the head is incomplete.
pub(crate) fn request(bytes: &[u8]) -> Result<Option<(Message, usize)>, Fault> {
    let Some((mut message, head)) = head(bytes)? else { return Ok(None) };
    // A URI may contain only ASCII (RFC 3986), but servers accept other bytes in targets.
    let in_target = |byte: u8| byte.is_ascii_graphic() || !byte.is_ascii();
    let [method, target, version] = &message.line;
    if !is_token(method) || target.is_empty() || !target.bytes().all(in_target) {
        return Err("request line");
    }
    if version != "HTTP/1.1" && version != "HTTP/1.0" {
        return Err("version");
    }
    let hosts = message.values("host");
    if hosts.len() > 1 || (hosts.is_empty() && version == "HTTP/1.1") {
        return Err("host");
    }
    if hosts.iter().any(|host| host.bytes().any(|byte| b" \t,/@?#\\\"<>".contains(&byte))) {
        return Err("host");
    }
    let framing = framing(&message, version == "HTTP/1.0")?.unwrap_or(Framing::Length(0));
    let used = body(&mut message, &bytes[head..], &framing)?;
    Ok(Some((message, head + used)))
}

/// Reads a response to a request with this method.
pub(crate) fn response(bytes: &[u8], method: &str) -> Result<Option<(Message, usize)>, Fault> {
    let Some((mut message, head)) = head(bytes)? else { return Ok(None) };
    let [version, status, _] = &message.line;
    if !version.starts_with("HTTP/1.") || status.len() != 3 || status.parse::<u16>().is_err() {
        return Err("status line");
    }
    let status = message.status();
    let is_coded = message.field("transfer-encoding").is_some();
    let framed = if is_coded { Some(coded(&message)) } else { framing(&message, false)? };
    let framing = match status {
        100..=199 | 204 if framed.is_some() => return Err("a length where no content can be"),
        100..=199 | 204 | 304 => Framing::Length(0),
        _ if method == "HEAD" || (method == "CONNECT" && status / 100 == 2) => Framing::Length(0),
        _ => framed.unwrap_or(Framing::UntilEnd),
    };
    let used = body(&mut message, &bytes[head..], &framing)?;
    Ok(Some((message, head + used)))
}

/// All requests of a connection, up to the first malformed or incomplete one. An incomplete request is included if
/// its head is complete.
pub(crate) fn requests(mut bytes: &[u8]) -> Vec<Message> {
    let mut all = Vec::new();
    loop {
        // A server ignores an empty line before a request (RFC 9112 section 2.2).
        bytes = bytes.strip_prefix(b"\r\n").unwrap_or(bytes);
        let Ok(Some((message, used))) = request(bytes) else { break };
        let is_whole = message.is_whole;
        all.push(message);
        if !is_whole {
            break;
        }
        bytes = &bytes[used..];
    }
    all
}

fn head(bytes: &[u8]) -> Result<Option<(Message, usize)>, Fault> {
    let end = bytes.windows(4).position(|four| four == b"\r\n\r\n");
    let checked = &bytes[..end.map_or(bytes.len(), |end| end + 2)];
    for (at, byte) in checked.iter().enumerate() {
        let before = at.checked_sub(1).map(|at| checked[at]);
        match byte {
            b'\n' if before != Some(b'\r') => return Err("a bare line feed"),
            b'\n' | b'\t' | b' '..=b'~' | 0x80.. => {}
            b'\r' if checked.get(at + 1).is_none_or(|byte| *byte == b'\n') => {}
            _ => return Err("a control character"),
        }
    }
    let Some(end) = end else { return Ok(None) };
    let text: String = bytes[..end].iter().map(|byte| char::from(*byte)).collect();
    let mut lines = text.split("\r\n");
    let first = lines.next().unwrap_or_default();
    let mut words = first.splitn(3, ' ').map(str::to_owned);
    let line = [(); 3].map(|()| words.next().unwrap_or_default());
    let mut message = Message { line, is_whole: true, ..Message::default() };
    for line in lines {
        let (name, value) = line.split_once(':').ok_or("a line without a colon")?;
        if !is_token(name) {
            return Err("a field name");
        }
        let value = value.trim_matches([' ', '\t']);
        message.fields.push((name.to_ascii_lowercase(), value.to_owned()));
    }
    Ok(Some((message, end + 4)))
}

fn framing(message: &Message, is_old: bool) -> Result<Option<Framing>, Fault> {
    let lengths = message.values("content-length");
    let codings = message.values("transfer-encoding");
    let value = |length: &str| match length.bytes().all(|byte| byte.is_ascii_digit()) {
        true => length.parse().map_err(|_| "a length"),
        false => Err("a length"),
    };
    match (&lengths[..], &codings[..]) {
        ([], []) => Ok(None),
        // Fields with the same decimal value may be merged (RFC 9110 section 8.6).
        ([length, others @ ..], []) => {
            let length = value(length)?;
            let is_same = others.iter().all(|other| value(other) == Ok(length));
            if is_same { Ok(Some(Framing::Length(length))) } else { Err("lengths") }
        }
        ([], [coding]) if coding.eq_ignore_ascii_case("chunked") && !is_old => {
            Ok(Some(Framing::Chunked))
        }
        _ => Err("framing"),
    }
}

/// The framing of a response with transfer codings (RFC 9112 section 6.3): chunked if chunked is the last coding.
fn coded(message: &Message) -> Framing {
    let codings = message.values("transfer-encoding").join(",");
    let last = codings.split(',').map(str::trim).rfind(|coding| !coding.is_empty());
    let is_chunked = last.is_some_and(|coding| coding.eq_ignore_ascii_case("chunked"));
    if is_chunked { Framing::Chunked } else { Framing::UntilEnd }
}

/// Reads a body into the message and returns the number of its bytes.
fn body(message: &mut Message, bytes: &[u8], framing: &Framing) -> Result<usize, Fault> {
    match framing {
        Framing::UntilEnd => {
            message.body = bytes.to_vec();
            Ok(bytes.len())
        }
        Framing::Length(length) => {
            message.is_whole = bytes.len() >= *length;
            message.body = bytes[..bytes.len().min(*length)].to_vec();
            Ok(message.body.len())
        }
        Framing::Chunked => chunks(message, bytes),
    }
}

fn chunks(message: &mut Message, bytes: &[u8]) -> Result<usize, Fault> {
    let mut at = 0;
    loop {
        let rest = &bytes[at..];
        let Some(end) = rest.windows(2).position(|two| two == b"\r\n") else { break };
        let line = &rest[..end];
        let digits = line.iter().take_while(|byte| byte.is_ascii_hexdigit()).count();
        let extension = &line[digits..];
        let is_extension = extension.is_empty()
            || (extension[0] == b';'
                && extension.iter().all(|byte| matches!(byte, b'\t' | b' '..=b'~')));
        if digits == 0 || digits > 15 || !is_extension {
            return Err("a chunk's size");
        }
        let size = std::str::from_utf8(&line[..digits]).map_err(|_| "a chunk's size")?;
        let size = usize::from_str_radix(size, 16).map_err(|_| "a chunk's size")?;
        at += end + 2;
        if size == 0 {
            return trailers(message, &bytes[at..]).map(|used| at + used);
        }
        let data = bytes.get(at..).unwrap_or_default();
        message.body.extend(&data[..data.len().min(size)]);
        match data.get(size..).unwrap_or_default() {
            [b'\r', b'\n', ..] => at += size + 2,
            [] | [b'\r'] => break,
            _ => return Err("a chunk's end"),
        }
    }
    message.is_whole = false;
    Ok(bytes.len())
}

fn trailers(message: &mut Message, bytes: &[u8]) -> Result<usize, Fault> {
    if bytes.starts_with(b"\r\n") {
        return Ok(2);
    }
    let begun = [b"GET / HTTP/1.1\r\n", bytes].concat();
    let Some((read, end)) = head(&begun)? else {
        message.is_whole = false;
        return Ok(bytes.len());
    };
    let framing = ["content-length", "transfer-encoding", "host"];
    if read.fields.iter().any(|(name, _)| framing.contains(&name.as_str())) {
        return Err("a trailer");
    }
    Ok(end - 16)
}

fn is_token(word: &str) -> bool {
    let is_tchar = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    !word.is_empty() && word.bytes().all(is_tchar)
}

#[test]
fn messages_are_read_strictly() {
    let post =
        "POST /a HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n";
    let all = requests(&[post, post].concat().into_bytes());
    assert_eq!(all.len(), 2);
    assert!(all[0].is_whole && all[0].body == b"abc" && all[1] == all[0]);
    assert!(request(b"GET / HTTP/1.1\nHost: a\n\n").is_err());
    assert!(request(&post.replace("3\r\n", "+3\r\n").into_bytes()).is_err());
    assert!(
        request(&post.replace("\r\n\r\n3", "\r\nContent-Length: 3\r\n\r\n3").into_bytes()).is_err()
    );
    assert!(!requests(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\nabc")[0].is_whole);
    assert!(response(b"HTTP/1.1 204 No Content\r\nContent-Length: 0\r\n\r\n", "GET").is_err());
}
