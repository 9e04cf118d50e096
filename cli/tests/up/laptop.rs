//! Tests meshes on a laptop that has Docker's bridge and rules, a VPN's route to 10.0.0.0/8, no IPv6, no systemd,
//! and only version 1 of control groups. Namespaces simulate the laptop; its kernel is this machine's.

#![expect(clippy::unwrap_used, reason = "test code")]

use std::process::Command;

use crate::mesh::root;

/// `web` and `client` have proxies if `@INJECT@` is replaced by `enabled`.
const MESH: &str = "
apiVersion: v1
kind: Namespace
metadata: {name: s, annotations: {leno.dev/inject: @INJECT@}}
---
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: web, namespace: s}
spec:
  command: [python3, -m, http.server, '8080']
  ports: [{port: 8080, appProtocol: http, published: 18080}]
---
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: client, namespace: s}
spec: {command: [sleep, infinity]}
";

/// The state that Docker and the VPN leave. Files are served on port 80 at 10.8.0.1, which is the VPN's far end,
/// at 10.20.30.40 behind it, and at addresses that a mesh would otherwise use itself.
const LAPTOP: &str = r#"
set -e
mount -t tmpfs none /run
grep cgroup /proc/self/mounts | while read -r kind place rest; do
  case $rest in cgroup2*) umount -l "$place" ;; esac
done
ip link set lo up
echo 1 >/proc/sys/net/ipv6/conf/all/disable_ipv6
echo 1 >/proc/sys/net/ipv6/conf/default/disable_ipv6
ip link add docker0 type bridge
ip address add 172.17.0.1/16 dev docker0
ip link set docker0 up
iptables -P FORWARD DROP
iptables -N DOCKER-USER
iptables -A FORWARD -j DOCKER-USER
iptables -A FORWARD -o docker0 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
iptables -A FORWARD -i docker0 ! -o docker0 -j ACCEPT
iptables -t nat -A POSTROUTING -s 172.17.0.0/16 ! -o docker0 -j MASQUERADE
unshare --net sleep 600 >/dev/null 2>&1 &
far=$!
while [ "$(readlink /proc/$far/ns/net)" = "$(readlink /proc/self/ns/net)" ]; do sleep 0.05; done
ip link add tun9 type veth peer name eth0 netns $far
ip address add 10.8.0.2/24 dev tun9
ip link set tun9 up
ip route add 10.0.0.0/8 via 10.8.0.1
far() { nsenter --net=/proc/$far/ns/net "$@"; }
far ip link set lo up
far ip address add 10.8.0.1/24 dev eth0
for behind in 10.20.30.40 10.89.0.2 10.96.0.1; do far ip address add $behind/32 dev eth0; done
far ip link set eth0 up
mkdir -p "$1/far" && cd "$1/far"
nsenter --net=/proc/$far/ns/net python3 -m http.server 80 >/dev/null 2>&1 &
served=$!
trap '"$0" down --now --name "$2" >/dev/null 2>&1 || true; kill $far $served' EXIT
cd "$1"
status() { curl -s -o /dev/null -m 15 -w '%{http_code}' "$@" || true; }
inside() { "$0" exec --name "$2" client -- curl -s -o /dev/null -m 15 -w '%{http_code}' "$3" || true; }
"#;

/// The output of a script on the laptop. `$0` is `leno`, `$1` is a folder with `mesh.yaml`, and `$2` is the name
/// of a mesh.
fn laptop(inject: &str, script: &str) -> Option<(String, String)> {
    root(|| ())?;
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("mesh.yaml"), MESH.replace("@INJECT@", inject)).unwrap();
    let mut command = Command::new("unshare");
    command.args(["--mount", "--net", "bash", "-c", &format!("{LAPTOP}{script}")]);
    command.args([env!("CARGO_BIN_EXE_leno")]).arg(directory.path());
    command.arg(format!("l{}{}", std::process::id(), &inject[..1]));
    let output = command.output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Some((text(&output.stdout), text(&output.stderr)))
}

/// Calls inside the mesh, into it, and out of it.
const CALLS: &str = r#"
"$0" up --wait --uplink --name "$2" mesh.yaml >up.log 2>&1 || cat up.log
echo "web $(inside - "$2" http://web:8080/)"
echo "published $(status http://127.0.0.1:18080/)"
echo "without the rules $(inside - "$2" http://10.20.30.40/)"
"$0" logs --name "$2" leno
eval "$("$0" logs --name "$2" leno | sed -n 's/.*; to let the mesh out: //p')"
echo "vpn $(inside - "$2" http://10.8.0.1/)"
echo "behind it $(inside - "$2" http://10.20.30.40/)"
echo "at other addresses $(inside - "$2" http://10.89.0.2/) $(inside - "$2" http://10.96.0.1/)"
"$0" down --name "$2"
"$0" up --wait --uplink --workload-range 10.89.0.0/16 --name "$2" mesh.yaml >up.log 2>&1 || cat up.log
"$0" logs --name "$2" leno | grep 'has a route'
"$0" down --name "$2"
"#;

#[test]
fn a_mesh_works_on_a_laptop_or_says_what_to_do() {
    for inject in ["enabled", "disabled"] {
        let Some((said, errors)) = laptop(inject, CALLS) else { return };
        let has = |line: &str| said.lines().any(|one| one.starts_with(line));
        let shown = format!("{inject}:\n{said}\n{errors}");
        assert!(has("web 200") && has("published 200"), "{shown}");
        // Docker's rules drop forwarded packets. The mesh names the chain and the commands that the user should
        // type.
        assert!(said.contains("(chain FORWARD of table ip filter)"), "{shown}");
        assert!(!has("without the rules 200"), "{shown}");
        // The VPN's route leads to the addresses that a mesh has by default, so the mesh uses others.
        assert!(
            said.contains(
                "this machine has a route to 10.0.0.0/8 through tun9: workloads have addresses of 172.29.0.0/16 and services of 172.30.0.0/16, so that workloads can reach what is behind the route\n"
            ),
            "{shown}"
        );
        assert!(has("vpn 200") && has("behind it 200"), "{shown}");
        assert!(has("at other addresses 200 200"), "{shown}");
        // Addresses that the user has requested are kept.
        assert!(
            said.contains(
                "through tun9: workloads cannot reach 10.89.0.0/16 and 10.96.0.0/16 behind it, which are the mesh's own addresses: choose others with --workload-range and --service-range\n"
            ),
            "{shown}"
        );
        assert!(said.contains("has ended, 2 instances"), "{shown}");
    }
}
