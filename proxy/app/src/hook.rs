//! The lifecycle hooks of the proxy's container, if it is an ordinary container and not a native sidecar.
//!
//! The kubelet starts the next container once the `postStart` hook of the one before has finished, and asks a
//! container to end once its `preStop` hook has finished. A native sidecar needs no hooks, because the kubelet starts
//! it before the application and ends it afterwards.

use std::fs;
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

mod diag;

/// The pause between two checks.
const LOOK: Duration = Duration::from_millis(100);
/// The pause between two checks of `/proc/net/tcp`, each of which costs tens of milliseconds of CPU.
const COSTLY_LOOK: Duration = Duration::from_secs(2);
/// Longest wait until the proxy is ready: as long as a native sidecar may take to start.
const START_LIMIT: Duration = Duration::from_mins(2);
/// How long to wait for the application to end. The kubelet ends the hook and the proxy earlier, after the grace
/// period.
const END_LIMIT: Duration = Duration::from_mins(10);
/// How long to wait for a response of the proxy.
const ANSWER: Duration = Duration::from_secs(1);
/// The state `TIME_WAIT` in `/proc/net/tcp`. Such a socket belongs to no process any more.
const TIME_WAIT: &str = "06";

/// The hooks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Hook {
    /// Waits until the proxy of this workload is ready.
    Started,
    /// Waits until no other process of this workload has a TCP socket.
    Ending,
}

pub(crate) fn run(hook: Hook, admin: SocketAddr) -> Result<()> {
    match hook {
        Hook::Started => wait((START_LIMIT, LOOK), || is_ready(admin).unwrap_or(false)),
        Hook::Ending => {
            let me = nix::unistd::geteuid().as_raw();
            match diag::others_have_sockets(me) {
                Ok(_) => {
                    wait((END_LIMIT, LOOK), || diag::others_have_sockets(me).is_ok_and(|has| !has))
                }
                Err(_) => wait((END_LIMIT, COSTLY_LOOK), || !tables_have_others(me)),
            }
        }
    }
}

/// Calls `done` until it returns true, with this pause between two calls. Fails after `limit`.
fn wait((limit, pause): (Duration, Duration), done: impl Fn() -> bool) -> Result<()> {
    let begin = Instant::now();
    while !done() {
        if begin.elapsed() > limit {
            bail!("the wait exceeded {limit:?}");
        }
        sleep(pause);
    }
    Ok(())
}

fn is_ready(admin: SocketAddr) -> Result<bool> {
    let unspecified = admin.ip().to_canonical().is_unspecified();
    let address = if unspecified { IpAddr::V4(Ipv4Addr::LOCALHOST) } else { admin.ip() };
    let mut stream = TcpStream::connect_timeout(&SocketAddr::new(address, admin.port()), ANSWER)?;
    stream.set_read_timeout(Some(ANSWER))?;
    stream.write_all(b"GET /ready HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")?;
    let mut status = [0; b"HTTP/1.1 200".len()];
    stream.read_exact(&mut status)?;
    Ok(&status == b"HTTP/1.1 200")
}

/// Whether users other than `me` have TCP sockets, for kernels without sock_diag(7).
fn tables_have_others(me: u32) -> bool {
    let tables = ["/proc/net/tcp", "/proc/net/tcp6"].map(fs::read_to_string);
    // If the machine does not support IPv6, there is only one table.
    tables.iter().flatten().any(|table| has_others(table, me))
}

/// Whether a table of sockets has one of another user than `me`. Sockets in `TIME_WAIT` do not count.
fn has_others(table: &str, me: u32) -> bool {
    table.lines().skip(1).any(|line| {
        let mut fields = line.split_whitespace();
        let (state, user) = (fields.nth(3), fields.nth(3));
        state != Some(TIME_WAIT) && user.and_then(|user| user.parse().ok()) != Some(me)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sockets_of_others_count_until_they_are_nobodys() {
        let head =
            "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid\n";
        let row = |state: &str, user: u32| {
            format!(
                "   0: 0100007F:1F90 00000000:0000 {state} 00000000:00000000 00:00000000 00000000  {user}        0 1 1\n"
            )
        };
        assert!(!has_others(head, 2102));
        assert!(!has_others(&format!("{head}{}", row("0A", 2102)), 2102));
        assert!(!has_others(&format!("{head}{}", row("06", 0)), 2102));
        assert!(has_others(&format!("{head}{}{}", row("0A", 2102), row("0A", 1000)), 2102));
    }
}
