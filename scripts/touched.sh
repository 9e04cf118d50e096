#!/usr/bin/env bash
# Measures how much of a program is touched from its start until it is idle, and how much is resident then (needs
# root):
#
#   scripts/touched.sh target/release/leno-proxy --static proxy.yaml
#
# Around each page that a program touches, the kernel maps the pages that are in the page cache
# (fault_around_bytes, 64 KiB), so most of the resident pages were never touched. For the first figure, the program
# runs on a file system without read-ahead, of which the page cache contains only touched pages.
set -euo pipefail

program=$(realpath "$1")
shift
folder=$(mktemp -d)
finish() {
  mountpoint -q "$folder/mounted" && umount "$folder/mounted"
  rm -r "$folder"
}
trap finish EXIT

mkdir "$folder/mounted"
truncate -s $(($(stat -c %s "$program") * 5 / 4 + (16 << 20))) "$folder/image"
mkfs.ext2 -q -b 4096 "$folder/image"
mount -o loop "$folder/image" "$folder/mounted"
cp "$program" "$folder/mounted/program"
# The page cache contains what was written until the file system is unmounted.
umount "$folder/mounted"
mount -o loop "$folder/image" "$folder/mounted"
device=$(findmnt -no SOURCE "$folder/mounted")
echo 0 >"/sys/block/${device##*/}/queue/read_ahead_kb"

# Prints the sizes in KiB, by what the pages may be used for.
measure() {
  local label=$1 file=$2
  shift 2
  "$file" "$@" >"$folder/log" 2>&1 &
  local pid=$!
  sleep 5
  kill -0 $pid 2>/dev/null || { cat "$folder/log" >&2; return 1; }
  awk -v label="$label" -v file="$file" '
    /^[0-9a-f]+-[0-9a-f]+ / { ours = $6 == file; permissions = $2 }
    /^Rss:/ && ours { kib[permissions] += $2; sum += $2 }
    /^Anonymous:/ && ours { written += $2 }
    END {
      printf "%s: %d KiB (code %d, constants and relocations %d, data %d); %d of them written, and so its own\n",
        label, sum, kib["r-xp"], kib["r--p"], kib["rw-p"], written
    }' "/proc/$pid/smaps"
  kill $pid
  wait $pid || true
}
measure touched "$folder/mounted/program" "$@"
measure resident "$program" "$@"
