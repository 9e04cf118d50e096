#!/usr/bin/env bash
# Runs a command as root: directly, or through sudo, saying why.
set -euo pipefail
[ "$(id -u)" = 0 ] && exec "$@"
echo "Network namespaces and kernel programs need root: sudo asks for your password." >&2
exec sudo --preserve-env=NO_COLOR "$@"
