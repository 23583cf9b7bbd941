/** @file cmd_report_trace.h
 * Private to `recvpool report --trace`: the lifetimes of a set as Chrome trace events, which Perfetto opens.
 *
 * A process of the trace is a rank. It has a track for each channel (instants: receives as they were posted),
 * for each slot and for each buffer (slices: from the post to the last access), an asynchronous slice for
 * each lifetime, whose id is unique in the file and which contains its phases, counters of bytes and of
 * buffers in flight, and instants for what came too late or was prevented.
 */
#ifndef RP_AGENT_CMD_REPORT_TRACE_H
#define RP_AGENT_CMD_REPORT_TRACE_H

#include "agent/cmd_report_output.h"
#include "agent/command.h"

/** Lifetimes in a trace unless told otherwise: some 100 MB, which a browser still opens. */
#define RP_TRACE_LIFETIMES 50000

/** Writes the trace of `job` (all of them if SIZE_MAX) of a finished set with `lifetimes_most` lifetimes: the
 * oldest ones of each process are left out, so that none has more than any other that had to be cut, and how
 * many is said in the trace. False: no memory, or `out` cannot be written. */
bool rp__report_write_trace(struct rp_read_set *set, size_t job, size_t lifetimes_most, FILE *out);

/** The last job of a finished set, which is not empty, that has something to trace, or just the last one. */
size_t rp__report_trace_job(const struct rp_read_set *set);

/* ---- one process ---- */

struct rp__trace_event {
  int64_t at_ns;
  size_t order; /**< of making, among those of one moment */
  json_t *json; /**< all but "ts" and "pid" */
};

/** What is made of one report, and numbers that go on from report to report. */
struct rp__trace {
  int64_t offset_ns,
      zero_ns; /**< from the clock of the report to the time of day, and where the trace begins */
  int pid;
  json_int_t next_tid, next_id; /**< unique in the file */
  struct rp__trace_event *events;
  size_t count, capacity;
  bool failed; /**< no memory */
};

/** a + b, staying within what there is: a file can say anything. */
int64_t rp__moment(int64_t a, int64_t b);
/** Lifetimes of a report that have a time. */
size_t rp__trace_lifetimes(const json_t *report);
/** Makes the events of a report, sorted by time, with its latest `most` lifetimes. Returns how many were left
 * out. */
size_t rp__trace_make(struct rp__trace *trace, const json_t *report, size_t most);
/** Adds an event at the report's time `at_ns`; takes `json` over, NULL is a failure. */
void rp__trace_put(struct rp__trace *trace, int64_t at_ns, json_t *json);
/** Makes what `conflicts` of the report's devices tell. */
void rp__trace_conflicts(struct rp__trace *trace, const json_t *report);
/** Frees the events. */
void rp__trace_clear(struct rp__trace *trace);

#endif
