/** @file report_input.h
 * Reading a report that anybody may have written: bounded, never waiting, and by no detour. Used by `recvpool
 * report`, `plan` and `serve`. Thread-safe for distinct inputs.
 */
#ifndef RP_AGENT_REPORT_INPUT_H
#define RP_AGENT_REPORT_INPUT_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
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

/** Which process a report is of, for telling that two reports are of one: the agent in it writes one, and
 * `recvpool attach`, which looks from outside, may write another. */
struct rp_input_identity {
  char *by_pid;  /**< by its id, in one pid namespace; NULL where not known */
  char *by_rank; /**< by its rank and command, across namespaces; NULL where not known */
  json_int_t pid_namespace;
  bool outside; /**< attach wrote it */
};

/** Reads it off a report; release with rp_input_identity_fini. What there is no memory for is not known. */
void rp_input_identify(const json_t *report, struct rp_input_identity *out);
/** Frees what it owns and empties it. */
void rp_input_identity_fini(struct rp_input_identity *identity);
/** Notes in `own`, an object, that the agent in the process wrote the report with that index. Does nothing
 * for one that attach wrote. */
void rp_input_note_own(json_t *own, const struct rp_input_identity *identity, size_t index);
/** Index of the report that the agent in the process wrote, for one that attach wrote; SIZE_MAX: none is
 * noted in `own`. Of the two, the agent's counts: it sees more. */
size_t rp_input_find_own(const json_t *own, const struct rp_input_identity *identity);
/** What is said of a report that does not count for that reason. */
#define RP_INPUT_SECOND "written by attach from outside: the agent's own report of the process counts"

/** Two looks at a file saw the same content. */
bool rp_input_is_same(const struct stat *a, const struct stat *b);

/** Whether a file of this name in a report folder is read: *.json, and no dot in front. */
bool rp_input_is_report_name(const char *name);

#endif
