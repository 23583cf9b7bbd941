/** @file doctor.h
 * What the files of `recvpool doctor` share: a list of findings, each in plain words and with the mend.
 */
#ifndef RP_AGENT_DOCTOR_H
#define RP_AGENT_DOCTOR_H

#include <stdbool.h>
#include <stddef.h>

#define RP_DOCTOR_FINDINGS 48

enum rp_doctor_status {
  RP_DOCTOR_OK = 0,
  RP_DOCTOR_NOTE = 1,    /**< worth knowing; nothing is wrong */
  RP_DOCTOR_WARNING = 2, /**< works, but less well */
  RP_DOCTOR_FAILURE = 3  /**< something cannot work */
};

struct rp_doctor_finding {
  const char *name; /**< static: "driver", "btf" … */
  enum rp_doctor_status status;
  bool for_attach; /**< concerns `recvpool attach`, else `recvpool run` */
  char text[512];
  char mend[512]; /**< "" where there is nothing to do */
};

struct rp_doctor {
  struct rp_doctor_finding findings[RP_DOCTOR_FINDINGS];
  size_t count;
  unsigned seconds; /**< a library has to answer */
  char asking[256]; /**< what is being asked, see rp_doctor_apart */
  bool asked;       /**< and it has answered, well or not */
};

/** Adds a finding; its text comes from `format`. Returns it, so that a mend can be set (rp_doctor_mend). */
struct rp_doctor_finding *rp_doctor_add(struct rp_doctor *doctor, const char *name,
                                        enum rp_doctor_status status, bool for_attach, const char *format,
                                        ...) __attribute__((format(printf, 5, 6)));
/** Says what to do about a finding. */
void rp_doctor_mend(struct rp_doctor_finding *finding, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/** Lets `check` add its findings in a child: what it asks may crash, hang, end the process or print. That
 * becomes a finding `name` of its own, before the others: a warning where it printed, else `otherwise`.
 * `context` must be of rp_doctor_shared for what the child puts there to be seen here. */
void rp_doctor_apart(struct rp_doctor *doctor, const char *name, enum rp_doctor_status otherwise,
                     void (*check)(struct rp_doctor *doctor, void *context), void *context);
/** For `check`: names what is asked next, "library: function". */
void rp_doctor_asking(struct rp_doctor *doctor, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/** Zeroed memory shared with children, until the process ends; NULL without memory. */
void *rp_doctor_shared(size_t bytes);

/** Driver, devices, runtime, CUPTI, NCCL, their versions, and what else is injected. Each is asked in a
 * child.
 */
void rp_doctor_cuda(struct rp_doctor *doctor);
/** Kernel, rights and probes. */
void rp_doctor_kernel(struct rp_doctor *doctor);

#endif
