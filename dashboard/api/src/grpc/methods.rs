//! The methods of the gRPC service: which path of the HTTP interface each of them requests, and how its messages are
//! converted.

use data_encoding::HEXLOWER;
use prost::Message;
use serde::de::{DeserializeOwned, Error as _};
use serde::{Deserialize as _, Deserializer, Serialize};
use serde_json::Value;

use super::proto;
use super::status::{Code, Status};
use crate::serve::ROOT;

/// The path of the service. The name of a method follows it.
pub(super) const SERVICE: &str = "/leno.dashboard.v1.Dashboard/";

/// How often a method sends an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MethodForm {
    Once,
    /// One answer for each observation.
    Watch,
    /// Once a second, the requests that a tap has recorded.
    Tap,
}

/// A method of the service.
#[derive(Debug)]
pub(super) struct Method {
    name: &'static str,
    page: &'static str,
    pub(super) form: MethodForm,
    /// Converts the caller's message into a query.
    pub(super) query: fn(&[u8]) -> Result<String, Status>,
    /// Converts the JSON of an answer into a message.
    pub(super) answer: fn(&[u8]) -> Result<Vec<u8>, Status>,
}

impl Method {
    const fn new<Q, R>(name: &'static str, page: &'static str, form: MethodForm) -> Self
    where
        Q: Message + Default + Serialize,
        R: Message + Default + DeserializeOwned,
    {
        Self { name, page, form, query: query::<Q>, answer: answer::<R> }
    }

    pub(super) fn named(name: &str) -> Option<&'static Self> {
        METHODS.iter().find(|one| one.name == name)
    }

    /// The path with its query.
    pub(super) fn target(&self, query: &str) -> String {
        format!("{ROOT}{}?{query}", self.page)
    }
}

static METHODS: [Method; 13] = [
    Method::new::<proto::OverviewRequest, proto::Overview>(
        "GetOverview",
        "overview",
        MethodForm::Once,
    ),
    Method::new::<proto::WindowRequest, proto::Topology>(
        "GetTopology",
        "topology",
        MethodForm::Once,
    ),
    Method::new::<proto::WindowRequest, proto::Routes>("GetRoutes", "routes", MethodForm::Once),
    Method::new::<proto::SeriesRequest, proto::Points>("GetSeries", "series", MethodForm::Once),
    Method::new::<proto::BudgetRequest, proto::Budget>("GetBudget", "budget", MethodForm::Once),
    Method::new::<proto::ChangesRequest, proto::Changes>("GetChanges", "changes", MethodForm::Once),
    Method::new::<proto::ProxiesRequest, proto::Proxies>("GetProxies", "proxies", MethodForm::Once),
    Method::new::<proto::WindowRequest, proto::Policies>(
        "GetPolicies",
        "policies",
        MethodForm::Once,
    ),
    Method::new::<proto::FlowsRequest, proto::Flows>("GetFlows", "flows", MethodForm::Once),
    Method::new::<proto::DocumentRequest, proto::Document>(
        "GetDocument",
        "document",
        MethodForm::Once,
    ),
    Method::new::<proto::OverviewRequest, proto::Overview>(
        "WatchOverview",
        "overview",
        MethodForm::Watch,
    ),
    Method::new::<proto::WindowRequest, proto::Topology>(
        "WatchTopology",
        "topology",
        MethodForm::Watch,
    ),
    Method::new::<proto::TapRequest, proto::TappedRequests>("Tap", "tap", MethodForm::Tap),
];

/// The fields of a message that are set, as parameters of a query; lists are joined with commas.
fn query<Q: Message + Default + Serialize>(message: &[u8]) -> Result<String, Status> {
    let message = Q::decode(message)
        .map_err(|error| Status::new(Code::InvalidArgument, error.to_string()))?;
    let fields = serde_json::to_value(message).unwrap_or_default();
    let mut query = form_urlencoded::Serializer::new(String::new());
    for (name, value) in fields.as_object().into_iter().flatten() {
        match value {
            Value::Array(all) if !all.is_empty() => {
                let all: Vec<&str> = all.iter().filter_map(Value::as_str).collect();
                query.append_pair(name, &all.join(","));
            }
            Value::String(text) => {
                query.append_pair(name, text);
            }
            Value::Number(number) => {
                query.append_pair(name, &number.to_string());
            }
            _ => {}
        }
    }
    Ok(query.finish())
}

fn answer<R: Message + Default + DeserializeOwned>(json: &[u8]) -> Result<Vec<u8>, Status> {
    let read = serde_json::from_slice::<R>(json);
    let message = read.map_err(|error| {
        // This happens if the observer and this program have different versions.
        Status::new(Code::Internal, format!("the answer cannot be read: {error}"))
    })?;
    Ok(message.encode_to_vec())
}

/// A random name for a tap, so that the name is unique.
pub(super) fn tap_name() -> String {
    let mut bytes = [0; 8];
    // If there are no random numbers, two callers may share a tap, and each gets only a part of its requests.
    let _none = aws_lc_rs::rand::fill(&mut bytes);
    format!("grpc{}", HEXLOWER.encode(&bytes))
}

/// Converts the JSON name of an enum value, such as `control_plane`, to the name in the proto file, such as
/// `MARK_KIND_CONTROL_PLANE`.
pub(crate) trait EnumName: Into<i32> + Sized {
    /// The common prefix of the names in the proto file.
    const PREFIX: &'static str;
    /// The value with this name in the proto file.
    fn by_name(name: &str) -> Option<Self>;
}

macro_rules! named {
    ($($of:ident $prefix:literal),*) => {$(
        impl EnumName for proto::$of {
            const PREFIX: &'static str = $prefix;
            fn by_name(name: &str) -> Option<Self> {
                Self::from_str_name(name)
            }
        }
    )*};
}

named!(
    ControlPlane "CONTROL_PLANE", SignKind "SIGN_KIND", Mtls "MTLS", Severity "SEVERITY", AboutKind "ABOUT_KIND",
    MarkKind "MARK_KIND"
);

/// Reads a value of an enum.
pub(crate) fn number_of<'de, D: Deserializer<'de>, E: EnumName>(from: D) -> Result<i32, D::Error> {
    let name = String::deserialize(from)?;
    let known = E::by_name(&format!("{}_{}", E::PREFIX, name.to_ascii_uppercase()));
    known.map(Into::into).ok_or_else(|| D::Error::custom(format!("{name:?} is unknown")))
}
