/* The CUDA half of `recvpool doctor`: libraries are loaded and asked for their versions; the driver is
 * initialised, which needs no more than a program does. All of that happens in children. */
#include "agent/doctor.h"

#include <dlfcn.h>
#include <limits.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define STUB_LIBRARY 34 /* CUDA_ERROR_STUB_LIBRARY */

/* What was found, for the comparison of versions. 0: not found or not known. */
struct found {
  int driver, runtime, cupti, nccl;
};

static const char *path_of(void *handle) {
  struct link_map *map = NULL;
  return dlinfo(handle, RTLD_DI_LINKMAP, &map) == 0 && map && map->l_name ? map->l_name : "";
}

static void *open_first(struct rp_doctor *doctor, const char *const *names, size_t count) {
  void *handle = NULL;
  for (size_t i = 0; !handle && i < count; i++) {
    rp_doctor_asking(doctor, "%s, on being loaded,", names[i]);
    handle = dlopen(names[i], RTLD_LAZY | RTLD_LOCAL);
  }
  return handle;
}

/* Answer of a function `int f(int *)`, 0 where it fails; `status` (may be NULL) is what it returned. */
static int ask(struct rp_doctor *doctor, void *handle, const char *name, int *status) {
  int answer = 0;
  int (*function)(int *) = (int (*)(int *))dlsym(handle, name);
  rp_doctor_asking(doctor, "%s: %s", path_of(handle), name);
  int result = function ? function(&answer) : -1;
  if (status) *status = result;
  return result == 0 ? answer : 0;
}

static void format_cuda(int version, char *out, size_t size) {
  snprintf(out, size, "%d.%d", version / 1000, version % 1000 / 10);
}

/* ---- driver and devices ---- */

static void read_branch(char *out, size_t size) {
  char line[256] = "", *at;
  FILE *file = fopen("/proc/driver/nvidia/version", "re");
  out[0] = '\0';
  if (file && fgets(line, sizeof line, file) && (at = strstr(line, "Module")))
    (void)snprintf(out, size, ", kernel module %.*s", (int)strcspn(at + 6 + strspn(at + 6, " "), " "),
                   at + 6 + strspn(at + 6, " "));
  if (file) (void)fclose(file);
}

static void check_devices(struct rp_doctor *doctor, void *driver) {
  int (*init)(unsigned) = (int (*)(unsigned))dlsym(driver, "cuInit");
  int (*name_of)(char *, int, int) = (int (*)(char *, int, int))dlsym(driver, "cuDeviceGetName");
  char name[256] = "";
  rp_doctor_asking(doctor, "%s: cuInit", path_of(driver));
  int result = init ? init(0) : -1, status, count = 0;
  if (result == 0) count = ask(doctor, driver, "cuDeviceGetCount", &status);
  if (count > 0) {
    rp_doctor_asking(doctor, "%s: cuDeviceGetName", path_of(driver));
    if (name_of) (void)name_of(name, (int)sizeof name, 0);
    rp_doctor_add(doctor, "devices", RP_DOCTOR_OK, false, "%d device%s, the first is %s", count,
                  count == 1 ? "" : "s", name[0] ? name : "without a name");
    return;
  }
  struct rp_doctor_finding *finding = rp_doctor_add(doctor, "devices", RP_DOCTOR_FAILURE, false,
                                                    "the driver finds no device (cuInit returns %d)", result);
  rp_doctor_mend(finding,
                 "look at nvidia-smi and CUDA_VISIBLE_DEVICES; in a container, start it with --gpus all");
}

static void check_driver(struct rp_doctor *doctor, void *context) {
  struct found *found = context;
  static const char *const names[] = {"libcuda.so.1"};
  char version[32], branch[128];
  int status = 0;
  void *driver = open_first(doctor, names, 1);
  if (!driver) {
    rp_doctor_mend(rp_doctor_add(doctor, "driver", RP_DOCTOR_FAILURE, false,
                                 "there is no CUDA driver: libcuda.so.1 cannot be loaded"),
                   "install the NVIDIA driver; in a container, start it with --gpus all");
    return;
  }
  found->driver = ask(doctor, driver, "cuDriverGetVersion", &status);
  if (!found->driver) {
    rp_doctor_mend(rp_doctor_add(doctor, "driver", RP_DOCTOR_FAILURE, false, "%s tells no version (%d)%s",
                                 path_of(driver), status,
                                 status == STUB_LIBRARY ? ": it is the toolkit's stub" : ""),
                   "take the stubs folder out of LD_LIBRARY_PATH, or install the NVIDIA driver");
    return;
  }
  format_cuda(found->driver, version, sizeof version);
  read_branch(branch, sizeof branch);
  rp_doctor_add(doctor, "driver", RP_DOCTOR_OK, false, "CUDA %s%s (%s)", version, branch, path_of(driver));
  check_devices(doctor, driver);
}

/* ---- libraries ---- */

static void check_runtime(struct rp_doctor *doctor, void *context) {
  struct found *found = context;
  static const char *const names[] = {"libcudart.so.13", "libcudart.so.12", "libcudart.so"};
  char version[32];
  void *handle = open_first(doctor, names, 3);
  if (!handle) {
    rp_doctor_add(
        doctor, "runtime", RP_DOCTOR_NOTE, false,
        "no libcudart on the loader's path; wheels bring their own, and programs can hold it inside");
    return;
  }
  found->runtime = ask(doctor, handle, "cudaRuntimeGetVersion", NULL);
  format_cuda(found->runtime, version, sizeof version);
  rp_doctor_add(doctor, "runtime", RP_DOCTOR_OK, false, "CUDA %s (%s)", version, path_of(handle));
}

static void check_cupti(struct rp_doctor *doctor, void *context) {
  struct found *found = context;
  static const char *const names[] = {"libcupti.so.13", "libcupti.so.12",
                                      "/usr/local/cuda/extras/CUPTI/lib64/libcupti.so",
                                      "/usr/local/cuda/lib64/libcupti.so", "libcupti.so"};
  void *handle = open_first(doctor, names, sizeof names / sizeof names[0]);
  if (!handle) {
    rp_doctor_mend(rp_doctor_add(doctor, "cupti", RP_DOCTOR_WARNING, false,
                                 "no libcupti on the loader's path or in /usr/local/cuda"),
                   "the agent also looks beside the libcudart of the job (PyTorch's wheels bring both); "
                   "otherwise add the folder of libcupti.so to LD_LIBRARY_PATH");
    return;
  }
  uint32_t version = 0;
  int (*get)(uint32_t *) = (int (*)(uint32_t *))dlsym(handle, "cuptiGetVersion");
  rp_doctor_asking(doctor, "%s: cuptiGetVersion", path_of(handle));
  if (get && get(&version) != 0) version = 0;
  found->cupti = (int)version;
  rp_doctor_add(doctor, "cupti", RP_DOCTOR_OK, false, "version %u (%s)", version, path_of(handle));
}

static void check_nccl(struct rp_doctor *doctor, void *context) {
  struct found *found = context;
  static const char *const names[] = {"libnccl.so.2", "libnccl.so"};
  void *handle = open_first(doctor, names, 2);
  if (!handle) {
    rp_doctor_add(
        doctor, "nccl", RP_DOCTOR_NOTE, false,
        "no libnccl on the loader's path; wheels bring their own (where it is linked statically, only "
        "NCCL's profiler interface and uprobes see its calls)");
    return;
  }
  found->nccl = ask(doctor, handle, "ncclGetVersion", NULL);
  rp_doctor_add(doctor, "nccl", RP_DOCTOR_OK, false, "version %d.%d.%d (%s)", found->nccl / 10000,
                found->nccl % 10000 / 100, found->nccl % 100, path_of(handle));
}

/* CUPTI numbers itself by date and release; from 12.0 on the release is in the tens of thousands. */
static int cupti_major(int version) {
  return version >= 100000 ? version / 10000 : 0;
}

static void check_versions(struct rp_doctor *doctor, const struct found *found) {
  int driver = found->driver / 1000, runtime = found->runtime / 1000, cupti = cupti_major(found->cupti);
  struct rp_doctor_finding *finding;
  if (!driver) return;
  if (runtime > driver || cupti > driver) {
    finding = rp_doctor_add(
        doctor, "cuda_versions", RP_DOCTOR_WARNING, false, "the %s is of CUDA %d, newer than the driver's %d",
        runtime > driver ? "runtime" : "CUPTI", runtime > driver ? runtime : cupti, driver);
    rp_doctor_mend(finding, "update the driver, or use libraries of CUDA %d", driver);
  } else if (runtime && cupti && runtime != cupti) {
    finding = rp_doctor_add(doctor, "cuda_versions", RP_DOCTOR_WARNING, false,
                            "the runtime is of CUDA %d and CUPTI of CUDA %d", runtime, cupti);
    rp_doctor_mend(finding, "put the folder of CUDA %d's libcupti first in LD_LIBRARY_PATH", runtime);
  } else {
    rp_doctor_add(doctor, "cuda_versions", RP_DOCTOR_OK, false, "driver and libraries go together");
  }
}

/* ---- others in the same place ---- */

static bool is_ours(const char *path) {
  const char *name = strrchr(path, '/');
  return strcmp(name ? name + 1 : path, "librecvpool.so") == 0;
}

static void check_injection(struct rp_doctor *doctor) {
  static const char *const tools[] = {"nsys",    "ncu", "ToolsInjection", "cupti", "libTreeLauncher",
                                      "parcagpu"};
  const char *injection = getenv("CUDA_INJECTION64_PATH"), *preload = getenv("LD_PRELOAD"),
             *plugin = getenv("NCCL_PROFILER_PLUGIN");
  size_t before = doctor->count;
  if (injection && strcmp(injection, "none") == 0)
    rp_doctor_mend(rp_doctor_add(doctor, "injection", RP_DOCTOR_FAILURE, false,
                                 "CUDA_INJECTION64_PATH is 'none', which switches the agent off"),
                   "unset CUDA_INJECTION64_PATH");
  else if (injection && injection[0] && !is_ours(injection))
    rp_doctor_mend(rp_doctor_add(doctor, "injection", RP_DOCTOR_WARNING, false,
                                 "CUDA_INJECTION64_PATH names another tool: %s", injection),
                   "a process has one injected library: recvpool run takes the place of that one");
  for (size_t i = 0; preload && i < sizeof tools / sizeof tools[0]; i++)
    if (strstr(preload, tools[i])) {
      rp_doctor_mend(rp_doctor_add(doctor, "injection", RP_DOCTOR_WARNING, false,
                                   "LD_PRELOAD names a tool that may hold CUPTI: %s", preload),
                     "CUPTI has one subscriber per process: run without that tool, or with --cupti off");
      break;
    }
  if (plugin && plugin[0] && !is_ours(plugin))
    rp_doctor_mend(rp_doctor_add(doctor, "injection", RP_DOCTOR_WARNING, false,
                                 "NCCL_PROFILER_PLUGIN names another plugin: %s", plugin),
                   "unset it where NCCL is linked statically: the agent then needs that place itself");
  if (doctor->count == before)
    rp_doctor_add(doctor, "injection", RP_DOCTOR_OK, false,
                  "no other tool is set to be loaded into CUDA programs");
}

void rp_doctor_cuda(struct rp_doctor *doctor) {
  struct found *found = rp_doctor_shared(sizeof *found);
  check_injection(doctor);
  (void)setenv("CUDA_INJECTION64_PATH", "none", 1); /* the driver is initialised here without any */
  if (!found) {
    rp_doctor_add(doctor, "driver", RP_DOCTOR_FAILURE, false, "cannot be asked: no memory");
    return;
  }
  rp_doctor_apart(doctor, "driver", RP_DOCTOR_FAILURE, check_driver, found);
  rp_doctor_apart(doctor, "runtime", RP_DOCTOR_WARNING, check_runtime, found);
  rp_doctor_apart(doctor, "cupti", RP_DOCTOR_FAILURE, check_cupti, found);
  rp_doctor_apart(doctor, "nccl", RP_DOCTOR_WARNING, check_nccl, found);
  check_versions(doctor, found);
}
