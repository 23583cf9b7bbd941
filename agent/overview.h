/** @file overview.h
 * The document that pages are drawn from: what people look at of each report, by job. `recvpool serve`
 * answers with it, `recvpool report --html` puts it into the file. Described by overview.schema.json.
 */
#ifndef RP_AGENT_OVERVIEW_H
#define RP_AGENT_OVERVIEW_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

#include "agent/cmd_report_output.h"
#include "agent/command.h"

#define RP_OVERVIEW_SCHEMA "recvpool.overview"
#define RP_OVERVIEW_SCHEMA_VERSION "1.3"

/** What is taken of one report: members that pages need, checked for their kind, and nothing else. Values are
 * shared with `report`, which must not change afterwards. `lifetimes`: also those of the last step. NULL
 * without memory; owned by the caller. */
json_t *rp_overview_process(const json_t *report, bool lifetimes);

/** The jobs of a finished set that holds its reports, without lifetimes. NULL without memory; owned by the
 * caller. */
json_t *rp_overview(const struct rp_read_set *set);

/** The same of any set, written report by report. Lifetimes are taken for processes in order until there are
 * `lifetimes_most` of them; the document says for how many processes that is. */
void rp_overview_write(struct rp_read_set *set, size_t lifetimes_most, struct rp__stream *stream);

#endif
