#!/usr/bin/env bash
# recvpool and real PyTorch, without a GPU:
#   on paper    every schedule that torch has, dumped and compared with recvpool's; nemo-automodel's ring sizes
#   in a job    torch itself on the simulated device with the agent attached (test_*.py beside this file)
#   as a table  receive buffer pools side by side (side_by_side.py; only where asked for)
# Each version of torch gets an environment of its own under the build folder. Needs network and a few GB at the first run.
#
#   tests/torch/run.sh [--torch VERSION]... [--only environment|paper|jobs|table] [--test NAME]... [BUILD_FOLDER [VERSION...]]
#
# --only environment installs torch and runs nothing.
# --test runs these of the jobs only: a module, module.Class or module.Class.test. Those of one module run in one process.
# Versions: a number, or "newest" (default: 2.11.0 and newest). Without a build folder build/default is built.
# TORCH_TEST_SCHEDULES, _RANKS and _MICROBATCHES choose among the jobs of test_pipelines and test_enforcing, and
# TORCH_TEST_PART=I/N runs the I-th of N parts of them (cells.py).
# Ends with "N passed, N failed, N skipped".
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)
versions=() tests=() only="paper jobs" build=
while [ $# -gt 0 ]; do
  case "$1" in
    --torch) versions+=("${2:?--torch needs a version}"); shift ;;
    --only) only=${2:?--only needs environment, paper, jobs or table}; shift ;;
    --test) tests+=("${2:?--test needs a name}"); shift ;;
    -*) echo "usage: tests/torch/run.sh [--torch VERSION]... [--only environment|paper|jobs|table] [--test NAME]... [BUILD_FOLDER [VERSION...]]" >&2; exit 2 ;;
    *) if [ -z "$build" ]; then build=$1; else versions+=("$1"); fi ;;
  esac
  shift
done
[ ${#versions[@]} -gt 0 ] || versions=(2.11.0 newest)
[ ${#tests[@]} -gt 0 ] || for module in "$here"/test_*.py; do tests+=("$(basename "$module" .py)"); done
cd "$root"
if [ -z "$build" ]; then
  build=build/default
  . tests/packages.sh
  recvpool_install_packages
  recvpool_build default "$build" >/dev/null
fi
build=$(cd "$build" && pwd)
export RECVPOOL=$build/agent/recvpool SCHEDULE_TEXT=$build/tests/torch/schedule_text PYTHONDONTWRITEBYTECODE=1
export RECVPOOL_SOURCE_DIR=$root RECVPOOL_BUILD_DIR=$build
work=$build/torch-comparison
mkdir -p "$work"
passed=0 failed=0 skipped=0

# Counts a step that either works or not.
step() {
  if "$@"; then passed=$((passed + 1)); else failed=$((failed + 1)); fi
}

# An environment with torch $1; its folder is $environment.
install_torch() {
  environment=$work/environment-$1
  if [ ! -e "$environment/complete" ]; then
    local requirement=torch
    [ "$1" = newest ] || requirement=torch==$1
    python3 -m venv "$environment"
    "$environment/bin/pip" install --quiet --no-compile "$requirement" numpy
    touch "$environment/complete"
  fi
  "$environment/bin/python" -c 'import torch; print("torch", torch.__version__, "for CUDA", torch.version.cuda)'
  du -sh "$environment/" | sed 's/\t.*/ installed/'
}

on_paper() {
  rm -rf "$work/schedules-$1" "$work/random-$1"
  "$environment/bin/python" "$here/dump.py" "$work/schedules-$1" &&
    "$environment/bin/python" "$here/dump.py" "$work/random-$1" --random 100 &&
    python3 "$here/compare.py" "$work/schedules-$1" "$work/random-$1"
}

# The simulated libraries go before torch's own by LD_PRELOAD, since its wheels find theirs by RPATH. What only the real
# ones export is made here, from those that came with torch.
prepare_device() {
  local nvidia libraries missing=$work/librpsim_missing-$1.so
  nvidia=$("$environment/bin/python" -c 'import os, nvidia; print(list(nvidia.__path__)[0])')
  libraries=("$nvidia"/*/lib)
  python3 "$here/stubs.py" "$build/simlib" "${libraries[@]}" >"$work/missing-$1.c"
  cc -O1 -shared -fPIC -o "$missing" "$work/missing-$1.c"
  echo "$(grep -c '^  return missing' "$work/missing-$1.c") entry points of these libraries only say that they are not simulated"
  export TORCH_PYTHON=$environment/bin/python
  export TORCH_PRELOAD=$build/simlib/libcudart.so.13:$build/simlib/libcupti.so.13:$build/simlib/libnccl.so.2
  TORCH_PRELOAD+=:$missing:$build/tests/torch/librpsim_torch_kernels.so
}

# Runs tests of one module by name, and adds their counts.
in_jobs() {
  local log=$work/${1%%.*}.txt run
  (cd "$here" && PYTHONPATH=$root/tests/e2e:$here python3 -W ignore "$root/tests/e2e/support.py" "$@") 2>&1 | tee "$log" || true
  run=$(sed -nE 's/^Ran ([0-9]+) tests? in .*/\1/p' "$log")
  local bad ignored
  bad=$(grep -cE '^(FAIL|ERROR): ' "$log" || true)
  ignored=$(grep -cE '\.\.\. skipped ' "$log" || true)
  if [ -z "$run" ]; then run=1 bad=1; fi
  passed=$((passed + run - bad - ignored)) failed=$((failed + bad)) skipped=$((skipped + ignored))
}

for version in "${versions[@]}"; do
  [ "$only" != table ] || continue
  install_torch "$version"
  case $only in *paper*) step on_paper "$version" ;; esac
  case $only in *jobs*)
    prepare_device "$version"
    for module in $(printf '%s\n' "${tests[@]%%.*}" | sort -u); do
      names=()
      for name in "${tests[@]}"; do
        [ "${name%%.*}" != "$module" ] || names+=("$name")
      done
      in_jobs "${names[@]}"
    done ;;
  esac
done

fetch_automodel() {
  if [ ! -e "$work/recv_buffer_pool.py" ]; then
    pip download --quiet --no-deps --dest "$work/automodel" nemo-automodel &&
      unzip -q -p "$work"/automodel/nemo_automodel-*.whl '*/pipelining/recv_buffer_pool.py' >"$work/recv_buffer_pool.part" &&
      mv "$work/recv_buffer_pool.part" "$work/recv_buffer_pool.py" || return 1
  fi
}

compare_automodel() {
  fetch_automodel && python3 "$here/automodel.py" "$work/recv_buffer_pool.py"
}

# Of torch 2.11.0, the newest, and nemo-automodel.
print_table() {
  fetch_automodel || return 1
  install_torch newest
  prepare_device newest
  export TORCH_NEWEST_PYTHON=$TORCH_PYTHON TORCH_NEWEST_PRELOAD=$TORCH_PRELOAD
  install_torch 2.11.0
  prepare_device 2.11.0
  (cd "$here" && PYTHONPATH=$root/tests/e2e:$here python3 side_by_side.py "$work/recv_buffer_pool.py")
}
case $only in *paper*) step compare_automodel ;; esac
case $only in *table*) step print_table ;; esac
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ]
