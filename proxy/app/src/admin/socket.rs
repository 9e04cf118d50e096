//! The Unix sockets of the proxy: the admin socket, which serves all admin pages and is the only one to serve
//! `/drain`, and the socket on which the application gets certificates (SPIFFE Workload API).

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::{FileTypeExt, PermissionsExt as _};
use std::path::Path;
use std::rc::Rc;

use anyhow::Context;
use leno_transport::spawn_contained;
use tokio::net::{UnixListener, UnixStream};

use super::caller::Caller;
use crate::state::State;

/// Listens on `path`. A socket that an earlier process left behind is replaced.
pub(crate) fn bind(path: &Path) -> anyhow::Result<UnixListener> {
    if is_abandoned(path) {
        fs::remove_file(path).with_context(|| format!("removing the old {}", path.display()))?;
    }
    UnixListener::bind(path).with_context(|| {
        format!("listening on {}: give a path that this user can write", path.display())
    })
}

/// Like [`bind`], but processes of all users may connect, such as those in other containers of the pod.
pub(crate) fn bind_for_all(path: &Path) -> anyhow::Result<UnixListener> {
    let listener = bind(path)?;
    fs::set_permissions(path, Permissions::from_mode(0o666))
        .with_context(|| format!("permitting all users to connect to {}", path.display()))?;
    Ok(listener)
}

/// Whether there is a socket at this path on which no process listens.
fn is_abandoned(path: &Path) -> bool {
    let is_socket = fs::symlink_metadata(path).is_ok_and(|data| data.file_type().is_socket());
    let refused = |error: io::Error| error.kind() == io::ErrorKind::ConnectionRefused;
    is_socket && std::os::unix::net::UnixStream::connect(path).is_err_and(refused)
}

/// Serves connections one after the other, from processes of this user or of root. Each has a time limit, like all
/// admin connections.
pub(crate) async fn serve(listener: UnixListener, state: Rc<State>) {
    loop {
        let next = leno_program::accept("connection to the admin socket", async || {
            listener.accept().await
        });
        let (stream, _) = next.await;
        if !is_trusted(&stream) {
            tracing::warn!(
                "connection to the admin socket refused: it comes from another user \
                 than the proxy's or root"
            );
            continue;
        }
        let state = Rc::clone(&state);
        let served = spawn_contained(async move {
            let answer = |request| {
                let state = Rc::clone(&state);
                async move { super::answer(&request, Caller::Socket, &state).await }
            };
            leno_program::serve_stream(stream, "the admin socket", answer).await;
        });
        // An error means a panic, which was logged and counted. The next connection is served.
        let _ = served.await;
    }
}

/// Whether the process at the other end is one of this user or of root. This is checked in addition to the mode of the
/// file, which may permit more users.
fn is_trusted(stream: &UnixStream) -> bool {
    let own = nix::unistd::geteuid().as_raw();
    stream.peer_cred().is_ok_and(|peer| peer.uid() == 0 || peer.uid() == own)
}
