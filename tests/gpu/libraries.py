"""Copies the shared libraries that the programs in a folder need beside them, into its lib/:

    libraries.py FOLDER

Left out is what every machine of that kind has (the C library and the compiler's own), and what belongs to CUDA.
"""
import os
import re
import shutil
import subprocess
import sys

# Of any Ubuntu or Debian.
SYSTEM = {"libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0", "librt.so.1", "libresolv.so.2", "libgcc_s.so.1",
          "libstdc++.so.6", "ld-linux-x86-64.so.2"}
# Of the machine with the GPU.
CUDA = {"libcuda.so.1", "libcudart.so.13", "libnccl.so.2"}


def is_elf(path):
    with open(path, "rb") as file:
        return file.read(4) == b"\x7fELF"


def elf_files(folder):
    for root, _, names in os.walk(folder):
        for name in names:
            path = os.path.join(root, name)
            if os.path.isfile(path) and not os.path.islink(path) and is_elf(path):
                yield path


def read(path, *options):
    return subprocess.run(["readelf", "-W", *options, path], check=True, capture_output=True, text=True).stdout


def needed(path):
    return re.findall(r"\(NEEDED\).*\[(.*)\]", read(path, "-d"))


def glibc_versions(path):
    """Versions of the C library's symbols that a file needs, as tuples."""
    text = read(path, "-V").partition("Version needs section")[2]
    return {tuple(map(int, found.split("."))) for found in re.findall(r"Name: GLIBC_([\d.]+)", text)}


def places():
    """soname -> path, as the loader has it."""
    cache = subprocess.run(["/sbin/ldconfig", "-p"], check=True, capture_output=True, text=True).stdout
    return dict(reversed(re.findall(r"^\t(\S+) \(libc6,x86-64[^)]*\) => (\S+)$", cache, re.MULTILINE)))


def main():
    folder = sys.argv[1]
    known, lib = places(), os.path.join(folder, "lib")
    os.makedirs(lib, exist_ok=True)
    waiting = list(elf_files(folder))
    while waiting:
        for name in needed(waiting.pop()):
            target = os.path.join(lib, name)
            if name in SYSTEM | CUDA or os.path.exists(target):
                continue
            if name not in known:
                sys.exit(f"libraries.py: {name} is needed and the loader does not know it")
            shutil.copy(os.path.realpath(known[name]), target)
            waiting.append(target)


if __name__ == "__main__":
    main()
