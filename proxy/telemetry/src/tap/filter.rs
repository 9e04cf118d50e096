//! The filter of a tap: which requests it shows.

use std::fmt;
use std::num::NonZeroU64;
use std::str::FromStr;

use crate::edge::{Direction, EdgeLabels};

use super::follow::identifier;
use super::{MAX_RATE, are_alike};
use crate::observed::path;

/// How many clients a filter may name, and how many servers. A workload is named by all its instances.
const MAX_PARTIES: usize = 64;
/// The rate of a tap if the user names none.
const DEFAULT_RATE: u32 = 50;

/// Selects the requests that a tap shows. The default is all requests, at most 50 per second.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Filter {
    /// The method that a request must have.
    pub method: Option<Box<str>>,
    /// The beginning that the path of a request must have.
    pub path: Option<Box<str>>,
    /// The first and the last status of the range in which the response's status must be.
    pub status: Option<(u16, u16)>,
    /// The direction of the requests; `None` means both.
    pub direction: Option<Direction>,
    /// The clients, of which a request must have one. If the list is empty, all match.
    pub from: Vec<Party>,
    /// The servers or services, of which a request must have one. If the list is empty, all match.
    pub to: Vec<Party>,
    /// Selects only inbound requests that the client's proxy has marked for a tap. Neither `rate` nor `most` applies to
    /// them.
    pub is_marked: bool,
    /// Whether the tap shows headers.
    pub with_headers: bool,
    /// Whether the tap shows the beginnings of bodies. Only the administrator of the proxy can permit that.
    pub with_bodies: bool,
    /// Whether the tap shows the decisions of the proxy.
    pub with_decisions: bool,
    /// The identifier to add to the requests, so that the taps of later hops recognise them ([`super::follow`]).
    pub follow: Option<NonZeroU64>,
    /// Selects only requests to which a tap of an earlier hop has added this identifier. The part of it that names the
    /// earlier tap's target is not compared.
    pub followed: Option<NonZeroU64>,
    /// The largest number of requests in total.
    pub most: Option<u32>,
    /// The largest number of requests per second.
    pub rate: u32,
}

/// A client, a server or a service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Party {
    /// The party's namespace.
    pub namespace: Box<str>,
    /// The party's name. `*` matches any.
    pub name: Box<str>,
}

/// A parameter of a filter that is unknown or invalid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FilterError {
    name: String,
    wanted: &'static str,
}

impl fmt::Display for FilterError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the parameter {:?} of a tap is {}", self.name, self.wanted)
    }
}

impl std::error::Error for FilterError {}

impl Default for Filter {
    fn default() -> Self {
        Self {
            method: None,
            path: None,
            status: None,
            direction: None,
            from: Vec::new(),
            to: Vec::new(),
            is_marked: false,
            with_headers: false,
            with_bodies: false,
            with_decisions: false,
            follow: None,
            followed: None,
            most: None,
            rate: DEFAULT_RATE,
        }
    }
}

impl FromStr for Party {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let (namespace, name) = text.split_once('/').ok_or(())?;
        if namespace.is_empty() || name.is_empty() {
            return Err(());
        }
        Ok(Self { namespace: namespace.into(), name: name.into() })
    }
}

impl Party {
    fn is(&self, namespace: &str, name: &str) -> bool {
        &*self.namespace == namespace && (&*self.name == "*" || &*self.name == name)
    }
}

impl Filter {
    /// Sets a parameter of the page `/tap`.
    ///
    /// # Errors
    /// The parameter is unknown, or its value is invalid.
    pub fn set(&mut self, name: &str, value: &str) -> Result<(), FilterError> {
        let invalid = |wanted| FilterError { name: name.to_owned(), wanted };
        let switch = || match value {
            "true" => Ok(true),
            "false" => Ok(false),
            _ => Err(invalid("true or false")),
        };
        match name {
            "method" => self.method = Some(value.into()),
            "path" => self.path = Some(value.into()),
            "status" => {
                let wanted = "a status such as 503, or a class such as 5xx";
                self.status = Some(statuses(value).ok_or_else(|| invalid(wanted))?);
            }
            "direction" => {
                self.direction = Some(match value {
                    "inbound" => Direction::Inbound,
                    "outbound" => Direction::Outbound,
                    _ => return Err(invalid("inbound or outbound")),
                });
            }
            "from" | "to" => {
                let party = value.parse().map_err(|()| invalid("NAMESPACE/NAME"))?;
                let list = if name == "from" { &mut self.from } else { &mut self.to };
                if list.len() >= MAX_PARTIES {
                    return Err(invalid("given at most 64 times"));
                }
                list.push(party);
            }
            "marked" => self.is_marked = switch()?,
            "headers" => self.with_headers = switch()?,
            "bodies" => self.with_bodies = switch()?,
            "decisions" => self.with_decisions = switch()?,
            "follow" | "followed" => {
                let id = identifier(value).ok_or_else(|| invalid("16 hexadecimal digits"))?;
                let one = if name == "follow" { &mut self.follow } else { &mut self.followed };
                *one = Some(id);
            }
            "most" => {
                let most = value.parse().ok().filter(|most| *most > 0);
                self.most = Some(most.ok_or_else(|| invalid("a number from 1 on"))?);
            }
            "rate" => {
                let rate = value.parse().ok().filter(|rate| (1..=MAX_RATE).contains(rate));
                self.rate = rate.ok_or_else(|| invalid("a number from 1 to 500"))?;
            }
            _ => return Err(invalid("unknown")),
        }
        Ok(())
    }

    /// Checks what is known when the request begins. `followed` is the identifier of the tap that already follows the
    /// request.
    pub(crate) fn may_match(
        &self,
        method: &str,
        target: &[u8],
        followed: Option<NonZeroU64>,
    ) -> bool {
        self.method.as_deref().is_none_or(|wanted| wanted == method)
            && self.path.as_deref().is_none_or(|wanted| path(target).starts_with(wanted.as_bytes()))
            && self.followed.is_none_or(|wanted| followed.is_some_and(|id| are_alike(id, wanted)))
    }

    /// Checks what is known before the request is forwarded.
    pub(crate) fn matches_edge(&self, edge: &EdgeLabels) -> bool {
        let client = |party: &Party| party.is(&edge.client_namespace, &edge.client);
        let server = |party: &Party| {
            party.is(&edge.server_namespace, &edge.server)
                || party.is(&edge.server_namespace, &edge.service)
        };
        self.direction.is_none_or(|wanted| wanted == edge.direction)
            && (self.from.is_empty() || self.from.iter().any(client))
            && (self.to.is_empty() || self.to.iter().any(server))
    }

    /// Checks what is known when the request ends.
    pub(crate) fn matches_status(&self, status: u16) -> bool {
        self.status.is_none_or(|(first, last)| (first..=last).contains(&status))
    }
}

/// Parses `503`, or `5xx`.
fn statuses(text: &str) -> Option<(u16, u16)> {
    if let Some(class) = text.strip_suffix("xx") {
        let first =
            class.parse::<u16>().ok().filter(|class| (1..=5).contains(class))?.checked_mul(100)?;
        return Some((first, first.checked_add(99)?));
    }
    let status = text.parse().ok().filter(|status| (100..=999).contains(status))?;
    Some((status, status))
}
