//! An exchange with HTTP/1 on at least one side. Its two directions are polled together.
//!
//! This one state machine applies the same deadlines, judgement, upgrades and endings, whichever protocols the ends
//! speak. The differences are in how bytes are passed on ([`Passage`]), what an end can report ([`ClientEnd`],
//! [`ServerEnd`]), and how heads are written ([`Heads`]).

use std::future::poll_fn;
use std::task::{Context, Poll, ready};

use tokio::time::Instant;

use super::bounds::{Bounds, Progress};
use super::client::ClientEnd;
use super::outcome::{client_failure, lost, server_reset};
use super::passage::{Cut, Mode, Passage};
use super::server::ServerEnd;
use super::{Exchange, Judge, Order};
use crate::failure::{Cause, Failure, Party};
use crate::now;

/// The request's direction.
///
/// ```text
/// Sending ──(all sent)────────────────────────────────────────► Done
///    │                                                            ▲
///    └──(see Broken)──► Broken ──(response over, client stays)──► Discarding
/// ```
/// After an upgrade it is `Sending` again, for the bytes of the other protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Up {
    Sending,
    /// The server accepts no more bytes, and its response may say why. Or a final response arrived in place of the 100
    /// (Continue) that the client waits for, so it is unknown whether the client sends the body. Or the client has
    /// reset its stream after the complete response.
    Broken,
    /// The rest of the body is read and dropped, because the client's next request follows it.
    Discarding,
    Done,
}

/// The response's direction.
///
/// ```text
/// ┌──(written)────────┐
/// ▼                   │
/// Head ──(1xx)──► Interim
///  ├──(final, 101, or success of a CONNECT)──► Body ──► Done
///  └──(final without a body, to an HTTP/2 client)────────► Done
/// ```
/// An interim response to an HTTP/2 client is queued at once, so the state stays `Head`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Down {
    Head,
    Interim,
    Body,
    Done,
}

/// How far the proxy has passed on a half-close, in which one side ends its sending direction: not begun, to be passed
/// on to the other side as soon as possible, or passed on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum HalfClose {
    Open,
    Wanted,
    Sent,
}

/// What must still be done after the response.
enum AfterResponse {
    Over,
    /// The request's direction must be polled again at once.
    Again,
    /// The rest of the request, or the end of an upgraded connection, must still be passed on.
    Wait,
}

/// One exchange between the client's end `C` and the server's end `S`. The request moves through the passage `U` (up),
/// the response through `D` (down).
pub(super) struct Relay<'o, 'a, C, S, U, D, J> {
    pub(super) client: C,
    pub(super) server: S,
    pub(super) order: &'o mut Order<'a, J>,
    pub(super) request: U,
    pub(super) up: Up,
    pub(super) response: D,
    pub(super) down: Down,
    /// Whether the client waits for a 100 before it sends the body, and no 100 has been forwarded.
    pub(super) awaits_continue: bool,
    /// Whether the response tells the client that its connection stays open. Its next request then follows this one.
    pub(super) keep_client: bool,
    /// Whether the request's direction was ended towards the server: after an upgrade, or because the client has ended
    /// its own.
    pub(super) end_to_server: HalfClose,
    /// Whether the response's direction was ended towards the client, after an upgrade.
    end_to_client: HalfClose,
    /// Why the server accepts no more of the request. If the response then fails as well, this is reported as the
    /// cause.
    write_error: Option<Cause>,
    /// The earlier of the order's and the client's deadline; after an upgrade, when the other protocol must end.
    deadline: Option<Instant>,
    bounds: Bounds,
    /// What [`Self::moves`] counts besides the present passages: reads of heads, and the passages of earlier heads.
    pub(super) moves: u64,
    pub(super) exchange: Exchange,
}

/// How heads are read and written between two ends.
pub(super) trait Heads {
    /// Writes the request's head.
    fn open(&mut self, cx: &mut Context<'_>) -> Result<(), Failure>;

    /// Ready when a head of the response has arrived and was handled.
    fn poll_head(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Failure>>;

    /// Called once the request is complete. If the client has ended its sending direction, passes this on to the
    /// server, provided that the server's protocol can express it.
    fn pass_half_close(&mut self) {}
}

impl<'o, 'a, C: ClientEnd, S: ServerEnd, U: Passage<C, S>, D: Passage<S, C>, J: Judge>
    Relay<'o, 'a, C, S, U, D, J>
where
    Self: Heads,
{
    pub(super) fn new(
        (client, server): (C, S),
        (request, response): (U, D),
        order: &'o mut Order<'a, J>,
    ) -> Self {
        let started = now();
        Self {
            deadline: [order.deadline, client.deadline()].into_iter().flatten().min(),
            client,
            server,
            request,
            up: Up::Sending,
            response,
            down: Down::Head,
            awaits_continue: false,
            keep_client: false,
            end_to_server: HalfClose::Open,
            end_to_client: HalfClose::Open,
            write_error: None,
            bounds: Bounds::new(started, order.limits),
            moves: 0,
            exchange: Exchange::new(started),
            order,
        }
    }

    /// Relays the request and the response.
    pub(super) async fn run(&mut self) -> Result<(), Failure> {
        poll_fn(|cx| Poll::Ready(self.open(cx))).await?;
        poll_fn(|cx| self.poll(cx)).await
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Failure>> {
        loop {
            self.poll_up(cx)?;
            let upgraded = self.exchange.upgraded;
            self.poll_down(cx)?;
            if upgraded != self.exchange.upgraded {
                continue;
            }
            if self.down != Down::Done {
                break;
            }
            match self.after_response(cx) {
                AfterResponse::Over => return Poll::Ready(Ok(())),
                AfterResponse::Again => {}
                AfterResponse::Wait => break,
            }
        }
        self.watch_client(cx)?;
        let (order, client) = (&mut *self.order, &self.client);
        order.poll_permitted(|| client.view(), cx)?;
        self.poll_ends(cx);
        self.poll_bounds(cx)
    }

    fn poll_up(&mut self, cx: &mut Context<'_>) -> Result<(), Failure> {
        let mode = match self.up {
            Up::Done | Up::Broken => return Ok(()),
            Up::Discarding => Mode::Discard,
            Up::Sending if self.down == Down::Head => Mode::Hold,
            Up::Sending => Mode::Pass,
        };
        match self.request.poll_pass(&mut self.client, &mut self.server, mode, cx) {
            Poll::Pending => {}
            Poll::Ready(Ok(())) => {
                self.up = Up::Done;
                if self.exchange.upgraded {
                    self.end_to_server = HalfClose::Wanted;
                }
            }
            Poll::Ready(Err(Cut::Sink(error))) => {
                // The response, or its absence, will show the reason.
                self.write_error = Some(error);
                self.up = Up::Broken;
            }
            // The response is complete, so the rest of the request is not needed.
            Poll::Ready(Err(Cut::Source(Cause::Reset(_))))
                if self.down == Down::Done && !self.exchange.upgraded =>
            {
                self.up = Up::Broken;
            }
            Poll::Ready(Err(Cut::Source(cause))) => return Err(client_failure(cause)),
        }
        Ok(())
    }

    fn poll_down(&mut self, cx: &mut Context<'_>) -> Result<(), Failure> {
        while self.down != Down::Done {
            if self.down == Down::Head {
                match self.poll_head(cx)? {
                    Poll::Pending => return Ok(()),
                    // The request's direction must be polled again.
                    Poll::Ready(()) if self.exchange.upgraded => return Ok(()),
                    Poll::Ready(()) => continue,
                }
            }
            let passed =
                self.response.poll_pass(&mut self.server, &mut self.client, Mode::Pass, cx);
            // Some of the bytes that wait to be written may have been written.
            self.exchange.response_started |= self.response.is_blocked()
                || self.down == Down::Body && self.response.moved().written > 0;
            match passed {
                Poll::Pending => return Ok(()),
                Poll::Ready(Ok(())) if self.down == Down::Interim => {
                    self.down = Down::Head;
                    self.exchange.response_started = false;
                }
                Poll::Ready(Ok(())) => {
                    self.down = Down::Done;
                    if self.exchange.upgraded {
                        self.end_to_client = HalfClose::Wanted;
                    }
                }
                Poll::Ready(Err(Cut::Sink(cause))) => {
                    self.exchange.response_started = true;
                    return Err(client_failure(cause));
                }
                Poll::Ready(Err(Cut::Source(cause))) => return Err(self.server_failure(cause)),
            }
        }
        Ok(())
    }

    /// Called when the response is complete, but perhaps not the request.
    fn after_response(&mut self, cx: &mut Context<'_>) -> AfterResponse {
        if self.exchange.upgraded {
            self.poll_ends(cx);
            let over = self.end_to_client == HalfClose::Sent && self.up != Up::Sending;
            return if over { AfterResponse::Over } else { AfterResponse::Wait };
        }
        if self.up == Up::Done || self.up == Up::Broken && !self.keep_client {
            return AfterResponse::Over;
        }
        let moves = self.moves();
        self.bounds.begin_linger(moves, self.order.limits);
        if self.up == Up::Broken {
            // The next request follows the rest of this one.
            self.up = Up::Discarding;
            return AfterResponse::Again;
        }
        AfterResponse::Wait
    }

    fn watch_client(&mut self, cx: &mut Context<'_>) -> Result<(), Failure> {
        // After an upgrade, the end of the client's stream is passed on, and the server may still send. Only the end of
        // the server's stream ends the exchange.
        let up = if self.exchange.upgraded { Up::Sending } else { self.up };
        self.client.watch(up, self.down, cx)?;
        if self.up == Up::Done && self.end_to_server == HalfClose::Open {
            self.pass_half_close();
        }
        Ok(())
    }

    fn poll_ends(&mut self, cx: &mut Context<'_>) {
        if self.end_to_server == HalfClose::Wanted
            && self.up == Up::Done
            && self.server.poll_end(cx).is_ready()
        {
            self.end_to_server = HalfClose::Sent;
        }
        if self.end_to_client == HalfClose::Wanted && self.client.poll_end(cx).is_ready() {
            self.end_to_client = HalfClose::Sent;
        }
    }

    fn poll_bounds(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Failure>> {
        let sending = self.up == Up::Sending;
        let blocked = if self.down != Down::Done && self.response.is_blocked() {
            Some(Party::Client)
        } else if sending && self.request.is_blocked() {
            Some(Party::Server)
        } else {
            None
        };
        let now = Progress {
            moves: self.moves(),
            blocked,
            sending,
            silent: self.exchange.status.is_none(),
            replayable: self.is_replayable(),
            upgraded: self.exchange.upgraded,
            unread: sending
                && !self.exchange.upgraded
                && self.request.is_stuck()
                && self.client.can_tell_departure(),
            deadline: self.deadline,
        };
        loop {
            let alarm = self.client.alarm().or_else(|| self.server.alarm());
            // At least one end speaks HTTP/1 and has a timer.
            let Some(alarm) = alarm else { return Poll::Pending };
            if let Some(outcome) = ready!(self.bounds.poll((alarm, cx), self.order, now)) {
                return Poll::Ready(outcome);
            }
            if !now.upgraded {
                self.client.check_left(sending)?;
            }
            let (client, server) = (self.client.is_unanswered(), self.server.is_unanswered());
            lost(client, server, self.exchange.first_byte.is_none() && now.replayable)?;
        }
    }

    /// Reports the result of the exchange, and whether both ends can be used again.
    pub(super) fn conclude(mut self, outcome: Result<(), Failure>) -> Exchange {
        let mut exchange = self.exchange;
        exchange.request_bytes = self.client.request_bytes(self.request.moved().total);
        exchange.response_bytes = self.response.moved().total;
        if let Err(failure) = outcome {
            let unused = failure.place != Party::Server && self.request.moved().written == 0;
            self.client.fail(self.request.moved().used);
            self.server.fail(unused, &mut exchange);
            exchange.failure = Some(failure);
            return exchange;
        }
        self.request.settle(&mut self.client);
        self.response.settle(&mut self.server);
        let request_over = self.up == Up::Done;
        self.client.conclude(request_over, self.keep_client, &mut exchange);
        let in_order = request_over
            && self.write_error.is_none()
            && self.end_to_server == HalfClose::Open
            && !exchange.upgraded;
        self.server.conclude(in_order, &mut exchange);
        exchange
    }

    /// A number that grows with every read and write.
    fn moves(&self) -> u64 {
        self.moves + self.request.moved().moves() + self.response.moved().moves()
    }
}

impl<C: ClientEnd, S: ServerEnd, U: Passage<C, S>, D, J: Judge> Relay<'_, '_, C, S, U, D, J> {
    /// Whether the request is still held completely.
    pub(super) fn is_replayable(&self) -> bool {
        !self.request.moved().used && self.client.is_replayable()
    }

    /// Whether the request is still held completely, and no part of a response was forwarded.
    pub(super) fn may_try_again(&self) -> bool {
        self.is_replayable() && !self.exchange.response_started
    }

    /// The failure of a server whose connection or stream ended before the response did, or whose body is malformed.
    pub(super) fn server_failure(&mut self, cause: Cause) -> Failure {
        let retryable = self.exchange.first_byte.is_none() && self.is_replayable();
        match cause {
            Cause::Reset(reset) => server_reset(reset, retryable, self.order.mesh),
            Cause::Body(_) => Failure::new(Party::Server, cause),
            // The first of these is the cause: a report of the server's proxy, the error of an earlier write, `cause`
            // itself.
            _ => {
                // A proxy of the mesh ends a connection properly only between two requests. If it has read a part of a
                // request, it answers the request or resets the connection.
                let is_unread = self.order.mesh && matches!(cause, Cause::Closed);
                let report = self.server.report().filter(|_| self.order.mesh);
                let cause =
                    report.map(Cause::Reported).or(self.write_error.take()).unwrap_or(cause);
                let unprocessed = retryable && is_unread;
                Failure { retryable, unprocessed, ..Failure::new(Party::Server, cause) }
            }
        }
    }

    /// Called when a final response has arrived. Returns whether the client held the body back for a 100 that did not
    /// come. It is then unknown whether the client still sends the body.
    pub(super) fn is_withheld(&mut self) -> bool {
        let withheld = self.awaits_continue && !self.client.has_begun(self.request.moved().total);
        if withheld {
            self.up = Up::Broken;
        }
        withheld
    }

    /// Called when the bytes after the response's head are no longer HTTP, in both directions.
    pub(super) fn upgrade(&mut self, status: u16) {
        self.exchange.status = Some(status);
        self.exchange.upgraded = true;
        self.deadline = self.order.upgraded();
        self.client.stop_holding();
        self.up = Up::Sending;
        self.down = Down::Body;
    }
}
