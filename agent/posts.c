/* Announced transfers: a small hash table with a bounded search, counting per (direction, peer, address). */
#include "agent/posts.h"

#include <stddef.h>

#define PROBES 32

static struct rp_post *slot(struct rp_post_table *table, uint64_t address, size_t probe) {
  uint64_t hash = address * 0x9e3779b97f4a7c15u;
  return &table->posts[((hash >> 40) + probe) & (RP_POSTS - 1)];
}

static bool same(const struct rp_post *post, bool receive, int32_t peer, uint64_t address) {
  return post->address == address && post->peer == peer && post->receive == receive;
}

void rp_posts_add(struct rp_post_table *table, bool receive, int32_t peer, uint64_t address) {
  struct rp_post *place = NULL;
  for (size_t probe = 0; probe < PROBES; probe++) {
    struct rp_post *post = slot(table, address, probe);
    if (same(post, receive, peer, address)) {
      post->count++;
      return;
    }
    if (!place && post->count == 0) place = post;
  }
  if (!place) place = slot(table, address, 0);
  *place = (struct rp_post){.address = address, .peer = peer, .count = 1, .receive = receive};
}

bool rp_posts_take(struct rp_post_table *table, bool receive, int32_t peer, uint64_t address) {
  for (size_t probe = 0; probe < PROBES; probe++) {
    struct rp_post *post = slot(table, address, probe);
    if (!same(post, receive, peer, address) || post->count == 0) continue;
    post->count--;
    return true;
  }
  return false;
}
