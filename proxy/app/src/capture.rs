//! Waits until a node's agent has captured this network namespace, which means that connections are steered into the
//! proxy. The agent then marks the namespace: it reserves the proxy's ports there (`leno_types::ports::MARK`).

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Context;
use leno_types::ports;

/// How often a proxy that waits for its capture checks the mark. The kernel does not announce the mark.
const LOOK: Duration = Duration::from_millis(50);
/// After how long the proxy logs that it is still waiting. An agent takes milliseconds, or some seconds if it is
/// starting itself.
const COMPLAINT: Duration = Duration::from_secs(10);

/// Waits until the namespace has the mark.
///
/// # Errors
/// The kernel's file with the reserved ports cannot be read.
#[expect(clippy::arithmetic_side_effects, reason = "a constant wait after the present time")]
pub(crate) async fn until_marked() -> anyhow::Result<()> {
    let complain = Instant::now() + COMPLAINT;
    let mut complained = false;
    while !is_marked(Path::new(ports::RESERVED_FILE))? {
        if !complained && Instant::now() >= complain {
            complained = true;
            tracing::warn!(
                "not captured yet: check that leno-agent runs on this node, and its log"
            );
        }
        tokio::time::sleep(LOOK).await;
    }
    Ok(())
}

/// Whether this file, the kernel's list of reserved ports, has the mark. The kernel shows each network namespace its
/// own list.
pub(crate) fn is_marked(file: &Path) -> anyhow::Result<bool> {
    let reserved = std::fs::read_to_string(file);
    let reserved = reserved.with_context(|| format!("reading {}", file.display()))?;
    Ok(ports::are_marked(&reserved))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_that_is_taken_away_is_none() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let is_marked = |text: &str| {
            std::fs::write(file.path(), text).unwrap();
            is_marked(file.path()).unwrap()
        };
        assert!(is_marked("8080,15001,15006,15020\n"));
        assert!(!is_marked("8080\n"));
        assert!(super::is_marked(Path::new("/nonexistent")).is_err());
    }
}
