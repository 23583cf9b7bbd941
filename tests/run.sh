#!/usr/bin/env bash
# Installs what is missing, builds and runs every test.
#   tests/run.sh [--sanitize=address|thread] [-- CTEST-ARGUMENT...]
# The arguments are ctest's: "-- -L unit" runs the unit tests, "-L e2e" those of the real programs, "-R NAME" some.
# Ends with the line "N passed, N failed, N skipped"; the exit status is 0 only when nothing failed.
# RECVPOOL_CMAKE_OPTIONS may hold more options for cmake, e.g. -DRECVPOOL_IGNORE_TOOLKIT=ON.
set -u
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1
. tests/packages.sh

usage() {
  sed -n '2,/^set/{/^#/s/^# \?//p}' tests/run.sh
}

preset=default
while [ $# -gt 0 ]; do
  case "$1" in
    --sanitize=address) preset=asan ;;
    --sanitize=thread) preset=tsan ;;
    --) shift; break ;;
    --help) usage; exit 0 ;;
    *) echo "usage: tests/run.sh [--sanitize=address|thread] [-- CTEST-ARGUMENT...]" >&2; exit 2 ;;
  esac
  shift
done

fail() {
  echo "$1" >&2
  echo "0 passed, 1 failed"
  exit 1
}

# What the README has exported to try a job out would have the tests run under it.
unset LD_LIBRARY_PATH LD_PRELOAD CUDA_INJECTION64_PATH
for name in $(compgen -e RECVPOOL_); do
  case $name in
    RECVPOOL_TORCH_TESTS | RECVPOOL_HEAVY_TESTS | RECVPOOL_CMAKE_OPTIONS) ;;
    *) unset "$name" ;;
  esac
done

build=build/$preset
recvpool_install_packages || fail "The packages that are needed could not be installed."
[ -z "${RECVPOOL_HEAVY_TESTS:-}" ] || recvpool_install_heavy_packages "$build"
read -ra options <<<"${RECVPOOL_CMAKE_OPTIONS:-}"
recvpool_build "$preset" "$build" "${options[@]}" || fail "The build failed."

results=$PWD/$build/results.xml
rm -f "$results"
ctest --test-dir "$build" --output-on-failure -j"$(nproc)" --output-junit "$results" "$@"
status=$?

# <testsuite tests="N" failures="N" disabled="N" skipped="N" ...>, one attribute a line or all in one.
count() { tr '\n' ' ' <"$results" 2>/dev/null | sed -nE "s/.*<testsuite [^>]*[[:space:]]$1=\"([0-9]+)\".*/\1/p"; }
total=$(count tests) failed=$(count failures) skipped=$(($(count skipped) + $(count disabled)))
if [ -z "$total" ] || [ "$total" -eq 0 ]; then
  fail "No test was run."
fi
echo "$((total - failed - skipped)) passed, $failed failed, $skipped skipped"
exit "$status"
