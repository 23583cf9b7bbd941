/** @file posts.h
 * Transfers that an interposed call announced and the profiler plugin has not confirmed yet. The owner
 * serialises.
 */
#ifndef RP_AGENT_POSTS_H
#define RP_AGENT_POSTS_H

#include <stdbool.h>
#include <stdint.h>

#define RP_POSTS 4096 /* power of two */

struct rp_post {
  uint64_t address; /**< 0 = free */
  int32_t peer;
  uint32_t count; /**< announced and not confirmed */
  bool receive;
};

struct rp_post_table {
  struct rp_post posts[RP_POSTS];
};

/** Announces a transfer. When its neighbourhood is full the oldest there is forgotten: it will then count as
 * seen by the profiler alone, which happens only if the plugin stopped confirming. */
void rp_posts_add(struct rp_post_table *table, bool receive, int32_t peer, uint64_t address);
/** Confirms one; false if it was not announced. */
bool rp_posts_take(struct rp_post_table *table, bool receive, int32_t peer, uint64_t address);

#endif
