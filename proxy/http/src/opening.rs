//! Which version of HTTP a connection carries that is declared to carry HTTP.

use std::io;

use leno_transport::{Detected, detect, is_preface, read_first};
use tokio::time::timeout;

use crate::limits::Limits;
use crate::{Io, Version};

/// The version that a client begins with; `received` is what it has said, and is added to. Where it
/// speaks neither, and where its beginning does not go on, it is `declared`, whose own rules then
/// answer the client. None: it has left, or was silent for [`Limits::idle`].
///
/// Nothing is held while the client is silent.
///
/// # Errors
/// What the stream reports.
pub async fn opening<S: Io>(
    io: &mut S,
    received: &mut Vec<u8>,
    declared: Version,
    limits: &Limits,
) -> io::Result<Option<Version>> {
    if received.is_empty() {
        let first = timeout(limits.idle, read_first(io, received)).await;
        if first.unwrap_or(Ok(0))? == 0 {
            return Ok(None);
        }
    }
    let clear = async {
        loop {
            match version(received, declared) {
                None if read_first(io, received).await? == 0 => return Ok(declared),
                None => {}
                Some(version) => return Ok(version),
            }
        }
    };
    timeout(limits.head, clear).await.unwrap_or(Ok(declared)).map(Some)
}

/// What the bytes begin with; none if they may go on as something else.
fn version(bytes: &[u8], declared: Version) -> Option<Version> {
    match (is_preface(bytes)?, declared) {
        (true, _) => Some(Version::Http2),
        (false, Version::Http2) => match detect(bytes) {
            Detected::NeedMore => None,
            Detected::Http1 => Some(Version::Http11),
            _ => Some(Version::Http2),
        },
        (false, declared) => Some(declared),
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncWriteExt, duplex};

    use super::*;

    const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

    async fn of(parts: &[&[u8]], declared: Version) -> (Option<Version>, Vec<u8>) {
        let (mut client, mut server) = duplex(64 * 1024);
        let mut received = Vec::new();
        let limits = Limits::default();
        let say = async {
            for part in parts {
                client.write_all(part).await.unwrap();
                tokio::task::yield_now().await;
            }
            if parts.is_empty() {
                drop(client);
                return None;
            }
            Some(client)
        };
        let (version, _client) =
            tokio::join!(opening(&mut server, &mut received, declared, &limits), say);
        (version.unwrap(), received)
    }

    #[tokio::test(start_paused = true)]
    async fn either_version_is_served_where_one_is_declared() {
        for declared in [Version::Http11, Version::Http2] {
            let (version, received) = of(&[&PREFACE[..3], &PREFACE[3..]], declared).await;
            assert_eq!((version, &received[..]), (Some(Version::Http2), PREFACE));
            let request = b"PROPFIND / HTTP/1.1\r\n\r\n";
            let (version, received) = of(&[&request[..2], &request[2..]], declared).await;
            assert_eq!(version, Some(Version::Http11));
            assert_eq!(received, request[..received.len()]);
            assert_eq!(of(&[], declared).await.0, None);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_neither_is_answered_by_the_version_declared() {
        for declared in [Version::Http11, Version::Http2] {
            for bytes in [&b"\x16\x03\x01\x02\x00\x01"[..], b"\0\0", b"PRI * HTTP/2.0\r\n\r\nXX"] {
                assert_eq!(of(&[bytes], declared).await.0, Some(declared));
            }
            // The rest never comes.
            assert_eq!(of(&[b"PRI *"], declared).await.0, Some(declared));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_silent_client_is_waited_for_within_the_idle_bound() {
        let (client, mut server) = duplex(64);
        let limits = Limits::default();
        let started = tokio::time::Instant::now();
        let mut received = Vec::new();
        let version = opening(&mut server, &mut received, Version::Http11, &limits).await.unwrap();
        assert_eq!(version, None);
        assert!(started.elapsed() >= limits.idle);
        drop(client);
    }
}
