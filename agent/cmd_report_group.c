/* Which reports belong together. A folder can hold several runs; reports belong to one job when they share a
 * communicator, directly or through others: sets that are united (union-find), as the ids come by. What has
 * no communicator, because it was killed before it could tell of one, is of the job that the same `recvpool
 * run` started. */
#include "agent/cmd_report_group.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "agent/cmd_report_digest.h"
#include "agent/cmd_report_text.h"

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

/* What attach wrote of a process whose agent has written, too: noted there, and left out. */
static bool is_second(struct rp_read_set *set, const json_t *own, const struct rp_read_report *report) {
  size_t index = rp_input_find_own(own, &report->digest->identity);
  if (index == SIZE_MAX) return false;
  (void)json_array_append_new(
      set->reports[index].digest->notes,
      json_string(
          "attach has written a report of the process, too, which is left out: the agent's own counts"));
  (void)json_array_append_new(
      set->skipped, json_pack("{s:o, s:s}", "path", rp__json_text(report->path), "reason", RP_INPUT_SECOND));
  return true;
}

/* The index of a report stays what it is until all are known: those that are left out go last. */
static rp_status drop_seconds(struct rp_read_set *set) {
  json_t *own = json_object();
  size_t kept = 0;
  if (!own) return RP_ERROR_NO_MEMORY;
  for (size_t i = 0; i < set->count; i++)
    rp_input_note_own(own, &set->reports[i].digest->identity, i);
  for (size_t i = 0; i < set->count; i++)
    set->reports[i].second = is_second(set, own, &set->reports[i]);
  for (size_t i = 0; i < set->count; i++)
    if (set->reports[i].second)
      rp__report_fini(&set->reports[i]);
    else
      set->reports[kept++] = set->reports[i];
  set->count = kept;
  json_decref(own);
  return RP_OK;
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

/* Joins the report to the jobs whose communicators it shares; those without a communicator stand together,
 * or with their run, which is looked at later. */
static rp_status join_job(const struct rp_read_set *set, size_t *parent, size_t index, json_t *owner) {
  const json_t *ids = set->reports[index].digest->communicators;
  rp_status status = RP_OK;
  if (json_array_size(ids) == 0 && set->reports[index].digest->run[0]) return RP_OK;
  if (json_array_size(ids) == 0) return join_by_id(parent, index, owner, "none");
  for (size_t i = 0; i < json_array_size(ids) && status == RP_OK; i++)
    status = join_by_id(parent, index, owner, json_string_value(json_array_get(ids, i)));
  return status;
}

/* ---- what has a run and no communicator ---- */

/* Jobs of one run that are tried, the latest first: a run that starts more of them one after the other is a
 * sweep, and its processes without communicator are hardly of the first ones. */
#define JOBS_TRIED 16

/* Jobs by communicators, as the rest is joined to them. */
struct runs {
  size_t *root;        /* by report: the first report of its job */
  double *begin, *end; /* by root */
  json_t *jobs;        /* by run: the roots */
  json_t *ranks;       /* "root/rank" of those that are in a job */
};

static double end_of(const struct rp_read_digest *digest) {
  return digest->finished ? digest->written_unix_seconds : HUGE_VAL;
}

static const char *rank_key(size_t root, int64_t rank, char *out, size_t size) {
  snprintf(out, size, "%zu/%lld", root, (long long)rank);
  return out;
}

static void note_member(struct runs *runs, const struct rp_read_digest *digest, size_t root) {
  char key[64];
  if (digest->rank != INT64_MAX)
    (void)json_object_set_new_nocheck(runs->ranks, rank_key(root, digest->rank, key, sizeof key),
                                      json_true());
  double begin = digest->start_unix_seconds, end = end_of(digest);
  if (begin < runs->begin[root]) runs->begin[root] = begin;
  if (end > runs->end[root]) runs->end[root] = end;
}

static void note_job_of_run(struct runs *runs, const char *run, size_t root) {
  json_t *jobs = json_object_get(runs->jobs, run);
  if (!jobs) (void)json_object_set_new(runs->jobs, run, jobs = json_array());
  size_t count = json_array_size(jobs);
  if (!count || (size_t)json_integer_value(json_array_get(jobs, count - 1)) != root)
    (void)json_array_append_new(jobs, json_integer((json_int_t)root));
}

/* Reports come in the order of their start, and so do the jobs. */
static void note_jobs(const struct rp_read_set *set, size_t *parent, struct runs *runs) {
  for (size_t i = 0; i < set->count; i++) {
    const struct rp_read_digest *digest = set->reports[i].digest;
    size_t root = runs->root[i] = root_of(parent, i);
    runs->begin[i] = HUGE_VAL;
    runs->end[i] = -HUGE_VAL;
    if (!digest->run[0] || json_array_size(digest->communicators) == 0) continue;
    note_member(runs, digest, root);
    note_job_of_run(runs, digest->run, root);
  }
}

/* They were there at one time, and the job does not have that rank already: a launcher that starts ranks anew
 * starts another job. */
static bool fits(const struct runs *runs, size_t root, const struct rp_read_digest *digest) {
  char key[64];
  return digest->start_unix_seconds <= runs->end[root] && end_of(digest) >= runs->begin[root] &&
         (digest->rank == INT64_MAX ||
          !json_object_get(runs->ranks, rank_key(root, digest->rank, key, sizeof key)));
}

/* The first report of the job that `digest` belongs to, or SIZE_MAX. */
static size_t job_by_run(const struct runs *runs, const struct rp_read_digest *digest) {
  const json_t *jobs = json_object_get(runs->jobs, digest->run);
  size_t count = json_array_size(jobs);
  for (size_t tried = 0; tried < JOBS_TRIED && tried < count; tried++) {
    size_t root = (size_t)json_integer_value(json_array_get(jobs, count - 1 - tried));
    if (fits(runs, root, digest)) return root;
  }
  return SIZE_MAX;
}

static rp_status join_by_run(const struct rp_read_set *set, size_t *parent, size_t index, struct runs *runs,
                             json_t *owner) {
  const struct rp_read_digest *digest = set->reports[index].digest;
  char name[sizeof digest->run + 8];
  if (!digest->run[0] || json_array_size(digest->communicators)) return RP_OK;
  size_t root = job_by_run(runs, digest);
  if (root == SIZE_MAX) {
    snprintf(name, sizeof name, "run %s", digest->run);
    return join_by_id(parent, index, owner, name);
  }
  unite(parent, root, index);
  note_member(runs, digest, root);
  return RP_OK;
}

static rp_status join_runs(const struct rp_read_set *set, size_t *parent, json_t *owner) {
  size_t room = set->count + 1;
  struct runs runs = {.root = calloc(room, sizeof *runs.root),
                      .begin = calloc(room, sizeof *runs.begin),
                      .end = calloc(room, sizeof *runs.end),
                      .jobs = json_object(),
                      .ranks = json_object()};
  bool whole = runs.root && runs.begin && runs.end && runs.jobs && runs.ranks;
  rp_status status = whole ? RP_OK : RP_ERROR_NO_MEMORY;
  if (whole) note_jobs(set, parent, &runs);
  for (size_t i = 0; i < set->count && status == RP_OK; i++)
    status = join_by_run(set, parent, i, &runs, owner);
  free(runs.root);
  free(runs.begin);
  free(runs.end);
  json_decref(runs.jobs);
  json_decref(runs.ranks);
  return status;
}

/* ---- numbers ---- */

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
  if (status == RP_OK) status = drop_seconds(set);
  for (size_t i = 0; i < set->count && status == RP_OK; i++)
    parent[i] = i;
  for (size_t i = 0; i < set->count && status == RP_OK; i++)
    status = join_job(set, parent, i, owner);
  if (status == RP_OK) status = join_runs(set, parent, owner);
  if (status == RP_OK) {
    number_jobs(set, parent);
    set->jobs_found = set->job_count;
    if (set->count) qsort(set->reports, set->count, sizeof *set->reports, by_job_and_rank);
    status = find_bounds(set);
  }
  free(parent);
  json_decref(owner);
  return status;
}
