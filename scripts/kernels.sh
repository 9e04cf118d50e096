#!/usr/bin/env bash
# Boots Debian's kernels in qemu with the kernel tests of this checkout, and writes docs/kernels.md from what each
# kernel did: the programs that it verified and attached, and the tests of capture and flows that passed.
#
#   scripts/kernels.sh                       all kernels of the matrix
#   scripts/kernels.sh bullseye trixie       only those of these suites; docs/kernels.md stays as it is
#
# Only qemu and busybox are installed. apt uses separate state in <target>/kernels, and kernels are unpacked there.
# LENO_KERNELS_ACCEL=kvm boots with KVM, if the machine supports it; the default is emulation.
set -euo pipefail
cd "$(dirname "$0")/.."

# The suites with a kernel package. The names are those of Debian releases and their repositories. The kernels are
# those for clouds, which have the same configuration of BPF, cgroups and networking as others, but fewer drivers.
matrix=(bullseye-security bookworm trixie trixie-backports)
# Tests of leno-capture that use every hook. All its tests together would take half an hour in emulation.
cases=(
  under_ebpf::outbound_ipv4_keeps_the_original_destination
  under_ebpf::outbound_ipv6_keeps_the_original_destination
  under_ebpf::inbound_keeps_port_and_client_address
  under_ebpf::the_application_sees_its_client_or_the_stand_in_address
  under_ebpf::only_the_proxy_names_clients
  under_ebpf::link_local_ipv6_has_no_way_past_the_proxy
  under_ebpf::fail_closed_refuses_while_no_proxy_listens
  under_ebpf::a_killed_proxy_is_replaced
  under_ebpf::an_upgrade_under_traffic_loses_nothing
  under_ebpf::release_leaves_nothing
  under_ebpf_by_user::outbound_ipv4_keeps_the_original_destination
  under_nftables::outbound_ipv4_keeps_the_original_destination
  under_nftables::inbound_keeps_port_and_client_address
)
mirror=${LENO_DEBIAN:-http://deb.debian.org}
package=linux-image-cloud-amd64
accel=${LENO_KERNELS_ACCEL:-tcg,thread=multi}
memory=2048 # MiB: the programs with their libraries are unpacked into it
limit=${LENO_KERNELS_LIMIT:-2400} # seconds for one kernel: emulated, its tests take a few minutes

[ "$(uname -m)" = x86_64 ] || { echo "the kernels are for amd64, and this machine is $(uname -m)" >&2; exit 1; }
[ "$(id -u)" = 0 ] || { echo "copying the test programs and their libraries into the guest needs root: type sudo make test-kernels" >&2; exit 1; }
target=$(mkdir -p "${CARGO_TARGET_DIR:-target}" && cd "${CARGO_TARGET_DIR:-target}" && pwd)
work=$target/kernels
mkdir -p "$work"
suites=("$@")
[ $# -gt 0 ] || suites=("${matrix[@]}")

apt() { # command and arguments of apt-get or apt-cache, with a state of its own
  "$1" -qq -o Dir::Etc::sourcelist="$work/apt/sources.list" -o Dir::Etc::sourceparts=- -o Dir::State="$work/apt/state" \
    -o Dir::Cache="$work/apt/cache" -o Dir::State::status=/dev/null -o APT::Sandbox::User=root "${@:2}"
}

know_packages() {
  mkdir -p "$work/apt/state/lists/partial" "$work/apt/cache/archives/partial" "$work/debs"
  local suite archive key=/usr/share/keyrings/debian-archive-keyring.gpg
  [ -e "$key" ] || { echo "$key is missing: install debian-archive-keyring" >&2; exit 1; }
  for suite in "${matrix[@]}"; do
    archive=debian
    [[ $suite != *-security ]] || archive=debian-security
    echo "deb [arch=amd64 signed-by=$key] $mirror/$archive $suite main"
  done >"$work/apt/sources.list"
  apt apt-get update
}

unpack_kernel() { # suite: prints the folder with vmlinuz and modules
  local suite=$1 version image release folder one
  version=$(apt apt-cache madison $package | awk -F'|' -v at=" $suite/" 'index($3, at) && !found++ {gsub(/ /, "", $2); print $2}')
  [ -n "$version" ] || { echo "$suite has no $package" >&2; return 1; }
  image=$(apt apt-cache show "$package=$version" | sed -n 's/^Depends:.*\(linux-image-[0-9][^ ]*\) .*/\1/p' | awk '!found++')
  release=${image#linux-image-}
  folder=$work/$suite
  if [ "$(cat "$folder/release" 2>/dev/null)" != "$release $version" ]; then
    rm -rf "$folder"
    mkdir -p "$folder/root"
    # Since version 7, the kernel and its modules are separate packages.
    for one in "$image" "linux-binary-$release" "linux-modules-$release"; do
      [ -n "$(apt apt-cache show "$one=$version" 2>/dev/null)" ] || continue
      (cd "$work/debs" && apt apt-get download "$one=$version" >/dev/null)
    done
    for one in "$work"/debs/*"$release"*.deb; do dpkg-deb --extract "$one" "$folder/root"; done
    rm "$work"/debs/*
    find "$folder/root" -name 'vmlinuz*' -exec cp {} "$folder/vmlinuz" \;
    echo "$release $version" >"$folder/release"
  fi
  echo "$folder"
}

copy_program() { # root, file: with the libraries that it loads
  local root=$1 file=$2 library
  mkdir -p "$root/$(dirname "$file")"
  cp -L "$file" "$root/$file"
  ldd "$file" 2>/dev/null | grep -o '/[^ ]*' | while read -r library; do
    [ -e "$root/$library" ] || { mkdir -p "$root/$(dirname "$library")"; cp -L "$library" "$root/$library"; }
  done || true
}

copy_python() { # root: the one of Debian, without what no test needs; some of its modules load libraries
  local root=$1 library at one
  copy_program "$root" /usr/bin/python3
  library=$(/usr/bin/python3 -c 'import sysconfig; print(sysconfig.get_path("stdlib"))')
  mkdir -p "$root$library" "$root/usr/share"
  (cd "$library" && tar -c --exclude=__pycache__ --exclude='config-*' --exclude=test --exclude=lib2to3 --exclude=idlelib \
    --exclude=pydoc_data --exclude=ensurepip .) | tar -x -C "$root$library"
  for one in "$root$library"/lib-dynload/*.so; do
    at=${one#"$root"}
    copy_program "$root" "$at"
  done
}

# Makes the programs, once for all kernels.
make_programs() {
  local root=$work/programs one name
  cargo test --no-run --message-format=json -p leno-bpf -p leno-capture -p leno-flows 2>/dev/null >"$work/built.json" ||
    cargo test --no-run -p leno-bpf -p leno-capture -p leno-flows >&2
  rm -rf "$root"
  mkdir -p "$root"/{bin,sbin,dev,proc,sys,run,tmp,etc,tests,root,usr/bin,usr/sbin,lib/modules,var/run}
  cp -L "$(command -v busybox)" "$root/bin/busybox"
  for one in sh mount modprobe insmod cat echo mkdir poweroff uname sleep timeout ls sysctl grep; do
    ln -s busybox "$root/bin/$one"
  done
  ln -s ../bin/busybox "$root/sbin/modprobe" # the kernel's own path
  for one in ip tc ss nft iptables ip6tables iptables-{save,restore} ip6tables-{save,restore} curl redis-server redis-cli; do
    command -v "$one" >/dev/null || { echo "$one is missing: scripts/deps.sh kernels" >&2; exit 1; }
    copy_program "$root" "$(command -v "$one")"
  done
  mkdir -p "$root/usr/lib/x86_64-linux-gnu"
  [ ! -d /usr/lib/x86_64-linux-gnu/xtables ] || cp -r /usr/lib/x86_64-linux-gnu/xtables "$root/usr/lib/x86_64-linux-gnu/"
  copy_python "$root"
  cp -L /etc/protocols /etc/services "$root/etc/" # nft names protocols by them
  # Adds the unit tests of the loader, and the tests named kernel.
  python3 - "$work/built.json" <<'END' | while read -r name one; do
import json, sys
for line in open(sys.argv[1]):
    row = json.loads(line)
    if row.get("reason") != "compiler-artifact" or not row.get("executable"):
        continue
    target, package = row["target"], row["package_id"]
    if target["name"] == "leno_bpf" and "lib" in target["kind"]:
        print("loader", row["executable"])
    elif target["name"] == "kernel":
        print("flows" if "/flows" in package else "capture", row["executable"])
END
    copy_program "$root" "$one"
    mv "$root$one" "$root/tests/$name"
  done
  strip "$root"/tests/*
  echo "${cases[@]}" >"$root/tests/cases"
  cat >"$root/init" <<'END'
#!/bin/sh
# The first process of the guest: runs the tests, one group after another, and ends the guest.
export PATH=/bin:/sbin:/usr/bin:/usr/sbin HOME=/root LENO_REQUIRE=root,servers RUST_BACKTRACE=0
ulimit -n 65536
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev
mount -t tmpfs tmpfs /run
mount -t tmpfs tmpfs /tmp
mount -t cgroup2 cgroup2 /sys/fs/cgroup
mount -t bpf bpf /sys/fs/bpf
ip link set lo up
sysctl -q -w kernel.printk="1 1 1 1"
echo "@@release $(uname -r)"
echo "@@preflight"
/tests/capture --ignored --nocapture prints_what_this_kernel_can_do 2>&1
echo "@@end $?"
for group in loader capture flows; do
  echo "@@tests $group"
  case $group in
    loader) timeout 300 /tests/loader --test-threads=1 --show-output 2>&1 ;;
    capture) timeout 900 /tests/capture --test-threads=1 --show-output --exact $(cat /tests/cases) 2>&1 ;;
    flows) timeout 900 /tests/flows --test-threads=1 --show-output 2>&1 ;;
  esac
  echo "@@end $?"
done
poweroff -f
END
  chmod +x "$root/init"
}

show_progress() { # of a console: groups of tests and their results
  grep --line-buffered -a -E '^(@@tests|test result)|FAILED' || true
}

boot() { # folder of a kernel: its console is in `console` there
  local folder=$1 root modules module
  root=$folder/modules
  rm -rf "$root"
  modules=$(find "$folder/root" -type d -path '*lib/modules/*' -name '*-amd64' | head -1)
  mkdir -p "$root/lib/modules"
  cp -r "$modules" "$root/lib/modules/"
  modules=$root/lib/modules/$(basename "$modules")
  # Keeps the modules for networking and those that they need; others cannot be used in this guest.
  rm -rf "$modules"/{vmlinuz,build,source} "$modules"/kernel/{sound,fs}
  find "$modules/kernel/drivers" -mindepth 1 -maxdepth 1 ! -name net -exec rm -r {} + 2>/dev/null || true
  find "$modules/kernel/drivers/net" -type f ! -name 'veth.ko*' ! -name 'dummy.ko*' -delete
  find "$modules" -name '*.ko.xz' -exec xz -d {} +
  find "$modules" -name '*.ko.zst' -exec zstd -q --rm -d {} +
  busybox depmod -b "$root" "$(basename "$modules")"
  (cd "$work/programs" && find . | busybox cpio -o -H newc 2>/dev/null) >"$folder/initrd"
  # The kernel unpacks several archives that follow each other in the file.
  (cd "$root" && find . | busybox cpio -o -H newc 2>/dev/null) >>"$folder/initrd"
  timeout "$limit" qemu-system-x86_64 -accel "$accel" -cpu max -smp 2 -m "$memory" -nographic -no-reboot -nic none \
    -kernel "$folder/vmlinuz" -initrd "$folder/initrd" -append "console=ttyS0 quiet panic=-1 rdinit=/init" \
    </dev/null 2>&1 | tee "$folder/console" | show_progress || echo "$(cat "$folder/release"): the guest did not end in time" >&2
  rm "$folder/initrd"
}

scripts/deps.sh kernels
know_packages
make_programs
folders=()
for suite in "${suites[@]}"; do
  folder=$(unpack_kernel "$suite")
  folders+=("$folder")
  echo "booting $(cat "$folder/release") of $suite"
  boot "$folder"
done
if [ $# -eq 0 ]; then
  python3 scripts/kernels_page.py --write docs/kernels.md "${folders[@]}"
else
  python3 scripts/kernels_page.py "${folders[@]}"
fi
