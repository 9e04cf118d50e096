//! The terminal: its own screen and keys one by one while `leno top` runs, and as it was before afterwards.

use std::io::Read as _;

use anyhow::{Context as _, Result};
use nix::sys::termios::{SetArg, Termios, cfmakeraw, tcgetattr, tcsetattr};
use tokio::sync::mpsc;

use crate::commands::print_raw;

/// The size of a terminal that does not say its own.
const USUAL: (usize, usize) = (80, 24);
/// Keys that wait to be read, more than are typed between two pictures.
const MAX_KEYS: usize = 64;

/// Shows another screen and hides the cursor; and back.
const ENTER: &str = "\x1b[?1049h\x1b[?25l";
const LEAVE: &str = "\x1b[?25h\x1b[?1049l";
/// The first line; the rest of a line; the rest of the screen.
const HOME: &str = "\x1b[H";
const CLEAR_LINE: &str = "\x1b[K";
const CLEAR_BELOW: &str = "\x1b[J";

/// A terminal that is given back as it was when this is dropped.
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

    /// Columns and lines.
    pub(super) fn size(&self) -> (usize, usize) {
        let size = terminal_size::terminal_size();
        size.map_or(USUAL, |(columns, lines)| (columns.0.into(), lines.0.into()))
    }

    /// Shows these lines, which fit.
    pub(super) fn draw(&self, lines: &[String]) -> Result<()> {
        let lines = lines.join(&format!("{CLEAR_LINE}\r\n"));
        print_raw(&format!("{HOME}{lines}{CLEAR_LINE}{CLEAR_BELOW}"))
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // Nothing can be done about a terminal that is gone.
        let _gone = print_raw(LEAVE);
        let _gone = tcsetattr(std::io::stdin(), SetArg::TCSANOW, &self.before);
    }
}

/// The bytes that are typed. The thread that reads them ends with the process.
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
