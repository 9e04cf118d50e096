//! The open connections of a worker whose peers have proven an identity. A connection ends when its peer's certificate
//! is revoked, or when it expires, unless the peer renews it.
//!
//! A connection is ended by shutting down its socket, which wakes its reader and writer as if the peer had closed it.
//! The connections themselves need not check anything. All connections of a worker belong to its thread.

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
    /// The key is the socket's descriptor. The worker bounds the number of connections.
    static LIVE: RefCell<HashMap<RawFd, Proven>> = RefCell::default();
    /// The number that the last connection got.
    static LAST: Cell<u64> = const { Cell::new(0) };
}

/// The proven identity of a connection's peer, and what is needed to end or renew the connection.
#[derive(Debug)]
struct Proven {
    number: u64,
    /// The domain of the worker to which the connection belongs ([`domain_number`]); a thread may have several.
    domain: Option<u64>,
    svid: Svid,
    binding: Option<Binding>,
    /// Cuts the connection's pipe in memory, if it has one.
    pipe: PipeCutter,
    /// `None` at the server's end. The client renews the connection for both ends.
    dialled: Option<Dialled>,
}

impl Proven {
    /// Whether this is the server's end of a connection for which the client can present its next certificate.
    fn is_renewed_by_client(&self) -> bool {
        self.dialled.is_none() && self.binding.is_some()
    }
}

/// The client's end of a connection, which it has dialled.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Dialled {
    pub(crate) server: SocketAddr,
    /// When the certificate expires that this end last presented to the server. All times here are seconds since 1970.
    pub(crate) shown_until_s: i64,
    /// No renewal is attempted before this time.
    pub(crate) not_before_s: i64,
}

/// Keeps a connection in the list until this is dropped, which must happen before the socket is closed.
#[derive(Debug)]
pub(crate) struct LiveConnection {
    socket: RawFd,
    number: u64,
}

/// The certificate that the peer of an open connection of this thread has presented last.
#[derive(Clone, Copy, Debug)]
pub struct ShownCertificate(Shown);

#[derive(Clone, Copy, Debug)]
enum Shown {
    /// The last certificate on this connection, which may be renewed. The number identifies the connection, because
    /// descriptors are reused.
    On { socket: RawFd, number: u64 },
    /// The only certificate of a connection that is not renewed.
    Once(CertificateValidity),
}

impl ShownCertificate {
    /// A certificate with this validity, on a connection that is not renewed.
    pub(crate) fn once(validity: CertificateValidity) -> Self {
        Self(Shown::Once(validity))
    }

    /// The validity of the certificate; `None` once the connection has ended.
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
    /// Adds the connection over `socket` to the list. Its peer has presented the certificate `svid`.
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

    /// The certificate that the peer has presented last.
    pub(crate) fn certificate(&self) -> ShownCertificate {
        ShownCertificate(Shown::On { socket: self.socket, number: self.number })
    }
}

impl Drop for LiveConnection {
    fn drop(&mut self) {
        // While the thread ends, the list may no longer exist.
        let _ended = LIVE.try_with(|live| live.borrow_mut().remove(&self.socket));
    }
}

/// Ends the connections of the current worker whose peers have presented a certificate that is now revoked. Returns how
/// many there were.
pub fn end_revoked(revoked: &Revocations) -> u64 {
    if revoked.is_empty() {
        return 0;
    }
    end(|Proven { svid, .. }| revoked.covers(&svid.identity, svid.not_before_s))
}

/// Ends the connections of the current worker whose peers' certificates have expired. If `renewals` arrive at another
/// process, connections that their clients may have renewed there continue. Returns how many ended.
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
            // If the peer has already ended the connection, shutting it down fails; the connection is about to be
            // dropped.
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

/// The connections that the current worker has opened, and that it must renew now as their client, grouped by server.
/// `own_until_s` is when the certificate of this workload expires. The next attempt for each connection is due after
/// half of its remaining time. A server's connections beyond [`MAX_BINDINGS`] stay due.
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
    /// Whether this end must present its certificate again: it has another one than it has shown to the server, or the
    /// server should have a new one by now. A server renews its certificate when 25 to 35 % of its life are left.
    fn is_due(&self, server: &Svid, own_until_s: i64, now_s: i64) -> bool {
        let life = server.not_after_s.saturating_sub(server.not_before_s);
        let left = server.not_after_s.saturating_sub(now_s);
        let is_outdated = self.shown_until_s != own_until_s;
        now_s >= self.not_before_s && (is_outdated || left < life.checked_div(4).unwrap_or(0))
    }
}

/// Records that the server of these connections has presented `svid`, and that this end has presented a certificate
/// which expires at `own_until_s`. Returns how many of the connections are open on this thread.
pub(crate) fn renewed_by_client(bindings: &HashSet<Binding>, svid: &Svid, own_until_s: i64) -> u64 {
    each_of(bindings, svid, |proven| {
        let Some(dialled) = &mut proven.dialled else { return false };
        dialled.shown_until_s = own_until_s;
        true
    })
}

/// Records that the client of these connections has presented `svid`. Returns how many of them are open on this thread.
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
