//! The body of an HTTP/1 message on its way to a stream of HTTP/2.

use leno_h2::{Piece, Stream};

use crate::body::{BodyError, BodyWalker, Event};
use crate::translate::trailers;

/// Where the body has got to, and its trailers so far.
#[derive(Debug)]
pub(super) struct Incoming {
    pub(super) walker: BodyWalker,
    trailers: Vec<u8>,
}

impl Incoming {
    pub(super) fn new(walker: BodyWalker) -> Self {
        Self { walker, trailers: Vec::new() }
    }

    /// Sends the next part of `bytes`. How many of them it takes, framing included, and
    /// whether another part is among the rest.
    pub(super) fn send(
        &mut self,
        bytes: &[u8],
        to: &mut Stream,
    ) -> Result<(usize, bool), BodyError> {
        let (count, event) = self.walker.next(bytes)?;
        let goes_on = event.is_some() && !self.walker.is_done();
        match event {
            // Chunks may be followed by trailers, so their end comes by itself.
            Some(Event::Data(at)) => to.send_data(Piece::copied(&bytes[at]), self.walker.is_done()),
            Some(Event::Trailers(at)) => self.trailers.extend_from_slice(&bytes[at]),
            Some(Event::RemovedTrailer(_)) | None => {}
            Some(Event::End) if self.trailers.is_empty() => to.send_data(Piece::default(), true),
            Some(Event::End) => to.send_trailers(trailers::to_h2(&self.trailers)),
        }
        Ok((count, goes_on))
    }
}
