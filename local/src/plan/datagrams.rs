//! Decides which datagrams of a workload its proxy carries, and reports settings that are not possible.

use leno_capture::{Backend, CaptureChoice};
use leno_resources::{CAPTURE_ANNOTATION, Located, Object, UDP_ANNOTATION, Workload};
use leno_types::{Datagrams, Protocol};

use super::Draft;
use super::settings::WorkloadSettings;

impl Draft<'_> {
    /// Which datagrams the proxy carries: as the documents set it. Without a setting, it carries all datagrams
    /// except DNS if the workload declares a UDP port.
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
                let reason = "a port of UDP cannot be published: remove it".to_owned();
                self.problem(located, &format!("spec.ports[{index}].published"), reason);
            }
        }
        let datagrams = match (settings.datagrams, declared) {
            (Some(Datagrams::Off), Some(index)) => {
                let reason = format!(
                    "its datagrams are not carried, since {UDP_ANNOTATION} is off: remove one of the two"
                );
                self.problem(located, &format!("spec.ports[{index}].appProtocol"), reason);
                Datagrams::Off
            }
            (Some(said), _) => said,
            (None, Some(_)) => Datagrams::Enabled,
            (None, None) => Datagrams::Off,
        };
        if let CaptureChoice::Only(backend) = settings.capture
            && datagrams.is_on()
            && backend != Backend::Ebpf
        {
            let reason = format!(
                "{backend} cannot capture datagrams: use {CAPTURE_ANNOTATION}: ebpf, or {UDP_ANNOTATION}: off and no port with \
                 appProtocol leno.dev/udp"
            );
            self.problem(located, "metadata", reason);
        }
        datagrams
    }
}
