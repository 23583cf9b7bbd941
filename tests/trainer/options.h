/** @file options.h
 * Command line of the trainer and of its reference.
 */
#ifndef RP_TRAINER_OPTIONS_H
#define RP_TRAINER_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "pool/schedule.h"

/** Things a program may do that are harmless with a buffer per microbatch and wrong where buffers share
 * memory. Each begins at a given step, after a pool could have learned the pattern. They need preallocated
 * buffers. */
enum rp_mistake {
  RP_MISTAKE_NONE,
  RP_MISTAKE_EARLY_REUSE,     /**< 1F1B turns into GPipe: more microbatches in flight than before */
  RP_MISTAKE_UNORDERED_REUSE, /**< the last read is on a stream that nobody waits for before the end of the
                                 step */
  RP_MISTAKE_FOREIGN_ACCESS,  /**< dead buffers are overwritten, as by an allocator that recycles them */
  RP_MISTAKE_STALE_ACCESS,    /**< the first microbatch's activation is read again at the end of the step */
};

struct rp_trainer_options {
  const char *schedule; /**< name or file */
  int32_t ranks;        /**< processes; 0 = as many as the schedule file says */
  int32_t chunks;       /**< stages per rank; 0 = the schedule's default */
  int32_t microbatches;
  int32_t steps;
  bool just_in_time; /**< allocate each receive buffer right before its receive */
  bool recompute;
  bool backward_thread;
  bool driver_api;
  bool break_wait;        /**< leave out the consumer's wait for receives (to show that it matters) */
  bool probe;             /**< exchange one element with both neighbours first, as torch does */
  bool own_stream;        /**< compute on a created stream instead of the default one */
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

/** Makes the lowered, checked schedule that the options name; sets ranks, chunks and microbatches to what it
 * has. Returns 0, or -1 after one line on stderr. Free with rp_schedule_fini. */
int rp_trainer_schedule(struct rp_trainer_options *options, struct rp_schedule *schedule);

/** Bytes of the arithmetic in a message. */
uint64_t rp_trainer_payload_bytes(const struct rp_trainer_options *options);
/** Bytes of a whole message. */
uint64_t rp_trainer_message_bytes(const struct rp_trainer_options *options);
/** Whether the schedule is one of torch's hand-written ones, with their own waiting rules. */
bool rp_trainer_is_gpipe(const struct rp_trainer_options *options);
bool rp_trainer_is_1f1b(const struct rp_trainer_options *options);

#endif
