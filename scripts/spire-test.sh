#!/usr/bin/env bash
# Tests SPIRE with a mesh of `leno up`: proxies have its certificates, its root is replaced under load, and trust
# bundles are exchanged with its bundle endpoint in both directions.
#
#   scripts/apart.sh scripts/spire-test.sh     needs root, Go, Python, curl and openssl; debug builds of the programs
#
# Workloads web and cart have certificates of SPIRE, own has those of the control plane.
set -euo pipefail
cd "$(dirname "$0")/.."
target=$(cd "${CARGO_TARGET_DIR:-target}" && pwd)
tools=${LENO_TOOLS:-$target/tools}
leno=$target/debug/leno
scripts/tools.sh spire
place=$(mktemp -d /tmp/spire.XXXXXX)
chmod 755 "$place"
pids=()
end() {
  local code=$?
  "$leno" down --name spire >/dev/null 2>&1 || true
  kill "${pids[@]}" 2>/dev/null || true
  wait
  [ "$code" = 0 ] || tail -n 20 "$place"/*.log
  rm -rf "$place"
}
trap end EXIT

until_ok() { # what, command...
  local what=$1 begin=$SECONDS
  shift
  until "$@" >"$place/said" 2>&1; do
    [ $((SECONDS - begin)) -lt 180 ] || { echo "no $what: $(cat "$place/said")" >&2; exit 1; }
    sleep 0.5
  done
}
server() { "$tools/spire/spire-server" "$@" -socketPath "$place/server.sock"; }
starts() { # name, command...
  "${@:2}" >"$place/$1.log" 2>&1 </dev/null &
  pids+=($!)
}
free_port() { python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'; }

# Starts SPIRE.
api=$(free_port) bundles=$(free_port)
cat >"$place/server.conf" <<END
server {
  bind_address = "127.0.0.1"
  bind_port = "$api"
  socket_path = "$place/server.sock"
  trust_domain = "cluster.local"
  data_dir = "$place/server"
  ca_ttl = "1h"
  default_x509_svid_ttl = "5m"
  federation {
    bundle_endpoint { address = "127.0.0.1" port = $bundles refresh_hint = "1s" profile "https_spiffe" {} }
  }
}
plugins {
  DataStore "sql" { plugin_data { database_type = "sqlite3" connection_string = "$place/server/db.sqlite3" } }
  KeyManager "memory" { plugin_data {} }
  NodeAttestor "join_token" { plugin_data {} }
}
END
cat >"$place/agent.conf" <<END
agent {
  data_dir = "$place/agent"
  server_address = "127.0.0.1"
  server_port = "$api"
  socket_path = "$place/api.sock"
  trust_domain = "cluster.local"
  trust_bundle_path = "$place/first.pem"
}
plugins {
  NodeAttestor "join_token" { plugin_data {} }
  KeyManager "memory" { plugin_data {} }
  WorkloadAttestor "unix" { plugin_data {} }
}
END
mkdir "$place/server" "$place/agent"
starts server "$tools/spire/spire-server" run -config "$place/server.conf"
until_ok "server of SPIRE" server healthcheck
server bundle show >"$place/first.pem"
token=$(server token generate -spiffeID spiffe://cluster.local/host | awk '{print $2}')
for entry in ns/lab/sa/web:2102 ns/lab/sa/cart:2102 control:0; do
  server entry create -parentID spiffe://cluster.local/host -spiffeID "spiffe://cluster.local/${entry%:*}" \
    -selector "unix:uid:${entry#*:}" >/dev/null
done
starts agent "$tools/spire/spire-agent" run -config "$place/agent.conf" -joinToken "$token"
issued() { # roots: whether proxies get certificates of these
  rm -rf "$place/issued"
  install -d -m 777 "$place/issued"
  setpriv --reuid=2102 --clear-groups "$tools/spire/spire-agent" api fetch x509 -socketPath "$place/api.sock" -write "$place/issued" &&
    openssl verify -CAfile "$1" "$place/issued/svid.0.pem" && openssl verify -CAfile "$1" "$place/issued/svid.1.pem"
}
until_ok "certificates of SPIRE" issued "$place/first.pem"

# Starts the mesh.
cat >"$place/mesh.yaml" <<END
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: web, namespace: lab}
spec: {serviceAccount: web, command: [sleep, infinity]}
---
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: own, namespace: lab, annotations: {leno.dev/spiffe-endpoint-socket: "off"}}
spec: {serviceAccount: own, command: [sleep, infinity]}
---
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: cart, namespace: lab, labels: {app: cart}}
spec:
  serviceAccount: cart
  command: [$target/debug/leno-peer, http, --listen, '[::]:8080']
  ports: [{name: http, port: 8080, appProtocol: http}]
---
apiVersion: leno.dev/v1alpha1
kind: AuthorizationPolicy
metadata: {name: clients, namespace: lab}
spec:
  selector: {matchLabels: {app: cart}}
  rules: [{from: [{serviceAccounts: [web, own]}]}]
END
starts mesh "$leno" up --name spire --mtls strict --spiffe-endpoint-socket "unix://$place/api.sock" "$place/mesh.yaml"
identity() { # a condition on the report, in Python
  "$leno" identity --name spire -o json |
    python3 -c 'import json, sys; report = json.load(sys.stdin); sys.exit(not eval(sys.argv[1]))' "$1"
}
current='report["proxies"]["connected"] == report["proxies"]["current"] == 3'
until_ok "mesh" identity "$current and len(report['others']) == 1"

# Sends load until the file is removed. Each line other than 200 is a lost request.
touch "$place/load"
load() { # workload
  # shellcheck disable=SC2016
  "$leno" exec --name spire -n lab "$1" -- sh -c '
    while [ -e "$0" ]; do curl -s -o /dev/null -m 60 -w "%{http_code}\n" http://cart:8080/; done' "$place/load" >"$place/$1.codes"
}
until_ok "first answer" sh -c "'$leno' exec --name spire -n lab web-0 -- curl -sf http://cart:8080/"
load web-0 & loads=($!)
load own-0 & loads+=($!)

# Replaces SPIRE's root: a new one is added, then signs, then is the only one. Then replaces the mesh's own root.
authority() { server localauthority x509 show | awk -v state="$1" '$0 ~ state {found = 1} found && /Authority ID/ {print $3; exit}'; }
server localauthority x509 prepare >/dev/null
until_ok "second root of SPIRE" identity "$current and len(report['others']) == 2"
server localauthority x509 activate -authorityID "$(authority Prepared)" >/dev/null
old=$(authority Old)
server localauthority x509 taint -authorityID "$old" >/dev/null
server bundle show | awk '/BEGIN/ {n++} {print > place "/root" n ".pem"}' place="$place"
until_ok "certificates of SPIRE's next root" issued "$place/root2.pem"
server localauthority x509 revoke -authorityID "$old" >/dev/null
until_ok "SPIRE's next root alone" identity "$current and len(report['others']) == 1"
"$leno" identity rotate-root --name spire --wait >/dev/null
until_ok "the mesh's next root" identity "$current and report['phase'] == 'stable'"
rm "$place/load"
wait "${loads[@]}"
for workload in web-0 own-0; do
  lost=$(grep -cv '^200$' "$place/$workload.codes" || true)
  echo "$workload: $(wc -l <"$place/$workload.codes") requests, $lost lost"
  [ "$lost" = 0 ] && [ -s "$place/$workload.codes" ]
done

# Exchanges bundles: a control plane of another trust domain follows SPIRE's endpoint, and SPIRE follows that of
# the control plane.
server bundle show -format spiffe >"$place/now.json"
mkdir "$place/far"
echo '{apiVersion: v1, kind: Service, metadata: {name: web, namespace: shop}, spec: {clusterIP: 10.96.0.1, ports: [{port: 80}]}}' \
  >"$place/far/mesh.yaml"
admin=$(free_port) own=$(free_port)
starts far "$target/debug/leno-controller" --trust-domain far.example --listen 127.0.0.1:0 --admin "127.0.0.1:$admin" \
  --files "$place/far" --ca-dir "$place/ca" --roots-file "$place/far.pem" --bundle-endpoint "127.0.0.1:$own" --bundle-refresh 1s \
  --federate "cluster.local=https://127.0.0.1:$bundles/;spiffe-id=spiffe://cluster.local/spire/server;bundle=$place/now.json"
fetched() { curl -sf "127.0.0.1:$admin/metrics" | grep -q 'bundle_fetches_total{trust_domain="cluster.local",result="fetched"} [1-9]'; }
until_ok "fetch of SPIRE's bundle" fetched
until_ok "the roots" test -s "$place/far.pem"
server federation create -trustDomain far.example -bundleEndpointURL "https://127.0.0.1:$own/" -bundleEndpointProfile https_spiffe \
  -endpointSpiffeID spiffe://far.example/leno/control-plane -trustDomainBundlePath "$place/far.pem" -trustDomainBundleFormat pem >/dev/null
refreshed() { grep -q 'Bundle refreshed.*trust_domain=far.example' "$place/server.log"; }
until_ok "fetch of the mesh's bundle by SPIRE" refreshed
server bundle list -id spiffe://far.example >"$place/listed.pem"
[ "$(openssl x509 -in "$place/listed.pem" -noout -fingerprint)" = "$(openssl x509 -in "$place/far.pem" -noout -fingerprint)" ]
echo "SPIRE $("$tools/spire/spire-server" --version 2>&1): passed"
