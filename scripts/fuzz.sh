#!/usr/bin/env bash
# Fuzzes every target of testkit/fuzz, or those named, one after the other:
#
#   FUZZ_SECONDS=600 scripts/fuzz.sh [TARGET...]
#
# libFuzzer is guided by coverage counters, which flags of the stable compiler insert. It starts from the committed
# corpus and from the inputs that earlier runs have found, in fuzz/ of the target directory. An input that fails is
# added to the committed corpus, where `make test` replays it; with FUZZ_KEEP=1, some of the new inputs are added
# as well.
set -euo pipefail
cd "$(dirname "$0")/.."

seconds=${FUZZ_SECONDS:-60}
target_dir=${CARGO_TARGET_DIR:-target}
host=$(rustc -vV | awk '/^host:/ {print $2}')
# The limits for the inputs of a target in the corpus: their number and size. With them, a replay takes seconds,
# and a clone of the repository stays small.
most_files=120
most_bytes=2048

# Build scripts and macros are built for the host without these flags; --target makes sure of that.
coverage=(
  -Cpasses=sancov-module
  -Cllvm-args=-sanitizer-coverage-level=4
  -Cllvm-args=-sanitizer-coverage-inline-8bit-counters
  -Cllvm-args=-sanitizer-coverage-pc-table
  -Cllvm-args=-sanitizer-coverage-trace-compares
)
RUSTFLAGS="${RUSTFLAGS:-} ${coverage[*]}" cargo build --profile fuzz -p leno-fuzz --features engine \
  --target "$host" --target-dir "$target_dir/fuzz/build"
program="$target_dir/fuzz/build/$host/fuzz/leno-fuzz"

corpus=testkit/fuzz/corpus
[ $# -gt 0 ] || set -- $(ls "$corpus")
failed=()
for name in "$@"; do
  found="$target_dir/fuzz/corpus/$name" log="$target_dir/fuzz/$name.log"
  mkdir -p "$found"
  echo "fuzzing $name for $seconds s"
  LENO_FUZZ_TARGET=$name "$program" -max_total_time="$seconds" -max_len=4096 -timeout=20 \
    -rss_limit_mb=2048 -artifact_prefix="$corpus/$name/failing-" -print_final_stats=1 \
    "$found" "$corpus/$name" > "$log" 2>&1 || failed+=("$name: $log")
  grep -E '^(Done|stat::number_of_executed|stat::average_exec)|INITED|panicked' "$log" || true
  grep -oE 'cov: [0-9]+ ft: [0-9]+ corp: [0-9]+' "$log" | tail -1 || true
  if [ -n "${FUZZ_KEEP:-}" ]; then
    # Keeps the smallest set of inputs with the same coverage, and then as many more as the limits permit.
    merged=$(mktemp -d)
    LENO_FUZZ_TARGET=$name "$program" -merge=1 -max_len=$most_bytes "$merged" "$corpus/$name" \
      "$found" > "$log.merge" 2>&1
    room=$((most_files - $(find "$corpus/$name" -type f | wc -l)))
    find "$merged" -type f | sort | head -n $((room > 0 ? room : 0)) | xargs -r cp -nt "$corpus/$name"
    rm -rf "$merged"
  fi
done

[ ${#failed[@]} -eq 0 ] || { printf 'failed: %s\n' "${failed[@]}" >&2; exit 1; }
