//! Opens an embedded object, configures it, and lets the kernel verify and load it.

use std::cell::RefCell;
use std::fs;
use std::path::Path;
use std::sync::Once;

use leno_bpf_abi::CaptureConfig;
use libbpf_rs::{MapCore, MapHandle, Object, ObjectBuilder, OpenObject, PrintLevel, set_print};

use crate::error::Error;
use crate::{OBJECT, pins};

/// The name of the read-only data section, and so of the map, that holds the configuration.
const CONFIG_SECTION: &str = ".rodata.config";

/// Most bytes of libbpf's output that an error contains. The last ones are kept, since a verifier's log ends with the
/// reason.
const MAX_LOG: usize = 4096;

thread_local! {
    /// The output of libbpf on this thread since the last `take_log`.
    static LOG: RefCell<String> = const { RefCell::new(String::new()) };
}

/// The maps that outlive an upgrade, pinned under these names.
pub(crate) const PINNED_MAPS: &[&str] =
    &["listeners", "originals", "inflight", "clients", "arriving", "excluded", "counters", TARGETS];

/// The map of destinations of datagrams. If datagrams are not captured, it has one entry and is not pinned.
const TARGETS: &str = "targets";

/// Lets the kernel verify every program without attaching it, to find out whether the kernel can run them.
///
/// # Errors
/// The reason why the kernel rejects a program.
pub fn probe() -> Result<(), Error> {
    // Once for a proxy that is recognised by its cgroup, and once by its user.
    for (proxy_cgroup_id, proxy_uid) in [(1, 0), (0, 1)] {
        load(CaptureConfig { proxy_cgroup_id, proxy_uid, ..WIDEST }, None)?;
    }
    Ok(())
}

/// A configuration with which the verifier checks every branch of the programs; the proxy is recognised by its cgroup.
pub(crate) const WIDEST: CaptureConfig = CaptureConfig {
    proxy_cgroup_id: 1,
    netns_cookie: 1,
    outbound_port: 0,
    inbound_port: 0,
    admin_port: 0,
    fail_closed: 1,
    has_excluded: 1,
    proxy_uid: 0,
    datagrams: 1,
};

/// Writes the configuration into an object.
pub(crate) fn configure(object: &mut OpenObject, config: &[u8]) -> Result<(), Error> {
    for mut map in object.maps_mut() {
        if map.name().to_string_lossy().ends_with(CONFIG_SECTION) {
            map.set_initial_value(config).map_err(Error::bpf("configure the kernel programs"))?;
        }
    }
    Ok(())
}

/// Loads the object. Maps that are pinned in `directory` are reused; those that are not are pinned there.
pub(crate) fn load(config: CaptureConfig, directory: Option<&Path>) -> Result<Object, Error> {
    let mut object = open(OBJECT)?;
    configure(&mut object, &config.to_bytes())?;
    for mut map in object.maps_mut() {
        let name = map.name().to_string_lossy().into_owned();
        if name == TARGETS && config.datagrams == 0 {
            map.set_max_entries(1).map_err(Error::bpf("size a map"))?;
            continue;
        }
        if let Some(directory) = directory
            && PINNED_MAPS.contains(&name.as_str())
        {
            if name == "counters" {
                drop_counters_of_another_size(
                    &pins::map_path(directory, &name),
                    map.max_entries(),
                )?;
            }
            map.set_pin_path(pins::map_path(directory, &name))
                .map_err(Error::bpf(format!("pin the map {name}")))?;
        }
    }
    verify(object)
}

/// Unpins the counters of another version if they are not as many as this version has. They restart from zero, but the
/// other maps can still be used.
fn drop_counters_of_another_size(pin: &Path, entries: u32) -> Result<(), Error> {
    if !pin.exists() {
        return Ok(());
    }
    let action = "read the counters of another version";
    let pinned = MapHandle::from_pinned_path(pin).map_err(Error::bpf(action))?;
    if pinned.max_entries() == entries {
        return Ok(());
    }
    fs::remove_file(pin).map_err(Error::io("unpin the counters of another version"))
}

/// Parses an object file, without loading it.
pub(crate) fn open(object: &[u8]) -> Result<OpenObject, Error> {
    static PRINT: Once = Once::new();
    PRINT.call_once(|| {
        set_print(Some((PrintLevel::Info, keep)));
    });
    take_log();
    ObjectBuilder::default().open_memory(object).map_err(with_log("read the kernel programs"))
}

/// Loads maps and programs into the kernel.
pub(crate) fn verify(object: OpenObject) -> Result<Object, Error> {
    take_log();
    object.load().map_err(with_log("load the kernel programs"))
}

/// Makes errors that contain libbpf's output.
fn with_log(action: &'static str) -> impl FnOnce(libbpf_rs::Error) -> Error {
    move |source| Error::Bpf { action: action.to_owned(), log: take_log(), source }
}

/// libbpf's print callback.
fn keep(level: PrintLevel, text: String) {
    tracing::debug!(?level, "{}", text.trim_end());
    LOG.with_borrow_mut(|log| {
        log.push_str(&text);
        let mut surplus = log.len().saturating_sub(MAX_LOG);
        while !log.is_char_boundary(surplus) {
            surplus += 1;
        }
        log.drain(..surplus);
    });
}

/// Removes and returns libbpf's output on this thread, without the last line break.
fn take_log() -> String {
    LOG.with_borrow_mut(std::mem::take).trim_end().to_owned()
}
