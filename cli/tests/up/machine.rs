//! Machines on which something is in the way.

use std::process::Command;

use crate::mesh::root;

#[test]
fn a_bpffs_that_another_mount_hides_is_not_used() {
    let Some(()) = root(|| ()) else { return };
    let check = |mounts: &str| {
        // Another test's mesh may have one mounted.
        let script = format!(
            "umount -l /run/leno/bpf 2>/dev/null; {mounts} && exec \"$0\" check --name none -o json"
        );
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-c", &script, env!("CARGO_BIN_EXE_leno")]);
        let output = command.output().unwrap();
        let json: serde_json::Value = serde_json::from_slice(&output.stdout)
            .unwrap_or_else(|error| panic!("{error}: {output:?}"));
        json["machine"]["bpffs"].as_str().unwrap().to_owned()
    };
    assert_eq!(check("mount -t bpf bpf /sys/fs/bpf"), "mounted at /sys/fs/bpf");
    for hiding in ["/sys/fs/bpf", "/sys/fs"] {
        let found = check(&format!("mount -t bpf bpf /sys/fs/bpf && mount -t tmpfs none {hiding}"));
        assert_eq!(found, "not mounted; will be, below /run/leno", "hidden by a mount at {hiding}");
    }
}
