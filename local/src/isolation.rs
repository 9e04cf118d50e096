//! Isolates a process of an instance: its control groups, network, files and host name.

use std::ffi::{CString, OsStr};
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use leno_bpf::mounts::{MountEntry, mounts};
use leno_supervise::Cgroup;
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, setns, unshare};
use nix::sys::statvfs::{FsFlags, statvfs};
use nix::unistd::sethostname;

use crate::error::{Attempt, Error, Result};
use crate::netns::Netns;
use crate::plan::BoundVolume;
use crate::record;
use crate::root::Root;

/// What a process enters between fork and exec. Everything is prepared beforehand, so that [`Isolation::enter`]
/// only makes system calls; between fork and exec a process must not allocate or take a lock.
#[derive(Debug)]
pub struct Isolation {
    cgroups: Vec<File>,
    netns: File,
    root: Option<Root>,
    /// The path on this machine of the directory that the process sees as `/`.
    outside: PathBuf,
    files: Vec<(CString, CString)>,
    volumes: Vec<Mount>,
    hostname: CString,
}

/// The parameters of a volume's mount.
#[derive(Debug)]
struct Mount {
    from: CString,
    onto: CString,
    /// The mount flags that make it read-only, if it is.
    read_only: Option<MsFlags>,
}

impl Isolation {
    /// Prepares to enter `cgroup` and `netns`; each pair in `files` is a source and the path that it is mounted over.
    ///
    /// # Errors
    /// When the group or the namespace does not exist.
    pub fn new(
        cgroup: &Cgroup,
        netns: &Netns,
        files: &[(PathBuf, PathBuf)],
        hostname: &str,
    ) -> Result<Self> {
        let pair = |(from, onto): &(PathBuf, PathBuf)| Ok((text(from)?, text(onto)?));
        let path = netns.path();
        Ok(Self {
            cgroups: vec![cgroup.entry()?],
            netns: File::open(&path).attempt(|| format!("cannot open {}", path.display()))?,
            files: files.iter().map(pair).collect::<Result<_>>()?,
            root: None,
            outside: PathBuf::from("/"),
            volumes: Vec::new(),
            hostname: text(Path::new(hostname))?,
        })
    }

    /// Adds these groups of other hierarchies.
    ///
    /// # Errors
    /// When one of the groups does not exist.
    pub fn within_groups(mut self, groups: &[Cgroup]) -> Result<Self> {
        for group in groups {
            self.cgroups.push(group.entry()?);
        }
        Ok(self)
    }

    /// Makes `root` the root file system. The files of [`new`](Self::new) are then mounted in it, and so are
    /// volumes, which must be added later.
    ///
    /// # Errors
    /// When the directory cannot be used as a root file system.
    pub fn with_root(mut self, root: Option<&Path>) -> Result<Self> {
        if let Some(root) = root {
            self.root = Some(Root::new(root)?);
            self.outside = root.to_owned();
        }
        Ok(self)
    }

    /// The path on this machine that leads to the file at `path` of the instance. Volumes are not considered.
    #[must_use]
    pub fn outside(&self, path: &Path) -> PathBuf {
        self.outside.join(path.strip_prefix("/").unwrap_or(path))
    }

    /// Adds these volumes, each of which may cover earlier ones.
    ///
    /// # Errors
    /// When a file or directory, or its mount point, does not exist.
    pub fn with_volumes(mut self, volumes: &[BoundVolume]) -> Result<Self> {
        let placed: Vec<BoundVolume> = volumes
            .iter()
            .map(|volume| BoundVolume { onto: self.outside(&volume.onto), ..volume.clone() })
            .collect();
        let volumes = placed.as_slice();
        for (index, volume) in volumes.iter().enumerate() {
            if self.root.is_some() {
                check_within(&self.outside, &volume.onto)?;
            }
            check_volume(volume, &volumes[..index])?;
            let read_only = match volume.read_only {
                true => Some(read_only_flags(&volume.from)?),
                false => None,
            };
            let (from, onto) = (text(&volume.from)?, text(&volume.onto)?);
            self.volumes.push(Mount { from, onto, read_only });
        }
        Ok(self)
    }

    /// Moves the calling process into the isolation. Safe between fork and exec.
    ///
    /// # Errors
    /// The system's reason.
    pub fn enter(&self) -> io::Result<()> {
        for mut cgroup in &self.cgroups {
            cgroup.write_all(b"0")?;
        }
        setns(&self.netns, CloneFlags::CLONE_NEWNET)?;
        unshare(CloneFlags::CLONE_NEWNS | CloneFlags::CLONE_NEWUTS)?;
        // A mount or unmount of the host takes effect here as well, but mounts made here are not visible to the
        // host.
        let slave = MsFlags::MS_SLAVE | MsFlags::MS_REC;
        mount(None::<&str>, "/", None::<&str>, slave, None::<&str>)?;
        self.root.as_ref().map_or(Ok(()), Root::mount)?;
        for (from, onto) in &self.files {
            let bind = MsFlags::MS_BIND;
            mount(Some(from.as_c_str()), onto.as_c_str(), None::<&str>, bind, None::<&str>)?;
        }
        self.volumes.iter().try_for_each(Mount::make)?;
        self.root.as_ref().map_or(Ok(()), Root::enter)?;
        sethostname(OsStr::from_bytes(self.hostname.as_bytes()))?;
        Ok(())
    }
}

impl Mount {
    fn make(&self) -> io::Result<()> {
        let (from, onto) = (Some(self.from.as_c_str()), self.onto.as_c_str());
        match self.read_only {
            None => {
                mount(from, onto, None::<&str>, MsFlags::MS_BIND | MsFlags::MS_REC, None::<&str>)?
            }
            // Not recursive, because mounts below it would stay writable.
            Some(flags) => {
                mount(from, onto, None::<&str>, MsFlags::MS_BIND, None::<&str>)?;
                mount(None::<&str>, onto, None::<&str>, flags, None::<&str>)?;
            }
        }
        Ok(())
    }
}

/// Rejects a root directory that is not a mount point, as after a plain chroot(2). mount(2) then fails with EINVAL
/// when an instance changes how mounts propagate, and no instance could get its own files.
///
/// # Errors
/// The reason, with the command that the user should run.
pub(crate) fn check_own_root() -> Result<()> {
    let mounts = mounts().attempt(|| "cannot read /proc/self/mountinfo".to_owned())?;
    check_root_mount(&mounts).map_err(Error::Refused)
}

/// [`check_own_root`], given the mounts that this process sees.
fn check_root_mount(mounts: &[MountEntry]) -> std::result::Result<(), String> {
    match mounts.iter().any(|mount| mount.at == Path::new("/")) {
        true => Ok(()),
        false => {
            Err("the root directory is not a mount point, as in a plain chroot, but processes \
                 of a mesh need mounts of their own: leave the chroot, run `mount --bind \
                 DIRECTORY DIRECTORY` for its directory, and enter it again"
                .to_owned())
        }
    }
}

/// Converts a path to the form that system calls take.
pub(crate) fn text(path: &Path) -> Result<CString> {
    let bytes = path.as_os_str().as_bytes();
    CString::new(bytes).map_err(|_| Error::Refused("a path holds a NUL byte".into()))
}

/// Rejects a mount point in a root file system if its path contains a symbolic link, because that may lead
/// outside.
fn check_within(root: &Path, place: &Path) -> Result<()> {
    let below = place.ancestors().take_while(|path| *path != root);
    let is_link = |path: &&Path| path.symlink_metadata().is_ok_and(|it| it.is_symlink());
    match below.filter(is_link).last() {
        None => Ok(()),
        Some(link) => Err(Error::Refused(format!(
            "the mountPath {} contains the symbolic link {}: write the path that it points to",
            place.display(),
            link.display()
        ))),
    }
}

/// Rejects a volume that cannot be mounted, with the remedy. `before` are the volumes that are mounted earlier.
fn check_volume(volume: &BoundVolume, before: &[BoundVolume]) -> Result<()> {
    let BoundVolume { from, onto, .. } = volume;
    // The mount point may be inside another volume.
    let covering = before.iter().rev().find_map(|other| {
        let rest = onto.strip_prefix(&other.onto).ok()?;
        Some(if rest.as_os_str().is_empty() { other.from.clone() } else { other.from.join(rest) })
    });
    let place = covering.unwrap_or_else(|| onto.clone());
    let missing = |what: String| Error::Refused(format!("{what} does not exist: create it first"));
    let source =
        fs::metadata(from).map_err(|_| missing(format!("the volume {}", from.display())))?;
    let target =
        fs::metadata(&place).map_err(|_| missing(format!("the mountPath {}", onto.display())))?;
    if source.is_dir() != target.is_dir() {
        let (from, onto) = (from.display(), onto.display());
        return Err(Error::Refused(format!(
            "the volume {from} cannot be mounted at {onto}: one is a directory, the other is not"
        )));
    }
    Ok(())
}

/// The flags to remount `path` read-only. They repeat the restrictions of the present mount, which a remount would
/// otherwise lift.
fn read_only_flags(path: &Path) -> Result<MsFlags> {
    let vfs = statvfs(path).attempt(|| format!("cannot examine {}", path.display()))?;
    let mut flags = MsFlags::MS_BIND | MsFlags::MS_REMOUNT | MsFlags::MS_RDONLY;
    for (held, kept) in [
        (FsFlags::ST_NOSUID, MsFlags::MS_NOSUID),
        (FsFlags::ST_NODEV, MsFlags::MS_NODEV),
        (FsFlags::ST_NOEXEC, MsFlags::MS_NOEXEC),
    ] {
        if vfs.flags().contains(held) {
            flags |= kept;
        }
    }
    Ok(flags)
}

/// Writes the files that an instance sees instead of the system's, and returns pairs of source and mount point.
///
/// # Errors
/// When a file cannot be written, or if the machine has no `/etc/resolv.conf` to mount over.
pub fn write_files(directory: &Path, names: &ResolverNames<'_>) -> Result<Vec<(PathBuf, PathBuf)>> {
    for part in [directory.parent(), Some(directory)].into_iter().flatten() {
        // Only root may read this directory. The files that an instance may see are mounted at other paths.
        record::make_directory(part, 0o700)?;
    }
    let resolver = fs::canonicalize("/etc/resolv.conf").attempt(|| {
        "the link /etc/resolv.conf points to no file: create an empty file there".to_owned()
    })?;
    let mut files = vec![("resolv.conf", resolver, names.resolver())];
    if let Ok(hosts) = fs::canonicalize("/etc/hosts") {
        files.push(("hosts", hosts, names.hosts()));
    }
    if let Ok(switch) = fs::canonicalize("/etc/nsswitch.conf")
        && let Ok(text) = fs::read_to_string(&switch)
    {
        files.push(("nsswitch.conf", switch, plain_lookup(&text)));
    }
    let mut pairs = Vec::new();
    for (name, onto, text) in files {
        let from = directory.join(name);
        record::write_atomically(&from, text.as_bytes(), 0o644)?;
        pairs.push((from, onto));
    }
    Ok(pairs)
}

/// What an instance's files of name resolution contain: its own names and its resolver.
#[derive(Clone, Copy, Debug)]
pub struct ResolverNames<'a> {
    /// The instance's name, which is also its host name.
    pub instance: &'a str,
    /// The instance's fully qualified names.
    pub full: &'a [String],
    /// The instance's namespace. Resolvers complete names of services with it first.
    pub namespace: &'a str,
    /// Its own addresses.
    pub addresses: crate::addresses::Addresses,
    /// The DNS server.
    pub server: std::net::IpAddr,
}

impl ResolverNames<'_> {
    /// The content of the instance's `/etc/resolv.conf`.
    pub(crate) fn resolver(&self) -> String {
        let Self { namespace, server, .. } = self;
        let domain = crate::dns::DOMAIN;
        format!(
            "nameserver {server}\nsearch {namespace}.svc.{domain} svc.{domain} {domain}\n\
             options ndots:5\n"
        )
    }

    /// The content of the instance's `/etc/hosts`.
    pub(crate) fn hosts(&self) -> String {
        let mut text = "127.0.0.1 localhost\n::1 localhost ip6-localhost ip6-loopback\n".to_owned();
        for address in self.addresses.iter() {
            let full = self.full.join(" ");
            text += format!("{address} {full} {}", self.instance).trim_end();
            text.push('\n');
        }
        text
    }
}

/// The content of `/etc/nsswitch.conf` with host name lookups restricted to files and DNS. Other sources
/// (systemd-resolved, mDNS) run outside of the instance's namespace and do not have the mesh's names.
pub(crate) fn plain_lookup(switch: &str) -> String {
    let plain = |line: &str| match line.trim_start().starts_with("hosts:") {
        true => "hosts: files dns\n".to_owned(),
        false => format!("{line}\n"),
    };
    switch.lines().map(plain).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ranges::MeshRanges;

    #[test]
    fn lookups_stay_inside_the_mesh() {
        let text = "passwd: files systemd\nhosts: files resolve [!UNAVAIL=return] dns\n";
        assert_eq!(plain_lookup(text), "passwd: files systemd\nhosts: files dns\n");
    }

    #[test]
    fn a_root_that_is_no_mount_point_is_refused() {
        let mount = |at: &str| MountEntry {
            device: (98, 0),
            root: "/work".into(),
            at: at.into(),
            kind: "ext4".into(),
            writable: true,
        };
        assert!(check_root_mount(&[mount("/proc")]).unwrap_err().contains("mount --bind"));
        let own = [mount("/proc"), mount("/")];
        assert_eq!(check_root_mount(&own), Ok(()));
    }

    #[test]
    fn an_instance_resolves_itself_and_names_its_resolver() {
        let names = ResolverNames {
            instance: "web-0",
            full: &["web-0.web.shop.svc.cluster.local".into()],
            namespace: "shop",
            addresses: MeshRanges::default().workloads(true).addresses(2),
            server: MeshRanges::default().workloads(true).gateway().v4.into(),
        };
        assert_eq!(
            names.resolver(),
            "nameserver 10.89.0.1\n\
             search shop.svc.cluster.local svc.cluster.local cluster.local\noptions ndots:5\n"
        );
        let hosts = names.hosts();
        assert!(hosts.contains("10.89.0.2 web-0.web.shop.svc.cluster.local web-0\n"), "{hosts}");
        assert!(hosts.contains("fd89::2 web-0.web.shop.svc.cluster.local web-0\n"), "{hosts}");
        assert!(hosts.contains("127.0.0.1 localhost\n"), "{hosts}");
    }
}
