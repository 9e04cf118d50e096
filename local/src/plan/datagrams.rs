//! Decides which datagrams of a workload its proxy carries, and reports settings that are not possible.

use leno_capture::{Backend, CaptureChoice};
use leno_resources::{CAPTURE_ANNOTATION, Located, Object, UDP_ANNOTATION, Workload};
use leno_types::{Datagrams, Protocol, UDP_APP_PROTOCOL};

use super::Draft;
use super::services::{is_alias, matches};
use super::settings::WorkloadSettings;

impl Draft<'_> {
    /// The setting in the documents. For a workload with a port of datagrams, which it or a Service that selects it
    /// declares, all datagrams but DNS are carried.
    pub(super) fn datagrams(
        &mut self,
        located: &Located<Object>,
        workload: &Workload,
        settings: &WorkloadSettings,
    ) -> Datagrams {
        if !settings.meshed {
            return Datagrams::Off;
        }
        let mut ports = workload.spec.ports.iter();
        let declared = ports.position(|port| port.protocol() == Protocol::Udp);
        for (index, port) in workload.spec.ports.iter().enumerate() {
            if port.protocol() == Protocol::Udp && port.published.is_some() {
                let reason = "a UDP port cannot be published: remove published".to_owned();
                self.problem(located, &format!("spec.ports[{index}].published"), reason);
            }
        }
        let datagrams = match (settings.datagrams, declared) {
            (Some(Datagrams::Off), Some(index)) => {
                let reason = format!(
                    "its datagrams would not be carried, because {UDP_ANNOTATION} is off: remove \
                     one of the two"
                );
                self.problem(located, &format!("spec.ports[{index}].appProtocol"), reason);
                Datagrams::Off
            }
            (Some(said), _) => said,
            (None, Some(_)) => Datagrams::Enabled,
            (None, None) if self.is_served_by_udp(workload) => Datagrams::Enabled,
            (None, None) => Datagrams::Off,
        };
        if let CaptureChoice::Only(backend) = settings.capture
            && datagrams.is_on()
            && backend != Backend::Ebpf
        {
            let reason = format!(
                "{backend} cannot capture datagrams: set {CAPTURE_ANNOTATION}: ebpf, or set \
                 {UDP_ANNOTATION}: off and declare no port with appProtocol leno.dev/udp"
            );
            self.problem(located, "metadata", reason);
        }
        datagrams
    }

    /// Whether a Service that selects the workload declares a port of datagrams.
    fn is_served_by_udp(&self, workload: &Workload) -> bool {
        let services = self.documents.objects.iter().filter_map(|located| match &located.value {
            Object::Service(service) => Some((located.value.key(), service.spec.as_ref()?)),
            _ => None,
        });
        let mut selecting = services.filter(|(key, spec)| {
            let selector = spec.selector.as_ref();
            key.namespace == workload.metadata.namespace
                && !is_alias(spec)
                && selector.is_some_and(|selector| matches(selector, &workload.metadata.labels))
        });
        selecting.any(|(_, spec)| {
            let mut ports = spec.ports.iter().flatten();
            ports.any(|port| {
                port.protocol.as_deref() == Some("UDP")
                    && port.app_protocol.as_deref() == Some(UDP_APP_PROTOCOL)
            })
        })
    }
}
