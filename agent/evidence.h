/** @file evidence.h
 * Which sources of evidence are in use and which versions were found, in words for the report.
 */
#ifndef RP_AGENT_EVIDENCE_H
#define RP_AGENT_EVIDENCE_H

#include "agent/report.h"

/** Keeps why CUPTI is not in use. Once, at attach. */
void rp_evidence_set_cupti_reason(const char *reason);
/** Fills out[RP_EVIDENCE_SOURCES]; their number. */
size_t rp_evidence_read(struct rp_evidence *out);
/** Versions and paths of the libraries in the process. Asks the driver only if `driver_ready`. Not in a
 * callback. */
void rp_evidence_versions(struct rp_versions *out, bool driver_ready);
/** Up to `capacity` devices; their number. Not in a callback. */
size_t rp_evidence_devices(struct rp_device_info *out, size_t capacity);

#endif
