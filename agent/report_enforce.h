/** @file report_enforce.h
 * Private to the report's writer: the part about enforcing.
 */
#ifndef RP_AGENT_REPORT_ENFORCE_H
#define RP_AGENT_REPORT_ENFORCE_H

#include "agent/report.h"
#include "agent/report_emit.h"

/** What enforcing did, or null where the report has none; `failed` is set without memory. */
json_t *rp__report_enforce_json(const struct rp_report *report, bool *failed);

#endif
