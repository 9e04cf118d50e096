//! The open connections of a worker whose peers have proven an identity, so that they end with a revocation, or with the
//! certificate unless the peer renews it.
//!
//! A connection is found by its socket: shutting that down wakes its reader and writer as the peer's end would, and
//! costs connections nothing while there is no revocation. All connections of a worker are of its thread.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, RawFd};

use leno_transport::{domain_number, shut_down};
use leno_types::authorization::CertificateValidity;
use leno_types::{Identity, Revocations};
use tokio::net::TcpStream;

use crate::binding::Binding;
use crate::pipe::PipeCutter;
use crate::renewal::{MAX_BINDINGS, RenewalDue, RenewalsArrive};
use crate::verify::Svid;

thread_local! {
    /// By descriptor: as many as there are connections, which the worker bounds.
    static LIVE: RefCell<HashMap<RawFd, Proven>> = RefCell::default();
    /// The number of the last connection.
    static LAST: Cell<u64> = const { Cell::new(0) };
}

/// What is known of a connection's peer.
#[derive(Debug)]
struct Proven {
    number: u64,
    /// Of the worker that it belongs to ([`domain_number`]); a thread may have several.
    domain: Option<u64>,
    svid: Svid,
    binding: Option<Binding>,
    /// Cuts what the connection has in memory.
    pipe: PipeCutter,
    /// `None` at the server's end. Clients renew for both.
    dialled: Option<Dialled>,
}

impl Proven {
    /// Whether this is the server's end of a connection whose client can renew it.
    fn is_renewed_by_client(&self) -> bool {
        self.dialled.is_none() && self.binding.is_some()
    }
}

/// The client's end of a connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Dialled {
    pub(crate) server: SocketAddr,
    /// When the certificate ends that the server knows us by. Seconds since 1970, as all times here.
    pub(crate) shown_until_s: i64,
    /// No renewal is tried before.
    pub(crate) not_before_s: i64,
}

/// Keeps a connection in the list. It must be dropped before the socket is closed.
#[derive(Debug)]
pub(crate) struct LiveConnection {
    socket: RawFd,
    number: u64,
}

/// The certificate that the peer of an open connection of this thread has shown last.
#[derive(Clone, Copy, Debug)]
pub struct ShownCertificate(Shown);

#[derive(Clone, Copy, Debug)]
enum Shown {
    /// On this connection, which may be renewed. Descriptors are used again.
    On { socket: RawFd, number: u64 },
    /// On a connection that is not renewed.
    Once(CertificateValidity),
}

impl ShownCertificate {
    /// One that holds for these times and is the last that its connection shows.
    pub(crate) fn once(validity: CertificateValidity) -> Self {
        Self(Shown::Once(validity))
    }

    /// When it holds; `None` once the connection has ended.
    #[must_use]
    pub fn validity(self) -> Option<CertificateValidity> {
        let (socket, number) = match self.0 {
            Shown::On { socket, number } => (socket, number),
            Shown::Once(validity) => return Some(validity),
        };
        LIVE.with_borrow(|live| {
            let proven = live.get(&socket).filter(|proven| proven.number == number)?;
            let Svid { not_before_s, not_after_s, .. } = proven.svid;
            Some(CertificateValidity { not_before_s, not_after_s })
        })
    }
}

impl LiveConnection {
    /// Lists the connection over `socket`, whose peer has shown this certificate.
    pub(crate) fn new(
        socket: &TcpStream,
        svid: &Svid,
        (binding, pipe): (Option<Binding>, PipeCutter),
        dialled: Option<Dialled>,
    ) -> Self {
        let descriptor = socket.as_raw_fd();
        let number = LAST.get().wrapping_add(1);
        LAST.set(number);
        let domain = domain_number();
        let proven = Proven { number, domain, svid: svid.clone(), binding, pipe, dialled };
        LIVE.with_borrow_mut(|live| live.insert(descriptor, proven));
        Self { socket: descriptor, number }
    }

    /// What the peer has shown.
    pub(crate) fn certificate(&self) -> ShownCertificate {
        ShownCertificate(Shown::On { socket: self.socket, number: self.number })
    }
}

impl Drop for LiveConnection {
    fn drop(&mut self) {
        // While the thread ends there may be no list any more.
        let _ended = LIVE.try_with(|live| live.borrow_mut().remove(&self.socket));
    }
}

/// Ends the connections of the current worker whose peers have shown a certificate that was revoked; returns how many.
pub fn end_revoked(revoked: &Revocations) -> u64 {
    if revoked.is_empty() {
        return 0;
    }
    end(|Proven { svid, .. }| revoked.covers(&svid.identity, svid.not_before_s))
}

/// The same for certificates that have ended. Where `renewals` go to another process, what they could have renewed here goes on.
pub(crate) fn end_expired(now_s: i64, renewals: RenewalsArrive) -> u64 {
    end(|proven| {
        let may_be_renewed = renewals == RenewalsArrive::Elsewhere && proven.is_renewed_by_client();
        proven.svid.not_after_s < now_s && !may_be_renewed
    })
}

fn end(is_over: impl Fn(&Proven) -> bool) -> u64 {
    let (mut ended, domain) = (0_u64, domain_number());
    LIVE.with_borrow_mut(|live| {
        live.retain(|socket, proven| {
            let is_over = proven.domain == domain && is_over(proven);
            // One that the peer has ended already fails, and is about to be dropped.
            if is_over && shut_down(*socket) {
                ended = ended.saturating_add(1);
            }
            if is_over {
                proven.pipe.cut();
            }
            !is_over
        });
    });
    ended
}

/// The connections of the current worker that a client with a certificate until `own_until_s` has to renew, by server, and makes
/// the next attempt for each due after half of the time that it has left.
pub(crate) fn due(own_until_s: i64, now_s: i64) -> Vec<RenewalDue> {
    let mut due: HashMap<(SocketAddr, Identity), Vec<Binding>> = HashMap::new();
    let domain = domain_number();
    LIVE.with_borrow_mut(|live| {
        for proven in live.values_mut().filter(|proven| proven.domain == domain) {
            let (Some(binding), Some(dialled)) = (proven.binding, &mut proven.dialled) else {
                continue;
            };
            if !dialled.is_due(&proven.svid, own_until_s, now_s) {
                continue;
            }
            let to = (dialled.server, proven.svid.identity.clone());
            let bindings = due.entry(to).or_default();
            if bindings.len() < MAX_BINDINGS {
                bindings.push(binding);
                let left = dialled.shown_until_s.min(proven.svid.not_after_s).saturating_sub(now_s);
                let wait = left.checked_div(2).unwrap_or_default().max(1);
                dialled.not_before_s = now_s.saturating_add(wait);
            }
        }
    });
    let due = due.into_iter();
    due.map(|((server, identity), bindings)| RenewalDue { server, identity, bindings }).collect()
}

impl Dialled {
    /// Whether we have another certificate than the server knows, or the server has one by now: it renews when 25 to 35 %
    /// of its life are left.
    fn is_due(&self, server: &Svid, own_until_s: i64, now_s: i64) -> bool {
        let life = server.not_after_s.saturating_sub(server.not_before_s);
        let left = server.not_after_s.saturating_sub(now_s);
        let is_outdated = self.shown_until_s != own_until_s;
        now_s >= self.not_before_s && (is_outdated || left < life.checked_div(4).unwrap_or(0))
    }
}

/// A server has shown `svid` for these connections of this thread, and has been shown a certificate until `own_until_s`.
/// Returns how many there are.
pub(crate) fn renewed_by_client(bindings: &HashSet<Binding>, svid: &Svid, own_until_s: i64) -> u64 {
    each_of(bindings, svid, |proven| {
        let Some(dialled) = &mut proven.dialled else { return false };
        dialled.shown_until_s = own_until_s;
        true
    })
}

/// A client has shown `svid` for these connections, of which this thread may have some. Returns how many it has.
pub(crate) fn renewed_at_server(bindings: &HashSet<Binding>, svid: &Svid) -> u64 {
    each_of(bindings, svid, |proven| proven.dialled.is_none())
}

fn each_of(
    bindings: &HashSet<Binding>,
    svid: &Svid,
    mut renew: impl FnMut(&mut Proven) -> bool,
) -> u64 {
    LIVE.with_borrow_mut(|live| {
        let mut renewed = 0_u64;
        for proven in live.values_mut() {
            let is_named = proven.binding.is_some_and(|binding| bindings.contains(&binding));
            if is_named && proven.svid.identity == svid.identity && renew(proven) {
                proven.svid = svid.clone();
                renewed = renewed.saturating_add(1);
            }
        }
        renewed
    })
}
