#!/usr/bin/env bash
# Packs what tests/gpu/run.sh needs on a machine with a GPU where nothing can be installed:
#   tests/gpu/pack.sh [BUILD_FOLDER] FILE.tar.gz
# The build (default: build/default) has to be plain, made with nvcc. Inside is one folder, recvpool-gpu; there:
#   tests/gpu/run.sh [--out DIR]
# CUDA's own libraries are taken from that machine: a toolkit's, or those of Python's wheels.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)
case $# in
  1) build=$root/build/default file=$1 ;;
  2) build=$1 file=$2 ;;
  *) echo "usage: tests/gpu/pack.sh [BUILD_FOLDER] FILE.tar.gz" >&2; exit 2 ;;
esac
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
stage=$scratch/recvpool-gpu
cmake --install "$build" --prefix "$stage" --strip >/dev/null
cmake --install "$build" --prefix "$stage" --strip --component gpu >/dev/null
if [ ! -x "$stage/libexec/rp_trainer_cuda" ]; then
  echo "tests/gpu/pack.sh: $build has no rp_trainer_cuda: build it where nvcc is" >&2
  exit 1
fi
rm -rf "$stage/include" "$stage"/lib/*.a "$stage/lib/cmake" "$stage/lib/pkgconfig"
(cd "$root" && cp --parents tests/gpu/run.sh tests/gpu/[!t]*.py tests/gpu/training.py tests/e2e/truth.py tests/torch/forks.py \
  tests/torch/pipeline.py tests/torch/record.py dashboards/schema/gpu.schema.json LICENSE "$stage")
python3 -B "$here/libraries.py" "$stage"
tar -C "$scratch" --owner=0 --group=0 --sort=name -czf "$file.part" recvpool-gpu
mv "$file.part" "$file"
du -h "$file" | sed 's/\t/ in /'
