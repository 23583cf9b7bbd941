#!/usr/bin/env bash
# Proves recvpool on a real GPU in one run of a few minutes, without network, root, or a change of the GPU's settings.
#   tests/gpu/run.sh [--out DIR] [--simulate] [--only BEGINNING]... [--python PYTHON] [--build FOLDER]
# In a carried build (pack.sh) it uses what lies beside it; in a source tree it builds into build/default, unless a build
# folder is named. --simulate makes all of it on the simulated device, which proves this script only.
# Prints a table and writes DIR/gpu-report.json (default: gpu-results). Status 0: nothing failed; 1: something failed;
# 77: nothing could be checked here.
set -u
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)
options=()
[[ " $* " =~ " --help "|" -h " ]] && exec python3 -B "$here/main.py" --help
python3 -B "$here/main.py" --check-options "$@" || exit # before anything is built
if [ ! -x "$root/bin/recvpool" ] && ! [[ " $* " =~ " --build"[\ =] ]]; then
  build=$root/build/default
  # shellcheck source=tests/packages.sh
  cd "$root" && . tests/packages.sh && recvpool_install_packages && recvpool_build default build/default >&2 ||
    { echo "tests/gpu/run.sh: the build failed" >&2; exit 1; }
  cd - >/dev/null || exit 1
  options=(--build "$build")
fi
exec python3 -B "$here/main.py" "${options[@]}" "$@"
