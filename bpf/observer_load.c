/* Programs and maps: sets the configuration, loads, and translates what can go wrong into a sentence. Owns
 * libbpf's log while loading. */
#include "bpf/observer_internal.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <bpf/bpf.h>
#include <bpf/libbpf.h>

#include "bpf/functions.h"
#include "recvpool.skel.h"

#define DEFAULT_RING_BYTES (16u << 20)
#define LOG_BYTES (1u << 20) /* of libbpf's words the last are kept */

/* Loading happens on one thread, see observer.h. */
static char *log_text;
static size_t log_length;

static int keep_log(enum libbpf_print_level level, const char *format, va_list arguments) {
  if (level == LIBBPF_DEBUG || !log_text || log_length >= LOG_BYTES - 1) return 0;
  int added = vsnprintf(log_text + log_length, LOG_BYTES - log_length, format, arguments);
  if (added > 0)
    log_length += (size_t)added < LOG_BYTES - log_length ? (size_t)added : LOG_BYTES - log_length - 1;
  return added;
}

static uint64_t ring_size(uint64_t wanted) {
  uint64_t size = (uint64_t)sysconf(_SC_PAGESIZE);
  if (!wanted) wanted = DEFAULT_RING_BYTES;
  while (size < wanted && size < (1u << 30))
    size *= 2;
  return size;
}

static void set_shapes(struct recvpool_bpf *programs) {
  for (size_t i = 0; i < rp_probe_function_count(); i++)
    memcpy((void *)&programs->rodata->shapes[i], &rp_probe_function_at(i)->shape,
           sizeof(struct rp_probe_shape));
}

static void configure(struct rp_observer *observer, uint64_t cgroup_id, int cgroup_level) {
  struct recvpool_bpf *programs = observer->programs;
  const struct rp_observer_options *options = &observer->options;
  set_shapes(programs);
  programs->rodata->mode = options->all ? 2 : options->cgroup ? 1 : 0;
  programs->rodata->cgroup_id = cgroup_id;
  programs->rodata->cgroup_level = cgroup_level;
  programs->rodata->own_tgid = (uint32_t)getpid();
  programs->rodata->min_bytes = options->min_bytes;
  programs->rodata->wake_bytes = observer->ring_bytes / 8;
  programs->rodata->launches = options->launches;
  programs->rodata->calls = options->calls;
  programs->rodata->follow_name = options->name != NULL;
  if (options->name) strncpy((char *)programs->rodata->name, options->name, 15);
  (void)bpf_map__set_max_entries(programs->maps.ring, (uint32_t)observer->ring_bytes);
  int type = rp_links_attach_type(observer->options.links);
  (void)bpf_program__set_expected_attach_type(programs->progs.rp_enter, (enum bpf_attach_type)type);
  (void)bpf_program__set_expected_attach_type(programs->progs.rp_leave, (enum bpf_attach_type)type);
}

/* The programs that follow processes come first: nothing may start between the first look at /proc and them.
 */
static int attach_followers(struct recvpool_bpf *programs) {
  programs->links.rp_fork = bpf_program__attach(programs->progs.rp_fork);
  if (!programs->links.rp_fork) return -errno;
  programs->links.rp_exec = bpf_program__attach(programs->progs.rp_exec);
  if (!programs->links.rp_exec) return -errno;
  programs->links.rp_exit = bpf_program__attach(programs->progs.rp_exit);
  return programs->links.rp_exit ? 0 : -errno;
}

static rp_status load(struct rp_observer *observer, uint64_t cgroup_id, int cgroup_level, char *message,
                      size_t message_size) {
  observer->programs = recvpool_bpf__open();
  if (!observer->programs) {
    rp_rights_explain_load(&observer->rights, errno, message, message_size);
    return RP_ERROR_UNAVAILABLE;
  }
  configure(observer, cgroup_id, cgroup_level);
  int result = recvpool_bpf__load(observer->programs);
  if (result == 0) result = attach_followers(observer->programs);
  if (result != 0) {
    rp_rights_explain_load(&observer->rights, -result, message, message_size);
    return RP_ERROR_UNAVAILABLE;
  }
  observer->ring =
      ring_buffer__new(bpf_map__fd(observer->programs->maps.ring), rp__observer_record, observer, NULL);
  if (observer->ring) return RP_OK;
  if (errno == EMFILE) {
    rp_rights_explain_load(&observer->rights, errno, message, message_size);
    return RP_ERROR_UNAVAILABLE;
  }
  snprintf(message, message_size, "the ring buffer of %llu bytes cannot be mapped: %s",
           (unsigned long long)observer->ring_bytes, strerror(errno));
  return RP_ERROR_NO_MEMORY;
}

rp_status rp__observer_load(struct rp_observer *observer, uint64_t cgroup_id, int cgroup_level, char *message,
                            size_t message_size, char **log) {
  observer->ring_bytes = ring_size(observer->options.ring_bytes);
  log_text = calloc(1, LOG_BYTES);
  log_length = 0;
  libbpf_print_fn_t before = libbpf_set_print(keep_log);
  rp_status status = load(observer, cgroup_id, cgroup_level, message, message_size);
  /* the rest of libbpf's words is about what the message says already */
  bool names_culprit =
      strstr(log_text ? log_text : "", "prog '") || strstr(log_text ? log_text : "", "map '");
  if (status != RP_OK && log && names_culprit) {
    *log = log_text;
    log_text = NULL;
  }
  (void)libbpf_set_print(before);
  free(log_text);
  log_text = NULL;
  return status;
}

void rp__observer_unfollow(struct rp_observer *observer) {
  if (observer->programs) recvpool_bpf__detach(observer->programs);
}

void rp__observer_unload(struct rp_observer *observer) {
  ring_buffer__free(observer->ring);
  recvpool_bpf__destroy(observer->programs);
  observer->ring = NULL;
  observer->programs = NULL;
}
