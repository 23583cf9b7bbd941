#!/usr/bin/env bash
# Compares recvpool with torch itself and with nemo-automodel: installs each torch into an environment of its own under the
# build folder, dumps every schedule over the whole grid, and compares. Needs network and a few GB; run on demand.
#
#   tests/torch/run.sh BUILD_FOLDER [TORCH_VERSION...]     (default versions: 2.11.0 and the newest)
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
build=$(cd "${1:?the build folder is needed}" && pwd)
shift
versions=("$@")
[ ${#versions[@]} -gt 0 ] || versions=(2.11.0 newest)
export RECVPOOL=$build/agent/recvpool SCHEDULE_TEXT=$build/tests/torch/schedule_text PYTHONDONTWRITEBYTECODE=1
work=$build/torch-comparison
mkdir -p "$work"
for version in "${versions[@]}"; do
  environment=$work/environment-$version
  if [ ! -e "$environment/complete" ]; then
    python3 -m venv "$environment"
    requirement=torch
    [ "$version" = newest ] || requirement=torch==$version
    "$environment/bin/pip" install --quiet --no-compile "$requirement" numpy
    touch "$environment/complete"
  fi
  rm -rf "$work/schedules-$version"
  "$environment/bin/python" "$here/dump.py" "$work/schedules-$version"
  rm -rf "$work/random-$version"
  "$environment/bin/python" "$here/dump.py" "$work/random-$version" --random 100
  python3 "$here/compare.py" "$work/schedules-$version" "$work/random-$version"
done
if [ ! -e "$work/recv_buffer_pool.py" ]; then
  pip download --quiet --no-deps --dest "$work/automodel" nemo-automodel
  unzip -q -p "$work"/automodel/nemo_automodel-*.whl '*/pipelining/recv_buffer_pool.py' > "$work/recv_buffer_pool.part"
  mv "$work/recv_buffer_pool.part" "$work/recv_buffer_pool.py"
fi
python3 "$here/automodel.py" "$work/recv_buffer_pool.py"
