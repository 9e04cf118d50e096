//! Whether a process listens on its ports, from the kernel's tables: no connection is made, so the
//! application notices nothing.

use std::collections::BTreeSet;
use std::fs;
use std::time::Duration;

/// How often it is looked.
const POLL: Duration = Duration::from_millis(20);
/// `TCP_LISTEN` in the kernel's tables, in hexadecimal.
const LISTEN: &str = "0A";

/// Comes back when a process in the network namespace of process `pid` listens on every one of
/// `ports`, on any address, or after `bound`; with the ports that are closed then.
pub async fn until(pid: i32, ports: &[u16], bound: Duration) -> Vec<u16> {
    let end = tokio::time::Instant::now() + bound;
    loop {
        let closed = closed(pid, ports);
        if closed.is_empty() || tokio::time::Instant::now() >= end {
            return closed;
        }
        tokio::time::sleep(POLL).await;
    }
}

/// Ports as messages name them.
#[must_use]
pub fn shown(ports: &[u16]) -> String {
    let all: Vec<String> = ports.iter().map(u16::to_string).collect();
    match all.as_slice() {
        [one] => format!("port {one}"),
        all => format!("ports {}", all.join(", ")),
    }
}

/// Those of `ports` that no process in the network namespace of process `pid` listens on.
#[must_use]
pub fn closed(pid: i32, ports: &[u16]) -> Vec<u16> {
    if ports.is_empty() {
        return Vec::new();
    }
    // A process that has ended has no tables, and its ports are closed.
    let table = |name| fs::read_to_string(format!("/proc/{pid}/net/{name}")).unwrap_or_default();
    let open: BTreeSet<u16> =
        [table("tcp"), table("tcp6")].iter().flat_map(|table| listening(table)).collect();
    ports.iter().copied().filter(|port| !open.contains(port)).collect()
}

/// The ports with a listener, of `/proc/net/tcp` or `tcp6` (proc(5)): the second field is the local
/// address, the fourth the state.
fn listening(table: &str) -> impl Iterator<Item = u16> {
    table.lines().filter_map(|line| {
        let mut fields = line.split_ascii_whitespace().skip(1);
        let local = fields.next()?;
        let state = fields.nth(1)?;
        let (_, port) = local.rsplit_once(':')?;
        (state == LISTEN).then(|| u16::from_str_radix(port, 16).ok()).flatten()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_table_is_read() {
        let table = "  sl  local_address rem_address   st tx_queue rx_queue\n   \
             0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000\n   \
             1: 0200590A:C350 0300590A:0050 01 00000000:00000000 00:00000000\n   \
             2: 00000000000000000000000001000000:0050 00000000000000000000000000000000:0000 0A 0\n";
        assert_eq!(listening(table).collect::<Vec<_>>(), [8080, 80]);
    }

    #[tokio::test]
    async fn a_listener_is_seen_and_an_absent_one_is_waited_for_within_the_bound() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let own = std::process::id().try_into().unwrap();
        assert_eq!(until(own, &[port], Duration::from_secs(10)).await, [0; 0]);
        assert_eq!(until(own, &[], Duration::ZERO).await, [0; 0]);
        drop(listener);
        assert_eq!(until(own, &[port, 0], Duration::from_millis(1)).await, [port, 0]);
    }
}
