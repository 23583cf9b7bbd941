/* The observer's life. */
#include "bpf/observer_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include <bpf/libbpf.h>

#include "recvpool.skel.h"

#define LOOK_PAUSE_NS 1000000000ull
#define ROUND_MS 20 /* the buffer is emptied at least this often */

uint64_t rp__observer_now_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static void keep(void *context, size_t index) {
  struct rp_libraries *libraries = context;
  libraries->files[index].kept = true;
}

/* Own process: not observed, but its dynamic loader is the one that most others have. */
static void probe_own_loader(struct rp_observer *observer) {
  struct rp_process own;
  if (rp_process_read(getpid(), &own) == RP_OK)
    (void)rp_libraries_scan(&observer->libraries, &own, keep, &observer->libraries, NULL);
}

static rp_status check(struct rp_observer *observer, char *message, size_t message_size) {
  struct rp_observer_options *options = &observer->options;
  rp_rights_read(&observer->rights);
  bool perf =
      options->links == RP_LINK_PERF || (options->links == RP_LINK_AUTO && !observer->rights.multi_links);
  rp_rights_missing(&observer->rights, perf, message, message_size);
  if (message[0]) return RP_ERROR_UNAVAILABLE;
  if (options->links == RP_LINK_MULTI && !observer->rights.multi_links) {
    snprintf(message, message_size, "kernel %s has no multi-uprobe links (6.6 or later has)",
             observer->rights.kernel);
    return RP_ERROR_UNAVAILABLE;
  }
  if (!observer->rights.initial_pid_namespace) {
    snprintf(message, message_size,
             "process ids here are those of a container, not of the kernel: start it with "
             "the host's pid namespace (hostPID: true, --pid=host)");
    return RP_ERROR_UNAVAILABLE;
  }
  options->links = perf ? RP_LINK_PERF : RP_LINK_MULTI;
  return RP_OK;
}

/* Whether at least one of the processes that were named can be looked at. */
static rp_status check_readable(const struct rp_observer *observer, char *message, size_t message_size) {
  const struct rp_target *target, *unreadable = NULL;
  for (size_t i = 0; (target = rp_observer_target(observer, i)); i++) {
    if (!target->unreadable) return RP_OK;
    unreadable = target;
  }
  if (!unreadable) return RP_OK;
  snprintf(message, message_size, "process %ld (%s) cannot be looked at: %s", (long)unreadable->process.pid,
           unreadable->process.name,
           rp_rights_have(&observer->rights, RP_CAP_SYS_PTRACE) ? "the system forbids it"
                                                                : "CAP_SYS_PTRACE is missing");
  return RP_ERROR_UNAVAILABLE;
}

static rp_status open_all(struct rp_observer *observer, char *message, size_t message_size, char **log) {
  uint64_t cgroup_id = 0;
  int cgroup_level = 0;
  rp_status status = check(observer, message, message_size);
  if (status == RP_OK && observer->options.cgroup)
    status = rp__observer_cgroup(observer, &cgroup_id, &cgroup_level, message, message_size);
  if (status == RP_OK)
    status = rp__observer_load(observer, cgroup_id, cgroup_level, message, message_size, log);
  if (status != RP_OK) return status;
  const struct rp_link_request request = {.kind = observer->options.links,
                                          .enter = observer->programs->progs.rp_enter,
                                          .leave = observer->programs->progs.rp_leave,
                                          .launches = observer->options.launches};
  status = rp_libraries_init(&observer->libraries, &request, &observer->rights);
  if (observer->options.keep_ns) observer->libraries.keep_ns = observer->options.keep_ns;
  if (status == RP_OK) status = rp__observer_choose(observer, true, message, message_size);
  if (status != RP_OK) return status;
  observer->looked_ns = rp__observer_now_ns();
  (void)rp__observer_scan(observer, observer->looked_ns);
  if (observer->options.pid_count) status = check_readable(observer, message, message_size);
  if (status != RP_OK) return status;
  probe_own_loader(observer);
  observer->programs->bss->active = RP_PROBE_NOW;
  return RP_OK;
}

rp_status rp_observer_open(const struct rp_observer_options *options, struct rp_observer **out, char *message,
                           size_t message_size, char **log) {
  struct rp_observer *observer = calloc(1, sizeof *observer);
  *out = NULL;
  message[0] = '\0';
  if (log) *log = NULL;
  if (!observer) return RP_ERROR_NO_MEMORY;
  observer->options = *options;
  rp_status status = open_all(observer, message, message_size, log);
  if (status == RP_OK) {
    *out = observer;
    return RP_OK;
  }
  if (!message[0]) snprintf(message, message_size, "%s", rp_status_text(status));
  rp_observer_close(observer);
  return status;
}

static int wait_ms(uint64_t now_ns, uint64_t until_ns, int timeout_ms) {
  int wait = timeout_ms < ROUND_MS ? timeout_ms : ROUND_MS;
  uint64_t left = until_ns > now_ns ? (until_ns - now_ns) / 1000000u : 0;
  return left < (uint64_t)wait ? (int)left : wait;
}

bool rp_observer_poll(struct rp_observer *observer, int timeout_ms) {
  uint64_t now_ns = rp__observer_now_ns(), end_ns = now_ns + (uint64_t)timeout_ms * 1000000u;
  do {
    rp_libraries_take_changes(&observer->libraries);
    uint64_t next_scan_ns = rp__observer_scan(observer, now_ns);
    (void)ring_buffer__poll(observer->ring, wait_ms(now_ns, next_scan_ns, timeout_ms));
    (void)ring_buffer__consume(observer->ring);
    now_ns = rp__observer_now_ns();
    if (now_ns - observer->looked_ns >= LOOK_PAUSE_NS) {
      rp__observer_look(observer, now_ns);
      observer->looked_ns = now_ns;
    }
    if (observer->options.pid_count && observer->running == 0) return false;
  } while (now_ns < end_ns);
  return true;
}

void rp_observer_stop(struct rp_observer *observer) {
  if (observer->stopped) return;
  observer->stopped = true;
  if (observer->ring) observer->programs->bss->active = RP_PROBE_OVER;
  rp_libraries_settle(&observer->libraries);
  for (size_t i = 0; i < observer->libraries.count; i++)
    rp_links_detach(&observer->libraries.files[i].links);
  rp__observer_unfollow(observer);
  if (observer->ring) (void)ring_buffer__consume(observer->ring);
  for (size_t i = 0; i < observer->count; i++)
    rp_target_settle(observer->observed[i].target);
}

void rp_observer_close(struct rp_observer *observer) {
  if (!observer) return;
  rp_observer_stop(observer);
  for (size_t i = 0; i < observer->count; i++) {
    struct rp_target *target = observer->observed[i].target;
    if (observer->options.freed) observer->options.freed(observer->options.context, target);
    rp_target_destroy(target);
  }
  free(observer->observed);
  rp_libraries_fini(&observer->libraries);
  rp__observer_unload(observer);
  free(observer);
}
