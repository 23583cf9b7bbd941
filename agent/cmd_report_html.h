/** @file cmd_report_html.h
 * Private to `recvpool report --html`: one file that holds page, style, script and data, and asks nobody for
 * anything.
 */
#ifndef RP_AGENT_CMD_REPORT_HTML_H
#define RP_AGENT_CMD_REPORT_HTML_H

#include "agent/cmd_report_output.h"
#include "agent/command.h"

/** The page before and after its data; generated from dashboards/web. */
extern const char rp__report_page_head[], rp__report_page_tail[];

/** Writes the page of a finished set. False: no memory, or `out` cannot be written. */
bool rp__report_write_html(struct rp_read_set *set, FILE *out);

#endif
