"""Writes C for the entry points that real CUDA libraries export and the simulated ones do not: each says its name on stderr
once and returns an error of its library.

    stubs.py SIMULATED_FOLDER REAL_FOLDER... > stubs.c

Of every shared library in SIMULATED_FOLDER the one of the same soname is looked for in the other folders. To be preloaded
together with the simulated libraries, so that programs linked with the real ones start.
"""
import os
import re
import subprocess
import sys

# First letters of the names: the error that means "not supported" (or nearest to it) to callers of that library.
ERRORS = [
    ("cuda", 801),   # cudaErrorNotSupported
    ("cupti", 27),   # CUPTI_ERROR_NOT_SUPPORTED
    ("nccl", 5),     # ncclInvalidUsage
    ("pnccl", 5),
    ("cublas", 15),  # CUBLAS_STATUS_NOT_SUPPORTED
    ("cu", 801),     # CUDA_ERROR_NOT_SUPPORTED
]

HEAD = """#include <stdatomic.h>
#include <stdio.h>

/* Names what is missing, once for each entry point and process. */
static long missing(atomic_flag *told, const char *name, long error) {
  if (!atomic_flag_test_and_set(told))
    fprintf(stderr, "rpsim: %s is not simulated: it returns error %ld\\n", name, error);
  return error;
}
"""


def functions(library):
    """Names of the functions that a shared library exports, without versions."""
    text = subprocess.run(["nm", "-D", "--defined-only", library], check=True, capture_output=True, text=True).stdout
    return {match[1] for match in re.finditer(r"^[0-9a-f]+ [TWi] (\w+)", text, re.MULTILINE)}


def soname(library):
    text = subprocess.run(["readelf", "-d", library], check=True, capture_output=True, text=True).stdout
    match = re.search(r"\(SONAME\).*\[(.*)\]", text)
    return match[1] if match else None


def libraries(folder):
    """soname -> path of the shared libraries in a folder."""
    paths = [os.path.join(folder, name) for name in sorted(os.listdir(folder)) if ".so" in name]
    return {name: path for path in paths if os.path.isfile(path) and (name := soname(path))}


def main():
    simulated = libraries(sys.argv[1])
    print(HEAD)
    done = set()
    for folder in sys.argv[2:]:
        for name, path in libraries(folder).items():
            if name not in simulated:
                continue
            for function in sorted(functions(path) - functions(simulated[name]) - done):
                error = next((code for start, code in ERRORS if function.startswith(start)), None)
                if error is None:
                    continue  # the library's own inner names
                done.add(function)
                print(f"long {function}(void);\nlong {function}(void) {{\n  static atomic_flag told = ATOMIC_FLAG_INIT;\n"
                      f"  return missing(&told, \"{function} of {name}\", {error});\n}}")


if __name__ == "__main__":
    main()
