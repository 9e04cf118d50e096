#!/usr/bin/env bash
# Runs a command as root, directly or through sudo, and prints why. With only `--check`, just tests whether that is
# possible, before a long build.
set -euo pipefail
[ "$(id -u)" = 0 ] && { [ "${1-}" = --check ] && exit; exec "$@"; }
if ! command -v sudo >/dev/null; then
  echo "Network namespaces and kernel programs need root, and this machine has no sudo: run the same command as root." >&2
  exit 1
fi
[ "${1-}" = --check ] && exit
echo "Network namespaces and kernel programs need root: sudo asks for your password." >&2
exec sudo --preserve-env=NO_COLOR "$@"
