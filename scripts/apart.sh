#!/usr/bin/env bash
# Runs a command that starts meshes on a machine that it shares with no other mesh: its own network, bpffs, and
# folders for meshes and network namespaces. The names of control groups and temporary files are different for
# every mesh anyway.
#
#   scripts/apart.sh COMMAND [ARGUMENT...]
#
# Without root, where no mesh is started, the command runs as it is.
set -euo pipefail

[ "$(id -u)" = 0 ] || exec "$@"
# The whole of /run is replaced, with the other entries mounted into it. Mounting only on /run/leno would not be
# enough: a process outside can remove a folder on which another one is mounted, as a mesh does with folders that
# it leaves empty, and the kernel then removes the mount as well.
exec unshare --mount --net bash -euc '
  ip link set lo up
  run=$(mktemp -d)
  mount -t tmpfs -o mode=0755 none "$run"
  for entry in /run/*; do
    own=$run/${entry#/run/}
    case $entry in
      /run/leno | /run/netns) continue ;;
    esac
    if [ -L "$entry" ]; then
      cp -P "$entry" "$own"
    else
      if [ -d "$entry" ]; then mkdir "$own"; else : >"$own"; fi
      # The entry may have been removed meanwhile.
      mount --rbind "$entry" "$own" 2>/dev/null || rm -r "$own"
    fi
  done
  for folder in leno netns; do
    mkdir "$run/$folder"
    mount -t tmpfs -o mode=0755 none "$run/$folder"
  done
  mount --move "$run" /run
  rmdir "$run"
  ! mountpoint -q /sys/fs/bpf || mount -t bpf bpf /sys/fs/bpf
  exec "$@"' "$0" "$@"
