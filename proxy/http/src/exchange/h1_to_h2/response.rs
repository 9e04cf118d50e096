//! The response's direction, from a stream to HTTP/1.

use std::task::{Context, Poll};

use leno_h2::{Head, Piece, is_mesh_field, remove_reserved};
use smallvec::SmallVec;
use tokio::time::Instant;

use super::Relay;
use crate::Io;
use crate::body::{BodyError, BodyWalker};
use crate::call::take_internal;
use crate::edit::edit_block;
use crate::exchange::Judge;
use crate::exchange::client::{Down, Up};
use crate::exchange::incoming::Incoming;
use crate::exchange::outcome::server_reset;
use crate::failure::{Cause, Failure, Place};
use crate::grpc;
use crate::head::{Framing, HeadError, ResponseView, Version};
use crate::translate::response::{self, ToH1};
use crate::translate::{Carried, websocket};
use crate::writer::Rendered;

impl<C: Io, J: Judge> Relay<'_, '_, C, J> {
    pub(super) fn poll_down(&mut self, cx: &mut Context<'_>) -> Result<(), Failure> {
        loop {
            match self.down {
                Down::Done => return Ok(()),
                Down::Head => match self.poll_head(cx)? {
                    Poll::Ready(()) if self.exchange.upgraded => return Ok(()),
                    Poll::Ready(()) => continue,
                    Poll::Pending => return Ok(()),
                },
                Down::Interim => {}
                Down::Body => self.gather(cx)?,
            }
            if self.out.is_empty() && !self.out.is_finished() {
                return Ok(());
            }
            match self.out.poll_write(&mut self.client.io, cx) {
                Poll::Pending => {
                    // Some of it may have been written.
                    self.exchange.response_started = true;
                    let server = self.to_server.as_mut().map(|server| server.poll_stalled(cx));
                    return match server {
                        Some(Poll::Ready(reset)) => {
                            Err(server_reset(reset, false, self.order.mesh))
                        }
                        _ => Ok(()),
                    };
                }
                Poll::Ready(Ok(content)) => {
                    self.exchange.response_started |= self.out.moved > 0;
                    if let Some(server) = &mut self.to_server {
                        server.release(content);
                    }
                }
                Poll::Ready(Err(error)) => {
                    self.exchange.response_started = true;
                    return Err(Failure::new(Place::Client, Cause::Broken(error)));
                }
            }
            if self.down == Down::Interim {
                self.down = Down::Head;
            } else if self.out.is_finished() {
                self.down = Down::Done;
            }
        }
    }

    /// Takes what the server has sent, as far as one write goes.
    fn gather(&mut self, cx: &mut Context<'_>) -> Result<(), Failure> {
        let Some(server) = &mut self.to_server else { return Ok(()) };
        let refused = |error: BodyError| Failure::new(Place::Server, Cause::Body(error));
        while self.out.has_room() {
            match server.poll_data(cx) {
                Poll::Pending => break,
                Poll::Ready(Err(reset)) => return Err(server_reset(reset, false, self.order.mesh)),
                Poll::Ready(Ok(Some(piece))) => {
                    self.moves += 1;
                    self.exchange.response_bytes += piece.len() as u64;
                    self.out.push(piece).map_err(refused)?;
                }
                Poll::Ready(Ok(None)) => {
                    let trailers = server.trailers();
                    let status = trailers.as_deref().and_then(grpc::status_in);
                    self.exchange.grpc_status = self.exchange.grpc_status.or(status);
                    self.out.end(trailers.as_deref()).map_err(refused)?;
                }
            }
        }
        Ok(())
    }

    /// Ready when a head was there.
    fn poll_head(&mut self, cx: &mut Context<'_>) -> Result<Poll<()>, Failure> {
        let Some(server) = &mut self.to_server else { return Ok(Poll::Pending) };
        let head = match server.poll_head(cx) {
            Poll::Pending => return Ok(Poll::Pending),
            Poll::Ready(Ok(head)) => head,
            Poll::Ready(Err(reset)) => {
                let replayable = self.exchange.first_byte.is_none() && !self.used;
                return Err(server_reset(reset, replayable, self.order.mesh));
            }
        };
        self.exchange.first_byte.get_or_insert_with(Instant::now);
        self.moves += 1;
        if head.is_interim() {
            self.begin_interim(head)?;
        } else {
            self.begin_response(head)?;
        }
        Ok(Poll::Ready(()))
    }

    fn to_h1<'v>(&self, head: &Head, carried: Option<&'v [u8]>) -> ToH1<'v> {
        ToH1 {
            status: head.status().unwrap_or_default(),
            version: self.request.version(),
            keep: self.request.keep_alive() && !self.order.close_client,
            to_head: self.to_head,
            empty: false,
            carried: carried.filter(|_| self.order.mesh),
        }
    }

    fn begin_interim(&mut self, mut head: Head) -> Result<(), Failure> {
        let carried = take_internal(&mut head);
        remove_reserved(&mut head, is_mesh_field);
        let to = self.to_h1(&head, carried.as_deref());
        self.continued |= to.status == 100;
        // HTTP/1.0 knows no interim responses (RFC 9110 section 15.2).
        if to.version != Version::Http10 {
            let rendered = response::to_h1(&head, to).map_err(refused_head)?;
            self.out.begin(rendered.head, Framing::None);
            self.down = Down::Interim;
        }
        Ok(())
    }

    fn begin_response(&mut self, mut head: Head) -> Result<(), Failure> {
        let carried = take_internal(&mut head);
        let replayable = !self.used && !self.exchange.response_started;
        let mut to = self.to_h1(&head, carried.as_deref());
        let view = ResponseView::of_http2(&head, to.status);
        self.order.examine(view, replayable)?;
        self.exchange.status = Some(to.status);
        self.exchange.response_bytes = head.size() as u64;
        self.exchange.grpc_status = grpc::status_in(&head);
        edit_block(&mut head, &self.order.response);
        if self.request.is_connect && (200..300).contains(&to.status) {
            return self.begin_tunnel(head, to);
        }
        if self.is_switch(to) {
            return self.begin_upgrade(&head, to.carried);
        }
        let Some(server) = &mut self.to_server else { return Ok(()) };
        if self.protocol.take().is_some() || self.request.is_connect {
            // Not granted: so the request is over.
            server.send_data(Piece::default(), true);
        }
        to.empty = server.is_ended_without_rest();
        let body_begun = self.total > self.request.len() as u64;
        // Without a 100 the client may or may not send the body.
        let withheld = self.request.expect_continue() && !self.continued && !body_begun;
        to.keep &= !withheld;
        if withheld {
            self.up = Up::Broken;
        }
        let rendered = response::to_h1(&head, to).map_err(refused_head)?;
        self.keep_client = rendered.keep;
        self.out.begin(rendered.head, rendered.framing);
        self.down = Down::Body;
        if self.up == Up::Done {
            self.release();
        }
        Ok(())
    }

    /// Whether the response grants another protocol. A proxy of the mesh says so; from any other
    /// server each success means that (RFC 8441 section 5).
    fn is_switch(&self, to: ToH1<'_>) -> bool {
        let said = to.carried.and_then(Carried::parse).map(|carried| carried.switched);
        let success = (200..300).contains(&to.status);
        self.protocol.is_some() && success && said.unwrap_or(!self.order.mesh)
    }

    fn begin_upgrade(&mut self, head: &Head, carried: Option<&[u8]>) -> Result<(), Failure> {
        let protocol: SmallVec<[u8; 16]> = self.protocol.take().unwrap_or_default();
        let request = self.request.view(self.client.received.bytes());
        let accept = request.header("sec-websocket-key").and_then(websocket::accept);
        let accept = accept.as_ref().map(|accept| &accept[..]);
        let accept = accept.filter(|_| protocol.eq_ignore_ascii_case(b"websocket"));
        let rendered =
            response::to_switch(head, &protocol, accept, carried).map_err(refused_head)?;
        self.exchange.status = Some(101);
        self.take_over(rendered);
        Ok(())
    }

    /// A CONNECT has succeeded. No field frames what follows (RFC 9110 section 9.3.6).
    fn begin_tunnel(&mut self, mut head: Head, to: ToH1<'_>) -> Result<(), Failure> {
        head.remove_all(b"content-length");
        let to = ToH1 { to_head: true, keep: true, ..to };
        let rendered = response::to_h1(&head, to).map_err(refused_head)?;
        self.take_over(rendered.head);
        Ok(())
    }

    /// What follows `head` is not HTTP any more, in both directions.
    fn take_over(&mut self, head: Rendered) {
        self.exchange.upgraded = true;
        self.order.upgraded();
        self.out.begin(head, Framing::UntilClose);
        self.down = Down::Body;
        self.release();
        self.body = Incoming::new(BodyWalker::new(Framing::UntilClose));
        self.up = Up::Sending;
        if self.client.read_closed && self.client.received.is_empty() {
            self.end_sending();
        }
    }
}

fn refused_head(error: HeadError) -> Failure {
    Failure::new(Place::Server, Cause::Head(error))
}
