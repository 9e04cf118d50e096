//! Kinds of the Gateway API (`gateway.networking.k8s.io`), with the fields of its specification.

mod filter;
mod grpc;
mod http;
mod policy;
mod reference;
mod stream;
mod tls;

pub use filter::{
    CorsFilter, FilterType, Fraction, Header, HeaderFilter, MirrorFilter, PathModifier,
    PathModifierType, RedirectFilter, RewriteFilter, RouteFilter,
};
pub use grpc::{GrpcMethodMatch, GrpcRoute, GrpcRouteMatch, GrpcRouteRule, GrpcRouteSpec};
pub use http::{
    CookieConfig, CookieLifetime, HeaderMatch, HttpRetry, HttpRoute, HttpRouteMatch, HttpRouteRule,
    HttpRouteSpec, HttpTimeouts, MatchType, PathMatch, PathMatchType, SessionPersistence,
    SessionPersistenceType,
};
pub use policy::{PolicyAncestorStatus, PolicyStatus};
pub use reference::{
    BackendObject, BackendRef, GATEWAY_GROUP, GrantFrom, GrantTo, ParentRef, ReferenceGrant,
    ReferenceGrantSpec, RouteParentStatus, RouteStatus,
};
pub use stream::{StreamRule, TcpRoute, TcpRouteSpec, TlsRoute, TlsRouteSpec};
pub use tls::{
    AUTHORITIES_KEY, AuthorityRef, BackendTlsPolicy, BackendTlsPolicySpec, SubjectAltName,
    SubjectAltNameType, TlsValidation, only_used,
};
