/* What one call uses. Owns nothing. */
#include "agent/work.h"

static bool named_before(const struct rp_launch_words *words, size_t i) {
  for (size_t j = 0; j < i; j++)
    if (words->words[j].hit && words->words[j].value == words->words[i].value) return true;
  return false;
}

/* Words are named once, and those that are named twice are not told apart. */
static uint32_t place_of(const struct rp_launch_words *words, size_t i) {
  for (size_t j = i + 1; j < words->count; j++)
    if (words->words[j].value == words->words[i].value) return 0;
  return words->words[i].offset + 1;
}

bool rp_work_next(const struct rp_work *work, size_t *position, struct rp_use *out) {
  if (!work->words) {
    if (*position >= work->use_count) return false;
    *out = work->uses[(*position)++];
    return true;
  }
  while (*position < work->words->count) {
    size_t i = (*position)++;
    if (!work->words->words[i].hit || named_before(work->words, i)) continue;
    *out = (struct rp_use){.address = work->words->words[i].value,
                           .mode = RP_POOL_UNKNOWN_MODE,
                           .kind = RP_EVENT_KERNEL,
                           .place = place_of(work->words, i)};
    return true;
  }
  return false;
}
