//! Servers: the HTTP backend, one that echoes, one that sends a greeting first, and ones that follow a script.

use std::net::SocketAddr;
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;

use super::{Backend, Step, follow};

/// Most connections at once. A test that opens more would measure something else.
const MAX_CONNECTIONS: usize = 20_000;
/// Pause after a failed accept (for lack of a descriptor), so that the loop does not use all CPU time.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// What a server does with a connection.
#[derive(Clone, Debug)]
pub enum Behaviour {
    /// Plain HTTP with switches.
    Http(Backend),
    /// Sends back what it receives, and closes when the client does.
    Echo,
    /// Sends a greeting before it reads, as databases and mail servers do, and then echoes.
    Banner(String),
    /// Follows a script.
    Script(Vec<Step>),
}

impl From<Backend> for Behaviour {
    fn from(backend: Backend) -> Self {
        Behaviour::Http(backend)
    }
}

/// A server on its own thread, on a free port of 127.0.0.1. Dropping this ends the server.
#[derive(Debug)]
pub struct Server {
    address: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Starts the server.
    pub fn start(behaviour: impl Into<Behaviour>) -> Result<Self> {
        let behaviour = behaviour.into();
        let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let (stop, stopped) = oneshot::channel();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let thread = std::thread::spawn(move || {
            runtime.block_on(async {
                let listener = TcpListener::from_std(listener).expect("a runtime is running");
                tokio::select! {
                    () = accept(listener, behaviour) => {}
                    _ = stopped => {}
                }
            });
            runtime.shutdown_background();
        });
        Ok(Server { address, stop: Some(stop), thread: Some(thread) })
    }

    /// The address on which it serves.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The URL `http://ADDRESS` followed by `path`.
    #[must_use]
    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // A panic of the server has printed its own message.
            let _ = thread.join();
        }
    }
}

/// Serves all `addresses` until the process ends. Prints a line to standard output for each address when it
/// listens there.
pub async fn serve(addresses: &[SocketAddr], behaviour: Behaviour) -> Result<()> {
    let mut tasks = tokio::task::JoinSet::new();
    for address in addresses {
        let listener = TcpListener::bind(address)
            .await
            .with_context(|| format!("cannot listen on {address}"))?;
        println!("listening on {}", listener.local_addr()?);
        tasks.spawn(accept(listener, behaviour.clone()));
    }
    tasks.join_next().await.context("no address to listen on")?.map_err(|e| anyhow!(e))
}

async fn accept(listener: TcpListener, behaviour: Behaviour) {
    let room = std::sync::Arc::new(tokio::sync::Semaphore::new(MAX_CONNECTIONS));
    loop {
        let Ok(permit) = std::sync::Arc::clone(&room).acquire_owned().await else { return };
        match listener.accept().await {
            Ok((stream, _)) => {
                let behaviour = behaviour.clone();
                tokio::spawn(async move {
                    // Broken connections are checked by the test, so the error is ignored.
                    let _ = connection(stream, behaviour).await;
                    drop(permit);
                });
            }
            Err(_) => tokio::time::sleep(ACCEPT_PAUSE).await,
        }
    }
}

async fn connection(mut stream: TcpStream, behaviour: Behaviour) -> Result<()> {
    match behaviour {
        Behaviour::Http(backend) => backend.serve(stream).await,
        Behaviour::Echo => echo(&mut stream).await,
        Behaviour::Banner(greeting) => {
            stream.write_all(greeting.as_bytes()).await?;
            echo(&mut stream).await
        }
        Behaviour::Script(steps) => {
            let stream = stream.into_std()?;
            stream.set_nonblocking(false)?;
            tokio::task::spawn_blocking(move || follow(stream, &steps)).await??;
            Ok(())
        }
    }
}

/// Sends back what it receives, and shuts down its sending direction when the client does.
pub(super) async fn echo(stream: &mut TcpStream) -> Result<()> {
    let mut buffer = vec![0_u8; 16 * 1024];
    loop {
        let n = stream.read(&mut buffer).await?;
        if n == 0 {
            return Ok(stream.shutdown().await?);
        }
        stream.write_all(&buffer[..n]).await?;
    }
}

#[cfg(test)]
mod tests;
