#!/usr/bin/env bash
# Builds the page of the dashboard from dashboard/web into dashboard/web/dist, which is in the repository so that
# no build of leno needs Node or a registry (decision 054).
#
#   scripts/web.sh build    types, and the bundle
#   scripts/web.sh check    exits 1 if the page in the repository is not what the sources make
#   scripts/web.sh bench    measures the page with 1,000 workloads and 10,000 edges, in Chromium; needs no mesh
#
# It exits 3 if the page cannot be built here.
set -euo pipefail
cd "$(dirname "$0")/../dashboard/web"

cannot() {
  echo "dashboard/web: $*" >&2
  exit 3
}
[[ $(node --version 2>/dev/null) =~ ^v([0-9]+) ]] && [ "${BASH_REMATCH[1]}" -ge 20 ] || cannot "needs Node 20 or newer"
command -v npm >/dev/null || cannot "needs npm"
# Installs the packages of the lock file, once for each state of it. Packages may not run anything when they are
# installed.
lock=$(sha256sum package-lock.json)
if [ "$(cat node_modules/.lock 2>/dev/null)" != "$lock" ]; then
  npm ci --silent --no-audit --no-fund --ignore-scripts || cannot "its packages cannot be installed"
  echo "$lock" >node_modules/.lock
fi
npx tsc --noEmit
case ${1:-build} in
  build) npx vite build --logLevel warn ;;
  check)
    made=$(mktemp -d)
    trap 'rm -rf "$made"' EXIT
    npx vite build --logLevel warn --outDir "$made/dist"
    diff -r dist "$made/dist" >/dev/null || {
      echo "dashboard/web/dist is not what dashboard/web makes: scripts/web.sh build, and commit it" >&2
      exit 1
    } ;;
  bench)
    tools=${LENO_TOOLS:-$(cd ../.. && pwd)/${CARGO_TARGET_DIR:-target}/tools}
    LENO_TOOLS=$tools ../../scripts/tools.sh browser
    chromium=$(command -v chromium || command -v chromium-browser) || cannot "needs Chromium"
    LENO_BROWSER=$tools/browser LENO_CHROMIUM=$chromium node test/large.mjs bench ;;
  *) echo "scripts/web.sh: $1: say build, check or bench" >&2; exit 64 ;;
esac
