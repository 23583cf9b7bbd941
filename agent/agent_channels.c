/* The tracker's channels in the guard's words. Owns nothing. */
#include <stdlib.h>

#include "agent/agent_internal.h"
#include "pool/guard.h"

/* FNV-1a. */
static uint64_t mix(uint64_t hash, uint64_t value) {
  for (int i = 0; i < 8; i++)
    hash = (hash ^ (value >> (8 * i) & 0xff)) * 0x100000001b3u;
  return hash;
}

/* Equal for the same channel in every snapshot: buffers of one channel share slots, others do not. */
static uint64_t label_of(const struct rp_channel *channel) {
  uint64_t hash = 0xcbf29ce484222325u;
  hash = mix(hash, channel->comm);
  hash = mix(hash, (uint32_t)channel->peer);
  hash = mix(hash, (uint32_t)channel->device);
  hash = mix(hash, channel->direction);
  hash = mix(hash, channel->stage_ordinal);
  hash = mix(hash, channel->buffer_bytes);
  return hash ? hash : 1;
}

rp_status rp__channels_of(const struct rp_snapshot *snapshot, struct rp_guard_channel **out, size_t *count) {
  size_t total = 0, at = 0;
  for (size_t i = 0; i < snapshot->channel_count; i++)
    total += snapshot->channels[i].lifetime_count;
  struct rp_guard_channel *made = total ? calloc(total, sizeof *made) : NULL;
  if (total && !made) return RP_ERROR_NO_MEMORY;
  for (size_t i = 0; i < snapshot->channel_count; i++) {
    const struct rp_channel *channel = &snapshot->channels[i];
    for (size_t j = 0; j < channel->lifetime_count; j++)
      made[at++] = (struct rp_guard_channel){.address = channel->lifetimes[j].address,
                                             .label = label_of(channel),
                                             .stage = (int32_t)channel->stage_ordinal,
                                             .direction = channel->direction,
                                             .microbatch = channel->lifetimes[j].microbatch};
  }
  *out = made;
  *count = total;
  return RP_OK;
}
