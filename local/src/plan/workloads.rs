//! Plans the instances of `Workload` documents.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use leno_handover::MAX_MEMBERS;
use leno_resources::{
    EGRESS_ANNOTATION, Located, MODE_ANNOTATION, MTLS_ANNOTATION, Object, PATHS_ANNOTATION,
    SPIFFE_SOCKET_ANNOTATION, Workload,
};
use leno_types::{InstanceName, Protocol};

use super::{CertificateOrigin, Draft, InstanceLaunch, PlannedInstance, settings};
use crate::log::OWN_NAMES;

impl Draft<'_> {
    /// Adds all instances of all workloads.
    pub(super) fn add_workloads(&mut self) {
        let documents = self.documents;
        let workloads = documents.objects.iter().filter_map(|located| match &located.value {
            Object::Workload(workload) => Some((located, &**workload)),
            _ => None,
        });
        let workloads: Vec<_> = workloads.collect();
        if !self.number(&workloads) {
            return;
        }
        let mut groups = BTreeMap::new();
        for (located, workload) in workloads {
            for instance in self.instances(located, workload) {
                let members = instance.launch.group.as_ref().map_or(0, |group| {
                    let group = groups.entry(group.clone()).or_insert(0_u16);
                    *group += 1;
                    *group
                });
                if members == MAX_MEMBERS + 1 {
                    let group = instance.launch.group.as_deref().unwrap_or_default();
                    let reason = format!(
                        "the node proxy of group {group} would serve more than {MAX_MEMBERS} \
                         instances, which is the limit: give some of them a narrower \
                         leno.dev/share, for example workload, or leno.dev/mode: sidecar"
                    );
                    self.problem(located, "metadata", reason);
                }
                self.plan.instances.insert(instance.name.clone(), instance);
            }
        }
    }

    /// Assigns a number to every instance. Returns false if there are not enough.
    fn number(&mut self, workloads: &[(&Located<Object>, &Workload)]) -> bool {
        let owners = workloads.iter().flat_map(|(_, workload)| {
            let namespace = &workload.metadata.namespace;
            (0..workload.spec.replicas)
                .map(move |number| (namespace.clone(), workload.instance_name(number)))
        });
        let subnet = self.defaults.ranges.workloads(self.defaults.ipv6);
        let gateway = subnet.number_of(&subnet.gateway());
        if let Some(numbers) = self.plan.numbers.instances.assign(owners, &[gateway]) {
            self.plan.numbers.instances = numbers;
            return true;
        }
        if let Some((located, _)) = workloads.last() {
            let reason = "there are more instances than addresses in their range: use fewer \
                          replicas";
            self.problem(located, "spec.replicas", reason.to_owned());
        }
        false
    }

    /// Reports a workload in node mode whose certificates are to come from a Workload API. That is not possible:
    /// the API identifies the workload by the process that calls, but a node proxy serves several workloads.
    fn check_certificates(
        &mut self,
        located: &Located<Object>,
        settings: &settings::WorkloadSettings,
    ) {
        let is_spiffe = match &settings.certificates {
            CertificateOrigin::Unset => self.defaults.spiffe,
            CertificateOrigin::ControlPlane => false,
            CertificateOrigin::WorkloadApi(_) => true,
        };
        if is_spiffe && settings.meshed && settings.share.is_some() {
            let reason = format!(
                "a node proxy cannot get certificates from a SPIFFE Workload API, which identifies \
                 callers by their process: set {MODE_ANNOTATION}: sidecar, or \
                 {SPIFFE_SOCKET_ANNOTATION}: off"
            );
            self.problem(located, "metadata", reason);
        }
    }

    fn instances(
        &mut self,
        located: &Located<Object>,
        workload: &Workload,
    ) -> Vec<PlannedInstance> {
        let name = workload.metadata.name.as_str();
        if OWN_NAMES.contains(&name) {
            let reason = format!(
                "{name:?} is the name of a part of the mesh in `leno logs`: rename the workload"
            );
            self.problem(located, "metadata.name", reason);
        }
        let settings = settings::of(self.documents, workload, self.defaults);
        let launch = self.launch(located, workload, &settings);
        self.check_certificates(located, &settings);
        let mut resolved = workload.clone();
        let mode = settings.mtls.as_str().to_owned();
        resolved.metadata.annotations.insert(MTLS_ANNOTATION.to_owned(), mode);
        let egress = settings.egress.as_str().to_owned();
        resolved.metadata.annotations.insert(EGRESS_ANNOTATION.to_owned(), egress);
        if let Some(paths) = settings.paths.clone() {
            resolved.metadata.annotations.insert(PATHS_ANNOTATION.to_owned(), paths);
        }
        resolved.status = None;
        self.plan.workloads.push(resolved);

        let subnet = self.defaults.ranges.workloads(self.defaults.ipv6);
        // A waypoint always has its own proxy process.
        let share = settings.share.filter(|_| settings.meshed && !launch.waypoint);
        let group = |name: &InstanceName| Some(share?.group(name, &launch.service_account));
        let mut instances = Vec::new();
        for index in 0..workload.spec.replicas {
            let namespace = workload.metadata.namespace.clone();
            let name = workload.instance_name(index);
            let number = self.plan.numbers.instances.number(&(namespace.clone(), name.clone()));
            let number = number.expect("every instance was given a number");
            match InstanceName::new(&namespace, &name) {
                Ok(name) => instances.push(PlannedInstance {
                    launch: InstanceLaunch { group: group(&name), ..launch.clone() },
                    name,
                    workload: workload.metadata.name.as_str().into(),
                    label: String::new(),
                    full_names: Vec::new(),
                    addresses: subnet.addresses(number),
                    listening: listening(workload),
                    published: published(workload),
                    mtls: settings.mtls,
                    flows: settings.flows,
                    flow_budget: settings.flow_budget,
                    promote_after: settings.promote_after,
                }),
                Err(error) => {
                    let reason = format!("{error} (an instance is named after its workload)");
                    self.problem(located, "metadata.name", reason);
                    break;
                }
            }
        }
        instances
    }
}

/// The TCP ports of a workload. The application counts as ready when it listens on them.
fn listening(workload: &Workload) -> Vec<u16> {
    let ports = workload.spec.ports.iter().filter(|port| port.protocol() != Protocol::Udp);
    ports.map(|port| port.port).collect()
}

fn published(workload: &Workload) -> Vec<(SocketAddr, u16)> {
    let ports = workload.spec.ports.iter();
    ports.filter_map(|port| Some((port.published?.0, port.port))).collect()
}
