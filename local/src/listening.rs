//! Whether a process listens on its ports, from the kernel's tables: no connection is made, so the
//! application notices nothing.

use std::collections::BTreeSet;
use std::fs;
use std::time::Duration;

/// How often it is looked.
const POLL: Duration = Duration::from_millis(20);
/// `TCP_LISTEN` in the kernel's tables, in hexadecimal.
const LISTEN: &str = "0A";

/// Comes back when somebody in the network namespace of process `pid` listens on every one of
/// `ports`, on any address; false when that is not so within `bound`.
pub async fn until(pid: i32, ports: &[u16], bound: Duration) -> bool {
    let looks = async {
        while !all(pid, ports) {
            tokio::time::sleep(POLL).await;
        }
    };
    tokio::time::timeout(bound, looks).await.is_ok()
}

fn all(pid: i32, ports: &[u16]) -> bool {
    if ports.is_empty() {
        return true;
    }
    // A process that has ended has no tables, and nobody listens.
    let table = |name| fs::read_to_string(format!("/proc/{pid}/net/{name}")).unwrap_or_default();
    let open: BTreeSet<u16> =
        [table("tcp"), table("tcp6")].iter().flat_map(|table| listening(table)).collect();
    ports.iter().all(|port| open.contains(port))
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
        assert!(until(own, &[port], Duration::from_secs(10)).await);
        assert!(until(own, &[], Duration::ZERO).await);
        drop(listener);
        assert!(!until(own, &[port, 0], Duration::from_millis(1)).await);
    }
}
