//! Parses Redis (RESP2 and RESP3): the command of a request, and whether its reply is an error.
//!
//! Commands may be pipelined; replies have the order of commands. A reply is followed to its end if the sample has its
//! lengths. Messages that a server sends without a command (`>`: subscriptions, invalidations) are not replies.

use super::{MessageMeaning, Parsed, Side, known, line};

/// The commands that are counted by name. Others are counted under `other`.
const COMMANDS: &[&str] = &[
    "APPEND",
    "AUTH",
    "BLPOP",
    "BRPOP",
    "CLIENT",
    "COMMAND",
    "CONFIG",
    "DECR",
    "DECRBY",
    "DEL",
    "DISCARD",
    "ECHO",
    "EVAL",
    "EVALSHA",
    "EXEC",
    "EXISTS",
    "EXPIRE",
    "EXPIREAT",
    "FCALL",
    "FLUSHALL",
    "FLUSHDB",
    "GEOADD",
    "GEOSEARCH",
    "GET",
    "GETDEL",
    "GETEX",
    "GETRANGE",
    "GETSET",
    "HDEL",
    "HELLO",
    "HEXISTS",
    "HGET",
    "HGETALL",
    "HINCRBY",
    "HKEYS",
    "HLEN",
    "HMGET",
    "HMSET",
    "HSCAN",
    "HSET",
    "HSETNX",
    "HVALS",
    "INCR",
    "INCRBY",
    "INFO",
    "KEYS",
    "LINDEX",
    "LLEN",
    "LPOP",
    "LPUSH",
    "LRANGE",
    "LREM",
    "LSET",
    "LTRIM",
    "MGET",
    "MSET",
    "MULTI",
    "PEXPIRE",
    "PFADD",
    "PFCOUNT",
    "PING",
    "PSETEX",
    "PTTL",
    "PUBLISH",
    "QUIT",
    "RPOP",
    "RPUSH",
    "SADD",
    "SCAN",
    "SCARD",
    "SELECT",
    "SET",
    "SETEX",
    "SETNX",
    "SETRANGE",
    "SISMEMBER",
    "SMEMBERS",
    "SPOP",
    "SREM",
    "SSCAN",
    "STRLEN",
    "SUBSCRIBE",
    "TTL",
    "TYPE",
    "UNLINK",
    "WATCH",
    "XACK",
    "XADD",
    "XGROUP",
    "XLEN",
    "XRANGE",
    "XREAD",
    "XREADGROUP",
    "ZADD",
    "ZCARD",
    "ZCOUNT",
    "ZINCRBY",
    "ZRANGE",
    "ZRANGEBYSCORE",
    "ZREM",
    "ZREVRANGE",
    "ZSCORE",
];
/// The default limits of Redis for the number of arguments of a command, and for the bytes of one argument.
const MAX_ARGUMENTS: u32 = 1 << 20;
const MAX_BULK: u32 = 512 << 20;
/// Most bytes of a line with a length: the type, ten digits, CRLF.
const MAX_LENGTH_LINE: usize = 13;

#[derive(Debug)]
pub(in crate::wire) struct Redis;

/// Whether a command begins here.
pub(in crate::wire) fn begins(bytes: &[u8]) -> bool {
    matches!(command(bytes), Ok(Parsed::Message(_)))
}

impl Redis {
    pub(in crate::wire) fn read(&mut self, side: Side, bytes: &[u8]) -> Parsed {
        let parsed = match side {
            Side::Client => command(bytes),
            Side::Server => reply(bytes),
        };
        parsed.unwrap_or_else(|why| why)
    }
}

/// A command, which is an array of bulk strings. The first of them is the command's name.
fn command(bytes: &[u8]) -> Result<Parsed, Parsed> {
    let (arguments, mut at) = length_line(bytes, b"*")?;
    let Some(arguments @ 1..=MAX_ARGUMENTS) = arguments else { return Err(Parsed::Foreign) };
    let mut kind = None;
    let mut is_whole = true;
    for _ in 0..arguments {
        let rest = bytes.get(at..).unwrap_or_default();
        let (size, head) = match length_line(rest, b"$") {
            Ok((Some(size @ 0..=MAX_BULK), head)) => (size as usize, head),
            // The command ends beyond the sample.
            Err(Parsed::Incomplete) if kind.is_some() => {
                is_whole = false;
                break;
            }
            Err(Parsed::Incomplete) => return Err(Parsed::Incomplete),
            _ => return Err(Parsed::Foreign),
        };
        if kind.is_none() {
            kind = rest.get(head..head.saturating_add(size)).map(|name| known(COMMANDS, name));
            kind.ok_or(Parsed::Incomplete)?;
        }
        at = at.saturating_add(head + 2).saturating_add(size);
    }
    let kind = kind.ok_or(Parsed::Foreign)?;
    let length = u32::try_from(at).ok().filter(|_| is_whole);
    Ok(Parsed::message(length, MessageMeaning::Request { kind, id: 0 }))
}

fn reply(bytes: &[u8]) -> Result<Parsed, Parsed> {
    let says = match bytes.first() {
        Some(b'-' | b'!') => MessageMeaning::Result { result: "error", id: 0 },
        Some(b'>' | b'|') => MessageMeaning::Nothing,
        Some(b'+' | b':' | b'$' | b'*' | b'_' | b'#' | b',' | b'(' | b'=' | b'%' | b'~') => {
            MessageMeaning::Result { result: "ok", id: 0 }
        }
        _ => return Err(Parsed::Foreign),
    };
    match end_of_reply(bytes) {
        Ok(end) => Ok(Parsed::message(u32::try_from(end).ok(), says)),
        Err(Parsed::Incomplete) => Ok(Parsed::message(None, says)),
        Err(other) => Err(other),
    }
}

/// The position at which a reply ends, which may be beyond the available bytes.
fn end_of_reply(bytes: &[u8]) -> Result<usize, Parsed> {
    let mut at = 0_usize;
    // Each value takes at least one byte, so this ends.
    let mut values = 1_u64;
    while values > 0 {
        let rest = bytes.get(at..).unwrap_or_default();
        values -= 1;
        match rest.first() {
            None => return Err(Parsed::Incomplete),
            Some(b'$' | b'=' | b'!') => {
                let (size, head) = length_line(rest, b"$=!")?;
                let size = size.map_or(0, |size| size as usize + 2);
                at = at.saturating_add(head).saturating_add(size);
            }
            Some(kind @ (b'*' | b'~' | b'>' | b'%' | b'|')) => {
                let (count, head) = length_line(rest, b"*~>%|")?;
                let each = if matches!(kind, b'%' | b'|') { 2 } else { 1 };
                // Attributes precede the value to which they belong.
                let more = u64::from(*kind == b'|');
                values += u64::from(count.unwrap_or_default()) * each + more;
                at = at.saturating_add(head);
            }
            Some(_) => at = at.saturating_add(line(rest).ok_or(Parsed::Incomplete)?.1),
        }
    }
    Ok(at)
}

/// The number in a line that begins with one of these bytes, and the length of the line; `None` for -1, which is null.
fn length_line(bytes: &[u8], begins: &[u8]) -> Result<(Option<u32>, usize), Parsed> {
    let begin = bytes.first().ok_or(Parsed::Incomplete)?;
    if !begins.contains(begin) {
        return Err(Parsed::Foreign);
    }
    let near = bytes.get(..MAX_LENGTH_LINE).unwrap_or(bytes);
    let Some((text, length)) = line(near) else {
        let is_cut = bytes.len() < MAX_LENGTH_LINE;
        return Err(if is_cut { Parsed::Incomplete } else { Parsed::Foreign });
    };
    match text.get(1..).unwrap_or_default() {
        b"-1" => Ok((None, length)),
        digits if !digits.is_empty() && digits.iter().all(u8::is_ascii_digit) => {
            let number = std::str::from_utf8(digits).ok().and_then(|digits| digits.parse().ok());
            number.map(|number| (Some(number), length)).ok_or(Parsed::Foreign)
        }
        _ => Err(Parsed::Foreign),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn says(side: Side, bytes: &[u8]) -> Option<(Option<u32>, MessageMeaning)> {
        match Redis.read(side, bytes) {
            Parsed::Message(message) => Some((message.length, message.says)),
            _ => None,
        }
    }

    #[test]
    fn commands_have_their_names_and_ends() {
        let get = b"*2\r\n$3\r\nget\r\n$1\r\nk\r\n";
        let request = |kind| MessageMeaning::Request { kind, id: 0 };
        let length = Some(get.len() as u32);
        assert_eq!(says(Side::Client, get), Some((length, request("GET"))));
        // The value is beyond the sample, but its length is known.
        let set = b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$100000\r\nxxx";
        assert_eq!(says(Side::Client, set), Some((Some(29 + 100_002), request("SET"))));
        let many = b"*9\r\n$4\r\nMSET\r\n$1\r\nk";
        assert_eq!(says(Side::Client, many), Some((None, request("MSET"))));
        assert_eq!(says(Side::Client, b"*1\r\n$6\r\nMYTEST\r\n").unwrap().1, request("other"));
        assert_eq!(Redis.read(Side::Client, b"*2\r\n$3\r\nGE"), Parsed::Incomplete);
        for foreign in [
            &b"*0\r\n"[..],
            b"*-1\r\n",
            b"GET / HTTP/1.1\r\n",
            b"*1\r\n+OK\r\n",
            b"*12345678901234",
        ] {
            assert_eq!(Redis.read(Side::Client, foreign), Parsed::Foreign, "{foreign:?}");
        }
    }

    #[test]
    fn replies_of_both_versions_are_followed_to_their_end() {
        let ok = MessageMeaning::Result { result: "ok", id: 0 };
        let error = MessageMeaning::Result { result: "error", id: 0 };
        for (bytes, expected) in [
            (&b"+OK\r\n"[..], ok),
            (b":12\r\n", ok),
            (b"$-1\r\n", ok),
            (b"$3\r\nabc\r\n", ok),
            (b"*2\r\n$1\r\na\r\n*1\r\n:1\r\n", ok),
            (b"%1\r\n+a\r\n:1\r\n", ok),
            (b"-ERR unknown command\r\n", error),
            (b"!5\r\nERR x\r\n", error),
            (b">2\r\n+message\r\n+x\r\n", MessageMeaning::Nothing),
        ] {
            let length = Some(bytes.len() as u32);
            assert_eq!(says(Side::Server, bytes), Some((length, expected)), "{bytes:?}");
        }
        assert_eq!(says(Side::Server, b"$100\r\nabc"), Some((Some(108), ok)));
        assert_eq!(says(Side::Server, b"*2\r\n$1\r\na"), Some((None, ok)));
        assert_eq!(Redis.read(Side::Server, b"HTTP/1.1 200"), Parsed::Foreign);
    }
}
