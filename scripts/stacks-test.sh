#!/usr/bin/env bash
# Runs examples/stacks with proxies and without, and compares what each application sees of its client with the
# addresses of the client's instance. Prints a line for each in a form that scripts/test.sh counts. Needs root. A
# stack whose programs are missing is skipped, or fails if LENO_REQUIRE contains servers (or tools, for programs of
# scripts/tools.sh).
#
#   scripts/stacks-test.sh     with the programs in target/debug
set -uo pipefail
cd "$(dirname "$0")/.."

PATH="$PATH:/usr/sbin:/sbin:/usr/local/go/bin"
leno=${CARGO_TARGET_DIR:-$PWD/target}/debug/leno
tools=${LENO_TOOLS:-${CARGO_TARGET_DIR:-$PWD/target}/tools}
# The path of the libraries of scripts/tools.sh, which workloads inherit.
export PYTHONPATH=$tools/grpcio:$tools/websockets
mesh=stacks$$
folder=$(mktemp -d)
code=0

# The columns are: the workload; the programs that it and its client need; the answer, in which @ stands for the
# client's address; and how the client asks. 192.0.0.8 is the address that a proxy shows to a server that listens
# only on IPv4, if the client connects over IPv6.
stacks() {
  cat <<'END'
flask|flask|@|curl -sf http://flask:8080/
node|node|@|curl -sf http://node:8080/
go|go|@ HTTP/1.1|curl -sf http://go:8080/
go|go|@ HTTP/2.0|curl -sf --http2-prior-knowledge http://go:8081/
java|java|@|curl -sf http://java:8080/
calls|grpcio|@|python3 calls.py calls:50051
sockets|websockets|@|python3 sockets.py ws://sockets:9000/
greeter|python3|220 @|exec 3<>/dev/tcp/greeter/2525; read -r -u 3 -t 10 line; echo "${line%?}"
protected|redis-server|DENIED Redis is running in protected mode|redis-cli -h protected ping | grep -o "^DENIED Redis is running in protected mode"
redis|redis-server|@|redis-cli -h redis client info | sed -E "s/.* addr=(.*):[0-9]+ laddr.*/\1/; s/[][]//g"
postgres|psql|@|psql -h postgres -U postgres -Atc "select host(inet_client_addr())"
names|python3,dig|@|dig +short @names-0.names.stacks.svc.cluster.local -p 5353 any.example TXT | tr -d "\""
END
}

required() { [[ ",${LENO_REQUIRE:-}," == *",$1,"* ]]; }
passed() { echo "--- PASS: stacks: $1"; }
failed() { echo "--- FAIL: stacks: $1"; code=1; }
skipped() { if required "$2"; then failed "$1, and LENO_REQUIRE has $2"; else echo "--- SKIP: stacks: $1"; fi; }

finish() {
  "$leno" down --now --name "$mesh" >/dev/null 2>&1
  rm -rf "$folder"
}

# Prints the programs in a list that are missing.
missing_of() {
  local program
  for program in ${1//,/ }; do
    case $program in
      flask) python3 -c 'import flask' 2>/dev/null || echo Flask ;;
      grpcio | websockets) scripts/tools.sh "$program" >&2 || echo "$program" ;;
      *) command -v "$program" >/dev/null || echo "$program" ;;
    esac
  done
}

# Prints the example without the workloads named in $1, and with the line $2 at its end.
documents() {
  awk -v RS='\n---\n' -v skip=" $1 " '{
    name = $0
    sub(/^.*metadata: \{name: /, "", name); sub(/,.*/, "", name)
    if (index(skip, " " name " ") == 0) printf "%s\n---\n", $0
  }' examples/stacks/stacks.yaml
  echo "$2"
}

# Runs the stacks; $1 is the word for the mode in the lines that are printed.
run() {
  local how=$1 without=$2 own workload needs answer asks seen address expected
  if ! "$leno" up --wait --wait-timeout 180s --name "$mesh" "$folder/stacks.yaml" >"$folder/log" 2>&1; then
    failed "the mesh $how does not run: $(cat "$folder/log")"
    "$leno" down --now --name "$mesh" >/dev/null 2>&1
    return
  fi
  own=$("$leno" ps --name "$mesh" -n stacks -o json | python3 -c '
import json, sys
print(*(a for i in json.load(sys.stdin) if i["name"] == "client-0" for a in i["addresses"]))')
  while IFS='|' read -r workload needs answer asks; do
    [[ " $without " == *" $workload "* ]] && continue
    seen=$("$leno" exec --name "$mesh" client -- bash -c "$asks" 2>&1 </dev/null |
      sed 's/::ffff://; s/:0:0:0:0:0:0:/::/' | tail -n 1)
    expected=
    for address in $own $([[ $how == with ]] && [ "$workload" = greeter ] && echo 192.0.0.8); do
      [ "$seen" = "${answer//@/$address}" ] && expected=$address
    done
    if [ -n "$expected" ]; then
      passed "$workload $how proxies: $seen"
    else
      failed "$workload $how proxies: $seen, where $answer is expected, with one of $own"
    fi
  done < <(stacks)
  "$leno" down --name "$mesh" >/dev/null || failed "the mesh $how proxies does not end"
}

if [ "$(id -u)" != 0 ]; then
  skipped "needs root" root
  exit "$code"
fi
[ -x "$leno" ] || { echo "there is no $leno: cargo build --workspace --bins" >&2; exit 1; }
trap finish EXIT
without=
while IFS='|' read -r workload needs _; do
  lacks=$(missing_of "$needs" | paste -sd' ')
  [ -n "$lacks" ] || continue
  case $lacks in
    grpcio | websockets) skipped "$workload: $lacks is missing; scripts/tools.sh $lacks installs it" tools ;;
    *) skipped "$workload: $lacks is missing; scripts/deps.sh test installs it" servers ;;
  esac
  without+=" $workload"
done < <(stacks)
# PostgreSQL does not run as root. Its user reads nothing here, but the server refuses a folder that its user
# cannot enter.
chmod 755 "$folder"
cp examples/stacks/* "$folder"
documents "$without" "" >"$folder/stacks.yaml"
run with "$without"
documents "$without" "{apiVersion: v1, kind: Namespace, metadata: {name: stacks, annotations: {leno.dev/inject: disabled}}}" \
  >"$folder/stacks.yaml"
run without "$without"
exit "$code"
