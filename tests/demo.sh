#!/usr/bin/env bash
# Builds recvpool, trains a small pipeline-parallel model (4 stages, 16 microbatches, 1F1B) on the simulated device with the
# agent attached, and shows what the agent found. Options go to the trainer, for example:
#   tests/demo.sh --schedule gpipe
#   tests/demo.sh --allocation just_in_time
set -u
caller=$PWD # files among the options are named from there
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1
. tests/packages.sh

build=build/default
reports=$build/demo-reports
log=$build/demo-build.log
mkdir -p "$build"
read -ra options <<<"${RECVPOOL_CMAKE_OPTIONS:-}"
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
exit "$status"
