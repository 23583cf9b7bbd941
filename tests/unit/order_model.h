/* A reference for pool/order: small programs of CUDA calls, and every order in which a device may execute
 * them. */
#ifndef ORDER_MODEL_H
#define ORDER_MODEL_H

#include <stdbool.h>
#include <stdint.h>

#define MODEL_CALLS 16 /* four steps each, a bit for each in one word */

enum model_kind {
  MODEL_LAUNCH,
  MODEL_PROGRAMMATIC,      /* launch with programmatic stream serialisation */
  MODEL_LAUNCH_EVENT,      /* launch that records a programmatic event */
  MODEL_LAUNCH_COMPLETION, /* launch that records a launch completion event */
  MODEL_GRAPH,             /* object = executable graph */
  MODEL_WORK,              /* operation nobody asks about */
  MODEL_COPY_WAITS,        /* synchronous copy, device to host */
  MODEL_COPY_RETURNS,      /* synchronous copy, pageable host to device */
  MODEL_RECORD,            /* object = event */
  MODEL_WAIT,
  MODEL_SYNC_STREAM, /* or a query that said "done" */
  MODEL_SYNC_EVENT,
  MODEL_SYNC_CONTEXT,
  MODEL_FREE,    /* orders nothing */
  MODEL_DESTROY, /* the stream, which comes back as a new one with the same handle; nothing for default
                    streams */
  MODEL_KINDS
};

/* A stream of the test's small world. */
struct model_stream {
  uint64_t handle, context, thread; /* thread: of a per-thread default stream, else 0 */
  bool blocking, legacy;
};

struct model_call {
  enum model_kind kind;
  int stream; /* index into the streams */
  int object;
  uint64_t thread, context; /* context of MODEL_SYNC_CONTEXT, else the stream's */
};

struct model_program {
  const struct model_stream *streams;
  struct model_call calls[MODEL_CALLS];
  int count;
};

/* What holds in every execution. */
struct model_answer {
  bool ordered[MODEL_CALLS][MODEL_CALLS]; /* [a][b]: a has completed when b begins; a told before b */
  bool known[MODEL_CALLS][MODEL_CALLS];   /* [a][b]: a has completed when call b returns to its thread */
  long states;                            /* different states that executions pass through */
};

bool model_is_operation(enum model_kind kind);
/* Enumerates. False when there are more states than it has room for; then the answer says nothing. */
bool model_solve(const struct model_program *program, struct model_answer *answer);

#endif
