//! A relay in front of an API server. The connection can be cut while the server itself keeps running.

use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// Relays connections to a port on loopback. Dropping this ends all of them.
pub struct Relay {
    /// The port of the relay.
    pub port: u16,
    open: watch::Sender<bool>,
    running: JoinHandle<()>,
}

impl Relay {
    /// Starts a relay to this port.
    pub async fn start(to: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let (open, opened) = watch::channel(true);
        let running = tokio::spawn(async move {
            loop {
                let (mut client, _) = listener.accept().await.unwrap();
                let mut opened = opened.clone();
                tokio::spawn(async move {
                    let relayed = async {
                        let mut server = TcpStream::connect(("127.0.0.1", to)).await?;
                        copy_bidirectional(&mut client, &mut server).await
                    };
                    tokio::select! {
                        // If the connection ends by itself, both sides see how.
                        _ = relayed => {}
                        _ = opened.wait_for(|open| !open) => {}
                    }
                });
            }
        });
        Self { port, open, running }
    }

    /// Ends all connections and refuses new ones, or lets them through again.
    pub fn open(&self, open: bool) {
        self.open.send_replace(open);
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.open(false);
        self.running.abort();
    }
}
