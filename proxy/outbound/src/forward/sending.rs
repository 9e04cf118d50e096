//! The settings of one attempt, which are the same for every copy of the request.

use std::rc::Rc;
use std::time::Instant;

use leno_balance::{Affinity, Pick};
use leno_http::{Exchange, HeaderLine, Judgement, Order, ResponseView, TraceLine, tap_mark_line};
use leno_telemetry::BodyCopies;
use leno_telemetry::tap::Mark;

use crate::Worker;
use crate::backends::Remote;
use crate::connect::is_own;
use crate::policy::{EndpointPolicy, RequestPolicy};
use crate::request::Request;
use crate::routes::Applied;
use crate::server::Server;

use super::turn::mark;

/// The settings that all copies of an attempt share.
#[derive(Clone)]
pub(super) struct Sending<'a> {
    pub(super) shared: &'a Rc<Worker>,
    pub(super) policy: &'a RequestPolicy,
    pub(super) endpoints: &'a EndpointPolicy,
    pub(super) wanted: Affinity,
    pub(super) applied: Option<&'a Applied>,
    pub(super) request_by: Option<Instant>,
    /// The trace headers for the next hop.
    pub(super) trace: Told<'a>,
    /// The mark by which the server's proxy recognises the request, if a tap records it.
    pub(super) mark: Option<Mark>,
    /// Where to copy the beginnings of the bodies, if a tap needs them.
    pub(super) copies: Option<BodyCopies>,
}

/// The trace headers for the next hop, in all formats.
#[derive(Clone, Copy)]
pub(super) struct Told<'a> {
    pub(super) parent: Option<&'a TraceLine>,
    /// The headers of the other formats in which the request carried its trace.
    pub(super) lines: &'a [HeaderLine],
}

/// When an attempt must end, and when its response must have begun.
pub(super) type Times = (Option<tokio::time::Instant>, Option<Instant>);

impl Sending<'_> {
    /// When an attempt that begins now must end.
    pub(super) fn deadline(&self) -> Option<tokio::time::Instant> {
        let of_route = self.applied.and_then(Applied::deadline);
        [self.request_by.map(Into::into), of_route].into_iter().flatten().min()
    }

    /// Sends a request to an endpoint, and relays the response.
    pub(super) async fn exchange<R: Request>(
        &self,
        request: &mut R,
        (pick, server): (&Pick<Remote>, &mut Server),
        (deadline, response_by): Times,
        judge: impl FnMut(ResponseView<'_>, bool) -> Judgement,
    ) -> Exchange {
        let turn = match self.applied {
            Some(_) if is_own(self.shared, pick.endpoint()) => {
                match mark(&self.shared.source, request.view()) {
                    Ok(turn) => turn,
                    Err(failure) => return Exchange::ended(failure),
                }
            }
            _ => None,
        };
        let line = match self.applied.filter(|applied| applied.keeps_sessions()) {
            Some(applied) => applied.session_line(pick.key()),
            None => self.endpoints.session_line(self.wanted, pick.key()),
        };
        let otherwise = match request.is_grpc() {
            true => &self.shared.grpc_limits,
            false => &self.shared.limits,
        };
        let mut order = Order::new(self.policy.limits(otherwise)).judged_by(judge);
        order.close_client = self.shared.activity.is_draining();
        order.mesh = server.is_mesh;
        order.connect = self.applied.is_some_and(Applied::relays_connect);
        order.deadline = deadline;
        order.response_by = response_by.map(Into::into);
        order.upgraded_for = self.policy.stream_timeout();
        order.copies.clone_from(&self.copies);
        let removed = self.applied.map(Applied::removed);
        if let (Some(applied), Some((of_request, of_response))) = (&self.applied, &removed) {
            order.request = applied.request(of_request);
            order.response = applied.response(of_response);
        }
        order.request.trace = self.trace.parent;
        let set: Vec<HeaderLine>;
        let marked = self.mark.filter(|_| server.is_mesh);
        let mark = marked.and_then(|mark| tap_mark_line(mark.number));
        if turn.is_some() || mark.is_some() || !self.trace.lines.is_empty() {
            let parent =
                HeaderLine::all(marked.and_then(|mark| mark.parent()).into_iter().collect());
            let own = self.trace.lines.iter().cloned().chain(turn).chain(mark).chain(parent);
            set = order.request.set.iter().cloned().chain(own).collect();
            order.request.set = &set;
        }
        let with_state: Vec<HeaderLine>;
        if let Some(state) = marked.and_then(|mark| mark.state()) {
            let state = HeaderLine::all(vec![state]);
            with_state = order.request.add.iter().cloned().chain(state).collect();
            order.request.add = &with_state;
        }
        // The server has proven that it is a proxy of the mesh, so its mesh headers are kept.
        order.response.keep_mesh = server.is_believed;
        let added: Vec<HeaderLine>;
        if let Some(line) = line {
            added = order.response.add.iter().cloned().chain([line]).collect();
            order.response.add = &added;
        }
        server.exchange(request, &mut order).await
    }
}
