/* Rights and what the kernel offers. The sentences are made here, from what was read, so that "permission
 * denied" always comes with the name of what is missing. */
#include "bpf/rights.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "bpf/links.h"

#define INITIAL_PID_NAMESPACE 0xeffffffcu  /* PROC_PID_INIT_INO */
#define INITIAL_USER_NAMESPACE 0xeffffffdu /* PROC_USER_INIT_INO */
#define TOO_MANY_FILES "too many files are open: raise the limit (ulimit -n)"
#define BTF_FILE "/sys/kernel/btf/vmlinux"

static bool read_text(const char *path, char *out, size_t size) {
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return false;
  ssize_t got = read(fd, out, size - 1);
  (void)close(fd);
  out[got > 0 ? got : 0] = '\0';
  return got > 0;
}

enum rp_lockdown rp_lockdown_parse(const char *text) {
  if (strstr(text, "[none]")) return RP_LOCKDOWN_NONE;
  if (strstr(text, "[integrity]")) return RP_LOCKDOWN_INTEGRITY;
  if (strstr(text, "[confidentiality]")) return RP_LOCKDOWN_CONFIDENTIALITY;
  return RP_LOCKDOWN_UNKNOWN;
}

static void read_status(struct rp_rights *out) {
  char text[8192];
  out->no_proc = !read_text("/proc/self/status", text, sizeof text);
  if (out->no_proc) return;
  const char *capabilities = strstr(text, "\nCapEff:"), *seccomp = strstr(text, "\nSeccomp:");
  if (capabilities) out->capabilities = strtoull(capabilities + strlen("\nCapEff:"), NULL, 16);
  if (seccomp) out->seccomp_filter = strtol(seccomp + strlen("\nSeccomp:"), NULL, 10) == 2;
}

static void read_kernel(struct rp_rights *out) {
  struct utsname name;
  char text[256];
  if (uname(&name) == 0) {
    snprintf(out->kernel, sizeof out->kernel, "%s", name.release);
    (void)sscanf(name.release, "%d.%d", &out->kernel_major, &out->kernel_minor);
  }
  out->btf = access(BTF_FILE, R_OK) == 0;
  if (read_text("/sys/kernel/security/lockdown", text, sizeof text)) out->lockdown = rp_lockdown_parse(text);
  out->perf_event_paranoid = INT_MIN;
  if (read_text("/proc/sys/kernel/perf_event_paranoid", text, sizeof text))
    out->perf_event_paranoid = (int)strtol(text, NULL, 10);
}

static bool is_before(const struct rp_rights *rights, int major_number, int minor_number) {
  return rights->kernel_major < major_number ||
         (rights->kernel_major == major_number && rights->kernel_minor < minor_number);
}

void rp_rights_read(struct rp_rights *out) {
  struct rlimit limit;
  struct stat info;
  *out = (struct rp_rights){0};
  read_status(out);
  read_kernel(out);
  out->memlock_bytes = UINT64_MAX;
  if (getrlimit(RLIMIT_MEMLOCK, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY)
    out->memlock_bytes = limit.rlim_cur;
  out->initial_pid_namespace = stat("/proc/self/ns/pid", &info) != 0 || info.st_ino == INITIAL_PID_NAMESPACE;
  out->user_namespace = stat("/proc/self/ns/user", &info) == 0 && info.st_ino != INITIAL_USER_NAMESPACE;
  char missing[256];
  rp_rights_missing(out, false, missing, sizeof missing);
  out->multi_links = missing[0] ? !is_before(out, 6, 6) : rp_links_have_multi();
}

bool rp_rights_have(const struct rp_rights *rights, enum rp_capability capability) {
  return rights->capabilities >> capability & 1;
}

const char *rp_capability_name(enum rp_capability capability) {
  switch (capability) {
  case RP_CAP_DAC_READ_SEARCH:
    return "CAP_DAC_READ_SEARCH";
  case RP_CAP_SYS_PTRACE:
    return "CAP_SYS_PTRACE";
  case RP_CAP_SYS_ADMIN:
    return "CAP_SYS_ADMIN";
  case RP_CAP_SYS_RESOURCE:
    return "CAP_SYS_RESOURCE";
  case RP_CAP_PERFMON:
    return "CAP_PERFMON";
  case RP_CAP_BPF:
    return "CAP_BPF";
  case RP_CAP_CHECKPOINT_RESTORE:
    return "CAP_CHECKPOINT_RESTORE";
  }
  return "CAP_?";
}

void rp_rights_missing(const struct rp_rights *rights, bool perf_links, char *out, size_t out_size) {
  bool admin = rp_rights_have(rights, RP_CAP_SYS_ADMIN);
  bool bpf = admin || rp_rights_have(rights, RP_CAP_BPF),
       perfmon = admin || rp_rights_have(rights, RP_CAP_PERFMON);
  out[0] = '\0';
  if (is_before(rights, 5, 15))
    snprintf(out, out_size, "kernel %s is too old: 5.15 or later is needed", rights->kernel);
  else if (rights->no_proc)
    snprintf(out, out_size, "/proc tells nothing of this process: mount it (mount -t proc proc /proc)");
  else if (rights->user_namespace)
    snprintf(out, out_size,
             "this is a user namespace, as rootless containers have one: its capabilities do not count for "
             "the kernel's programs; run it as root of the machine");
  else if (!bpf || !perfmon)
    snprintf(out, out_size,
             "%s%s%s missing: run it as root, or give the file what it needs: setcap "
             "cap_bpf,cap_perfmon,cap_sys_ptrace,cap_dac_read_search+ep recvpool%s",
             bpf ? "" : "CAP_BPF", bpf || perfmon ? "" : " and ", perfmon ? "" : "CAP_PERFMON",
             perf_links ? " (and cap_sys_admin for probes through perf events)" : "");
  else if (!rights->btf)
    snprintf(out, out_size,
             "this kernel does not describe its types: there is no " BTF_FILE
             " (CONFIG_DEBUG_INFO_BTF; in a container, mount the host's /sys)");
  else if (perf_links && !admin && !is_before(rights, 6, 6))
    snprintf(out, out_size,
             "CAP_SYS_ADMIN is missing, which this kernel wants for probes through perf events");
}

void rp_rights_explain_load(const struct rp_rights *rights, int error, char *out, size_t out_size) {
  rp_rights_missing(rights, false, out, out_size);
  if (out[0]) return;
  if (error == EPERM && rights->lockdown == RP_LOCKDOWN_CONFIDENTIALITY)
    snprintf(out, out_size,
             "the kernel is locked down (confidentiality mode), which forbids these programs: "
             "boot without lockdown=confidentiality to observe");
  else if (error == EPERM && rights->seccomp_filter)
    snprintf(out, out_size,
             "a seccomp filter forbids bpf() although the capabilities are there, as containers "
             "often do: allow bpf and perf_event_open in its profile");
  else if (error == EPERM)
    snprintf(out, out_size,
             "a security policy forbids bpf() although the capabilities are there (LSM, or "
             "lockdown)");
  else if (error == EINVAL && rights->lockdown != RP_LOCKDOWN_NONE)
    snprintf(out, out_size,
             "the kernel refuses a program; where it is locked down (confidentiality mode), that "
             "is the reason");
  else if (error == EMFILE)
    snprintf(out, out_size, TOO_MANY_FILES);
  else if (error == ESRCH)
    snprintf(out, out_size, "the kernel's description of its types (" BTF_FILE ") cannot be used");
  else
    snprintf(out, out_size, "the kernel refuses a program or map: %s", strerror(error));
}

void rp_rights_explain_attach(const struct rp_rights *rights, int error, bool perf_links, char *out,
                              size_t out_size) {
  bool denied = error == EACCES || error == EPERM;
  if (denied && perf_links && !rp_rights_have(rights, RP_CAP_SYS_ADMIN))
    snprintf(out, out_size,
             "CAP_SYS_ADMIN is missing, which this kernel wants for probes through perf events%s",
             rights->multi_links ? "; multi-uprobe links work without it" : "");
  else if (denied && rights->seccomp_filter)
    snprintf(out, out_size, "a seccomp filter forbids it: allow bpf and perf_event_open in its profile");
  else if (denied)
    snprintf(out, out_size, "a security policy forbids it");
  else if (error == EMFILE)
    snprintf(out, out_size, TOO_MANY_FILES);
  else
    snprintf(out, out_size, "%s", strerror(error));
}
