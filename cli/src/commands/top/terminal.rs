//! The terminal while `leno top` runs. It shows a separate screen and delivers single keys; afterwards it is
//! restored.

use std::io::Read as _;

use anyhow::{Context as _, Result};
use nix::sys::termios::{SetArg, Termios, cfmakeraw, tcgetattr, tcsetattr};
use tokio::sync::mpsc;

use crate::commands::print_raw;

/// The assumed size of a terminal that does not report its size.
const USUAL: (usize, usize) = (80, 24);
/// Most keys that wait to be read. No user types more between two updates of the screen.
const MAX_KEYS: usize = 64;

/// Switches to a separate screen and hides the cursor; the second sequence reverses both.
const ENTER: &str = "\x1b[?1049h\x1b[?25l";
const LEAVE: &str = "\x1b[?25h\x1b[?1049l";
/// The first sequence moves the cursor to the first line; the second clears the rest of a line; the third clears
/// the rest of the screen.
const HOME: &str = "\x1b[H";
const CLEAR_LINE: &str = "\x1b[K";
const CLEAR_BELOW: &str = "\x1b[J";

/// The terminal. Dropping it restores the terminal's previous state.
pub(super) struct Terminal {
    before: Termios,
}

impl Terminal {
    pub(super) fn enter() -> Result<Self> {
        let before = tcgetattr(std::io::stdin()).context("cannot read the terminal's settings")?;
        let mut raw = before.clone();
        cfmakeraw(&mut raw);
        tcsetattr(std::io::stdin(), SetArg::TCSANOW, &raw).context("cannot set the terminal")?;
        let terminal = Self { before };
        print_raw(ENTER)?;
        Ok(terminal)
    }

    /// The size in columns and lines.
    pub(super) fn size(&self) -> (usize, usize) {
        let size = terminal_size::terminal_size();
        size.map_or(USUAL, |(columns, lines)| (columns.0.into(), lines.0.into()))
    }

    /// Draws these lines, which must fit on the screen.
    pub(super) fn draw(&self, lines: &[String]) -> Result<()> {
        let lines = lines.join(&format!("{CLEAR_LINE}\r\n"));
        print_raw(&format!("{HOME}{lines}{CLEAR_LINE}{CLEAR_BELOW}"))
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // If the terminal no longer exists, there is nothing left to do.
        let _gone = print_raw(LEAVE);
        let _gone = tcsetattr(std::io::stdin(), SetArg::TCSANOW, &self.before);
    }
}

/// Receives the typed bytes. The thread that reads them ends with the process.
pub(super) fn keys() -> mpsc::Receiver<u8> {
    let (typed, keys) = mpsc::channel(MAX_KEYS);
    std::thread::spawn(move || {
        for byte in std::io::stdin().lock().bytes() {
            if byte.ok().and_then(|byte| typed.blocking_send(byte).ok()).is_none() {
                break;
            }
        }
    });
    keys
}
