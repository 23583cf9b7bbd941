/** @file pool_fixture.h
 * A pool on memory that really aliases, driven by hand: each helper makes one call, checks the pool after it
 * and fails the test that calls it if something is wrong.
 */
#ifndef RP_TESTS_UNIT_POOL_FIXTURE_H
#define RP_TESTS_UNIT_POOL_FIXTURE_H

#include "host_backend.h"
#include "pool/pool.h"

#define BYTES 8000u /* of one receive */
#define MAPPED 8192u
#define MOST 16

struct fixture {
  struct host_device *device;
  struct rp_pool *pool;
  uint32_t class_id;
  uint32_t id[MOST];
  uint64_t address[MOST];
  struct rp_pool_decision decision; /* the last one */
};

void check(struct fixture *f);
struct fixture start(const struct rp_pool_options *options);
void end(struct fixture *f);
void plan(struct fixture *f, uint32_t slots, uint32_t buffers);
void allocate(struct fixture *f, size_t first, size_t count);
struct rp_pool_buffer_info look(struct fixture *f, size_t i);
struct rp_pool_info counters(struct fixture *f);
rp_status post_of(struct fixture *f, size_t i, uint32_t class_id, struct rp_pool_post extra);
rp_status post(struct fixture *f, size_t i, struct rp_pool_post extra);
/** A receive in order behind whatever was there, which writes `word`. */
void receive(struct fixture *f, size_t i, uint64_t word);
rp_status use(struct fixture *f, size_t i, struct rp_pool_access access);
void read_back(struct fixture *f, size_t i, uint64_t word);
void release(struct fixture *f, size_t i);
void cycle(struct fixture *f, size_t i, uint64_t word);
void expect_conflict(struct fixture *f, enum rp_pool_conflict_kind kind, bool prevented, size_t earlier,
                     size_t later);

#endif
