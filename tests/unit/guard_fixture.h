/** @file guard_fixture.h
 * A guard on memory that really aliases, with an order, driven as the injected library drives it: prepare,
 * act, commit, launched. Work runs at once, in host order; every call checks the guard afterwards.
 */
#ifndef RP_TESTS_UNIT_GUARD_FIXTURE_H
#define RP_TESTS_UNIT_GUARD_FIXTURE_H

#include "host_backend.h"
#include "pool/guard.h"

#define BYTES 8128u /* of one receive */
#define MAPPED 8192u
#define MOST 64
#define CONTEXT 7u
#define COMPUTE 100u /* streams */
#define COMM 101u
#define OTHER 102u
#define THREAD 1u
#define UPSTREAM 0 /* peers */
#define DOWNSTREAM 2

struct guard_fixture {
  struct host_device *device;
  struct rp_order *order;
  struct rp_guard *guard;
  uint64_t address[MOST];
  uint64_t word[MOST]; /* what was received last */
  uint64_t seq, event;
  size_t channel_count;
  struct rp_guard_channel channels[MOST];
  struct rp_guard_action action; /* the last one that was not a boundary */
  uint64_t boundaries, waits, idles;
  uint64_t watched;  /* ranges at present */
  bool sizes_untold; /* of sends */
  uint64_t back;     /* communicator of gradients, 0: the same as that of activations */
  bool members_told; /* both have the same members */
  bool shadow;       /* memory is the test's own, not the guard's */
  bool busy;         /* the device cannot be made idle: boundaries are postponed */
};

struct guard_fixture guard_start(const struct rp_guard_options *options, const struct rp_guard_plan *plan);
void guard_end(struct guard_fixture *f);
void guard_verify(struct guard_fixture *f);
void guard_alloc(struct guard_fixture *f, size_t first, size_t count);
void guard_channel(struct guard_fixture *f, size_t i, uint64_t label, uint32_t direction,
                   uint32_t microbatch);

/** A receive on COMM in order behind `COMPUTE` if `ordered`. Fails the test unless it may go on. */
void guard_receive(struct guard_fixture *f, size_t i, int32_t peer, bool ordered);
/** The same, and says what prepare or commit answered; not launched unless it went on. */
rp_status guard_try_receive(struct guard_fixture *f, size_t i, struct rp_guard_receive receive);
/** COMPUTE waits for COMM, then an interposed kernel uses the buffer. */
void guard_kernel(struct guard_fixture *f, size_t i, uint64_t function);
rp_status guard_try_access(struct guard_fixture *f, size_t i, struct rp_guard_access access);
/** A kernel that reads what was received: the contents must be there. */
void guard_read(struct guard_fixture *f, size_t i, uint64_t function);
void guard_order(struct guard_fixture *f, uint64_t from, uint64_t to);

struct rp_guard_report guard_look(struct guard_fixture *f);
/** Nothing is shared, for that reason, and there was no conflict. */
void guard_expect_idle(struct guard_fixture *f, const char *reason);
/** Forward and backward of `count` buffers of 1F1B with depth `depth`: kernels 1 and 2. */
void guard_step(struct guard_fixture *f, size_t first, size_t count, size_t depth);

#endif
