//! The end of an HTTP/1 message (RFC 9112 section 6.3). The parser is strict, because everything that the proxy
//! sends must have one meaning.

/// How the length of content is declared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Framing {
    Length(usize),
    Chunked,
}

/// The framing that fields declare.
pub(crate) fn of(fields: &[httparse::Header<'_>]) -> Result<Option<Framing>, String> {
    let mut framing = None;
    for field in fields {
        let next = if field.name.eq_ignore_ascii_case("content-length") {
            let text = std::str::from_utf8(field.value).unwrap_or_default();
            let digits = text.bytes().all(|byte| byte.is_ascii_digit());
            let length = text.parse().ok().filter(|_| digits);
            Framing::Length(length.ok_or_else(|| format!("Content-Length: {text}"))?)
        } else if field.name.eq_ignore_ascii_case("transfer-encoding") {
            if !field.value.eq_ignore_ascii_case(b"chunked") {
                return Err(format!("Transfer-Encoding: {:?}", field.value.escape_ascii()));
            }
            Framing::Chunked
        } else {
            continue;
        };
        if framing.replace(next).is_some() {
            return Err("framed twice".to_owned());
        }
    }
    Ok(framing)
}

impl Framing {
    /// The length of framed content; `None` if the content is incomplete.
    pub(crate) fn length(self, bytes: &[u8]) -> Result<Option<usize>, String> {
        match self {
            Self::Length(length) => Ok((bytes.len() >= length).then_some(length)),
            Self::Chunked => chunked(bytes),
        }
    }
}

impl Framing {
    /// The content, without its framing, in bytes that [`Self::length`] has measured.
    pub(crate) fn content(self, mut framed: &[u8]) -> Vec<u8> {
        if self != Self::Chunked {
            return framed.to_vec();
        }
        let mut content = Vec::new();
        while let Some(line) = line(framed) {
            let text = String::from_utf8_lossy(line);
            let size = text.split(';').next().unwrap_or_default().trim();
            let size = usize::from_str_radix(size, 16).unwrap_or_default();
            let data = framed.get(line.len() + 2..).unwrap_or_default();
            if size == 0 || data.len() < size + 2 {
                break;
            }
            content.extend_from_slice(&data[..size]);
            framed = &data[size + 2..];
        }
        content
    }
}

fn chunked(bytes: &[u8]) -> Result<Option<usize>, String> {
    let mut at = 0;
    loop {
        let Some(line) = line(&bytes[at..]) else { return Ok(None) };
        let text = std::str::from_utf8(line).map_err(|_| "a chunk size of no text")?;
        let size = text.split(';').next().unwrap_or_default().trim();
        let size = usize::from_str_radix(size, 16).map_err(|_| format!("chunk size {text:?}"))?;
        at += line.len() + 2;
        if size == 0 {
            break;
        }
        match bytes.get(at + size..at + size + 2) {
            Some(b"\r\n") => at += size + 2,
            Some(other) => return Err(format!("{other:?} behind a chunk")),
            None => return Ok(None),
        }
    }
    loop {
        let Some(line) = line(&bytes[at..]) else { return Ok(None) };
        at += line.len() + 2;
        if line.is_empty() {
            return Ok(Some(at));
        }
    }
}

fn line(bytes: &[u8]) -> Option<&[u8]> {
    let end = bytes.windows(2).position(|two| two == b"\r\n")?;
    Some(&bytes[..end])
}
