/* Which processes are observed: by id with their descendants, by name, by cgroup. */
#include "bpf/observer_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <bpf/bpf.h>
#include <bpf/libbpf.h>

#include "recvpool.skel.h"

#define CGROUP2 0x63677270 /* CGROUP2_SUPER_MAGIC */

/* ---- cgroups ---- */

/* Depth below the root of the hierarchy, which is the last folder on the way up that lies in it; `below`
 * becomes the path from there. */
static int depth_of(const char *path, char *below, size_t below_size) {
  char at[PATH_MAX], whole[PATH_MAX];
  int depth = 0;
  if (!realpath(path, at)) return -1;
  memcpy(whole, at, sizeof whole);
  for (;; depth++) {
    struct statfs above;
    char *slash = strrchr(at, '/');
    if (!slash) return depth;
    snprintf(below, below_size, "%s", whole + (slash - at));
    if (slash == at) return depth;
    *slash = '\0';
    if (statfs(at, &above) != 0) return -1;
    if ((unsigned long)above.f_type != CGROUP2) {
      const char *rest = strchr(below + 1, '/'); /* what is below the mount itself */
      snprintf(below, below_size, "%s", rest ? rest : "");
      return depth;
    }
  }
}

static bool handle_of(const char *path, uint64_t *id) {
  struct {
    struct file_handle head;
    unsigned char room[8];
  } handle = {.head = {.handle_bytes = sizeof handle.room}};
  int mount;
  if (name_to_handle_at(AT_FDCWD, path, &handle.head, &mount, AT_SYMLINK_FOLLOW) != 0 ||
      handle.head.handle_bytes != sizeof *id)
    return false;
  memcpy(id, handle.head.f_handle, sizeof *id);
  return true;
}

rp_status rp__observer_cgroup(struct rp_observer *observer, uint64_t *id, int *level, char *message,
                              size_t message_size) {
  const char *path = observer->options.cgroup;
  struct statfs info;
  if (statfs(path, &info) != 0) {
    snprintf(message, message_size, "cannot open cgroup %s: %s", path, strerror(errno));
    return RP_ERROR_NOT_FOUND;
  }
  if ((unsigned long)info.f_type != CGROUP2) {
    snprintf(message, message_size,
             "%s is no cgroup2 folder; name one below the cgroup2 mount, such as "
             "/sys/fs/cgroup/user.slice",
             path);
    return RP_ERROR_INVALID;
  }
  *level = depth_of(path, observer->cgroup_path, sizeof observer->cgroup_path);
  if (*level >= 0 && handle_of(path, id)) return RP_OK;
  snprintf(message, message_size, "cannot tell the number of cgroup %s: %s", path, strerror(errno));
  return RP_ERROR_IO;
}

/* ---- by id and by name ---- */

static rp_status take(struct rp_observer *observer, const struct rp_process *process) {
  uint32_t key = (uint32_t)process->pid;
  struct rp_probe_process fresh = {
      .generation = rp__observer_now_ns(), .recv_low = UINT64_MAX, .alloc_low = UINT64_MAX};
  if (process->pid == getpid() || process->zombie || rp__observer_find(observer, key)) return RP_OK;
  int map = bpf_map__fd(observer->programs->maps.processes);
  if (bpf_map_update_elem(map, &key, &fresh, BPF_NOEXIST) != 0) {
    struct rp_probe_process there;
    if (errno != EEXIST) return RP_ERROR_NO_MEMORY;
    if (bpf_map_lookup_elem(map, &key, &there) != 0) return RP_OK; /* it has ended just now */
    if (!there.ended)
      fresh.generation = there.generation; /* a fork was faster, and its record may have found no room */
    else if (bpf_map_update_elem(map, &key, &fresh, BPF_ANY) != 0)
      return RP_ERROR_NO_MEMORY;
  }
  return rp__observer_begin(observer, process->pid, fresh.generation, fresh.generation, true)
             ? RP_OK
             : RP_ERROR_NO_MEMORY;
}

/* Whether the process is in the cgroup or below: "0::/path", with the path below the mount of the hierarchy.
 */
static bool in_cgroup(pid_t pid, const char *below) {
  char path[64], line[PATH_MAX + 8];
  bool in = false;
  size_t length = strlen(below);
  snprintf(path, sizeof path, "/proc/%ld/cgroup", (long)pid);
  FILE *file = fopen(path, "re");
  while (file && !in && fgets(line, sizeof line, file)) {
    line[strcspn(line, "\n")] = '\0';
    const char *at = line + 3;
    in =
        strncmp(line, "0::", 3) == 0 && strncmp(at, below, length) == 0 && (at[length] == '/' || !at[length]);
  }
  if (file) (void)fclose(file);
  return in;
}

static void mark(const struct rp_observer_options *options, const char *below, const struct rp_process *list,
                 size_t count, bool *selected) {
  for (size_t i = 0; i < count; i++) {
    selected[i] |= options->all && !list[i].kernel_thread;
    selected[i] |= options->cgroup && below && in_cgroup(list[i].pid, below);
    for (size_t p = 0; p < options->pid_count; p++)
      selected[i] |= list[i].pid == options->pids[p];
    selected[i] |= options->name && strncmp(list[i].name, options->name, 15) == 0;
  }
  if (options->pid_count) rp_process_select_tree(list, count, selected);
}

static rp_status check_named(const struct rp_observer_options *options, char *message, size_t message_size) {
  for (size_t p = 0; p < options->pid_count; p++) {
    struct rp_process process;
    rp_status status = rp_process_read(options->pids[p], &process);
    if (status == RP_ERROR_IO) return status;
    if (status != RP_OK || process.zombie) {
      snprintf(message, message_size, "there is no process %ld", (long)options->pids[p]);
      return RP_ERROR_NOT_FOUND;
    }
    if (process.leader != process.pid) {
      snprintf(message, message_size, "%ld is a thread of process %ld: name the process", (long)process.pid,
               (long)process.leader);
      return RP_ERROR_INVALID;
    }
    if (process.pid == getpid()) {
      snprintf(message, message_size, "process %ld is recvpool attach itself", (long)process.pid);
      return RP_ERROR_INVALID;
    }
    if (process.kernel_thread) {
      snprintf(message, message_size,
               "process %ld (%s) belongs to the kernel; the ids inside a container differ from those outside",
               (long)process.pid, process.name);
      return RP_ERROR_INVALID;
    }
  }
  return RP_OK;
}

static rp_status choose_once(struct rp_observer *observer, size_t *added) {
  struct rp_process *list;
  size_t count, before = observer->running;
  rp_status status = rp_process_list(&list, &count);
  if (status != RP_OK) return status;
  bool *selected = calloc(count + 1, sizeof *selected);
  if (!selected) status = RP_ERROR_NO_MEMORY;
  if (selected) mark(&observer->options, observer->cgroup_path, list, count, selected);
  for (size_t i = 0; selected && i < count && status == RP_OK; i++)
    if (selected[i]) status = take(observer, &list[i]);
  free(selected);
  free(list);
  *added = observer->running - before;
  return status;
}

/* A parent that was not listed yet can fork while the list is made: repeated until nothing comes. */
rp_status rp__observer_choose(struct rp_observer *observer, bool first, char *message, size_t message_size) {
  rp_status status = first ? check_named(&observer->options, message, message_size) : RP_OK;
  if (status != RP_OK && message[0]) return status;
  size_t added = 1;
  for (int round = 0; added && round < 16 && status == RP_OK; round++)
    status = choose_once(observer, &added);
  if (status == RP_ERROR_IO && errno == EMFILE)
    rp_rights_explain_load(&observer->rights, errno, message, message_size);
  else if (status == RP_ERROR_IO)
    snprintf(message, message_size, "the processes in /proc cannot be listed: %s", strerror(errno));
  else if (status != RP_OK)
    snprintf(message, message_size, "%s", rp_status_text(status));
  return status;
}
