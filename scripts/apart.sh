#!/usr/bin/env bash
# Runs a command that starts meshes on a machine that it shares with no other mesh: its own network, bpffs, and folders
# for meshes and network namespaces. Control groups and temporary files have names of their own for every mesh.
#
#   scripts/apart.sh COMMAND [ARGUMENT...]
#
# Without root, where no mesh is started, the command runs as it is.
set -euo pipefail

[ "$(id -u)" = 0 ] || exec "$@"
exec unshare --mount --net bash -euc '
  ip link set lo up
  for folder in /run/leno /run/netns; do
    mkdir -p "$folder"
    mount -t tmpfs -o mode=0755 none "$folder"
  done
  ! mountpoint -q /sys/fs/bpf || mount -t bpf bpf /sys/fs/bpf
  exec "$@"' "$0" "$@"
