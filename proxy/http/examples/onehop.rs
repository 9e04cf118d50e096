//! The smallest proxy that can be built with the engine: one hop, plaintext, one thread. It is used to measure the cost
//! of a request.
//!
//! `onehop LISTEN BACKEND`, for example `onehop 127.0.0.1:8081 127.0.0.1:8080`; prints the address on which it listens.

use std::cell::RefCell;
use std::net::SocketAddr;
use std::rc::Rc;

use anyhow::Context;
use leno_http::{Answer, Conn, Exchange, Failure, Limits, Order, RequestHead, exchange};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::LocalOptions;

/// How many idle connections to the backend are kept.
const POOL: usize = 1024;

struct Hop {
    backend: SocketAddr,
    limits: Limits,
    pool: RefCell<Vec<Conn<TcpStream>>>,
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
        limits: Limits::default(),
        pool: RefCell::new(Vec::with_capacity(POOL)),
    });
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build_local(LocalOptions::default())?;
    runtime.block_on(async move {
        let listener = TcpListener::bind(listen).await?;
        println!("{}", listener.local_addr()?);
        loop {
            let (client, _) = listener.accept().await?;
            client.set_nodelay(true)?;
            tokio::task::spawn_local(serve(Rc::clone(&hop), client));
        }
    })
}

async fn serve(hop: Rc<Hop>, client: TcpStream) {
    let mut client = Conn::new(client);
    loop {
        match client.read_request(&hop.limits).await {
            Ok(Some(request)) => {
                if !relay(&hop, &mut client, &request).await {
                    break;
                }
            }
            Ok(None) => return,
            Err(failure) => {
                answer(&mut client, None, &failure).await;
                break;
            }
        }
    }
    client.close(&hop.limits).await;
}

/// Relays one request. Returns whether the client's connection can be used for another request.
async fn relay(hop: &Hop, client: &mut Conn<TcpStream>, request: &RequestHead) -> bool {
    loop {
        let pooled = std::iter::from_fn(|| hop.pool.borrow_mut().pop())
            .find_map(|mut pooled| pooled.is_quiet().then_some(pooled));
        let mut server = match pooled {
            Some(server) => server,
            None => match TcpStream::connect(hop.backend).await {
                Ok(server) => {
                    // If this fails, the only effect is a higher latency.
                    let _ = server.set_nodelay(true);
                    Conn::new(server)
                }
                Err(_) => {
                    let answer = Answer::error(503, "connect");
                    return client.respond(Some(request), &answer).await.unwrap_or(false);
                }
            },
        };
        let reused = server.exchanges() > 0;
        let done: Exchange =
            exchange(client, request, &mut server, &mut Order::new(&hop.limits)).await;
        if done.server_reusable && hop.pool.borrow().len() < POOL {
            hop.pool.borrow_mut().push(server);
        }
        match done.failure {
            None => return done.client_reusable,
            Some(failure) if failure.retryable && reused => continue,
            Some(failure) if !done.response_started => {
                return answer(client, Some(request), &failure).await;
            }
            Some(_) => return false,
        }
    }
}

async fn answer(
    client: &mut Conn<TcpStream>,
    request: Option<&RequestHead>,
    failure: &Failure,
) -> bool {
    let Some(status) = failure.status() else { return false };
    let answer = Answer::error(status, failure.cause.label());
    client.respond(request, &answer).await.unwrap_or(false)
}
