/* Which sizes of allocations are for the guard. A device gives memory in whole pieces: rounding to them must
 * not take what sharing gives. */
#include "pool/guard_internal.h"

#include "pool/text.h"

#include <stdlib.h>

static uint64_t pieces_of(const struct rp_guard *guard, uint64_t bytes) {
  uint64_t unit = rp_pool_granularity(guard->pool);
  return bytes / unit + (bytes % unit != 0);
}

bool rp__guard_same_pieces(const struct rp_guard *guard, uint64_t bytes, uint64_t other) {
  return pieces_of(guard, bytes) == pieces_of(guard, other);
}

static uint64_t rounding_bytes(const struct rp_guard *guard, uint64_t bytes) {
  uint64_t unit = rp_pool_granularity(guard->pool), odd = bytes % unit;
  return odd ? unit - odd : 0;
}

/* ---- sizes of a plan ---- */

/* Over all classes of a size; bytes may be negative. */
struct weight {
  bool counted;           /**< how many buffers there are is known of all classes */
  double buffers;         /**< N */
  double gain_bytes;      /**< what they hold less when they share, with rounding */
  uint64_t rounding_most; /**< bytes that rounding adds to one of them */
};

static struct weight weigh(const struct rp_guard *guard, uint64_t pieces) {
  double rounded = (double)pieces * (double)rp_pool_granularity(guard->pool);
  struct weight sum = {.counted = true};
  for (uint32_t t = 0; t < guard->plan.template_count; t++) {
    const struct rp__guard_class *class = &guard->plan.templates[t];
    if (pieces_of(guard, class->receive_bytes) != pieces) continue;
    uint64_t rounding = rounding_bytes(guard, class->receive_bytes);
    uint32_t held = class->slots < class->buffers ? class->slots : class->buffers;
    sum.counted &= class->buffers > 0;
    sum.buffers += class->buffers;
    sum.gain_bytes += (double)class->buffers * (double)class->receive_bytes - (double)held * rounded;
    if (rounding > sum.rounding_most) sum.rounding_most = rounding;
  }
  return sum;
}

/* Other allocations of that size cannot be told from receive buffers before they are used, and are rounded up
 * for nothing: no more of them than would use up the gain. Where nothing is rounded, nothing is lost by
 * looking after all; the run may have more microbatches than the plan. */
static uint64_t most_of(const struct rp_guard *guard, uint64_t pieces) {
  struct weight sum = weigh(guard, pieces);
  if (!sum.counted || !sum.rounding_most || guard->plan.hints) return UINT64_MAX;
  return sum.gain_bytes > 0 ? (uint64_t)(sum.buffers + sum.gain_bytes / (double)sum.rounding_most) : 0;
}

static struct rp__guard_size *find(const struct rp_guard *guard, uint64_t bytes) {
  uint64_t pieces = pieces_of(guard, bytes);
  for (uint32_t i = 0; i < guard->plan.size_count; i++)
    if (guard->plan.sizes[i].pieces == pieces) return &guard->plan.sizes[i];
  return NULL;
}

bool rp__guard_is_declined(const struct rp_guard *guard, uint64_t bytes) {
  const struct rp__guard_size *size = find(guard, bytes);
  return size && !size->most;
}

static void drop_declined_receives(struct rp_guard *guard) {
  struct rp__guard_plan *plan = &guard->plan;
  size_t kept = 0;
  for (size_t i = 0; i < plan->item_count; i++)
    if (!rp__guard_is_declined(guard, plan->templates[plan->items[i].class_index].receive_bytes))
      plan->items[kept++] = plan->items[i];
  plan->item_count = kept;
}

rp_status rp__guard_sizes_take(struct rp_guard *guard) {
  struct rp__guard_plan *plan = &guard->plan;
  plan->sizes = calloc(plan->template_count, sizeof *plan->sizes);
  if (!plan->sizes) return RP_ERROR_NO_MEMORY;
  for (uint32_t t = 0; t < plan->template_count; t++) {
    uint64_t bytes = plan->templates[t].receive_bytes, pieces = pieces_of(guard, bytes);
    if (!find(guard, bytes))
      plan->sizes[plan->size_count++] =
          (struct rp__guard_size){.pieces = pieces, .most = most_of(guard, pieces)};
  }
  drop_declined_receives(guard);
  return RP_OK;
}

void rp__guard_sizes_fini(struct rp_guard *guard) {
  free(guard->plan.sizes);
}

bool rp__guard_sizes_declined(const struct rp_guard *guard) {
  for (uint32_t i = 0; i < guard->plan.size_count; i++)
    if (guard->plan.sizes[i].most > 0) return false;
  return guard->plan.size_count > 0;
}

void rp__guard_size_used(struct rp_guard *guard, uint64_t bytes, int by) {
  struct rp__guard_size *size = find(guard, bytes);
  if (size) size->used += (uint64_t)(int64_t)by;
  if (rounding_bytes(guard, bytes)) guard->rounded_buffers += (uint64_t)(int64_t)by;
}

void rp__guard_note_rounding(struct rp_guard *guard) {
  uint64_t bytes = rp__guard_rounding_bytes(guard);
  uint64_t *peak =
      guard->plan.given || guard->activations ? &guard->rounding_peak_bytes : &guard->rounding_before_bytes;
  if (bytes > *peak) *peak = bytes;
}

uint64_t rp__guard_rounding_bytes(const struct rp_guard *guard) {
  uint64_t sum = 0;
  if (!guard->rounded_buffers || guard->options.shadow) return 0;
  for (uint32_t id = 0; id < guard->buffer_count; id++) {
    const struct rp__guard_buffer *buffer = &guard->buffers[id];
    if (!buffer->in_use) continue;
    struct rp_pool_buffer_info info = rp__guard_info(guard, id);
    if (info.binding != RP_POOL_UNBOUND && info.class_id == RP_POOL_NONE)
      sum += info.mapped_bytes - buffer->bytes;
  }
  return sum;
}

/* ---- what is said of it ---- */

/* As options take it and read back exactly: "2MiB", "2105344". */
static void tell_bytes(struct rp_text *text, uint64_t bytes, const char *space) {
  static const char *const units[] = {"KiB", "MiB", "GiB"};
  size_t unit = 0;
  for (; unit < sizeof units / sizeof units[0] && bytes && bytes % 1024 == 0; unit++)
    bytes /= 1024;
  rp_text_number(text, (int64_t)bytes);
  if (!unit) return;
  rp_text_string(text, space);
  rp_text_string(text, units[unit - 1]);
}

void rp__guard_tell_rounding(struct rp_guard *guard, uint64_t bytes) {
  struct rp_text text;
  rp_text_init(&text, guard->rounding_told, sizeof guard->rounding_told);
  rp_text_string(&text, "Each buffer would be rounded up to a multiple of ");
  tell_bytes(&text, rp_pool_granularity(guard->pool), " ");
  rp_text_string(&text,
                 ", which may cost more than sharing saves, so they are not shared; a plan shares those "
                 "that gain all the same, --buffer-bytes ");
  tell_bytes(&text, bytes, "");
  rp_text_string(&text, " all of that size.");
}

/* ---- questions ---- */

/* An allocator may have rounded the allocation up, within what the device gives. */
static bool may_be_for(const struct rp_guard *guard, uint64_t bytes, uint64_t receive_bytes) {
  return bytes >= receive_bytes && rp__guard_same_pieces(guard, bytes, receive_bytes);
}

static bool is_planned(const struct rp_guard *guard, uint64_t bytes) {
  for (uint32_t t = 0; t < guard->plan.template_count; t++)
    if (may_be_for(guard, bytes, guard->plan.templates[t].receive_bytes)) return true;
  return false;
}

bool rp__guard_is_message_size(const struct rp_guard *guard, uint64_t bytes) {
  const struct rp_guard_options *options = &guard->options;
  if (!bytes || (guard->plan.given && !guard->plan.usable)) return false;
  if (guard->plan.given || guard->plan.hints) return is_planned(guard, bytes);
  if (bytes < options->least_bytes) return false;
  return !options->only_bytes || may_be_for(guard, bytes, options->only_bytes);
}

bool rp__guard_is_other_size(const struct rp_guard *guard, const struct rp__guard_buffer *buffer) {
  uint64_t only = guard->options.only_bytes;
  return only && buffer->receive_bytes != only && buffer->bytes != only;
}

bool rp__guard_rounds_much(const struct rp_guard *guard, uint64_t bytes) {
  return rounding_bytes(guard, bytes) > bytes / guard->options.rounding_divisor;
}

bool rp_guard_wants(const struct rp_guard *guard, uint64_t bytes) {
  if (!rp__guard_is_message_size(guard, bytes)) return false;
  const struct rp__guard_size *size = find(guard, bytes);
  if (size) return size->used < size->most;
  return guard->options.only_bytes || guard->options.shadow || !rp__guard_rounds_much(guard, bytes);
}
