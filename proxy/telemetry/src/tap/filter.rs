//! Which requests a tap is for.

use std::fmt;
use std::num::NonZeroU64;
use std::str::FromStr;

use crate::edge::{Direction, EdgeLabels};

use super::follow::identifier;
use super::{MAX_RATE, are_alike};
use crate::observed::path;

/// Most names of one side: the instances of a workload.
const MAX_PARTIES: usize = 64;
/// Rate of a tap that names none.
const DEFAULT_RATE: u32 = 50;

/// What a tap shows. The default is all requests, 50 a second.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Filter {
    /// The method, exactly.
    pub method: Option<Box<str>>,
    /// How the path begins.
    pub path: Option<Box<str>>,
    /// The statuses, first and last.
    pub status: Option<(u16, u16)>,
    /// One of the directions.
    pub direction: Option<Direction>,
    /// Clients, any of them. Empty: all.
    pub from: Vec<Party>,
    /// Servers or services, any of them. Empty: all.
    pub to: Vec<Party>,
    /// Only inbound requests that the tapped proxy of their client has marked, at any rate.
    pub is_marked: bool,
    /// Whether events have headers.
    pub with_headers: bool,
    /// Whether events have the beginnings of bodies. Only the administrator of the proxy can permit that.
    pub with_bodies: bool,
    /// Whether events have what the proxy has decided.
    pub with_decisions: bool,
    /// Has the requests known to later hops by this.
    pub follow: Option<NonZeroU64>,
    /// Only requests that are followed by this, whichever target has chosen them.
    pub followed: Option<NonZeroU64>,
    /// Most requests in all.
    pub most: Option<u32>,
    /// Most requests in a second.
    pub rate: u32,
}

/// A client, a server or a service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Party {
    /// Its namespace.
    pub namespace: Box<str>,
    /// Its name. `*` is any.
    pub name: Box<str>,
}

/// A parameter of a filter that cannot be read.
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
    /// Takes in a parameter of the page `/tap`.
    ///
    /// # Errors
    /// There is no such parameter, or it has no such value.
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

    /// What is known when the request begins. `followed`: by what it is followed already.
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

    /// What is known before the request is sent on.
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

    /// What is known at the end.
    pub(crate) fn matches_status(&self, status: u16) -> bool {
        self.status.is_none_or(|(first, last)| (first..=last).contains(&status))
    }
}

/// `503`, or `5xx`.
fn statuses(text: &str) -> Option<(u16, u16)> {
    if let Some(class) = text.strip_suffix("xx") {
        let first =
            class.parse::<u16>().ok().filter(|class| (1..=5).contains(class))?.checked_mul(100)?;
        return Some((first, first.checked_add(99)?));
    }
    let status = text.parse().ok().filter(|status| (100..=999).contains(status))?;
    Some((status, status))
}
