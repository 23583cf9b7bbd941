/** @file switch_off.h
 * The kill switch: a file in the report folder by which the job's user, or root, ends the sharing of memory
 * while the job runs. `HOST-PID-START.disable` is for the process whose report has that name, `disable` for
 * every process that writes there.
 */
#ifndef RP_AGENT_SWITCH_OFF_H
#define RP_AGENT_SWITCH_OFF_H

#include <stdbool.h>
#include <stddef.h>

#define RP_SWITCH_OFF_ALL "disable"

/** Name of the file for the process whose report is `report_name` ("….json"). */
void rp_switch_off_name(const char *report_name, char *out, size_t out_size);

enum rp_switch_off {
  RP_SWITCH_OFF_NO = 0,  /**< no such file */
  RP_SWITCH_OFF_YES,     /**< `file` is its name */
  RP_SWITCH_OFF_REFUSED, /**< there is one, but others could have put it there: `why` is a sentence */
};
/** Looks into `dir`. Only a plain file with one name counts, owned by the effective user of this process or
 * root, in a folder of one of them in which nobody else can rename or link: a link, or somebody else's file,
 * switches nothing off. Few system calls, waits for nothing. Thread-safe. */
enum rp_switch_off rp_switch_off_look(const char *dir, const char *report_name, char *file, size_t file_size,
                                      char *why, size_t why_size);

#endif
