/* What was counted: the kernel's side counts per CPU and function, and per process. */
#include "bpf/observer_internal.h"

#include <stdlib.h>

#include <bpf/bpf.h>
#include <bpf/libbpf.h>

#include "recvpool.skel.h"

/* Counts of one function on every possible CPU; NULL without memory. */
static struct rp_probe_count *read_counts(const struct rp_observer *observer, uint32_t function, int *cpus) {
  *cpus = libbpf_num_possible_cpus();
  struct rp_probe_count *counts = *cpus > 0 ? calloc((size_t)*cpus, sizeof *counts) : NULL;
  if (counts && bpf_map_lookup_elem(bpf_map__fd(observer->programs->maps.counts), &function, counts) == 0)
    return counts;
  free(counts);
  return NULL;
}

void rp_observer_counts(const struct rp_observer *observer, size_t function, struct rp_observer_count *out) {
  int cpus;
  struct rp_probe_count *counts = read_counts(observer, (uint32_t)function, &cpus);
  *out = (struct rp_observer_count){0};
  for (int cpu = 0; counts && cpu < cpus; cpu++) {
    out->calls += counts[cpu].calls;
    out->returns += counts[cpu].returns;
    out->failed += counts[cpu].failed;
    out->dropped += counts[cpu].dropped;
    if (counts[cpu].last_failure) out->last_failure = counts[cpu].last_failure;
  }
  free(counts);
}

uint64_t rp_observer_dropped_on(const struct rp_observer *observer, size_t cpu, size_t *cpus) {
  uint64_t dropped = 0;
  int count = libbpf_num_possible_cpus();
  *cpus = count > 0 ? (size_t)count : 0;
  for (uint32_t function = 0; cpu < *cpus && function < RP_PROBE_FUNCTIONS; function++) {
    struct rp_probe_count *counts = read_counts(observer, function, &count);
    if (counts) dropped += counts[cpu].dropped;
    free(counts);
  }
  return dropped;
}

/* The kernel's side forgets a process when it has told of its end, and what it had lost with it: asked just
 * before, see rp__observer_end. */
uint64_t rp_observer_lost(const struct rp_observer *observer, const struct rp_target *target) {
  struct rp_probe_process state;
  uint32_t key = (uint32_t)target->process.pid;
  uint64_t lost = target->events_refused;
  for (size_t i = 0; i < observer->count; i++)
    if (observer->observed[i].target == target && !observer->observed[i].listed)
      return observer->observed[i].lost_at_end;
  if (bpf_map_lookup_elem(bpf_map__fd(observer->programs->maps.processes), &key, &state) != 0) return lost;
  if (state.generation == target->generation) lost += state.dropped;
  if (state.generation_before == target->generation) lost += state.dropped_before;
  return lost;
}

struct rp_target *rp_observer_target(const struct rp_observer *observer, size_t index) {
  return index < observer->count ? observer->observed[index].target : NULL;
}

uint64_t rp_observer_met(const struct rp_observer *observer) {
  return observer->met;
}

uint64_t rp_observer_forgotten(const struct rp_observer *observer) {
  return observer->forgotten;
}

const struct rp_libraries *rp_observer_libraries(const struct rp_observer *observer) {
  return &observer->libraries;
}

enum rp_link_kind rp_observer_links(const struct rp_observer *observer) {
  return observer->options.links;
}

size_t rp_observer_probes(const struct rp_observer *observer) {
  size_t probes = 0;
  for (size_t i = 0; i < observer->libraries.count; i++)
    probes += observer->libraries.files[i].links.probes;
  return probes;
}

uint64_t rp_observer_records(const struct rp_observer *observer) {
  return observer->records;
}

uint64_t rp_observer_ring_bytes(const struct rp_observer *observer) {
  return observer->ring_bytes;
}
