/* Launch arguments: which words of a launch name a receive buffer. Owns nothing but the reading; layouts come
 * from layout_cache.c. On the miss path there is no lock and no allocation. */
#include "cupti/cuda_side.h"

#include <cuda.h>
#include <stdatomic.h>
#include <string.h>

#include "cupti/launch_tables.h"
#include "cupti/layout_cache.h"

/* A list of `extra` has two pairs; anything longer is read no further than this. */
#define EXTRA_PAIRS_MAX 8

bool rp_launch_extra(void *const *extra, const unsigned char **buffer, size_t *bytes) {
  const unsigned char *found = NULL;
  const size_t *size = NULL;
  if (!extra) return false;
  for (int pair = 0; pair < EXTRA_PAIRS_MAX; pair++) {
    void *key = extra[2 * pair];
    if (key == CU_LAUNCH_PARAM_END) break;
    void *value = extra[2 * pair + 1];
    if (key == CU_LAUNCH_PARAM_BUFFER_POINTER)
      found = value;
    else if (key == CU_LAUNCH_PARAM_BUFFER_SIZE)
      size = value;
    else
      break; /* unknown key: the meaning of what follows is unknown too */
  }
  if (!found || !size || *size == 0) return false;
  *buffer = found;
  *bytes = *size;
  return true;
}

static inline uint64_t load_word(const unsigned char *at) {
  uint64_t word;
  memcpy(&word, at, sizeof word);
  return word;
}

static inline bool word_hits(uint64_t word, uint64_t low, uint64_t high,
                             const struct rp_scan_filter *filter) {
  return word >= low && word < high && filter->overlaps(word, word + 1);
}

/* Bytes to skip so that the next word is aligned within the parameter space. */
static inline uint32_t to_alignment(uint32_t offset) {
  return (8u - (offset & 7u)) & 7u;
}

static bool bytes_hit(const unsigned char *data, uint32_t offset, size_t size, uint64_t low, uint64_t high,
                      const struct rp_scan_filter *filter) {
  for (size_t at = to_alignment(offset); at + 8 <= size; at += 8)
    if (word_hits(load_word(data + at), low, high, filter)) return true;
  return false;
}

/* A place for a hit when all are taken: the last one that holds no hit, NULL if there is none. */
static struct rp_launch_word *replaceable(struct rp_launch_words *words) {
  for (size_t i = words->count; i > 0; i--)
    if (!words->words[i - 1].hit) return &words->words[i - 1];
  return NULL;
}

static void add_bytes(const unsigned char *data, uint32_t offset, size_t size, uint64_t low, uint64_t high,
                      const struct rp_scan_filter *filter, struct rp_launch_words *out) {
  for (size_t at = to_alignment(offset); at + 8 <= size; at += 8) {
    uint64_t word = load_word(data + at);
    bool hit = word_hits(word, low, high, filter);
    if (word < 4096) continue; /* small integers are no device addresses */
    struct rp_launch_word *place = NULL;
    if (out->count < RP_LAUNCH_WORDS)
      place = &out->words[out->count++];
    else if (out->dropped++, hit)
      place = replaceable(out);
    if (place) *place = (struct rp_launch_word){.value = word, .offset = offset + (uint32_t)at, .hit = hit};
  }
}

/* What of a large parameter is filled, if it is a known table. The name is asked for only here, where a word
 * of the launch looks like a receive buffer. */
static bool find_table(const struct rp_cuda_launch *launch, const unsigned char *data, size_t size,
                       struct rp_launch_table *table) {
  char name[1024];
  if (size < RP_TABLE_BYTES_MIN || !launch) return false;
  const char *symbol = launch->symbol;
  if (!symbol && rp_driver_function_name(launch->function, name, sizeof name)) symbol = name;
  return rp_launch_table(symbol, launch->grid, data, size, table);
}

static __attribute__((noinline)) void add_params(const struct rp_param_layout *layout, size_t count,
                                                 void *const *params, uint64_t low, uint64_t high,
                                                 const struct rp_scan_filter *filter,
                                                 const struct rp_cuda_launch *launch,
                                                 struct rp_launch_words *out) {
  struct rp_launch_table table;
  for (size_t i = 0; i < count; i++) {
    const unsigned char *data = params[i];
    if (!data) continue;
    if (!find_table(launch, data, layout[i].size, &table)) {
      add_bytes(data, layout[i].offset, layout[i].size, low, high, filter, out);
      continue;
    }
    for (size_t row = 0; row < table.row_count; row++)
      add_bytes(data + table.rows[row].offset, layout[i].offset + (uint32_t)table.rows[row].offset,
                table.rows[row].bytes, low, high, filter, out);
  }
}

static bool any_hit(const struct rp_launch_words *words) {
  for (size_t i = 0; i < words->count; i++)
    if (words->words[i].hit) return true;
  return false;
}

bool rp_launch_collect(const struct rp_param_layout *layout, size_t layout_count, void *const *params,
                       void *const *extra, const struct rp_scan_filter *filter,
                       const struct rp_cuda_launch *launch, struct rp_launch_words *out) {
  uint64_t low = atomic_load_explicit(filter->low, memory_order_relaxed);
  uint64_t high = atomic_load_explicit(filter->high, memory_order_relaxed);
  const unsigned char *buffer = NULL;
  size_t bytes = 0;
  bool packed = rp_launch_extra(extra, &buffer, &bytes);
  bool hit = packed && bytes_hit(buffer, 0, bytes, low, high, filter);
  if (!packed && params && layout)
    for (size_t i = 0; i < layout_count && !hit; i++)
      hit = params[i] && bytes_hit(params[i], layout[i].offset, layout[i].size, low, high, filter);
  if (!hit) return false;
  struct rp_launch_words *words = out;
  words->count = 0;
  words->dropped = 0;
  if (packed)
    add_bytes(buffer, 0, bytes, low, high, filter, words);
  else
    add_params(layout, layout_count, params, low, high, filter, launch, words);
  return any_hit(
      words); /* false if a range went away in between, or the word was in a part that is not filled */
}

bool rp_launch_scan(const struct rp_cuda_launch *launch, const struct rp_scan_filter *filter,
                    struct rp_launch_words *out) {
  struct rp_layout scratch;
  const struct rp_layout *layout = NULL;
  if (launch->params && !launch->extra) {
    layout = rp_layout_get(launch->function, &scratch);
    if (!layout) return false;
  }
  return rp_launch_collect(layout ? layout->params : NULL, layout ? layout->count : 0, launch->params,
                           launch->extra, filter, launch, out);
}

bool rp_launch_is_nccl(const char *symbol) {
  return symbol && (strstr(symbol, "ncclDevKernel") || strstr(symbol, "ncclKernel") ||
                    strstr(symbol, "ncclSymk") || strstr(symbol, "ncclSymDevKernel"));
}
