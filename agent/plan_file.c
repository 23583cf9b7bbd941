/* Writes plans as JSON. */
#include "agent/plan_file.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static json_t *integer(uint64_t value) {
  return json_integer((json_int_t)value);
}

/* The two enumerations share their numbers; 0 is a direction that an observed run did not show. */
_Static_assert((int)RP_PLAN_ACTIVATION == (int)RP_DIRECTION_ACTIVATION &&
                   (int)RP_PLAN_GRADIENT == (int)RP_DIRECTION_GRADIENT,
               "directions of plans are those of the tracker");

static json_t *pool_json(const struct rp_plan_pool *p) {
  return json_pack("{s:i, s:s, s:I, s:I, s:I, s:o, s:b, s:I, s:I, s:I, s:I}", "stage", (int)p->stage,
                   "direction", rp_direction_name((enum rp_direction)p->direction), "buffers",
                   (json_int_t)p->buffers, "depth", (json_int_t)p->depth, "slots", (json_int_t)p->slots,
                   "existing_practice_slots", p->existing_slots ? integer(p->existing_slots) : json_null(),
                   "ring", p->ring, "buffer_bytes", (json_int_t)p->buffer_bytes, "bytes_stock",
                   (json_int_t)p->bytes_stock, "bytes_pooled", (json_int_t)p->bytes_pooled, "bytes_saved",
                   (json_int_t)(p->bytes_stock - p->bytes_pooled));
}

static json_t *slots_json(const struct rp_plan_rank *r) {
  return json_pack("{s:I, s:I, s:I}", "stage", (json_int_t)r->slots[RP_PLAN_STAGE], "direction",
                   (json_int_t)r->slots[RP_PLAN_DIRECTION], "rank", (json_int_t)r->slots[RP_PLAN_RANK]);
}

/* What the rank receives, in order of posting, with the positions between which it is live. */
static json_t *receives_json(const struct rp_plan *plan, int32_t rank, size_t *next) {
  json_t *stage = json_array(), *direction = json_array(), *microbatch = json_array();
  json_t *begin = json_array(), *end = json_array(), *bytes = json_array(), *source = json_array();
  json_t *accesses = json_array(), *readers = json_array();
  for (; *next < plan->item_count && plan->items[*next].rank == rank; ++*next) {
    const struct rp_plan_item *item = &plan->items[*next];
    json_array_append_new(stage, json_integer(item->stage));
    json_array_append_new(direction, json_string(rp_direction_name(item->direction)));
    json_array_append_new(microbatch, json_integer(item->microbatch));
    json_array_append_new(begin, integer(item->interval.begin));
    json_array_append_new(end, integer(item->interval.end));
    json_array_append_new(bytes, integer(item->bytes));
    json_array_append_new(source, json_integer(item->source));
    json_array_append_new(accesses, json_integer(item->accesses));
    json_array_append_new(readers, json_integer(item->readers));
  }
  return json_pack("{s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "stage", stage, "direction", direction,
                   "microbatch", microbatch, "begin", begin, "end", end, "bytes", bytes, "source", source,
                   "accesses", accesses, "readers", readers);
}

static json_t *rank_json(const struct rp_plan *plan, int32_t rank, size_t *next_pool, size_t *next_item) {
  const struct rp_plan_rank *r = &plan->rank[rank];
  json_t *pools = json_array();
  for (; *next_pool < plan->pool_count && plan->pools[*next_pool].rank == rank; ++*next_pool)
    json_array_append_new(pools, pool_json(&plan->pools[*next_pool]));
  return json_pack("{s:i, s:o, s:o, s:I, s:I, s:I, s:o}", "rank", (int)rank, "slots", slots_json(r), "pools",
                   pools, "bytes_stock", (json_int_t)r->bytes_stock, "bytes_pooled",
                   (json_int_t)r->bytes_pooled, "bytes_saved", (json_int_t)(r->bytes_stock - r->bytes_pooled),
                   "receives", receives_json(plan, rank, next_item));
}

/* --- classes --- */

static const char *class_reason(const struct rp_plan_class *c) {
  if (c->slots < c->buffers) return rp_reason_name(RP_REASON_POOLABLE);
  return rp_reason_name(c->depth < c->buffers ? RP_REASON_WITHIN_SLACK : RP_REASON_UNBOUNDED_DEPTH);
}

static json_t *slot_list(const struct rp_plan *plan, const struct rp_plan_class *c) {
  json_t *list = json_array();
  for (size_t i = c->first; i < c->first + c->buffers; i++)
    json_array_append_new(list, json_integer(plan->slots[i]));
  return list;
}

static json_t *slot_bytes_list(const struct rp_plan_class *c) {
  json_t *list = c->slot_bytes ? json_array() : json_null();
  for (uint32_t k = 0; c->slot_bytes && k < c->slots; k++)
    json_array_append_new(list, integer(c->slot_bytes[k]));
  return list;
}

/* One class of buffers of one size; `tensors` of that size per microbatch. */
static json_t *class_json(const struct rp_plan *plan, const struct rp_plan_class *c, uint64_t bytes,
                          uint32_t tensors) {
  return json_pack(
      "{s:i, s:o, s:o, s:I, s:I, s:I, s:I, s:I, s:b, s:s, s:s, s:o, s:o}", "rank", (int)c->rank, "stage",
      c->stage < 0 ? json_null() : json_integer(c->stage), "direction",
      c->direction == RP_DIRECTION_UNKNOWN ? json_null() : json_string(rp_direction_name(c->direction)),
      "buffer_bytes", (json_int_t)bytes, "tensors_per_microbatch", (json_int_t)tensors, "buffers",
      (json_int_t)c->buffers * tensors, "depth", (json_int_t)c->depth * tensors, "slots",
      (json_int_t)c->slots * tensors, "poolable", c->slots < c->buffers, "reason", class_reason(c), "rule",
      c->ring ? "ring" : "table", "slot_of_microbatch", slot_list(plan, c), "slot_bytes", slot_bytes_list(c));
}

/* How many tensors of a microbatch have the size of tensor `t`; `first`: none before it has. */
static uint32_t tensors_of_size(const struct rp_plan_options *o, size_t t, bool *first) {
  uint32_t same = 0;
  *first = true;
  for (size_t i = 0; i < o->tensor_count; i++) {
    if (o->tensor_bytes[i] != o->tensor_bytes[t]) continue;
    *first &= i >= t;
    same++;
  }
  return same;
}

bool rp_plan_fits_file(const struct rp_plan *plan) {
  uint32_t most = 1;
  bool first;
  for (size_t t = 0; t < plan->options.tensor_count; t++) {
    uint32_t same = tensors_of_size(&plan->options, t, &first);
    if (same > most) most = same;
  }
  for (size_t i = 0; i < plan->class_count; i++)
    if ((uint64_t)plan->classes[i].buffers * most > RP_PLAN_MOST_BUFFERS) return false;
  return most <= RP_PLAN_MOST_TENSORS;
}

/* The classes of a plan whose microbatches pass several tensors: one per size, since NCCL receives them one
 * by one. */
static void append_classes(const struct rp_plan *plan, const struct rp_plan_class *c, json_t *list) {
  const struct rp_plan_options *o = &plan->options;
  if (o->tensor_count < 2) {
    json_array_append_new(list, class_json(plan, c, c->buffer_bytes, 1));
    return;
  }
  for (size_t i = 0; i < o->tensor_count; i++) {
    bool first;
    uint32_t same = tensors_of_size(o, i, &first);
    if (first) json_array_append_new(list, class_json(plan, c, o->tensor_bytes[i], same));
  }
}

/* --- the document --- */

static json_t *options_json(const struct rp_plan *plan) {
  const struct rp_plan_options *o = &plan->options;
  json_t *tensors = json_array();
  for (size_t i = 0; i < o->tensor_count; i++)
    json_array_append_new(tensors, integer(o->tensor_bytes[i]));
  return json_pack(
      "{s:I, s:I, s:s, s:b, s:b, s:b, s:o, s:o}", "slack_slots", (json_int_t)o->slack, "receive_ahead",
      (json_int_t)o->receive_ahead, "granularity", rp_plan_granularity_name(o->granularity), "mixed_sizes",
      o->mixed_sizes, "forward_only", o->forward_only, "post_at_use", o->post_at_use, "torch_version",
      o->torch_version ? json_sprintf("%d.%d", o->torch_version / 100, o->torch_version % 100) : json_null(),
      "tensor_bytes", tensors);
}

static json_t *provenance_json(const struct rp_plan *plan, const struct rp_plan_provenance *p) {
  json_t *source = json_string(p->source);
  return json_pack("{s:s, s:o, s:i, s:i, s:i, s:i, s:o, s:s, s:s?}", "kind", p->kind, "source",
                   source ? source : json_string("(name is not UTF-8)"), "ranks", (int)plan->ranks, "stages",
                   (int)plan->stages, "microbatches", (int)plan->microbatches, "replicas", (int)p->replicas,
                   "world_size", p->world_size ? json_integer(p->world_size) : json_null(),
                   "recvpool_version", p->recvpool, "note", p->note);
}

static json_t *totals_json(const struct rp_plan *plan, int32_t replicas) {
  struct rp_plan_totals t;
  rp_plan_totals_get(plan, &t);
  uint64_t n = (uint64_t)replicas;
  return json_pack("{s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I}", "buffers", (json_int_t)t.buffers, "slots",
                   (json_int_t)t.slots, "bytes_stock", (json_int_t)t.bytes_stock, "bytes_pooled",
                   (json_int_t)t.bytes_pooled, "bytes_saved", (json_int_t)(t.bytes_stock - t.bytes_pooled),
                   "job_bytes_stock", (json_int_t)(t.bytes_stock * n), "job_bytes_pooled",
                   (json_int_t)(t.bytes_pooled * n), "job_bytes_saved",
                   (json_int_t)((t.bytes_stock - t.bytes_pooled) * n));
}

json_t *rp_plan_to_json(const struct rp_plan *plan, const struct rp_plan_provenance *provenance) {
  json_t *ranks = json_array(), *classes = json_array();
  size_t next_pool = 0, next_item = 0;
  for (int32_t r = 0; r < plan->ranks; r++)
    json_array_append_new(ranks, rank_json(plan, r, &next_pool, &next_item));
  for (size_t i = 0; i < plan->class_count; i++)
    append_classes(plan, &plan->classes[i], classes);
  return json_pack("{s:s, s:s, s:o, s:o, s:o, s:o, s:o}", "schema", RP_PLAN_SCHEMA, "schema_version",
                   RP_PLAN_SCHEMA_VERSION, "provenance", provenance_json(plan, provenance), "options",
                   options_json(plan), "ranks", ranks, "classes", classes, "totals",
                   totals_json(plan, provenance->replicas));
}

/* Pipes and devices cannot be synced, and need not be. */
static bool sync_file(FILE *file) {
  return fsync(fileno(file)) == 0 || errno == EINVAL || errno == ENOTSUP || errno == EROFS;
}

/* Closes `file` in any case. */
static rp_status write_whole(const json_t *plan, FILE *file) {
  bool ok = json_dumpf(plan, file, JSON_INDENT(1)) == 0 && fputc('\n', file) != EOF && fflush(file) == 0 &&
            sync_file(file);
  int error = errno;
  if (fclose(file) != 0 && ok) {
    ok = false;
    error = errno;
  }
  errno = error;
  return ok ? RP_OK : RP_ERROR_IO;
}

/* By way of a temporary file in the same folder; its name is short, so that it fits wherever `path` does. */
static rp_status replace_file(const json_t *plan, const char *path) {
  const char *slash = strrchr(path, '/');
  int folder = slash ? (int)(slash - path) + 1 : 0;
  size_t size = (size_t)folder + 48;
  char *temporary = malloc(size);
  if (!temporary) return RP_ERROR_NO_MEMORY;
  snprintf(temporary, size, "%.*s.recvpool-plan-%ld.tmp", folder, path, (long)getpid());
  FILE *file = fopen(temporary, "wxe");
  rp_status status = file ? write_whole(plan, file) : RP_ERROR_IO;
  if (!status && rename(temporary, path) != 0) status = RP_ERROR_IO;
  if (status && file) {
    int error = errno;
    unlink(temporary);
    errno = error;
  }
  free(temporary);
  return status;
}

/* Into what is not a file of its own: a pipe or a device must stay what it is. */
static rp_status write_into(const json_t *plan, const char *path) {
  FILE *file = fopen(path, "we");
  return file ? write_whole(plan, file) : RP_ERROR_IO;
}

rp_status rp_plan_write(const json_t *plan, const char *path) {
  struct stat info;
  if (lstat(path, &info) != 0) return errno == ENOENT ? replace_file(plan, path) : RP_ERROR_IO;
  if (S_ISREG(info.st_mode)) return replace_file(plan, path);
  if (!S_ISLNK(info.st_mode)) return write_into(plan, path);
  if (stat(path, &info) != 0) return RP_ERROR_IO;
  if (!S_ISREG(info.st_mode)) return write_into(plan, path);
  char *target = realpath(path, NULL); /* the link stays a link */
  if (!target) return RP_ERROR_IO;
  rp_status status = replace_file(plan, target);
  int error = errno;
  free(target);
  errno = error;
  return status;
}
