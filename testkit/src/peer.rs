//! Scripted peers: a plain HTTP backend with switches, raw servers, and clients that follow steps.
//!
//! `leno-peer` offers them as commands, so that a workload of the lab can be one.

mod backend;
mod faulty;
mod http;
mod script;
mod server;

pub use backend::Backend;
pub use faulty::{FORGED, Faulty, FaultyAct};
pub use script::{Event, Step, Transcript, checksum, follow, talk};
pub use server::{Behaviour, Server, serve};
