//! Serves the requests of one client's connection, one after the other, and decides after each whether the connection
//! stays open.

mod streams;

use std::pin::pin;

use crate::Io;
use crate::answer::Answer;
use crate::conn::Conn;
use crate::exchange::Exchange;
use crate::failure::{Failure, Report};
use crate::head::RequestHead;
use crate::limits::Limits;

pub use streams::serve_streams;

/// The status that is counted if the client left before there was a status (nginx uses the same).
const CLIENT_LEFT: u16 = 499;

/// What happens to the client's connection after a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum After {
    /// The connection is ready for the next request.
    Next,
    /// The connection is closed properly.
    Close,
    /// The connection is reset, because the client has received a truncated response. The report with the cause is for
    /// a client that is another proxy.
    Abort(Option<Report>),
}

/// Serves requests until the client leaves or ends its stream. `request` serves each request whose first byte has been
/// received, mostly by [`serve_begun`]. Once `leave` is ready, the connection of an idle client is closed.
///
/// The connection is boxed, because it is moved several times for each request.
pub async fn serve<S: Io>(
    mut client: Box<Conn<S>>,
    (limits, leave): (&Limits, impl Future<Output = ()>),
    mut request: impl AsyncFnMut(Box<Conn<S>>) -> (Box<Conn<S>>, After),
) {
    let (mut leave, mut left) = (pin!(leave), false);
    while client.request_begins(limits.idle, leave.as_mut(), &mut left).await {
        let after;
        (client, after) = request(client).await;
        match after {
            After::Next => {}
            After::Close => break,
            After::Abort(report) => return client.abort(report),
        }
    }
    client.close(limits).await;
}

/// Serves one request that has begun. If it can be read, `forward` handles it. Otherwise the client gets an error, and
/// `refused` gets the status and the cause.
pub async fn serve_begun<S: Io>(
    client: &mut Conn<S>,
    limits: &Limits,
    forward: impl AsyncFnOnce(&mut Conn<S>, &RequestHead) -> After,
    refused: impl FnOnce(u16, &'static str),
) -> After {
    let mut request = RequestHead::default();
    match client.read_head(&mut request, limits).await {
        Ok(true) => forward(client, &request).await,
        Ok(false) => After::Close,
        Err(failure) => {
            if let Some(status) = failure.status() {
                let cause = failure.cause.label();
                refused(status, cause);
                // An error means that the client has already left.
                let _gone = client.respond(None, &Answer::error(status, cause)).await;
            }
            After::Close
        }
    }
}

impl<S: Io> Conn<S> {
    /// Answers a request with an error in place of a server. `cause` is the value of the `leno-error` header.
    pub async fn fail(&mut self, request: &RequestHead, status: u16, cause: &str) -> After {
        self.answer(request, &Answer::error(status, cause)).await
    }

    /// Answers a request with any answer.
    pub async fn answer(&mut self, request: &RequestHead, answer: &Answer<'_>) -> After {
        match self.respond(Some(request), answer).await {
            Ok(true) => After::Next,
            Ok(false) => After::Close,
            Err(_) => After::Abort(None),
        }
    }

    /// Answers a request with any answer. The request is the last on this connection.
    pub async fn answer_last(&mut self, request: &RequestHead, answer: &Answer<'_>) -> After {
        match self.respond_and(Some(request), answer, false).await {
            Ok(_) => After::Close,
            Err(_) => After::Abort(None),
        }
    }

    /// What happens to the client's connection after an exchange. If the exchange has failed and no part of a response
    /// was forwarded, the client is answered first.
    pub async fn conclude(&mut self, request: &RequestHead, done: &Exchange) -> After {
        match &done.failure {
            None if done.client_reusable => After::Next,
            None => After::Close,
            Some(failure) => match failure.status() {
                Some(status) if !done.response_started => {
                    self.fail(request, status, failure.cause.label()).await
                }
                _ => After::Abort(failure.report()),
            },
        }
    }
}

impl Exchange {
    /// The status to count: that of the response; or that of the answer in place of a response; or 499 if the client
    /// left.
    pub fn counted_status(&self) -> u16 {
        let answered = self.failure.as_ref().and_then(Failure::status);
        self.status.or(answered).unwrap_or(CLIENT_LEFT)
    }

    /// Why the exchange failed, for metrics and the access log.
    pub fn error(&self) -> Option<&'static str> {
        self.failure.as_ref().map(|failure| failure.cause.label())
    }
}

#[cfg(test)]
mod tests;
