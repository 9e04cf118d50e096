#!/usr/bin/env bash
# Unpacks the libraries for linking programs for another architecture, and the content of the agent's image, from
# Debian's packages of that architecture into <target>/sysroot/ARCHITECTURE. Prints that path:
#
#   scripts/sysroot.sh arm64
#
# Nothing is installed and nothing on this machine changes, so root is not needed; apt uses separate state in that
# directory. The packages are those of the release that this machine's apt knows. To get newer ones, remove the
# directory.
set -euo pipefail
cd "$(dirname "$0")/.."

architecture=$1
target=$(mkdir -p "${CARGO_TARGET_DIR:-target}" && cd "${CARGO_TARGET_DIR:-target}" && pwd)
root=$target/sysroot/$architecture
packages=(libc6-dev libelf-dev zlib1g-dev libbpf-dev nftables iptables)
[ "$(cat "$root/packages" 2>/dev/null)" != "${packages[*]}" ] || { echo "$root"; exit; }

for tool in apt-get dpkg-deb; do
  command -v "$tool" >/dev/null && continue
  echo "$tool is missing: programs for $architecture are linked with Debian's libraries. Make the images on a" \
    "machine of each architecture, and join them as scripts/images.sh does (image-tool index)" >&2
  exit 1
done
echo "unpacking ${packages[*]} for $architecture into $root" >&2
rm -rf "$root"
mkdir -p "$root/apt/state/lists/partial" "$root/apt/cache/archives/partial"
: >"$root/apt/status"
# These settings come after the machine's own, whose hooks would change something on the machine.
cat >"$root/apt/settings" <<EOF
#clear APT::Update;
#clear DPkg;
APT { Architecture "$architecture"; Architectures { "$architecture"; }; Install-Recommends "0"; Sandbox::User ""; };
Dir { State "$root/apt/state"; State::status "$root/apt/status"; Cache "$root/apt/cache"; };
EOF
apt=(-c "$root/apt/settings" -qq)
lacking() {
  echo "this machine's apt has no packages for $architecture: Debian's servers do; where others have them at another" \
    "address, as Ubuntu does, add it to /etc/apt" >&2
  exit 1
}
apt-get "${apt[@]}" update >&2 || lacking
# The package of the compiler's own library has the compiler's version in its name.
version=$(apt-cache "${apt[@]}" depends gcc | sed -n 's/.*Depends: gcc-\([0-9]\+\)$/\1/p') || lacking
apt-get "${apt[@]}" -y --download-only install "${packages[@]}" "libgcc-$version-dev" >/dev/null || lacking
for package in "$root"/apt/cache/archives/*.deb; do
  dpkg-deb --extract "$package" "$root"
done
# On systems where /lib is a part of /usr, packages contain nothing in /lib, but linkers still look there.
for folder in lib lib64; do
  [ -e "$root/$folder" ] || [ ! -d "$root/usr/$folder" ] || ln -s "usr/$folder" "$root/$folder"
done
# Links to /lib/... must lead into this directory.
find "$root" -type l -lname '/*' | while read -r link; do
  ln -sfr "$root$(readlink "$link")" "$link"
done
rm -r "$root/apt"
echo "${packages[*]}" >"$root/packages"
echo "$root"
