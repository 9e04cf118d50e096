#!/usr/bin/env bash
# Installs Debian packages (as root) without starting the services that they contain, because tests and clusters
# start their own.
set -euo pipefail

echo "installing: $*" >&2
policy=/usr/sbin/policy-rc.d
if [ ! -e "$policy" ]; then
  printf '#!/bin/sh\nexit 101\n' > "$policy"; chmod +x "$policy"
  trap 'rm -f "$policy"' EXIT
fi
apt-get update -qq
# A distribution may lack a package that only some tests need; Ubuntu, for example, has no chromium.
known=()
for package in "$@"; do
  if [ -n "$(apt-cache madison "$package")" ]; then known+=("$package"); else echo "apt has no package $package: continuing without it" >&2; fi
done
[ ${#known[@]} -eq 0 ] || DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${known[@]}" >/dev/null
