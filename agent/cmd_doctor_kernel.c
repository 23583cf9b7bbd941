/* The kernel half of `recvpool doctor`: what observing from outside needs. */
#include "agent/doctor.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "bpf/observer.h"
#include "bpf/rights.h"

#define SETCAP "setcap cap_bpf,cap_perfmon,cap_sys_ptrace,cap_dac_read_search+ep recvpool"

static void check_capability(struct rp_doctor *doctor, const struct rp_rights *rights, const char *name,
                             enum rp_capability capability, bool implied, enum rp_doctor_status otherwise,
                             const char *purpose) {
  if (rp_rights_have(rights, capability) || implied) {
    rp_doctor_add(doctor, name, RP_DOCTOR_OK, true, "%s is there%s", rp_capability_name(capability),
                  rp_rights_have(rights, capability) ? "" : " (by CAP_SYS_ADMIN)");
    return;
  }
  struct rp_doctor_finding *finding = rp_doctor_add(doctor, name, otherwise, true, "%s is missing: %s",
                                                    rp_capability_name(capability), purpose);
  if (otherwise >= RP_DOCTOR_WARNING) rp_doctor_mend(finding, "run as root, or " SETCAP);
}

static void check_capabilities(struct rp_doctor *doctor, const struct rp_rights *rights) {
  bool admin = rp_rights_have(rights, RP_CAP_SYS_ADMIN);
  check_capability(doctor, rights, "cap_bpf", RP_CAP_BPF, admin, RP_DOCTOR_FAILURE,
                   "programs cannot be loaded");
  check_capability(doctor, rights, "cap_perfmon", RP_CAP_PERFMON, admin, RP_DOCTOR_FAILURE,
                   "probes cannot be attached");
  check_capability(doctor, rights, "cap_sys_ptrace", RP_CAP_SYS_PTRACE, false, RP_DOCTOR_WARNING,
                   "processes of other users cannot be looked at");
  check_capability(doctor, rights, "cap_dac_read_search", RP_CAP_DAC_READ_SEARCH, false, RP_DOCTOR_WARNING,
                   "libraries that only their owner can read cannot be probed");
  check_capability(doctor, rights, "cap_checkpoint_restore", RP_CAP_CHECKPOINT_RESTORE, admin, RP_DOCTOR_NOTE,
                   "libraries that were deleted or replaced while in use cannot be probed");
  check_capability(doctor, rights, "cap_sys_admin", RP_CAP_SYS_ADMIN, false,
                   rights->multi_links ? RP_DOCTOR_NOTE : RP_DOCTOR_FAILURE,
                   rights->multi_links ? "not needed on this kernel"
                                       : "kernels without multi-uprobe links want it for probes");
}

static void check_lockdown(struct rp_doctor *doctor, const struct rp_rights *rights) {
  switch (rights->lockdown) {
  case RP_LOCKDOWN_NONE:
    rp_doctor_add(doctor, "lockdown", RP_DOCTOR_OK, true, "the kernel is not locked down");
    break;
  case RP_LOCKDOWN_INTEGRITY:
    rp_doctor_add(doctor, "lockdown", RP_DOCTOR_OK, true,
                  "the kernel is locked down (integrity), which allows observing");
    break;
  case RP_LOCKDOWN_CONFIDENTIALITY:
    rp_doctor_mend(rp_doctor_add(doctor, "lockdown", RP_DOCTOR_WARNING, true,
                                 "the kernel is locked down (confidentiality), which may forbid observing"),
                   "boot without lockdown=confidentiality");
    break;
  default:
    rp_doctor_add(
        doctor, "lockdown", RP_DOCTOR_NOTE, true,
        "not known: there is no /sys/kernel/security/lockdown (securityfs not mounted, or no lockdown)");
    break;
  }
}

static void check_memlock(struct rp_doctor *doctor, const struct rp_rights *rights) {
  bool counts = rights->kernel_major == 5 && rights->kernel_minor < 11;
  if (rights->memlock_bytes == UINT64_MAX)
    rp_doctor_add(doctor, "memlock", RP_DOCTOR_OK, true, "no limit on locked memory");
  else
    rp_doctor_add(doctor, "memlock", counts ? RP_DOCTOR_WARNING : RP_DOCTOR_OK, true,
                  "%" PRIu64 " bytes of locked memory are allowed; %s", rights->memlock_bytes,
                  counts ? "this kernel counts programs and maps against it"
                         : "kernels from 5.11 on do not count programs and maps against it");
}

static void check_surroundings(struct rp_doctor *doctor, const struct rp_rights *rights) {
  if (rights->btf)
    rp_doctor_add(doctor, "btf", RP_DOCTOR_OK, true, "the kernel describes its types");
  else
    rp_doctor_mend(
        rp_doctor_add(doctor, "btf", RP_DOCTOR_FAILURE, true,
                      "there is no /sys/kernel/btf/vmlinux (CONFIG_DEBUG_INFO_BTF)"),
        "in a container, mount the host's /sys; else a kernel with CONFIG_DEBUG_INFO_BTF is needed");
  if (rights->user_namespace)
    rp_doctor_mend(
        rp_doctor_add(doctor, "user_namespace", RP_DOCTOR_FAILURE, true,
                      "this is a user namespace, as rootless containers have one: its capabilities "
                      "do not count for the kernel's programs"),
        "run as root of the machine, or in a container that is not rootless");
  if (!rights->initial_pid_namespace)
    rp_doctor_mend(rp_doctor_add(doctor, "pid_namespace", RP_DOCTOR_FAILURE, true,
                                 "process ids here are those of a container, not of the kernel"),
                   "start the container with the host's pid namespace (hostPID: true, --pid=host)");
  if (rights->seccomp_filter)
    rp_doctor_mend(
        rp_doctor_add(doctor, "seccomp", RP_DOCTOR_WARNING, true,
                      "a seccomp filter sits on this process; those of containers often forbid bpf()"),
        "allow bpf and perf_event_open in the container's seccomp profile");
  if (rights->multi_links)
    rp_doctor_add(doctor, "multi_uprobes", RP_DOCTOR_OK, true, "the kernel has multi-uprobe links");
  else
    rp_doctor_add(
        doctor, "multi_uprobes", RP_DOCTOR_NOTE, true,
        "no multi-uprobe links (kernel 6.6, and the capabilities above): perf events are used, which "
        "take longer to detach");
}

/* The proof: loads the programs, for a process name that nobody has. */
static void check_programs(struct rp_doctor *doctor) {
  const struct rp_observer_options options = {.name = "(recvpool)", .ring_bytes = 4096};
  struct rp_observer *observer = NULL;
  char message[1024], *log = NULL;
  if (rp_observer_open(&options, &observer, message, sizeof message, &log) == RP_OK)
    rp_doctor_add(doctor, "programs", RP_DOCTOR_OK, true, "the kernel takes the programs and probes");
  else
    rp_doctor_add(doctor, "programs", RP_DOCTOR_FAILURE, true, "the programs cannot be used: %s", message);
  rp_observer_close(observer);
  free(log);
}

void rp_doctor_kernel(struct rp_doctor *doctor) {
  struct rp_rights rights;
  rp_rights_read(&rights);
  bool old = rights.kernel_major < 5 || (rights.kernel_major == 5 && rights.kernel_minor < 15);
  struct rp_doctor_finding *kernel = rp_doctor_add(doctor, "kernel", old ? RP_DOCTOR_FAILURE : RP_DOCTOR_OK,
                                                   true, "Linux %s", rights.kernel);
  if (old) rp_doctor_mend(kernel, "5.15 or later is needed");
  if (rights.no_proc)
    rp_doctor_mend(
        rp_doctor_add(doctor, "proc", RP_DOCTOR_FAILURE, true, "/proc tells nothing of this process"),
        "mount -t proc proc /proc");
  else
    check_capabilities(doctor, &rights);
  check_surroundings(doctor, &rights);
  check_lockdown(doctor, &rights);
  check_memlock(doctor, &rights);
  check_programs(doctor);
}
