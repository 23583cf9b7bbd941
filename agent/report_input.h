/** @file report_input.h
 * Reading a report that anybody may have written: bounded, never waiting, and by no detour. Used by `recvpool
 * report`, `plan` and `serve`. Thread-safe for distinct inputs.
 */
#ifndef RP_AGENT_REPORT_INPUT_H
#define RP_AGENT_REPORT_INPUT_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/stat.h>

/** A report larger than this is not read. */
#define RP_INPUT_BYTES (64u << 20)
/** A report with more values than this is not parsed: parsed, each takes up to a hundred bytes. The largest
 * that an agent writes have some 20 for each receive of a step. */
#define RP_INPUT_VALUES (1u << 21)
/** Room for a reason. */
#define RP_INPUT_REASON 256

/** A file that was read. */
struct rp_input {
  char *text; /**< owned by the caller, ends with a NUL that does not count */
  size_t bytes;
  struct stat info;
};

/** Reads the regular file `name` relative to the folder `dir` (AT_FDCWD: as a path). `follow`: also where it
 * is a symbolic link. False with the reason in `reason` and `out` empty where it is anything else, empty, too
 * large, or changes meanwhile. */
bool rp_input_read(int dir, const char *name, bool follow, struct rp_input *out, char *reason);

/** The report in `text`; NULL with the reason in `reason` where it is no whole JSON, too much of it, or no
 * report of a version that is read. Its parts may be missing or wrong, but "process" and "totals" are objects
 * and "channels" is an array. */
json_t *rp_input_parse(const char *text, size_t bytes, char *reason);

/** Whether the process of `report`, which says that it runs, has certainly ended. What it wrote meanwhile
 * must be looked for after this was asked: the last report comes before the end. */
bool rp_input_process_is_gone(const json_t *report);

/** Two looks at a file saw the same content. */
bool rp_input_is_same(const struct stat *a, const struct stat *b);

/** Whether a file of this name in a report folder is read: *.json, and no dot in front. */
bool rp_input_is_report_name(const char *name);

#endif
