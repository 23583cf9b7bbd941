/** @file cmd_report_output.h
 * Private to `recvpool report`: documents written piece by piece, to a file that is whole or not there.
 */
#ifndef RP_AGENT_CMD_REPORT_OUTPUT_H
#define RP_AGENT_CMD_REPORT_OUTPUT_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "recvpool/status.h"

/** A file being written: beside PATH until it is whole, unless PATH is a pipe or a device. */
struct rp__output {
  FILE *file;
  char *path, *temporary; /**< temporary: NULL where `file` is PATH itself */
};

/** Begins to write PATH; a link to a file stays a link. False with errno set. Where a signal ends the process
 * before rp__output_end, what was written so far goes: unless the caller has a handler of its own, one is
 * put in place for SIGINT, SIGTERM and SIGHUP. One file at a time. */
bool rp__output_begin(struct rp__output *output, const char *path);
/** Ends it: PATH is replaced if `ok` and every byte was written, else untouched. False with errno set, which
 * without `ok` is as it was. */
bool rp__output_end(struct rp__output *output, bool ok);
/** From a signal handler of the caller's: the next `signal_number` removes what was written so far and ends
 * the process. Async-signal-safe. */
void rp__output_give_up_on(int signal_number);

/** JSON written piece by piece. What fails is remembered in `failed`; further calls do nothing. */
struct rp__stream {
  FILE *file;
  size_t flags; /**< of jansson, besides the usual ones */
  bool markup;  /**< inside of HTML: what ends a script is escaped */
  bool failed;
  int error; /**< of the first failure, as errno; 0: no memory */
};

/** Whether everything was written; else errno says why not. */
bool rp__stream_end(struct rp__stream *stream);
/** Text as it is: brackets, names, commas. */
void rp__stream_raw(struct rp__stream *stream, const char *text);
/** A value, which is released; NULL is a failure. */
void rp__stream_json(struct rp__stream *stream, json_t *value);
/** ",\n\"name\":VALUE", without the comma if `first`. Releases `value`. */
void rp__stream_member(struct rp__stream *stream, bool first, const char *name, json_t *value);

#endif
