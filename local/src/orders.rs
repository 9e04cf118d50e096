//! Orders of other commands to a running `leno up`, over a socket in the mesh's directory.
//!
//! Each connection carries one order and one answer, each a line of JSON. Only root can use the socket.

use std::fs::Permissions;
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{Semaphore, mpsc, oneshot};

use crate::error::{Attempt, Error, Result};
use crate::layout::Layout;

/// Longest order and longest answer, in bytes. It is enough for 250 names of instances.
const MAX_LINE: u64 = 64 * 1024;
/// How long an order may take to arrive, and its answer to be sent. Neither waits for other work, but a busy
/// machine may take seconds.
const BOUND: Duration = Duration::from_secs(10);
/// Most orders in the queue; further senders wait.
const QUEUE: usize = 4;
/// Most connections that are served at a time, so that one that sends nothing delays no other. Further ones wait.
const MAX_SENDERS: usize = 16;
/// The prefix of the answer to an unknown order. It must be the same in all versions.
const NOT_UNDERSTOOD: &str = "the order is not understood";

/// An order to a running mesh.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MeshOrder {
    /// Restart these instances, given by namespace and name, one instance of each workload at a time.
    Restart(Vec<(String, String)>),
    /// Replace each proxy process by a new one, which takes over.
    UpgradeProxies,
}

/// The answer to an order; the error is the reason why it is not carried out.
type Answer = Result<(), String>;

/// An order, and the sender for its answer.
pub type ReceivedOrder = (MeshOrder, oneshot::Sender<Answer>);

/// Accepts orders until the receiver is dropped.
///
/// # Errors
/// When the socket cannot be made.
pub fn listen(layout: &Layout) -> Result<mpsc::Receiver<ReceivedOrder>> {
    let path = layout.orders();
    let bind = || {
        // A killed run may have left its socket file.
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let listener = UnixListener::bind(&path)?;
        std::fs::set_permissions(&path, Permissions::from_mode(0o600))?;
        Ok(listener)
    };
    let listener = bind().attempt(|| format!("cannot listen on {}", path.display()))?;
    let (orders, received) = mpsc::channel(QUEUE);
    // The task ends with the receiver, or with the runtime.
    tokio::spawn(async move {
        tokio::select! {
            () = accept(&listener, &orders) => {}
            () = orders.closed() => {}
        }
    });
    Ok(received)
}

/// Accepts connections, and receives one order from each. Does not return.
async fn accept(listener: &UnixListener, orders: &mpsc::Sender<ReceivedOrder>) {
    let senders = Arc::new(Semaphore::new(MAX_SENDERS));
    loop {
        // Never an error, because the semaphore is not closed.
        let Ok(sender) = Arc::clone(&senders).acquire_owned().await else { return };
        let (stream, _) = leno_program::accept("an order", || listener.accept()).await;
        let orders = orders.clone();
        tokio::spawn(async move {
            // On an error, the sender is gone or has sent no order. Closing the connection informs it.
            let _ = tokio::time::timeout(BOUND, serve(stream, &orders)).await;
            drop(sender);
        });
    }
}

async fn serve(mut stream: UnixStream, orders: &mpsc::Sender<ReceivedOrder>) -> io::Result<()> {
    let mut line = String::new();
    BufReader::new((&mut stream).take(MAX_LINE)).read_line(&mut line).await?;
    let answer = match serde_json::from_str(&line) {
        Ok(order) => {
            let (answer, answered) = oneshot::channel();
            let ended = || Err("the mesh is ending".to_owned());
            match orders.send((order, answer)).await {
                Ok(()) => answered.await.unwrap_or_else(|_| ended()),
                Err(_) => ended(),
            }
        }
        Err(error) => Err(format!("{NOT_UNDERSTOOD}: {error}")),
    };
    let mut text = serde_json::to_vec(&answer)?;
    text.push(b'\n');
    stream.write_all(&text).await
}

/// Sends an order to the mesh of this layout and waits for the answer.
///
/// # Errors
/// When the mesh does not answer, or rejects the order.
pub async fn send(layout: &Layout, order: &MeshOrder) -> Result<()> {
    let path = layout.orders();
    let what = || format!("mesh {} does not accept orders at {}", layout.mesh(), path.display());
    let asked = async {
        let mut stream = UnixStream::connect(&path).await?;
        let mut text = serde_json::to_vec(order)?;
        text.push(b'\n');
        stream.write_all(&text).await?;
        let mut line = String::new();
        BufReader::new(stream.take(MAX_LINE)).read_line(&mut line).await?;
        Ok::<Answer, io::Error>(serde_json::from_str(&line)?)
    };
    let answer = tokio::time::timeout(BOUND, asked).await;
    let answer = answer.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
    answer.attempt(what)?.map_err(|reason| Error::Refused(explained(reason)))
}

/// Why an order was rejected. If the mesh does not support the order, with a remedy.
fn explained(reason: String) -> String {
    match reason.starts_with(NOT_UNDERSTOOD) {
        true => format!(
            "{reason}; the mesh runs with another version of leno than this one: end it with `leno \
             down`, and start it again with this version"
        ),
        false => reason,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mesh_of_an_earlier_version_that_does_not_know_an_order_is_to_be_started_again() {
        let earlier =
            "the order is not understood: unknown variant `upgrade_proxies`, expected `restart`";
        let explained = explained(earlier.to_owned());
        assert!(
            explained.starts_with(earlier) && explained.contains("start it again"),
            "{explained}"
        );
        assert_eq!(super::explained("the mesh is ending".to_owned()), "the mesh is ending");
        // The format must not change, because other versions read it.
        let orders =
            [MeshOrder::UpgradeProxies, MeshOrder::Restart(vec![("shop".into(), "web-0".into())])];
        let sent = orders.map(|order| serde_json::to_string(&order).unwrap());
        assert_eq!(sent, [r#""upgrade_proxies""#, r#"{"restart":[["shop","web-0"]]}"#]);
    }
}
