/* What one call uses. Owns nothing. */
#include "agent/work.h"

static bool named_before(const struct rp_launch_words *words, size_t i) {
  for (size_t j = 0; j < i; j++)
    if (words->words[j].hit && words->words[j].value == words->words[i].value) return true;
  return false;
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
    *out = (struct rp_use){
        .address = work->words->words[i].value, .mode = RP_POOL_UNKNOWN_MODE, .kind = RP_EVENT_KERNEL};
    return true;
  }
  return false;
}
