#!/usr/bin/env bash
# Builds recvpool, trains a small pipeline-parallel model (4 stages, 16 microbatches, 1F1B) on the simulated device with the
# agent attached, and shows what the agent found. Options go to the trainer, for example:
#   tests/demo.sh --schedule gpipe
#   tests/demo.sh --allocation just_in_time
# Without options it then trains on a device that is too small for a receive buffer per microbatch: alone, which ends out of
# memory, and with shared receive buffers.
# Every line shown behind "$ " is run as it stands, and can be pasted into a shell that has the two exports before it.
# DEMO_BUILD names a build folder that has everything already: then nothing is installed or built.
set -u
caller=$PWD # files among the options are named from there, and so is what is shown
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1
. tests/packages.sh

build=build/default
if [ -z "${DEMO_BUILD:-}" ]; then
  log=$build/demo-build.log
  mkdir -p "$build"
  read -ra options <<<"${RECVPOOL_CMAKE_OPTIONS:-}"
  recvpool_target=demo # the rest is for tests/run.sh
  echo "Building (log: $log)"
  if ! { recvpool_install_packages && recvpool_build default "$build" "${options[@]}"; } >"$log" 2>&1; then
    tail -n 40 "$log" >&2
    exit 1
  fi
fi
[ "$caller" -ef . ] || build=$PWD/$build
build=${DEMO_BUILD:-$build}
unset RECVPOOL_CMAKE_OPTIONS # what is run would say that it is none of its own variables
cd "$caller" || exit 1

say() {
  echo "demo: $1" >&2
  exit 1
}
shown() { echo "\$ $1"; }
run() {
  shown "$1"
  eval "$1"
}

observed=$build/demo-observed enforced=$build/demo-enforced plan=$build/demo-plan.json log=$build/demo.log
rm -rf "$observed" "$enforced"
case $build in /*) at=$build ;; *) at=\$PWD/$build ;; esac
echo "The commands, and a simulated CUDA driver, runtime, CUPTI and NCCL in place of the real ones:"
run "export PATH=\"$at/agent:$at/tests/trainer:\$PATH\""
run "export LD_LIBRARY_PATH=\"$at/simlib\""
echo
given=
[ $# -eq 0 ] || given=$(printf ' %q' "$@")
run "recvpool run --report-dir $observed -- rp_trainer --stages 4 --microbatches 16 --steps 4 --message-bytes 1MiB$given"
status=$?
[ -e "$observed" ] || exit "$status" # no process came as far as its first CUDA call: a wrong option, or --help
echo
run "recvpool report $observed" || status=1
[ $# -eq 0 ] || exit "$status"

# ---- out of memory

computed() { sed 's/ peak_device_bytes .*//' "$1"; }
train="rp_trainer --stages 4 --microbatches 16 --steps 4 --message-bytes 2MiB"
small="RPSIM_DEVICE_BYTES=$((48 << 20))"
$train >"$build/demo-large.out" 2>"$log" || say "training on a large device failed (log: $log)"
echo "With buffers of 2 MiB, on simulated devices of 48 MiB (RPSIM_DEVICE_BYTES; 8 GiB without it). The job as it is:"
shown "$small $train"
if env "$small" $train >"$build/demo-small.out" 2>"$log"; then
  say "a device of 48 MiB was large enough"
fi
grep -m 1 "out of memory" "$log" || say "training failed, but not for want of memory (log: $log)"
echo
echo "The same with a plan, from the schedule alone:"
run "recvpool plan --schedule 1f1b --stages 4 --microbatches 16 --buffer-bytes 2MiB --output $plan | tail -n 2"
enforce="$small recvpool run --mode enforce --plan $plan --report-dir $enforced -- $train"
shown "$enforce"
eval "$enforce" >"$build/demo-small.out" || say "training with shared receive buffers failed"
cat "$build/demo-small.out"
diff <(computed "$build/demo-large.out") <(computed "$build/demo-small.out") ||
  say "the results are not those of a large device"
echo "=> the losses and parameters of a large device, bit for bit"
echo
run "recvpool report $enforced | sed -n '/ratio/,\$p'" || status=1
exit "$status"
