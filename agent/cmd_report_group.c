/* Which reports belong together. A folder can hold several runs; reports belong to one job when they share a
 * communicator, directly or through others: sets that are united (union-find), as the ids come by. */
#include "agent/cmd_report_group.h"

#include <stdlib.h>
#include <string.h>

#include "agent/cmd_report_digest.h"

static int by_path(const struct rp_read_report *a, const struct rp_read_report *b) {
  return strcmp(a->path, b->path);
}

static int by_start(const void *a_pointer, const void *b_pointer) {
  const struct rp_read_report *a = a_pointer, *b = b_pointer;
  double x = a->digest->start_unix_seconds, y = b->digest->start_unix_seconds;
  if (x != y) return x < y ? -1 : 1;
  return by_path(a, b);
}

static int by_job_and_rank(const void *a_pointer, const void *b_pointer) {
  const struct rp_read_report *a = a_pointer, *b = b_pointer;
  if (a->job != b->job) return a->job < b->job ? -1 : 1;
  if (a->digest->rank != b->digest->rank) return a->digest->rank < b->digest->rank ? -1 : 1;
  return by_path(a, b);
}

/* ---- one report for each process ---- */

/* Index of the first report of the same process, which is `index` itself where it is the first; SIZE_MAX
 * without memory. */
static size_t first_of(json_t *seen, const char *process, size_t index) {
  const json_t *known = json_object_get(seen, process);
  if (known) return (size_t)json_integer_value(known);
  return json_object_set_new_nocheck(seen, process, json_integer((json_int_t)index)) == 0 ? index : SIZE_MAX;
}

/* A file named twice, or named beside its folder, is one process and is counted once; of two states of it the
 * later one counts. */
static rp_status drop_repeated(struct rp_read_set *set) {
  json_t *seen = json_object();
  size_t kept = 0;
  rp_status status = seen ? RP_OK : RP_ERROR_NO_MEMORY;
  for (size_t i = 0; i < set->count; i++) {
    struct rp_read_report report = set->reports[i];
    size_t first = status == RP_OK ? first_of(seen, report.digest->process, kept) : kept;
    if (first == SIZE_MAX) status = RP_ERROR_NO_MEMORY;
    if (first == kept || first == SIZE_MAX) {
      set->reports[kept++] = report;
      continue;
    }
    struct rp_read_report *same = &set->reports[first];
    if (report.digest->written_unix_seconds > same->digest->written_unix_seconds) {
      struct rp_read_report earlier = *same;
      *same = report;
      report = earlier;
    }
    rp__report_fini(&report);
  }
  set->count = kept;
  json_decref(seen);
  return status;
}

/* ---- jobs ---- */

/* The smallest report of the set that `index` is in; the way there is halved for the next one. */
static size_t root_of(size_t *parent, size_t index) {
  while (parent[index] != index)
    index = parent[index] = parent[parent[index]];
  return index;
}

static void unite(size_t *parent, size_t a, size_t b) {
  a = root_of(parent, a);
  b = root_of(parent, b);
  parent[a < b ? b : a] = a < b ? a : b;
}

/* Joins the report to the job that `id` belongs to. `owner` maps ids to the report that showed them first. */
static rp_status join_by_id(size_t *parent, size_t index, json_t *owner, const char *id) {
  const json_t *first = json_object_get(owner, id);
  if (!first)
    return json_object_set_new_nocheck(owner, id, json_integer((json_int_t)index)) == 0 ? RP_OK
                                                                                        : RP_ERROR_NO_MEMORY;
  unite(parent, (size_t)json_integer_value(first), index);
  return RP_OK;
}

/* Joins the report to the jobs whose communicators it shares; those without a communicator stand together. */
static rp_status join_job(const struct rp_read_set *set, size_t *parent, size_t index, json_t *owner) {
  const json_t *ids = set->reports[index].digest->communicators;
  rp_status status = RP_OK;
  if (json_array_size(ids) == 0) return join_by_id(parent, index, owner, "none");
  for (size_t i = 0; i < json_array_size(ids) && status == RP_OK; i++)
    status = join_by_id(parent, index, owner, json_string_value(json_array_get(ids, i)));
  return status;
}

/* Jobs are numbered from 0 in the order of their first process, which is the root of their set. */
static void number_jobs(struct rp_read_set *set, size_t *parent) {
  for (size_t i = 0; i < set->count; i++) {
    size_t root = root_of(parent, i);
    set->reports[i].job = root == i ? set->job_count++ : set->reports[root].job;
  }
}

static rp_status find_bounds(struct rp_read_set *set) {
  set->job_first = calloc(set->job_count + 1, sizeof *set->job_first);
  if (!set->job_first) return RP_ERROR_NO_MEMORY;
  for (size_t i = set->count; i-- > 0;)
    set->job_first[set->reports[i].job] = i;
  set->job_first[set->job_count] = set->count;
  return RP_OK;
}

rp_status rp__group(struct rp_read_set *set) {
  json_t *owner = json_object();
  size_t *parent = malloc((set->count + 1) * sizeof *parent);
  rp_status status = owner && parent ? RP_OK : RP_ERROR_NO_MEMORY;
  if (set->count) qsort(set->reports, set->count, sizeof *set->reports, by_start);
  if (status == RP_OK) status = drop_repeated(set);
  for (size_t i = 0; i < set->count && status == RP_OK; i++)
    parent[i] = i;
  for (size_t i = 0; i < set->count && status == RP_OK; i++)
    status = join_job(set, parent, i, owner);
  if (status == RP_OK) {
    number_jobs(set, parent);
    if (set->count) qsort(set->reports, set->count, sizeof *set->reports, by_job_and_rank);
    status = find_bounds(set);
  }
  free(parent);
  json_decref(owner);
  return status;
}
