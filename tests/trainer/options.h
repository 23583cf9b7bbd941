/** @file options.h
 * Command line of the trainer and of its reference.
 */
#ifndef RP_TRAINER_OPTIONS_H
#define RP_TRAINER_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/** Things a program may do that are harmless with a buffer per microbatch and wrong where buffers share
 * memory, or that nobody who shares memory can foresee. Each begins at a given step, after a pool could have
 * learned the pattern. They need preallocated buffers. */
enum rp_mistake {
  RP_MISTAKE_NONE,
  RP_MISTAKE_MISSING_WAIT,  /**< transfers wait for what they send, not for what else the compute stream does
                             */
  RP_MISTAKE_EARLY_POST,    /**< activations are received one computation earlier: more of them in flight */
  RP_MISTAKE_WRONG_STREAM,  /**< the last read is on another stream, and nobody waits for it before the end of
                               the step */
  RP_MISTAKE_LATE_READ,     /**< the first microbatch's activation is read again at the end of the step */
  RP_MISTAKE_LATE_SEND,     /**< ... and sent back to where it came from */
  RP_MISTAKE_FOREIGN_WRITE, /**< dead buffers are overwritten, as by an allocator that recycles them */
  RP_MISTAKE_UNSEEN_WRITE,  /**< ... by a library whose calls cannot be interposed */
  RP_MISTAKE_OVERSIZE,      /**< one activation is longer than the others of its channel */
  RP_MISTAKE_DOUBLE_FREE,   /**< a buffer is freed twice, then replaced; once */
  RP_MISTAKE_REGISTER,      /**< a buffer is registered with the communicator; once */
  RP_MISTAKE_EXPORT,        /**< a buffer's handle for other processes is asked for; once */
  RP_MISTAKE_ABORT, /**< the communicator is aborted in mid-step, the step run again over a new one; once */
  RP_MISTAKE_COUNT
};

/** Where receives land. */
enum rp_allocation {
  RP_ALLOCATION_PREALLOCATED, /**< a buffer per microbatch, before the first step */
  RP_ALLOCATION_JUST_IN_TIME, /**< allocated right before the receive, freed after the last use */
  RP_ALLOCATION_CACHED,       /**< from the free list that also serves everything else of that size */
  RP_ALLOCATION_COUNT
};

/** Where lookalikes are allocated: buffers of a message's size that are no receive buffers. Bits. */
enum rp_lookalike {
  RP_LOOKALIKE_BEFORE = 1, /**< the receive buffers */
  RP_LOOKALIKE_BETWEEN = 2,
  RP_LOOKALIKE_AFTER = 4,
  RP_LOOKALIKE_ACTIVATIONS = 8 /**< one per microbatch, from its forward to its backward */
};

/** A change at the begin of a step. */
struct rp_switch {
  int32_t step;
  char *schedule;       /**< NULL: stays; owned */
  int32_t microbatches; /**< 0: stays */
};

struct rp_trainer_options {
  const char *schedule; /**< name or file */
  int32_t ranks;        /**< processes; 0 = as many as the schedule file says */
  int32_t chunks;       /**< stages per rank; 0 = the schedule's default */
  int32_t microbatches; /**< 0 = the default, or what the schedule says */
  int32_t steps;
  struct rp_switch *switches; /**< in order of steps */
  size_t switch_count;
  int32_t eval_every; /**< an evaluation after so many steps; 0 = never */
  int32_t eval_count; /**< forward-only passes of each */
  int32_t eval_first; /**< and before the first step */
  int32_t rebuild_at; /**< step before which all stages are freed and built again; -1 = never */
  int32_t capture_at; /**< step from which on steps are replays of a CUDA graph; -1 = never */
  enum rp_allocation allocation;
  int32_t segment_blocks; /**< recycled blocks in one allocation */
  bool recompute;
  bool backward_thread;
  bool driver_api;
  bool break_wait;         /**< leave out the consumer's wait for receives (to show that it matters) */
  bool probe;              /**< exchange one element with both neighbours first, as torch does */
  bool two_communicators;  /**< gradients have one of their own */
  bool own_stream;         /**< compute on a created stream instead of the default one */
  bool unguarded_pool;     /**< receive buffers share memory as the planner says, and nobody guards them */
  int32_t identity;        /**< stage that passes on what it receives; -1 = none */
  unsigned lookalikes;     /**< enum rp_lookalike */
  int32_t lookalike_count; /**< at each place */
  bool lookalikes_late;    /**< touched when the first step begins instead of right away */
  bool random;             /**< everything that may vary in a correct run is drawn from random_seed */
  uint64_t random_seed;
  bool print_schedule;    /**< as text, and nothing else */
  uint64_t message_bytes; /**< 0 = as many as the arithmetic needs */
  uint32_t rows;          /**< of one microbatch */
  uint32_t width;         /**< of a stage's input and output */
  uint32_t hidden_width;
  uint64_t seed;
  enum rp_mistake mistake;
  int32_t mistake_step;   /**< first step that has it */
  const char *truth_dir;  /**< or NULL */
  const char *rendezvous; /**< file for the communicator's id, or NULL */
};

/** Reads the command line. Prints and exits on --help and on errors, as argp does. */
void rp_trainer_options_parse(int argc, char **argv, struct rp_trainer_options *options);

/** Frees what they own. */
void rp_trainer_options_fini(struct rp_trainer_options *options);

/** The words of the command line; never NULL. */
const char *rp_mistake_name(enum rp_mistake mistake);
const char *rp_allocation_name(enum rp_allocation allocation);

/** Bytes of the arithmetic in a message. */
uint64_t rp_trainer_payload_bytes(const struct rp_trainer_options *options);
/** Bytes of a whole message. */
uint64_t rp_trainer_message_bytes(const struct rp_trainer_options *options);
/** Bytes of the memory that a message is kept in: more, where one of them may be longer. */
uint64_t rp_trainer_buffer_bytes(const struct rp_trainer_options *options);

#endif
