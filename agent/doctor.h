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
};

/** Adds a finding; its text comes from `format`. Returns it, so that a mend can be set (rp_doctor_mend). */
struct rp_doctor_finding *rp_doctor_add(struct rp_doctor *doctor, const char *name,
                                        enum rp_doctor_status status, bool for_attach, const char *format,
                                        ...) __attribute__((format(printf, 5, 6)));
/** Says what to do about a finding. */
void rp_doctor_mend(struct rp_doctor_finding *finding, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/** Driver, devices, runtime, CUPTI, NCCL, their versions, and what else is injected. Initialises the driver
 * in this process. */
void rp_doctor_cuda(struct rp_doctor *doctor);
/** Kernel, rights and probes. */
void rp_doctor_kernel(struct rp_doctor *doctor);

#endif
