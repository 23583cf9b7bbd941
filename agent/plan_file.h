/** @file plan_file.h
 * The plan as JSON (dashboards/schema/plan.schema.json): what `recvpool plan` prints and saves, and what
 * enforce mode reads back. Nothing here is thread-safe for one object.
 */
#ifndef RP_AGENT_PLAN_FILE_H
#define RP_AGENT_PLAN_FILE_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "pool/plan.h"

#define RP_PLAN_SCHEMA "recvpool.plan"
#define RP_PLAN_SCHEMA_VERSION "1.2"
/** Bounds of what a plan file can hold; writer and reader agree on them. */
#define RP_PLAN_MOST_RANKS 65536
#define RP_PLAN_MOST_STAGE 65535
#define RP_PLAN_MOST_MICROBATCH ((1 << 24) - 1)
#define RP_PLAN_MOST_PAIRS ((uint64_t)1 << 26) /**< stages * microbatches */
#define RP_PLAN_MOST_BUFFERS INT32_MAX         /**< of one class */
#define RP_PLAN_MOST_TENSORS 65536             /**< of one size in one microbatch */

/** Where a plan comes from. */
struct rp_plan_provenance {
  const char *kind;     /**< "schedule", "lowered_file" or "report" */
  const char *source;   /**< name of the schedule, or the path of the file */
  int32_t replicas;     /**< how often the job has this pipeline */
  int32_t world_size;   /**< ranks of the job, where those of the plan are numbered as in it; 0 = not known */
  const char *recvpool; /**< version of the writer */
  const char *note;     /**< one sentence that a reader must know, or NULL */
};

/** Whether a reader takes the plan back: false where a class has more buffers than RP_PLAN_MOST_BUFFERS. */
bool rp_plan_fits_file(const struct rp_plan *plan);
/** The plan as JSON, or NULL without memory. Owned by the caller. */
json_t *rp_plan_to_json(const struct rp_plan *plan, const struct rp_plan_provenance *provenance);

/** Writes JSON to PATH by way of a temporary file beside it, every byte checked. RP_ERROR_IO with errno set:
 * PATH is untouched. A link to a file stays a link; a pipe or a device is written into. */
rp_status rp_plan_write(const json_t *plan, const char *path);

/** One pool of a plan that was read. */
struct rp_planned_class {
  int32_t rank;
  int32_t stage;               /**< -1: several */
  enum rp_direction direction; /**< RP_DIRECTION_UNKNOWN: both */
  uint64_t buffer_bytes;       /**< of one buffer; 0 = not stated */
  uint32_t tensors;            /**< buffers of this size that one microbatch fills */
  uint32_t buffers;            /**< N, receives of one step; a multiple of tensors, as depth and slots are */
  uint32_t depth;              /**< D */
  uint32_t slots;              /**< K */
  bool ring;                   /**< the n-th microbatch uses set of slots n mod (K / tensors) */
  bool mixed;                  /**< slots of several sizes */
  uint32_t *slot;              /**< [buffers / tensors] set of slots per microbatch, in order of posting */
};

/** A plan that was read; freed with rp_planned_fini. */
struct rp_planned {
  struct rp_planned_class *classes;
  size_t class_count;
  json_t *json; /**< the whole document, with every field that this build does not know */
};

/** Reads and checks a plan file. On failure `message` holds one line that names PATH, says what is wrong and
 * the mend. RP_ERROR_IO: cannot be read; RP_ERROR_SYNTAX: not JSON; RP_ERROR_VERSION: another major version;
 * RP_ERROR_INVALID: no plan, or one that contradicts itself. */
rp_status rp_plan_read(const char *path, struct rp_planned *out, char *message, size_t message_size);
/** The same from memory; `name` stands for the path in messages. Takes `length` bytes, which need no NUL. */
rp_status rp_plan_parse(const char *text, size_t length, const char *name, struct rp_planned *out,
                        char *message, size_t message_size);

/** One receive of a step. */
struct rp_planned_receive {
  int32_t stage, microbatch;
  enum rp_direction direction;
  uint64_t begin, end; /**< positions of the post and of the last reader */
  uint64_t bytes;      /**< of all tensors of the microbatch; 0 = not stated */
  uint32_t source;     /**< equal numbers, equal senders; UINT32_MAX = not stated (version 1.0) */
  uint32_t accesses;   /**< how many read it; 0 = not counted */
  uint32_t readers;    /**< actions of the schedule that read it; 0 = not stated (before version 1.2) */
};

/** Ranks that the plan lists. */
size_t rp_planned_rank_count(const struct rp_planned *planned);
/** What rank `rank` receives in one step, in the order of posting; owned by the caller. RP_ERROR_INVALID: the
 * lists are missing or wrong, `message` says where (it names no file). RP_ERROR_NOT_FOUND: no such rank.
 * RP_ERROR_NO_MEMORY. */
rp_status rp_planned_receives(const struct rp_planned *planned, size_t rank, struct rp_planned_receive **out,
                              size_t *count, char *message, size_t message_size);

/** Frees and zeroes; a zeroed one is allowed. */
void rp_planned_fini(struct rp_planned *planned);

#endif
