/** @file rights.h
 * What this process may do here and what the kernel offers, and sentences for what is missing.
 */
#ifndef RP_BPF_RIGHTS_H
#define RP_BPF_RIGHTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "recvpool/status.h"

/** Capabilities that matter here, by their kernel numbers. */
enum rp_capability {
  RP_CAP_DAC_READ_SEARCH = 2,
  RP_CAP_SYS_PTRACE = 19,
  RP_CAP_SYS_ADMIN = 21,
  RP_CAP_SYS_RESOURCE = 24,
  RP_CAP_PERFMON = 38,
  RP_CAP_BPF = 39,
  RP_CAP_CHECKPOINT_RESTORE = 40
};

enum rp_lockdown {
  RP_LOCKDOWN_UNKNOWN = 0, /**< the file that tells is not there */
  RP_LOCKDOWN_NONE = 1,
  RP_LOCKDOWN_INTEGRITY = 2,
  RP_LOCKDOWN_CONFIDENTIALITY = 3
};

struct rp_rights {
  uint64_t capabilities; /**< bits of the effective set */
  int kernel_major, kernel_minor;
  char kernel[65];
  bool btf; /**< the kernel describes its types */
  enum rp_lockdown lockdown;
  bool multi_links;           /**< multi-uprobe links work; without the rights to try: going by the version */
  bool initial_pid_namespace; /**< process ids here are those of the kernel */
  bool user_namespace;     /**< capabilities count in a user namespace only, not for the kernel's programs */
  bool no_proc;            /**< /proc tells nothing, so capabilities are not known */
  bool seccomp_filter;     /**< a filter sits on this process */
  uint64_t memlock_bytes;  /**< limit; UINT64_MAX: none */
  int perf_event_paranoid; /**< INT_MIN where not known */
};

/** Reads all of it; what cannot be read is unknown or false. Tries to load a program for multi_links. */
void rp_rights_read(struct rp_rights *out);
/** Whether a capability is held. */
bool rp_rights_have(const struct rp_rights *rights, enum rp_capability capability);
/** "CAP_BPF" and so on; never NULL. */
const char *rp_capability_name(enum rp_capability capability);
/** Active word of a lockdown file's text ("none [integrity] confidentiality"). */
enum rp_lockdown rp_lockdown_parse(const char *text);

/** What observing needs and is missing, as one sentence that says what to do; "" if nothing is. `perf_links`:
 * multi-uprobe links are not to be used. */
void rp_rights_missing(const struct rp_rights *rights, bool perf_links, char *out, size_t out_size);
/** Why loading the programs failed with `error` (positive errno). */
void rp_rights_explain_load(const struct rp_rights *rights, int error, char *out, size_t out_size);
/** Why attaching to a file failed with `error` (positive errno). */
void rp_rights_explain_attach(const struct rp_rights *rights, int error, bool perf_links, char *out,
                              size_t out_size);

#endif
