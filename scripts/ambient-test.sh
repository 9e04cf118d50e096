#!/usr/bin/env bash
# Tests ztunnel, the proxy of Istio's ambient mode, together with proxies of a mesh of `leno up`: HBONE in both
# directions, HTTP and opaque bytes, under the policies of both, with certificates of one authority.
#
#   scripts/apart.sh scripts/ambient-test.sh --ztunnel PATH     needs root, Go, Python, curl, iptables and nsenter; debug
#                                                              builds of the programs (with --examples)
#
# PATH is any build of istio/ztunnel; the variable LENO_ZTUNNEL may name it instead. Building it takes half an hour
# of processor time:
#   git clone https://github.com/istio/ztunnel && cd ztunnel && cargo build --release --no-default-features --features tls-aws-lc
#
#   web, cart (meshed) ══ HBONE ══► ztunnel ──► http :8080, echo :9000 of far
#   far ──► ztunnel ══ HBONE ══► proxies of cart (http :8080) and echo (bytes :9000)
set -euo pipefail
cd "$(dirname "$0")/.."
target=$(cd "${CARGO_TARGET_DIR:-target}" && pwd)
tools=${LENO_TOOLS:-$target/tools}
leno=$target/debug/leno
fail() {
  echo "ambient-test: $*" >&2
  exit 1
}
ztunnel=${LENO_ZTUNNEL:-}
[ "${1:-}" != --ztunnel ] || ztunnel=${2:-}
[ -n "$ztunnel" ] || fail "name a build of ztunnel with --ztunnel PATH (this file has the commands that build it)"
ztunnel=$(realpath "$ztunnel")
[ -x "$ztunnel" ] || fail "$ztunnel is not an executable file"
for program in iptables nsenter curl python3; do
  command -v $program >/dev/null || fail "$program is missing"
done
scripts/tools.sh spiffe
place=$(mktemp -d /tmp/ambient.XXXXXX)
chmod 755 "$place"
# ztunnel runs as a user without rights, who must be able to read the program.
install -m 755 "$ztunnel" "$place/program"
mkdir "$place/sockets"
chmod 755 "$place/sockets"
name=ambient-$$
pids=()
end() {
  local code=$?
  "$leno" down --name "$name" >/dev/null 2>&1 || true
  kill "${pids[@]}" 2>/dev/null || true
  wait
  [ "$code" = 0 ] || tail -n 25 "$place"/*.log >&2
  rm -rf "$place"
}
trap end EXIT
until_ok() { # what, command...
  local what=$1 begin=$SECONDS
  shift
  until "$@" >"$place/said" 2>&1; do
    [ $((SECONDS - begin)) -lt 120 ] || fail "no $what: $(tail -n 5 "$place/said")"
    sleep 0.5
  done
}
starts() { # name, command...
  "${@:2}" >"$place/$1.log" 2>&1 </dev/null &
  pids+=($!)
}

# Starts the authority. It is the same for proxies of the mesh, through the SPIFFE Workload API, and for ztunnel,
# through Istio's service.
ids=()
for one in control:control web:ns/lab/sa/web cart:ns/lab/sa/cart echo:ns/lab/sa/echo istio:istio; do
  ids+=("${one%%:*}=spiffe://cluster.local/${one#*:}")
done
starts issuer "$tools/spiffe/spiffe" issue "$place/sockets" 1h "${ids[@]}"
until_ok "authority" test -S "$place/sockets/istio.sock"

workload() { # name, rest of the metadata, spec
  echo "---
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: $1, namespace: lab, labels: {app: $1}, annotations: {$2}}
spec: {serviceAccount: $1, $3}"
}
socket() { echo "leno.dev/spiffe-endpoint-socket: 'unix://$place/sockets/$1.sock'"; }
peer=$target/debug/leno-peer
{
  workload web "$(socket web)" "command: [sleep, infinity]"
  workload cart "$(socket cart)" "command: [$peer, http, --listen, '[::]:8080'], ports: [{name: http, port: 8080}]"
  workload echo "$(socket echo)" "command: [$peer, echo, --listen, '127.0.0.1:9000'], ports: [{name: bytes, port: 9000}]"
  workload far "leno.dev/inject: disabled, leno.dev/tunnel: hbone" \
    "command: [sh, -c, '$peer http --listen 0.0.0.0:8080 & exec $peer echo --listen 0.0.0.0:9000'], ports: [{name: http, port: 8080}, {name: bytes, port: 9000}]"
  echo "---
apiVersion: leno.dev/v1alpha1
kind: AuthorizationPolicy
metadata: {name: no-admin, namespace: lab}
spec:
  selector: {matchLabels: {app: cart}}
  action: Deny
  rules: [{from: [{serviceAccounts: [far]}], to: [{paths: [{prefix: /admin}]}]}]"
} >"$place/mesh.yaml"
closed="---
apiVersion: leno.dev/v1alpha1
kind: AuthorizationPolicy
metadata: {name: clients, namespace: lab}
spec:
  selector: {matchLabels: {app: echo}}
  rules: [{from: [{serviceAccounts: [web]}]}]"
starts mesh "$leno" up --name "$name" --mtls strict --spiffe-endpoint-socket "unix://$place/sockets/control.sock" "$place/mesh.yaml"
status=/run/leno/$name/mesh.json
of() { # a field of an instance, in Python
  python3 -c 'import json, sys
one = [i for i in json.load(open(sys.argv[1]))["instances"] if i["workload"] == sys.argv[2]][0]
print(eval(sys.argv[3]))' "$status" "$1" "$2"
}
is_ready() { [ "$(of far 'one["phase"]')" = running ] && [ "$(of cart 'one["ready"]')" = True ] && [ "$(of echo 'one["ready"]')" = True ]; }
until_ok "mesh" is_ready
address() { of "$1" '[a for a in one["addresses"] if ":" not in a][0]'; }
far=$(address far) cart=$(address cart) echo=$(address echo)
netns=/run/netns/$(of far 'one["surroundings"]["netns"]')
inside=(nsenter --net="$netns")

# Starts ztunnel in the network namespace of far, as user 1337. Connections of other users go through ztunnel.
{
  echo "workloads:"
  for one in web cart echo far; do
    echo "- {uid: lab//v1/Pod/lab/$one, name: $one, namespace: lab, serviceAccount: $one, workloadIps: [\"$(address $one)\"], protocol: HBONE, trustDomain: cluster.local, node: lab, network: \"\", services: {}}"
  done
  echo "policies:
- {name: no-cart, namespace: lab, scope: Namespace, action: Deny, dryRun: false, rules: [[[{principals: [!Exact cluster.local/ns/lab/sa/cart]}]]]}"
} >"$place/local.yaml"
starts forward "${inside[@]}" "$tools/spiffe/spiffe" forward 127.0.0.1:15012 "$place/sockets/istio.sock"
starts ztunnel "${inside[@]}" env -i CA_ADDRESS=https://127.0.0.1:15012 CA_ROOT_CA="$place/sockets/istio.pem" XDS_ADDRESS= \
  LOCAL_XDS_PATH="$place/local.yaml" PROXY_MODE=dedicated PROXY_WORKLOAD_INFO=lab/far/far ENABLE_ORIG_SRC=false \
  IPV6_ENABLED=false ZTUNNEL_WORKER_THREADS=1 RUST_LOG=info setpriv --reuid=1337 --regid=1337 --clear-groups "$place/program"
"${inside[@]}" iptables -t nat -A OUTPUT -p tcp -m owner ! --uid-owner 1337 ! -d 127.0.0.0/8 -j REDIRECT --to-ports 15001
until_ok "ztunnel" "${inside[@]}" curl -sf http://127.0.0.1:15021/healthz/ready

run() { # workload, command...
  "$leno" exec --name "$name" -n lab "$1-0" -- "${@:2}"
}
get() { # workload, url: the status
  run "$1" curl -s -o /dev/null -m 20 -w '%{http_code}' "$2"
}
says() { # status, workload, url
  [ "$(get "$2" "$3")" = "$1" ]
}
sends_back() { # workload, address
  run "$1" "$peer" talk "$2" '[{"send":"hello"},{"expect":"hello"},"shutdown_write","read_to_end"]' >"$place/talk" &&
    ! grep -q '"failed"' "$place/talk"
}
metrics() { # workload
  run "$1" curl -s http://127.0.0.1:15020/metrics >"$place/metrics"
}
counted() { # workload, start of a line
  metrics "$1"
  grep -F "$2" "$place/metrics" >"$place/lines" && ! grep -q ' 0$' "$place/lines"
}

until_ok "answer through ztunnel" says 200 web "http://$far:8080/"
until_ok "bytes through ztunnel" sends_back web "$far:9000"
counted web 'leno_hbone_tunnels_total{direction="outbound",result="opened"}' || fail "web has not counted an opened tunnel"
says 403 cart "http://$far:8080/" || fail "ztunnel's policy denies cart, which gets $(get cart "http://$far:8080/")"
counted cart 'leno_hbone_tunnels_total{direction="outbound",result="refused"}' || fail "cart has not counted a refused tunnel"
echo "proxies to ztunnel: HTTP and bytes pass, and its policy is enforced"

until_ok "answer of cart through its proxy" says 200 far "http://$cart:8080/"
says 403 far "http://$cart:8080/admin" || fail "the policy of cart was not enforced"
until_ok "bytes of echo through its proxy" sends_back far "$echo:9000"
counted cart 'leno_hbone_tunnels_total{direction="inbound",result="opened"}' || fail "cart counts no tunnel"
metrics cart
grep -q 'leno_requests_total{.*client="far".*mtls="true"' "$place/metrics" ||
  fail "cart's proxy counts no request of far"
echo "$closed" >>"$place/mesh.yaml"
denied() { ! sends_back far "$echo:9000" && counted echo 'leno_authorization_total{decision="deny"'; }
until_ok "policy of echo" denied
sends_back web "$echo:9000" || fail "the policy of echo permits web"
# Without ztunnel, strict mode permits no connection.
kill "${pids[-1]}"
wait "${pids[-1]}" 2>/dev/null || true
unset 'pids[-1]'
"${inside[@]}" iptables -t nat -F OUTPUT
! says 200 far "http://$cart:8080/" || fail "far gets past the proxy of cart without an identity"
! says 200 web "http://$far:8080/" || fail "web reaches far without its ztunnel"
echo "ztunnel to proxies: HTTP and bytes pass, and their policies are enforced"
echo "ztunnel $("$ztunnel" version 2>/dev/null | tr '\n' ' ' | head -c 300): passed"
