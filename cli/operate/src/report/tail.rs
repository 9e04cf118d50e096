//! The end of a log: what came last before a report tells most.

use std::io;

use futures_util::{AsyncRead, AsyncReadExt as _};

/// Most bytes of one log.
const MAX_BYTES: usize = 1 << 20;
/// What is read at once, in bytes.
const CHUNK: usize = 64 << 10;
/// What stands where a log's beginning was.
const CUT: &str = "(what was before is left out)\n";

/// The last bytes of a text, in whole lines; what is no UTF-8 among them is replaced.
pub(super) async fn tail(log: impl AsyncRead) -> io::Result<String> {
    let mut log = std::pin::pin!(log);
    let (mut kept, mut chunk, mut is_cut) = (Vec::new(), vec![0; CHUNK], false);
    loop {
        let count = log.read(&mut chunk).await?;
        if count == 0 {
            break;
        }
        kept.extend_from_slice(&chunk[..count]);
        // Moved only once for as much as is kept.
        if kept.len() > 2 * MAX_BYTES {
            is_cut |= cut(&mut kept);
        }
    }
    is_cut |= cut(&mut kept);
    let text = String::from_utf8_lossy(&kept);
    if !is_cut {
        return Ok(text.into_owned());
    }
    // Half a line is none, and might have lost the name of a secret.
    let whole = text.split_once('\n').map_or("", |(_, whole)| whole);
    Ok(format!("{CUT}{whole}"))
}

/// Takes away what is too much, from the beginning; whether there was any.
fn cut(kept: &mut Vec<u8>) -> bool {
    let over = kept.len().saturating_sub(MAX_BYTES);
    kept.drain(..over);
    over > 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_long_log_keeps_its_end_in_whole_lines() {
        let lines: String = (0..400_000).map(|line| format!("line {line}\n")).collect();
        assert!(lines.len() > 4 * MAX_BYTES);
        let tail = tail(lines.as_bytes()).await.unwrap();
        assert!(tail.len() <= MAX_BYTES + CUT.len() && tail.len() > MAX_BYTES - 100);
        let rest = tail.strip_prefix(CUT).unwrap();
        assert!(rest.starts_with("line ") && lines.ends_with(rest));
    }

    #[tokio::test]
    async fn a_log_that_is_no_utf_8_is_not_lost() {
        assert_eq!(tail(&b"a\xff\xfeb\nc"[..]).await.unwrap(), "a\u{fffd}\u{fffd}b\nc");
        assert_eq!(tail(&b""[..]).await.unwrap(), "");
    }
}
