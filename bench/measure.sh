#!/usr/bin/env bash
# bench/measure.sh OUT
#
# Takes the records of the switch again that bench/README.md quotes, on an emulated H20, into OUT,
# with tables and plots. On a quiet machine with two cores, about 25 minutes; nothing else should
# run meanwhile.
#
#   switch_emulated_h20.json   default: every case and arm, 7B weights, and 10,000 tensors
#   switch_load_64.json        weave and plain with both cores busy, small pages
#   switch_load_32.json        the same where a block is one page of 2 MiB
#   switch_presets.json        the eight presets, every arm
set -euo pipefail
case "${1:-}" in
  '' | -*) echo 'measure: the first argument is a folder for the records' >&2; exit 2 ;;
esac
mkdir -p "$1"
out=$(cd "$1" && pwd)
cd "$(dirname "$0")/.."
export PYTHONPATH="$PWD:$PWD/scheduler${PYTHONPATH:+:$PYTHONPATH}" OMP_NUM_THREADS=1
python=${PYTHON:-python3}
measure() { "$python" -m weave_rt.benchmarks.switch "$@"; }

measure --device 'emulated:h20?scale=64' --tensors --out "$out/switch_emulated_h20.json"
for scale in 64 32; do
  measure --device "emulated:h20?scale=$scale" --arms weave,plain --load \
    --out "$out/switch_load_$scale.json"
done
measure --device 'emulated:h20?scale=64' --preset all --out "$out/switch_presets.json"
"$python" -m weave_scheduler bench report "$out"/switch_*.json --plots "$out/plots"
