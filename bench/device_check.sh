#!/usr/bin/env bash
# bench/device_check.sh OUT [--device D] [--quick] [--wheels DIR]
#
# Builds the extension on this machine, runs the contract tests and the switch benchmark on one
# device, asks its driver for the codes that are not documented, and leaves JSON records in OUT. Made
# for a GPU that is lent for minutes: each part has its own time limit, a part that fails does not
# stop the next, a short table comes last.
#
#   bench/device_check.sh out                                 the first GPU, or the emulated device
#   bench/device_check.sh out --device cuda:0 --wheels .whl   install what is missing from .whl only
#   bench/device_check.sh out --device 'emulated:h20?scale=4096' --quick
#
# Exit code: 0 when every part passed, 1 when one failed, 2 for a mistake in the arguments.
set -uo pipefail

die() { echo "device_check: $1" >&2; exit 2; }
case "${1:-}" in
  -h | --help) sed -n '2,14s/^# \{0,1\}//p' "$0"; exit 0 ;;
  '' | -*) die "the first argument is a folder for the records; see --help" ;;
esac
out=$1 device=auto quick=0 wheels=''
shift
while [ $# -gt 0 ]; do
  case "$1" in
    --device) device=${2:?device_check: --device needs a value}; shift 2 ;;
    --wheels) wheels=${2:?device_check: --wheels needs a value}; shift 2 ;;
    --quick) quick=1; shift ;;
    *) die "unknown argument $1; see --help" ;;
  esac
done
mkdir -p "$out" || die "cannot create $out"
out=$(cd "$out" && pwd)
[ -z "$wheels" ] || [ -d "$wheels" ] || die "no folder $wheels"
[ -z "$wheels" ] || wheels=$(cd "$wheels" && pwd)
cd "$(dirname "$0")/.." || exit 1
python=${PYTHON:-python3}

failed=''
part() {  # part NAME SECONDS COMMAND...: its output goes to OUT/NAME.log and the screen
  local name=$1 limit=$2 began=$SECONDS
  shift 2
  echo "== $name (at most $limit s)"
  if timeout --kill-after=10 "$limit" "$@" 2>&1 | tee "$out/$name.log"; then
    echo "== $name passed in $((SECONDS - began)) s"
  else
    echo "== $name FAILED after $((SECONDS - began)) s"
    failed="$failed $name"
  fi
}

build() {
  if [ -n "$wheels" ]; then
    "$python" -m pip install -q --no-index --no-deps --no-compile --target "$wheels/site" \
      --upgrade "$wheels"/*.whl || return 1
  fi
  "$python" setup.py -q build_ext --inplace
}

[ -z "$wheels" ] || export PYTHONPATH="$wheels/site${PYTHONPATH:+:$PYTHONPATH}"
export PYTHONPATH="$PWD:$PWD/scheduler${PYTHONPATH:+:$PYTHONPATH}"
export WEAVE_BUILD_JOBS=${WEAVE_BUILD_JOBS:-$(nproc)} PYTHONUNBUFFERED=1

# Sizes per tenant: the switch needs twice that on the device.
if [ "$quick" = 1 ]; then
  sizes=(--bytes 1000000 2000000) one_size=(--bytes 1000000) repeats=3
elif [[ "$("$python" -c 'import ctypes; ctypes.CDLL("libcuda.so.1")' 2>&1)" == '' && $device != emulated* ]]; then
  sizes=(--bytes 1000000000 4000000000 16000000000) one_size=(--bytes 4000000000) repeats=9
else
  sizes=() one_size=() repeats=9
fi

if ! { [ "$quick" = 1 ] && "$python" -c 'import weave_rt._core' 2>/dev/null; }; then
  part build 240 build
fi
part contract 150 env WEAVE_TEST_DEVICE="$device" "$python" -m pytest -q -p no:cacheprovider tests/contract
part switch 240 "$python" -m weave_rt.benchmarks.switch --device "$device" "${sizes[@]}" \
  --repeats "$repeats" --arms weave,plain --out "$out/switch.json"
# Pinning tensor by tensor takes seconds per gigabyte: one size.
part naive 150 "$python" -m weave_rt.benchmarks.switch --device "$device" "${one_size[@]}" \
  --repeats 3 --out "$out/naive.json"
# Last: one case may cost the device's context.
part codes 60 "$python" -m weave_rt.probe --device "$device" --out "$out/driver_codes.json"

echo
echo "device $device, records in $out"
grep -hE '^(one_way|duplex|look_ahead)' "$out/switch.log" "$out/naive.log"
grep -E '(passed|failed)' "$out/contract.log" | tail -n 1
if [ -n "$failed" ]; then
  echo "FAILED:$failed"
  exit 1
fi
echo 'all parts passed'
