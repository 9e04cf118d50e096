//! Routes and authorization, whole.

mod authorization;
mod routes;
