//! `leno check`: what this machine can do, and whether a mesh is healthy.

use std::net::{IpAddr, SocketAddr, TcpStream};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use leno_types::ports;
use serde::Serialize;

use crate::admin::Admin;
use crate::error::{Attempt, Error, Result};
use crate::layout::Layout;
use crate::metrics;
use crate::netns::Netns;
use crate::record::Process;
use crate::status::{InstanceStatus, Phase, Status};

/// How long the control plane may take to accept a connection.
const CONNECT_BOUND: Duration = Duration::from_secs(1);

/// Metric of a proxy: when its certificate ends, in seconds since 1970.
const EXPIRATION: &str = "leno_identity_expiration_timestamp_seconds";
/// Metric of a proxy: 1 while the control plane is connected.
const CONNECTED: &str = "leno_discovery_connected";

/// The state of a machine and of the mesh on it.
#[derive(Clone, Debug, Serialize)]
pub struct Check {
    /// What the machine can do.
    pub machine: leno_capture::Report,
    /// The findings about the mesh, none when it does not run.
    pub mesh: Option<Vec<Finding>>,
}

/// One thing that was looked at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// What.
    pub subject: String,
    /// Whether it is as it should be.
    pub healthy: bool,
    /// In words, with what to do when it is not.
    pub text: String,
}

impl Check {
    /// Looks at the machine, and at the mesh if it runs.
    ///
    /// # Errors
    /// When the mesh runs and cannot be looked at.
    pub async fn run(layout: &Layout) -> Result<Self> {
        let mesh = match Status::read(layout) {
            Ok(status) => Some(mesh(&status).await?),
            Err(Error::NotRunning(_)) => None,
            Err(error) => return Err(error),
        };
        Ok(Self { machine: leno_capture::Report::probe(), mesh })
    }

    /// Whether traffic can be captured here and the mesh, if any, is well.
    #[must_use]
    pub fn healthy(&self) -> bool {
        let well = |findings: &Vec<Finding>| findings.iter().all(|finding| finding.healthy);
        self.machine.chosen.is_some() && self.mesh.as_ref().is_none_or(well)
    }
}

async fn mesh(status: &Status) -> Result<Vec<Finding>> {
    let switch = Netns::open(&status.switch_netns)?;
    let mut findings = Vec::new();
    if status.needs_controller {
        findings.push(controller(status, &switch));
    }
    if let Some(reason) = &status.refused_edit {
        findings.push(Finding {
            subject: "files".to_owned(),
            healthy: false,
            text: format!("the last edit was refused: {reason}"),
        });
    }
    for instance in &status.instances {
        findings.push(application(instance));
        if instance.meshed {
            findings.push(proxy(instance, &switch).await);
        }
    }
    Ok(findings)
}

fn controller(status: &Status, switch: &Netns) -> Finding {
    let alive = status.controller.and_then(Process::find);
    let address = SocketAddr::new(status.gateway, ports::CONTROL);
    let connected = switch.within(|| {
        TcpStream::connect_timeout(&address, CONNECT_BOUND).attempt(|| address.to_string())
    });
    let (healthy, text) = match (alive, connected) {
        (Some(process), Ok(_)) => (true, format!("process {} serves {address}", process.pid)),
        (Some(process), Err(error)) => (
            false,
            format!("process {} does not serve {}: see its log", process.pid, error.chain()),
        ),
        (None, _) => (false, "does not run; it is being started again, proxies live on".to_owned()),
    };
    Finding { subject: "controller".to_owned(), healthy, text }
}

fn application(instance: &InstanceStatus) -> Finding {
    let healthy = instance.phase == Phase::Running;
    let mut text = instance.phase.as_str().to_owned();
    if instance.restarts > 0 {
        text += &format!(", started again {} times", instance.restarts);
    }
    if !healthy {
        text += ": see its output where `leno up` runs";
    }
    Finding { subject: format!("{}/{}", instance.namespace, instance.name), healthy, text }
}

async fn proxy(instance: &InstanceStatus, switch: &Netns) -> Finding {
    let address = instance.addresses.first().copied();
    let admin = Admin::at(switch, address.unwrap_or(IpAddr::from([0, 0, 0, 0])));
    let (mut healthy, mut text) = match admin.get("/ready").await {
        Ok(reply) if reply.status == 200 => (true, "ready".to_owned()),
        Ok(reply) => (false, format!("not ready: {}", reply.body.trim())),
        Err(error) => (false, error.chain()),
    };
    match &instance.capture {
        Some(backend) => text += &format!(", traffic captured by {backend}"),
        None => {
            healthy = false;
            text += ", traffic not captured";
        }
    }
    text += &format!(", mTLS {}", instance.mtls);
    if let Ok(reply) = admin.get("/metrics").await {
        let samples = metrics::parse(&reply.body);
        let value = |name: &str| samples.iter().find(|s| s.name == name).map(|s| s.value);
        let left = value(EXPIRATION).map(|end| end - unix_now());
        healthy &= left.is_none_or(|left| left > 0.0);
        match left {
            Some(left) if left > 0.0 => text += &format!(", certificate holds {}", roughly(left)),
            Some(_) => text += ", certificate has expired",
            None => {}
        }
        if value(CONNECTED) == Some(0.0) {
            healthy = false;
            text += ", serves on what it knew before it lost the control plane";
        }
    }
    if instance.proxy_restarts > 0 {
        text += &format!(", started again {} times", instance.proxy_restarts);
    }
    let subject = format!("{}/{} proxy", instance.namespace, instance.name);
    Finding { subject, healthy, text }
}

fn unix_now() -> f64 {
    // A clock before 1970 makes every certificate look fresh, which its proxy knows better.
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}

/// A time in its largest unit.
fn roughly(seconds: f64) -> String {
    match seconds {
        s if s >= 172_800.0 => format!("{:.0} days", s / 86_400.0),
        s if s >= 7_200.0 => format!("{:.0} h", s / 3_600.0),
        s if s >= 120.0 => format!("{:.0} min", s / 60.0),
        s => format!("{s:.0} s"),
    }
}
