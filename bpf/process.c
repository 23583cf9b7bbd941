/* /proc/PID/stat and status. */
#include "bpf/process.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define KERNEL_THREAD 0x00200000u /* PF_KTHREAD */

static bool read_text(pid_t pid, const char *file, char *out, size_t size) {
  char path[64];
  snprintf(path, sizeof path, "/proc/%ld/%s", (long)pid, file);
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return false;
  size_t used = 0;
  ssize_t got;
  while (used < size - 1 &&
         ((got = read(fd, out + used, size - 1 - used)) > 0 || (got < 0 && errno == EINTR)))
    used += got > 0 ? (size_t)got : 0;
  (void)close(fd);
  out[used] = '\0';
  return used > 0;
}

/* The name may hold anything, brackets and blanks included: it ends at the last bracket. */
static bool parse_stat(const char *text, struct rp_process *out) {
  const char *name = strchr(text, '('), *rest = strrchr(text, ')');
  if (!name || !rest || rest < name) return false;
  size_t length = (size_t)(rest - name - 1);
  if (length >= sizeof out->name) length = sizeof out->name - 1;
  memcpy(out->name, name + 1, length);
  out->name[length] = '\0';
  char state;
  int parent;
  long threads;
  unsigned flags;
  if (sscanf(rest + 1, " %c %d %*d %*d %*d %*d %u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %ld %*d %" SCNu64,
             &state, &parent, &flags, &threads, &out->start_ticks) != 5)
    return false;
  out->parent = parent;
  out->kernel_thread = (flags & KERNEL_THREAD) != 0;
  out->zombie = (state == 'Z' || state == 'X') && threads <= 1; /* others outlive the main thread at times */
  return true;
}

static const char *status_line(const char *text, const char *key) {
  const char *at = strstr(text, key);
  return at ? at + strlen(key) : NULL;
}

/* The innermost id is the last one of the line. */
static void parse_status(const char *text, struct rp_process *out) {
  const char *seccomp = status_line(text, "\nSeccomp:"), *ids = status_line(text, "\nNSpid:"),
             *leader = status_line(text, "\nTgid:");
  out->seccomp_filter = seccomp && strtol(seccomp, NULL, 10) == 2;
  if (leader) out->leader = (pid_t)strtol(leader, NULL, 10);
  while (ids && *ids != '\n' && *ids) {
    char *end;
    long id = strtol(ids, &end, 10);
    if (end == ids) break;
    out->inner_pid = (pid_t)id;
    ids = end;
    while (*ids == ' ' || *ids == '\t')
      ids++;
  }
}

rp_status rp_process_read(pid_t pid, struct rp_process *out) {
  char text[8192];
  *out = (struct rp_process){.pid = pid, .inner_pid = pid, .leader = pid};
  errno = 0;
  if (pid <= 0 || !read_text(pid, "stat", text, sizeof text) || !parse_stat(text, out))
    return errno == EMFILE || errno == ENFILE ? RP_ERROR_IO : RP_ERROR_NOT_FOUND;
  if (read_text(pid, "status", text, sizeof text)) parse_status(text, out);
  return RP_OK;
}

bool rp_process_is_alive(const struct rp_process *process) {
  char text[1024];
  struct rp_process now = {0};
  return read_text(process->pid, "stat", text, sizeof text) && parse_stat(text, &now) && !now.zombie &&
         now.start_ticks == process->start_ticks;
}

/* 'Z' or 'X' once a thread has ended; 0 where there is none of that id. */
static char state_of(pid_t thread) {
  char text[1024];
  if (!read_text(thread, "stat", text, sizeof text)) return 0;
  const char *rest = strrchr(text, ')');
  return rest && rest[1] == ' ' ? rest[2] : 0;
}

pid_t rp_process_speaker(pid_t pid) {
  char path[64];
  pid_t found = pid;
  if (state_of(pid) != 'Z') return pid;
  snprintf(path, sizeof path, "/proc/%ld/task", (long)pid);
  DIR *folder = opendir(path);
  for (const struct dirent *entry; folder && found == pid && (entry = readdir(folder));) {
    pid_t thread = (pid_t)strtol(entry->d_name, NULL, 10);
    char state = thread > 0 ? state_of(thread) : 0;
    if (state && state != 'Z' && state != 'X') found = thread;
  }
  if (folder) (void)closedir(folder);
  return found;
}

static int by_pid(const void *left, const void *right) {
  const struct rp_process *a = left, *b = right;
  return (a->pid > b->pid) - (a->pid < b->pid);
}

rp_status rp_process_list(struct rp_process **out, size_t *count) {
  struct rp_process *list = NULL;
  size_t used = 0, capacity = 0;
  DIR *folder = opendir("/proc");
  *out = NULL;
  *count = 0;
  if (!folder) return RP_ERROR_IO;
  for (const struct dirent *entry; (entry = readdir(folder));) {
    if (!isdigit((unsigned char)entry->d_name[0])) continue;
    if (used == capacity) {
      capacity = capacity ? 2 * capacity : 128;
      struct rp_process *grown = realloc(list, capacity * sizeof *grown);
      if (!grown) {
        free(list);
        (void)closedir(folder);
        return RP_ERROR_NO_MEMORY;
      }
      list = grown;
    }
    rp_status status = rp_process_read((pid_t)strtol(entry->d_name, NULL, 10), &list[used]);
    if (status == RP_OK) used++;
    if (status != RP_ERROR_IO) continue;
    int error = errno;
    free(list);
    (void)closedir(folder);
    errno = error;
    return RP_ERROR_IO;
  }
  (void)closedir(folder);
  if (used) qsort(list, used, sizeof *list, by_pid);
  *out = list;
  *count = used;
  return RP_OK;
}

/* Ids can have wrapped, so that a child comes before its parent: repeat until nothing is added. */
void rp_process_select_tree(const struct rp_process *list, size_t count, bool *selected) {
  for (bool changed = true; changed;) {
    changed = false;
    for (size_t i = 0; i < count; i++) {
      const struct rp_process key = {.pid = list[i].parent};
      const struct rp_process *parent =
          selected[i] || !count ? NULL : bsearch(&key, list, count, sizeof key, by_pid);
      if (!parent || !selected[parent - list]) continue;
      selected[i] = changed = true;
    }
  }
}
