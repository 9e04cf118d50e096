//! The kernel programs of one workload, from attachment to removal.

use std::collections::HashSet;
use std::fs::File;
use std::net::IpAddr;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use leno_bpf_abi::{
    CaptureConfig, Counter, DatagramCapture, LISTENERS_PER_SLOT, MAX_EXCLUDED, PrefixKey, Slot,
};
use libbpf_rs::{Link, MapCore, MapFlags, MapHandle, Object, ProgramMut};

use crate::error::Error;
use crate::{PinRoot, netns, object, pins};

/// What a program is attached to.
#[derive(Clone, Copy, Debug)]
enum AttachPoint {
    /// The workload's cgroup, which contains the proxy's.
    Workload,
    /// The proxy's cgroup.
    Proxy,
    /// The network namespace.
    Namespace,
}

/// Every program that is always attached, in the order of attachment: those that serve captured connections come before
/// those that capture. They are detached in reverse order.
const HOOKS: &[(&str, AttachPoint)] = &[
    ("leno_proxy_sockops", AttachPoint::Proxy),
    ("leno_getsockopt", AttachPoint::Proxy),
    ("leno_app_sockops", AttachPoint::Workload),
    ("leno_getpeername4", AttachPoint::Workload),
    ("leno_getpeername6", AttachPoint::Workload),
    ("leno_sock_create", AttachPoint::Workload),
    ("leno_setsockopt", AttachPoint::Proxy),
    ("leno_sk_lookup", AttachPoint::Namespace),
    ("leno_connect4", AttachPoint::Workload),
    ("leno_connect6", AttachPoint::Workload),
    ("leno_sendmsg6", AttachPoint::Workload),
];

/// The programs that are attached in addition if datagrams are captured. They come before the others, because they show
/// the application the source of answers, and must do so before datagrams are captured.
const DATAGRAM_HOOKS: &[(&str, AttachPoint)] = &[
    ("leno_datagram_ingress", AttachPoint::Workload),
    ("leno_recvmsg4", AttachPoint::Workload),
    ("leno_recvmsg6", AttachPoint::Workload),
    ("leno_sendmsg4", AttachPoint::Workload),
];

/// The programs that capture. The others serve what was captured.
const CAPTURING: [&str; 5] =
    ["leno_sendmsg4", "leno_sendmsg6", "leno_connect6", "leno_connect4", "leno_sk_lookup"];

/// The workload that is captured, and where its processes and its proxy are.
#[derive(Clone, Copy, Debug)]
pub struct InstanceTarget<'a> {
    /// Its name, unique among the captured workloads of the machine.
    pub owner: &'a str,
    /// Its cgroup (version 2): every process in it and below is captured.
    pub cgroup: &'a Path,
    /// The proxy's cgroup, below the workload's. The proxy runs in this cgroup itself, not below
    /// it. Equal to `cgroup` if the proxy has none of its own; the proxy is then recognised by its
    /// user.
    pub proxy_cgroup: &'a Path,
    /// The cgroup in which the proxy's process runs, if that is not `proxy_cgroup`. For a node proxy they differ: its
    /// sockets are created in the pod's cgroup, but used by a process of another one.
    pub proxy_process: Option<&'a Path>,
    /// Its network namespace, as a file of `/run/netns` or `/proc/<pid>/ns/net`.
    pub netns: &'a Path,
}

/// How a workload is captured.
#[derive(Clone, Debug)]
pub struct InstanceOptions {
    /// The proxy's outbound listener, on 127.0.0.1 and `[::1]`.
    pub outbound_port: u16,
    /// The proxy's inbound listener, on 0.0.0.0 and `[::]` (IPv6 only).
    pub inbound_port: u16,
    /// The proxy's admin port, which inbound connections reach uncaptured.
    pub admin_port: u16,
    /// While the proxy is not listening: refuse connections instead of passing them.
    pub fail_closed: bool,
    /// Destinations that are never captured: an address and a prefix length.
    pub excluded: Vec<(IpAddr, u8)>,
    /// The user that the proxy runs as; identifies the proxy if it has no cgroup of its own.
    pub proxy_uid: u32,
    /// Which datagrams are captured.
    pub datagrams: DatagramCapture,
}

impl InstanceOptions {
    /// The programs that these options need, and what each is attached to, in the order of attachment.
    fn hooks(&self) -> impl Iterator<Item = (&'static str, AttachPoint)> {
        let of_datagrams: &[(&'static str, AttachPoint)] = match self.datagrams {
            DatagramCapture::Pass => &[],
            DatagramCapture::Captured | DatagramCapture::WithDns => DATAGRAM_HOOKS,
        };
        of_datagrams.iter().chain(HOOKS).copied()
    }
}

/// The counters of a workload's kernel programs, added up over all CPUs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InstanceCounters(Vec<u64>);

impl InstanceCounters {
    /// The value of one counter.
    #[must_use]
    pub fn get(&self, counter: Counter) -> u64 {
        self.0.get(counter as usize).copied().unwrap_or_default()
    }

    /// All counters by name.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> {
        Counter::ALL.iter().map(|counter| (counter.name(), self.get(*counter)))
    }
}

/// The pinned programs and maps of one workload. Dropping it changes nothing in the kernel.
#[derive(Debug)]
pub struct Instance {
    directory: PathBuf,
}

impl Instance {
    /// Loads, attaches and pins the programs. First removes what an earlier process has left under the same name. Must
    /// be called before the proxy listens, because the programs only notice sockets that start to listen later.
    ///
    /// # Errors
    /// If the kernel refuses, or a path of the target is invalid; nothing stays attached then.
    pub fn attach(
        root: &PinRoot,
        target: &InstanceTarget<'_>,
        options: &InstanceOptions,
    ) -> Result<Self, Error> {
        let instance = Self { directory: root.of(target.owner)? };
        instance.detach()?;
        let attached = instance.attach_new(target, options);
        if attached.is_err()
            && let Err(error) = instance.detach()
        {
            tracing::warn!(owner = target.owner, %error, "cannot undo a failed attachment");
        }
        attached.map(|()| instance)
    }

    /// The instance that is pinned under this name, if there is one.
    ///
    /// # Errors
    /// If the name is invalid.
    pub fn open(root: &PinRoot, owner: &str) -> Result<Option<Self>, Error> {
        let directory = root.of(owner)?;
        Ok(directory.is_dir().then_some(Self { directory }))
    }

    /// Replaces the programs of the pinned links by those of this build with these options. No
    /// connection is lost: every hook has either the old or the new program at any time, and both
    /// use the same maps.
    ///
    /// # Errors
    /// If the kernel refuses, for example because the maps of the other version differ. Each hook then has either its
    /// previous program or the new one.
    pub fn upgrade(
        &self,
        target: &InstanceTarget<'_>,
        options: &InstanceOptions,
    ) -> Result<(), Error> {
        let places = OpenTarget::open(target)?;
        let object = object::load(places.config(options)?, Some(&self.directory))?;
        exclude(&object, &options.excluded)?;
        let known: HashSet<PathBuf> =
            options.hooks().map(|(name, _)| pins::link_path(&self.directory, name)).collect();
        for (name, place) in options.hooks() {
            let program = program(&object, name)?;
            let path = pins::link_path(&self.directory, name);
            if path.exists() {
                let action = || format!("update {name}");
                let mut link = Link::open(&path).map_err(Error::bpf(action()))?;
                link.update_prog(&program).map_err(Error::bpf(action()))?;
            } else {
                places.attach(&program, name, place, &path)?;
            }
        }
        for path in pins::links(&self.directory)? {
            if !known.contains(&path) {
                pins::detach(&path)?;
            }
        }
        pins::write_note(&self.directory, "version", env!("CARGO_PKG_VERSION"))
    }

    /// The counters since the programs were attached.
    ///
    /// # Errors
    /// When the map cannot be read.
    pub fn counters(&self) -> Result<InstanceCounters, Error> {
        let action = "read the counters";
        let map = self.map("counters", action)?;
        let read = |counter: &Counter| {
            let per_cpu = map
                .lookup_percpu(&counter.index().to_ne_bytes(), MapFlags::ANY)
                .map_err(Error::bpf(action))?;
            Ok(per_cpu.unwrap_or_default().iter().map(|value| number(value)).sum())
        };
        Counter::ALL.iter().map(read).collect::<Result<_, Error>>().map(InstanceCounters)
    }

    /// Whether the proxy listens, for the direction and address family of this slot.
    ///
    /// # Errors
    /// When the map cannot be read.
    pub fn is_listening(&self, slot: Slot) -> Result<bool, Error> {
        let action = "look for the proxy's listeners";
        let map = self.map("listeners", action)?;
        let first = slot.index() * LISTENERS_PER_SLOT;
        for place in first..first + LISTENERS_PER_SLOT {
            let cookie = map.lookup(&place.to_ne_bytes(), MapFlags::ANY);
            if cookie.map_err(Error::bpf(action))?.is_some() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Stops capturing new connections; succeeds if none were captured. Until [`Instance::detach`] the proxy can still
    /// query the original destinations of connections that it has not accepted yet.
    ///
    /// # Errors
    /// When a pin cannot be removed.
    pub fn let_pass(&self) -> Result<(), Error> {
        for name in CAPTURING {
            pins::detach(&pins::link_path(&self.directory, name))?;
        }
        Ok(())
    }

    /// Detaches and unpins everything; succeeds if there is nothing.
    ///
    /// # Errors
    /// When a pin cannot be removed.
    pub fn detach(&self) -> Result<(), Error> {
        for (name, _) in DATAGRAM_HOOKS.iter().chain(HOOKS).rev() {
            pins::detach(&pins::link_path(&self.directory, name))?;
        }
        pins::remove_all(&self.directory)
    }

    /// The steps of `attach` that are undone if one fails.
    fn attach_new(
        &self,
        target: &InstanceTarget<'_>,
        options: &InstanceOptions,
    ) -> Result<(), Error> {
        let places = OpenTarget::open(target)?;
        let config = places.config(options)?;
        pins::create_private_directory(&self.directory)?;
        pins::write_note(&self.directory, "owner", target.owner)?;
        pins::write_note(&self.directory, "version", env!("CARGO_PKG_VERSION"))?;
        let object = object::load(config, Some(&self.directory))?;
        exclude(&object, &options.excluded)?;
        for (name, place) in options.hooks() {
            let path = pins::link_path(&self.directory, name);
            places.attach(&program(&object, name)?, name, place, &path)?;
        }
        Ok(())
    }

    /// One of the pinned maps.
    fn map(&self, name: &str, action: &str) -> Result<MapHandle, Error> {
        MapHandle::from_pinned_path(pins::map_path(&self.directory, name))
            .map_err(Error::bpf(action))
    }
}

/// The opened cgroups and network namespace of a target.
struct OpenTarget {
    cgroup: File,
    proxy_cgroup: File,
    proxy_process: Option<File>,
    netns: File,
}

impl OpenTarget {
    fn open(target: &InstanceTarget<'_>) -> Result<Self, Error> {
        let open =
            |path: &Path| File::open(path).map_err(Error::io(format!("open {}", path.display())));
        Ok(Self {
            cgroup: open(target.cgroup)?,
            proxy_cgroup: open(target.proxy_cgroup)?,
            proxy_process: target.proxy_process.map(open).transpose()?,
            netns: open(target.netns)?,
        })
    }

    /// The configuration of the programs.
    fn config(&self, options: &InstanceOptions) -> Result<CaptureConfig, Error> {
        // The inode of a cgroup's directory is its id (cgroup v2, 64-bit kernels).
        let id = |cgroup: &File| cgroup.metadata().map(|it| it.ino());
        let process = self.proxy_process.as_ref().unwrap_or(&self.proxy_cgroup);
        let proxy = id(process).map_err(Error::io("read the proxy's cgroup"))?;
        let workload = id(&self.cgroup).map_err(Error::io("read the workload's cgroup"))?;
        let cookie =
            netns::cookie(&self.netns).map_err(Error::io("enter the network namespace"))?;
        Ok(CaptureConfig {
            proxy_cgroup_id: if proxy == workload { 0 } else { proxy },
            netns_cookie: cookie,
            outbound_port: options.outbound_port,
            inbound_port: options.inbound_port,
            admin_port: options.admin_port,
            fail_closed: options.fail_closed.into(),
            has_excluded: (!options.excluded.is_empty()).into(),
            proxy_uid: options.proxy_uid,
            datagrams: options.datagrams as u32,
        })
    }

    /// Attaches one program and pins the link.
    fn attach(
        &self,
        program: &ProgramMut<'_>,
        name: &str,
        place: AttachPoint,
        path: &Path,
    ) -> Result<(), Error> {
        let link = match place {
            AttachPoint::Workload => program.attach_cgroup(self.cgroup.as_raw_fd()),
            AttachPoint::Proxy => program.attach_cgroup(self.proxy_cgroup.as_raw_fd()),
            AttachPoint::Namespace => program.attach_netns(self.netns.as_raw_fd()),
        };
        let mut link = link.map_err(Error::bpf(format!("attach {name}")))?;
        link.pin(path).map_err(Error::bpf(format!("pin the link of {name}")))
    }
}

/// A program of the loaded object.
fn program<'a>(object: &'a Object, name: &str) -> Result<ProgramMut<'a>, Error> {
    object.progs_mut().find(|program| program.name() == name).ok_or_else(|| missing(name))
}

/// Makes the map of excluded prefixes contain exactly these prefixes.
fn exclude(object: &Object, prefixes: &[(IpAddr, u8)]) -> Result<(), Error> {
    if prefixes.len() > MAX_EXCLUDED {
        return Err(Error::TooManyExcluded(prefixes.len()));
    }
    let action = "exclude prefixes";
    let key = |(ip, length): &(IpAddr, u8)| {
        let key = PrefixKey::new(*ip, *length).ok_or(Error::Prefix(*ip, *length))?;
        Ok(key.to_bytes().to_vec())
    };
    let wanted: HashSet<Vec<u8>> = prefixes.iter().map(key).collect::<Result<_, Error>>()?;
    let map =
        object.maps().find(|map| map.name() == "excluded").ok_or_else(|| missing("excluded"))?;
    let surplus: Vec<Vec<u8>> = map.keys().filter(|key| !wanted.contains(key)).collect();
    for key in surplus {
        map.delete(&key).map_err(Error::bpf(action))?;
    }
    for key in wanted {
        map.update(&key, &[1], MapFlags::ANY).map_err(Error::bpf(action))?;
    }
    Ok(())
}

/// The error if the embedded object has no such program or map, which only a build of mixed versions causes.
fn missing(name: &str) -> Error {
    let error = std::io::Error::other(format!("{name} is not in the embedded object"));
    Error::io("use the kernel programs")(error)
}

/// A counter's value on one CPU.
fn number(bytes: &[u8]) -> u64 {
    bytes.try_into().map(u64::from_ne_bytes).unwrap_or_default()
}
