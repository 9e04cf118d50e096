//! Tests names with a scripted resolver over loopback.

use std::collections::VecDeque;
use std::net::SocketAddr;

use hickory_proto::op::{Message, ResponseCode};
use hickory_proto::rr::{RData, Record, RecordType};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, UdpSocket};

use super::*;
use crate::question::PROXY_OPTION;

/// The resolver's response to a query for IPv4. It has no IPv6 addresses.
#[derive(Clone, Debug)]
enum Says {
    A(Vec<&'static str>, u32),
    NoName,
    Failure,
    /// Truncated over UDP, and this address over TCP.
    OverTcp(&'static str),
}

/// The number of queries for IPv4.
type Asked = Arc<AtomicU64>;

/// Sockets on a port that is free for both UDP and TCP. A port that is free for UDP may be in use by a TCP connection
/// of another test.
async fn sockets() -> (SocketAddr, UdpSocket, TcpListener) {
    loop {
        let udp = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let address = udp.local_addr().unwrap();
        match TcpListener::bind(address).await {
            Ok(tcp) => return (address, udp, tcp),
            Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::AddrInUse),
        }
    }
}

/// A resolver that responds in this order, and repeats the last response.
async fn resolver(says: Vec<Says>) -> (Resolvers, Asked) {
    let (address, udp, tcp) = sockets().await;
    let asked = Asked::default();
    let counted = Arc::clone(&asked);
    let mut says: VecDeque<Says> = says.into();
    let long = says.iter().find_map(|one| match one {
        Says::OverTcp(address) => Some(*address),
        _ => None,
    });
    tokio::spawn(async move {
        let mut buffer = [0; 512];
        loop {
            let (length, client) = udp.recv_from(&mut buffer).await.unwrap();
            let question = Message::from_vec(&buffer[..length]).unwrap();
            let of_proxy = question.edns.as_ref().unwrap().option(PROXY_OPTION.into()).is_some();
            assert!(of_proxy, "it does not say that a proxy asks");
            let says = match question.queries[0].query_type() {
                RecordType::A => {
                    counted.fetch_add(1, Ordering::SeqCst);
                    if says.len() > 1 { says.pop_front() } else { says.front().cloned() }
                }
                _ => Some(Says::A(Vec::new(), 60)),
            };
            let answer = answer(&question, &says.unwrap());
            udp.send_to(&answer.to_vec().unwrap(), client).await.unwrap();
        }
    });
    tokio::spawn(async move {
        loop {
            let (mut stream, _) = tcp.accept().await.unwrap();
            let length = stream.read_u16().await.unwrap();
            let mut question = vec![0; usize::from(length)];
            stream.read_exact(&mut question).await.unwrap();
            let question = Message::from_vec(&question).unwrap();
            let answer = answer(&question, &Says::A(vec![long.unwrap()], 60)).to_vec().unwrap();
            stream.write_u16(u16::try_from(answer.len()).unwrap()).await.unwrap();
            stream.write_all(&answer).await.unwrap();
        }
    });
    (Resolvers::new(vec![address]), asked)
}

fn answer(question: &Message, says: &Says) -> Message {
    let mut answer = Message::response(question.metadata.id, question.metadata.op_code);
    answer.add_queries(question.queries.iter().cloned());
    let name = question.queries[0].name().clone();
    match says {
        Says::A(addresses, ttl) => {
            for address in addresses {
                let data = RData::A(address.parse().unwrap());
                answer.add_answer(Record::from_rdata(name.clone(), *ttl, data));
            }
        }
        Says::NoName => answer.metadata.response_code = ResponseCode::NXDomain,
        Says::Failure => answer.metadata.response_code = ResponseCode::ServFail,
        Says::OverTcp(_) => answer.metadata.truncation = true,
    }
    answer
}

fn addresses(texts: &[&str]) -> NameState {
    NameState::Addresses(texts.iter().map(|text| text.parse().unwrap()).collect())
}

/// Waits for the next change.
async fn next(receiver: &mut watch::Receiver<NameState>) -> NameState {
    receiver.changed().await.unwrap();
    receiver.borrow_and_update().clone()
}

#[tokio::test]
async fn an_answer_is_asked_for_again_when_its_time_is_over() {
    let says = vec![Says::A(vec!["192.0.2.2", "192.0.2.1"], 1), Says::A(vec!["192.0.2.3"], 60)];
    let (resolvers, asked) = resolver(says).await;
    let names = Names::new(resolvers);
    let mut changes = names.changes();
    let mut found = names.watch("API.example.com.");
    assert_eq!(*found.borrow(), NameState::Pending);
    assert_eq!(next(&mut found).await, addresses(&["192.0.2.1", "192.0.2.2"]));
    // Another watch of the same name sends no query.
    let other = names.watch("api.example.com");
    assert_eq!(*other.borrow(), addresses(&["192.0.2.1", "192.0.2.2"]));
    assert_eq!(asked.load(Ordering::SeqCst), 1);
    assert_eq!(next(&mut found).await, addresses(&["192.0.2.3"]));
    assert_eq!(asked.load(Ordering::SeqCst), 2);
    assert_eq!(*changes.borrow_and_update(), 2);
    let counts = names.counts();
    assert_eq!((counts.resolved, counts.failed, counts.names), (2, 0, 1));
}

#[tokio::test]
async fn the_last_good_answer_stays_while_no_resolver_answers() {
    let says = vec![
        Says::A(vec!["192.0.2.1"], 1),
        Says::Failure,
        Says::Failure,
        Says::A(vec!["192.0.2.2"], 60),
    ];
    let (resolvers, asked) = resolver(says).await;
    let names = Names::new(resolvers);
    let mut found = names.watch("api.example.com");
    assert_eq!(next(&mut found).await, addresses(&["192.0.2.1"]));
    // The failures cause no change, so the next one is the new address.
    assert_eq!(next(&mut found).await, addresses(&["192.0.2.2"]));
    assert_eq!(asked.load(Ordering::SeqCst), 4);
    assert_eq!(names.counts().failed, 2);
    assert_eq!(names.counts().stale, 0);
}

#[tokio::test]
async fn a_name_that_is_gone_has_no_addresses_and_comes_back() {
    let says = vec![Says::A(vec!["192.0.2.1"], 1), Says::NoName];
    let (resolvers, _) = resolver(says).await;
    let names = Names::new(resolvers);
    let mut found = names.watch("api.example.com");
    assert_eq!(next(&mut found).await, addresses(&["192.0.2.1"]));
    assert_eq!(next(&mut found).await, NameState::Nothing("no-such-name"));
}

#[tokio::test]
async fn what_does_not_fit_comes_over_tcp() {
    let (resolvers, _) = resolver(vec![Says::OverTcp("192.0.2.9")]).await;
    let mut found = Names::new(resolvers).watch("api.example.com");
    assert_eq!(next(&mut found).await, addresses(&["192.0.2.9"]));
}

#[tokio::test]
async fn without_a_resolver_there_is_no_answer_and_a_name_is_needed() {
    let names = Names::new(Resolvers::new(Vec::new()));
    assert_eq!(
        next(&mut names.watch("api.example.com")).await,
        NameState::Nothing("resolver-failed")
    );
    assert_eq!(next(&mut names.watch("not a name..")).await, NameState::Nothing("resolver-failed"));
}

#[tokio::test]
async fn an_unwatched_name_is_forgotten_and_names_are_bounded() {
    let (resolvers, asked) = resolver(vec![Says::A(vec!["192.0.2.1"], 60)]).await;
    let names = Names::new(resolvers);
    let mut found = names.watch("api.example.com");
    next(&mut found).await;
    drop(found);
    while names.counts().names > 0 {
        tokio::task::yield_now().await;
    }
    next(&mut names.watch("api.example.com")).await;
    assert_eq!(asked.load(Ordering::SeqCst), 2);
    let held: Vec<_> = (0..MAX_NAMES).map(|n| names.watch(&format!("n{n}.example.com"))).collect();
    assert_eq!(*names.watch("more.example.com").borrow(), NameState::Nothing("too-many-names"));
    assert!(names.counts().refused >= 1);
    drop(held);
}
