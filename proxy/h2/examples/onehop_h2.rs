//! The smallest HTTP/2 relay that this crate allows: one hop, plaintext, one thread, all requests on one connection to
//! the backend. It is used to measure what a request costs.
//!
//! `onehop_h2 LISTEN BACKEND`, for example `onehop_h2 127.0.0.1:8081 127.0.0.1:8080`; prints the address on which it
//! listens.

use std::cell::RefCell;
use std::net::SocketAddr;
use std::rc::Rc;

use anyhow::Context;
use leno_h2::{Client, Head, Limits, OpenError, Request, Stream, forward, link};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::LocalOptions;

/// How many tasks the runtime polls between two checks of the sockets. One check can make the tasks of many
/// connections ready. With this number all of them run before the next check, so that what they write together stays
/// in one batch.
const EVENT_INTERVAL: u32 = 1024;

struct Hop {
    backend: SocketAddr,
    limits: Rc<Limits>,
    client: RefCell<Option<Client>>,
}

fn main() -> anyhow::Result<()> {
    let mut arguments = std::env::args().skip(1);
    let mut address = |name| -> anyhow::Result<SocketAddr> {
        let text = arguments.next().with_context(|| format!("no {name} address given"))?;
        text.parse().with_context(|| format!("`{text}` is no address"))
    };
    let listen = address("listen")?;
    let hop = Rc::new(Hop {
        backend: address("backend")?,
        limits: Rc::new(Limits::default()),
        client: RefCell::new(None),
    });
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .event_interval(EVENT_INTERVAL)
        .build_local(LocalOptions::default())?;
    runtime.block_on(async move {
        let listener = TcpListener::bind(listen).await?;
        println!("{}", listener.local_addr()?);
        loop {
            let (socket, _) = listener.accept().await?;
            socket.set_nodelay(true)?;
            tokio::task::spawn_local(serve(Rc::clone(&hop), socket));
        }
    })
}

async fn serve(hop: Rc<Hop>, socket: TcpStream) {
    let (mut accept, driver) = leno_h2::server(socket, &[], &hop.limits);
    let requests = tokio::task::spawn_local(async move {
        while let Some(request) = accept.accept().await {
            tokio::task::spawn_local(relay(Rc::clone(&hop), request));
        }
    });
    if let Err(error) = driver.run().await {
        eprintln!("client: {} ({error})", error.label());
    }
    requests.abort();
}

async fn relay(hop: Rc<Hop>, mut request: Request) {
    let Ok(mut server) = open(&hop, &request).await else {
        return answer(&mut request.stream, "503");
    };
    forward(&request.stream, &server);
    loop {
        match server.head().await {
            Ok(head) if head.is_interim() => {
                request.stream.send_head(&head, false);
            }
            Ok(head) => {
                request.stream.send_head(&head, server.is_ended_without_rest());
                break;
            }
            Err(_) => return answer(&mut request.stream, "502"),
        }
    }
    link(request.stream, server).await;
}

/// Opens a stream on the connection to the backend. If there is no connection, connects first.
async fn open(hop: &Rc<Hop>, request: &Request) -> anyhow::Result<Stream> {
    loop {
        let client = hop.client.borrow().clone().filter(Client::is_open);
        let client = match client {
            Some(client) => client,
            None => connect(hop).await?,
        };
        match client.open(&request.head, request.ended) {
            Err(OpenError::Full) => client.ready().await?,
            other => return Ok(other?),
        }
    }
}

async fn connect(hop: &Rc<Hop>) -> anyhow::Result<Client> {
    let socket = TcpStream::connect(hop.backend).await?;
    socket.set_nodelay(true)?;
    let (client, driver) = leno_h2::client(socket, &hop.limits);
    tokio::task::spawn_local(async move {
        if let Err(error) = driver.run().await {
            eprintln!("server: {} ({error})", error.label());
        }
    });
    *hop.client.borrow_mut() = Some(client.clone());
    Ok(client)
}

fn answer(stream: &mut Stream, status: &str) {
    let head: Head = [(":status", status)].into_iter().collect();
    stream.send_head(&head, true);
}
