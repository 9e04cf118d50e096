//! Reads the end of a log, because the newest lines are the most useful.

use std::io;
use std::time::Duration;

use futures_util::{AsyncRead, AsyncReadExt as _};
use tokio::time::timeout;

/// Most bytes that are kept of one log.
const MAX_BYTES: usize = 1 << 20;
/// The number of bytes per read.
const CHUNK: usize = 64 << 10;
/// Replaces the removed beginning of a log.
const CUT: &str = "(what was before is left out)\n";

/// The last bytes of a text, in whole lines. Invalid UTF-8 is replaced. If reading fails or takes longer than
/// `within`, returns what was read so far, and the reason.
pub(super) async fn tail(log: impl AsyncRead, within: Duration) -> (String, io::Result<()>) {
    let late = || {
        io::Error::new(io::ErrorKind::TimedOut, format!("the log did not end within {within:?}"))
    };
    let mut kept = LogTail::default();
    let read = timeout(within, kept.read(log)).await.unwrap_or_else(|_| Err(late()));
    (kept.text(read.is_ok()), read)
}

/// The end of the text that was read.
#[derive(Default)]
struct LogTail {
    bytes: Vec<u8>,
    /// Whether an earlier part was dropped.
    is_cut: bool,
}

impl LogTail {
    async fn read(&mut self, log: impl AsyncRead) -> io::Result<()> {
        let mut log = std::pin::pin!(log);
        let mut chunk = vec![0; CHUNK];
        loop {
            let count = log.read(&mut chunk).await?;
            if count == 0 {
                return Ok(());
            }
            self.bytes.extend_from_slice(&chunk[..count]);
            // Cutting only at twice the limit means that each byte is moved only once on average.
            if self.bytes.len() > 2 * MAX_BYTES {
                self.cut();
            }
        }
    }

    /// Drops the beginning if there are too many bytes.
    fn cut(&mut self) {
        let over = self.bytes.len().saturating_sub(MAX_BYTES);
        self.bytes.drain(..over);
        self.is_cut |= over > 0;
    }

    /// Drops incomplete lines at both ends: if half a line lacks the name of a secret, the secret in it would not
    /// be recognised.
    fn text(mut self, is_whole: bool) -> String {
        self.cut();
        let text = String::from_utf8_lossy(&self.bytes);
        let mut whole = &*text;
        if !is_whole {
            whole = whole.rsplit_once('\n').map_or("", |(lines, _)| lines);
        }
        if !self.is_cut {
            return whole.to_owned();
        }
        whole = whole.split_once('\n').map_or("", |(_, lines)| lines);
        format!("{CUT}{whole}")
    }
}

#[cfg(test)]
mod tests {
    use futures_util::stream::{self, StreamExt as _, TryStreamExt as _};

    use super::*;

    const BOUND: Duration = Duration::from_secs(30);

    async fn whole(log: &[u8]) -> String {
        let (text, read) = tail(log, BOUND).await;
        read.unwrap();
        text
    }

    #[tokio::test]
    async fn a_long_log_keeps_its_end_in_whole_lines() {
        let lines: String = (0..400_000).map(|line| format!("line {line}\n")).collect();
        assert!(lines.len() > 4 * MAX_BYTES);
        let tail = whole(lines.as_bytes()).await;
        assert!(tail.len() <= MAX_BYTES + CUT.len() && tail.len() > MAX_BYTES - 100);
        let rest = tail.strip_prefix(CUT).unwrap();
        assert!(rest.starts_with("line ") && lines.ends_with(rest));
    }

    #[tokio::test]
    async fn a_log_that_is_no_utf_8_is_not_lost() {
        assert_eq!(whole(b"a\xff\xfeb\nc").await, "a\u{fffd}\u{fffd}b\nc");
        assert_eq!(whole(b"").await, "");
    }

    #[tokio::test(start_paused = true)]
    async fn what_came_of_a_log_without_an_end_is_kept() {
        let begun = || stream::iter([io::Result::Ok("one\ntwo\nthr")]);
        let silent = begun().chain(stream::pending()).into_async_read();
        let (text, read) = tail(silent, BOUND).await;
        assert_eq!((&*text, read.unwrap_err().kind()), ("one\ntwo", io::ErrorKind::TimedOut));
        let broken = begun().chain(stream::iter([Err(io::ErrorKind::ConnectionReset.into())]));
        let (text, read) = tail(broken.into_async_read(), BOUND).await;
        assert_eq!(
            (&*text, read.unwrap_err().kind()),
            ("one\ntwo", io::ErrorKind::ConnectionReset)
        );
    }
}
