/** @file answers.h
 * Answers: the send with which a gradient goes back to where the activation of its microbatch came from shows
 * that the activation, and the gradient it was made from, are done with. The weakest evidence of release: it
 * closes a lifetime only where no access of the buffer was seen.
 *
 * Nothing names a microbatch, so the k-th send back answers the k-th receive not answered yet. With several
 * stages between the same two peers the number in flight is right, but not which of them.
 */
#ifndef RP_POOL_ANSWERS_H
#define RP_POOL_ANSWERS_H

#include <stddef.h>
#include <stdint.h>

/** Threads that can be inside a group at once; of more, a send counts when it is posted. */
#define RP_ANSWER_GROUPS 64
/** Receives of one peer and size that wait for their answer; of more, the oldest is forgotten. */
#define RP_ANSWERS_WAITING 4096u

struct rp_tracker;
struct rp_event;

/** A receive that waits for its answer. */
struct rp_answer_entry {
  size_t buffer;
  uint64_t serial, posted_seq;
};

/** Receives of one communicator, peer and size in the order of posting: a ring. */
struct rp_answer_family {
  uint64_t comm, bytes;
  int32_t peer;
  struct rp_answer_entry *waiting;
  size_t first, count, capacity;
};

/** A thread inside a group. */
struct rp_answer_group {
  uint32_t tid; /**< 0: free */
  uint64_t seq, time_ns;
};

/** A zeroed one is empty. */
struct rp_answers {
  struct rp_answer_family *families;
  size_t family_count, family_capacity;
  struct rp_answer_group groups[RP_ANSWER_GROUPS];
};

/** A receive was posted into buffer number `buffer`; its lifetime is open. */
void rp__answers_receive(struct rp_tracker *tracker, const struct rp_event *event, size_t buffer);
/** A send was posted: answers what it answers. */
void rp__answers_send(struct rp_tracker *tracker, const struct rp_event *event);
/** A group begins or ends. What it holds is posted together: a send in it tells of work done before it began.
 */
void rp__answers_group(struct rp_tracker *tracker, const struct rp_event *event);
/** Host memory that is held. */
size_t rp__answers_bytes(const struct rp_answers *answers);
/** Forgets everything and frees it. */
void rp__answers_fini(struct rp_tracker *tracker);

#endif
