#!/usr/bin/env bash
# bench/measure.sh OUT
#
# Takes the records of weave_rt again that bench/README.md quotes, on an emulated H20, into OUT, with
# tables and plots. On two cores 17 minutes; nothing else should run meanwhile, so each part
# waits, three minutes at most, until the machine is quiet, and prints how busy it was.
#
#   switch_emulated_h20.json   default: every case and arm, 7B weights, and 10,000 tensors
#   switch_load_64.json        weave and plain with both cores busy, small pages
#   switch_load_32.json        the same where a block is one page of 2 MiB
#   overlay.json               planning, and what the examples move
#   pool.json                  pinned memory of 8 GiB: growth, spill, return
#   switch_presets.json        the eight presets, every arm, four times as fast
set -euo pipefail
case "${1:-}" in
  '' | -*) echo 'measure: the first argument is a folder for the records' >&2; exit 2 ;;
esac
mkdir -p "$1"
out=$(cd "$1" && pwd)
cd "$(dirname "$0")/.."
export PYTHONPATH="$PWD:$PWD/scheduler${PYTHONPATH:+:$PYTHONPATH}" OMP_NUM_THREADS=1
python=${PYTHON:-python3}
busy() {  # per cent of all cores, over five seconds
  local before after
  before=$(head -n1 /proc/stat)
  sleep 5
  after=$(head -n1 /proc/stat)
  awk '{ for (i = 2; i <= 9; ++i) { sum[NR] += $i }; idle[NR] = $5 + $6 }
       END { printf "%d", 100 * (1 - (idle[2] - idle[1]) / (sum[2] - sum[1])) }' \
    <<<"$before"$'\n'"$after"
}
quiet() {
  local tries share
  for tries in $(seq 30); do
    share=$(busy)
    [ "$share" -ge 10 ] || break
  done
  echo "== $1; cores were $share % busy before"
}
measure() {
  quiet "switch $*"
  "$python" -m weave_rt.benchmarks.switch "$@"
}

measure --device 'emulated:h20?scale=64' --tensors --out "$out/switch_emulated_h20.json"
for scale in 64 32; do
  measure --device "emulated:h20?scale=$scale" --arms weave,plain --load \
    --out "$out/switch_load_$scale.json"
done
quiet overlay
"$python" -m weave_scheduler bench overlay --out "$out/overlay.json"
quiet pool
"$python" -m weave_scheduler bench pool --full --out "$out/pool.json"
# A quarter of the bytes in a quarter of the time: the same bandwidth of this host, the same ratios.
measure --device 'emulated:h20?scale=256&speed=4' --preset all --out "$out/switch_presets.json"
"$python" -m weave_scheduler bench report "$out"/*.json --plots "$out/plots"
