#!/usr/bin/env bash
# Builds recvpool, trains a small pipeline-parallel model (4 stages, 16 microbatches, 1F1B) on the simulated device with the
# agent attached, and shows what the agent found. Options go to the trainer, for example:
#   tests/demo.sh --schedule gpipe
#   tests/demo.sh --allocation just_in_time
# Without options it then trains on a device that is too small for a receive buffer per microbatch: alone, which ends out of
# memory, and with shared receive buffers.
set -u
caller=$PWD # files among the options are named from there
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1
. tests/packages.sh

build=build/default
reports=$build/demo-reports
log=$build/demo-build.log
mkdir -p "$build"
read -ra options <<<"${RECVPOOL_CMAKE_OPTIONS:-}"
recvpool_target=demo # the rest is for tests/run.sh
echo "Building (log: $log)"
if ! { recvpool_install_packages && recvpool_build default "$build" "${options[@]}"; } >"$log" 2>&1; then
  tail -n 40 "$log" >&2
  exit 1
fi

rm -rf "$reports"
recvpool=$PWD/$build/agent/recvpool
# The simulated CUDA driver, runtime, CUPTI and NCCL take the place of the real ones.
export LD_LIBRARY_PATH=$PWD/$build/simlib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
train=("$PWD/$build/tests/trainer/rp_trainer" --stages 4 --microbatches 16 --steps 4 --message-bytes 1MiB "$@")
echo "\$ recvpool run --report-dir $reports -- rp_trainer ${train[*]:1}"
(cd "$caller" && exec "$recvpool" run --report-dir "$OLDPWD/$reports" -- "${train[@]}")
status=$?
[ -e "$reports" ] || exit "$status" # no process came as far as its first CUDA call: a wrong option, or --help
echo
echo "\$ recvpool report $reports"
"$recvpool" report "$reports" || status=1
[ $# -eq 0 ] || exit "$status"

# ---- out of memory

say() {
  echo "demo: $1" >&2
  exit 1
}
computed() { sed 's/ peak_device_bytes .*//' "$1"; }
plan=$build/demo-plan.json
train=("$PWD/$build/tests/trainer/rp_trainer" --stages 4 --microbatches 16 --steps 4 --message-bytes 2MiB)
small=48MiB small_bytes=$((48 << 20))
rm -rf "$reports"
echo
echo "A device with $small. Each rank alone, as the job is:"
echo "\$ rp_trainer ${train[*]:1}"
"${train[@]}" >"$build/demo-large.out" 2>"$log" || say "training on a large device failed (log: $log)"
if RPSIM_DEVICE_BYTES=$small_bytes "${train[@]}" >"$build/demo-small.out" 2>"$log"; then
  say "a device of $small was large enough"
fi
grep -m 1 "out of memory" "$log" || say "training failed, but not for want of memory (log: $log)"
echo
echo "The same with a plan, from the schedule alone:"
echo "\$ recvpool plan --schedule 1f1b --stages 4 --microbatches 16 --buffer-bytes 2MiB --output $plan"
"$recvpool" plan --schedule 1f1b --stages 4 --microbatches 16 --buffer-bytes 2MiB --output "$plan" | tail -n 2
echo "\$ recvpool run --mode enforce --plan $plan --report-dir $reports -- rp_trainer ${train[*]:1}"
RPSIM_DEVICE_BYTES=$small_bytes "$recvpool" run --mode enforce --plan "$plan" --report-dir "$reports" -- "${train[@]}" \
  >"$build/demo-small.out" || say "training with shared receive buffers failed"
cat "$build/demo-small.out"
diff <(computed "$build/demo-large.out") <(computed "$build/demo-small.out") ||
  say "the results are not those of the large device"
echo "=> the losses and parameters of a large device, bit for bit"
echo
echo "\$ recvpool report $reports"
"$recvpool" report "$reports" | sed -n '/ratio/,$p' || status=1
exit "$status"
