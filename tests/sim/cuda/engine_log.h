/** @file engine_log.h
 * The record of launches (RPSIM_LAUNCH_LOG), as the parts of the engine write it. All calls but the first are
 * made on the thread of the stream that runs the work.
 */
#ifndef RPSIM_ENGINE_LOG_H
#define RPSIM_ENGINE_LOG_H

#include "engine_internal.h"

/** Whether there is a record; if not, the calls below are not to be made. */
bool sim_log_wanted(void);
/** The calling thread runs the work of the stream with this id. */
void sim_log_stream(uint64_t id);
/** A kernel is about to run with these parameters. */
void sim_log_launch(const struct rpsim_kernel *kernel, const unsigned char *packed, size_t bytes);
/** A copy or memset ("copy", "memset") is about to touch these spans; written only if a receive buffer is
 * among them. */
void sim_log_spans(const char *name, const struct sim_span *spans, size_t count);

#endif
