/* /proc/PID/maps and the files behind it. Paths there are those of the process's own mount namespace. */
#include "bpf/mappings.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#define DELETED " (deleted)"

/* The kernel writes blanks, newlines and the like as \ooo. In place. */
static void unescape(char *path) {
  char *out = path;
  for (const char *in = path; *in;) {
    if (in[0] == '\\' && in[1] >= '0' && in[1] <= '3' && in[2] >= '0' && in[2] <= '7' && in[3] >= '0' &&
        in[3] <= '7') {
      *out++ = (char)((in[1] - '0') << 6 | (in[2] - '0') << 3 | (in[3] - '0'));
      in += 4;
    } else {
      *out++ = *in++;
    }
  }
  *out = '\0';
}

static bool known(const struct rp_mappings *mappings, uint64_t device, uint64_t inode) {
  for (size_t i = mappings->count; i-- > 0;)
    if (mappings->files[i].inode == inode && mappings->files[i].device == device) return true;
  return false;
}

static rp_status add(struct rp_mappings *out, struct rp_mapping file) {
  if (out->count == out->capacity) {
    size_t capacity = out->capacity ? 2 * out->capacity : 64;
    struct rp_mapping *grown = realloc(out->files, capacity * sizeof *grown);
    if (!grown) return RP_ERROR_NO_MEMORY;
    out->files = grown;
    out->capacity = capacity;
  }
  file.path = strdup(file.path);
  if (!file.path) return RP_ERROR_NO_MEMORY;
  out->files[out->count++] = file;
  return RP_OK;
}

static rp_status take_line(char *line, struct rp_mappings *out) {
  struct rp_mapping file = {0};
  unsigned major_number, minor_number;
  char flags[5];
  int path_at = 0;
  line[strcspn(line, "\n")] = '\0';
  if (sscanf(line, "%" SCNx64 "-%" SCNx64 " %4s %*x %x:%x %" SCNu64 " %n", &file.begin, &file.end, flags,
             &major_number, &minor_number, &file.inode, &path_at) < 6 ||
      path_at == 0 || line[path_at] != '/' || flags[2] != 'x' || file.inode == 0)
    return RP_OK;
  file.device = makedev(major_number, minor_number);
  if (known(out, file.device, file.inode)) return RP_OK;
  file.path = line + path_at;
  size_t length = strlen(file.path), suffix = strlen(DELETED);
  if (length > suffix && strcmp(file.path + length - suffix, DELETED) == 0) {
    file.deleted = true;
    file.path[length - suffix] = '\0';
  }
  unescape(file.path);
  return add(out, file);
}

rp_status rp_mappings_parse(FILE *text, struct rp_mappings *out) {
  *out = (struct rp_mappings){0};
  char *line = NULL;
  size_t size = 0;
  rp_status status = RP_OK;
  while (status == RP_OK && getline(&line, &size, text) > 0)
    status = take_line(line, out);
  free(line);
  if (status != RP_OK) rp_mappings_fini(out);
  return status;
}

rp_status rp_mappings_read(pid_t pid, struct rp_mappings *out) {
  char path[64];
  *out = (struct rp_mappings){0};
  snprintf(path, sizeof path, "/proc/%ld/maps", (long)pid);
  FILE *text = fopen(path, "re");
  if (!text) return errno == EACCES || errno == EPERM ? RP_ERROR_UNAVAILABLE : RP_ERROR_NOT_FOUND;
  rp_status status = rp_mappings_parse(text, out);
  bool refused = ferror(text) != 0;
  (void)fclose(text);
  return status == RP_OK && refused && out->count == 0 ? RP_ERROR_UNAVAILABLE : status;
}

void rp_mappings_fini(struct rp_mappings *mappings) {
  for (size_t i = 0; i < mappings->count; i++)
    free(mappings->files[i].path);
  free(mappings->files);
  *mappings = (struct rp_mappings){0};
}

/* Some file systems (btrfs, overlayfs) show one device in maps and another to stat. */
static bool is_same_file(int fd, const struct rp_mapping *mapping) {
  struct stat info;
  return fstat(fd, &info) == 0 && S_ISREG(info.st_mode) && info.st_ino == mapping->inode;
}

/* Through the process's own root, or, where that is closed to us, by the same path out here if it leads to
 * the same file. */
static int open_by_path(pid_t pid, const struct rp_mapping *mapping, bool *replaced) {
  char path[PATH_MAX + 64];
  struct stat info;
  snprintf(path, sizeof path, "/proc/%ld/root%s", (long)pid, mapping->path);
  int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK), error = errno;
  if (fd >= 0 && is_same_file(fd, mapping)) return fd;
  *replaced = fd >= 0;
  if (fd >= 0) (void)close(fd);
  if (*replaced || error != EACCES) return -1;
  fd = open(mapping->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd >= 0 && is_same_file(fd, mapping) && fstat(fd, &info) == 0 && info.st_dev == mapping->device)
    return fd;
  if (fd >= 0) (void)close(fd);
  errno = error;
  return -1;
}

bool rp_mapping_stat(pid_t pid, const struct rp_mapping *mapping, struct stat *out) {
  char path[PATH_MAX + 64];
  snprintf(path, sizeof path, "/proc/%ld/map_files/%" PRIx64 "-%" PRIx64, (long)pid, mapping->begin,
           mapping->end);
  if (stat(path, out) == 0) return true;
  snprintf(path, sizeof path, "/proc/%ld/root%s", (long)pid, mapping->path);
  return !mapping->deleted && stat(path, out) == 0 && out->st_ino == mapping->inode;
}

int rp_mapping_open(pid_t pid, const struct rp_mapping *mapping, char *reason, size_t reason_size) {
  char path[PATH_MAX + 64];
  snprintf(path, sizeof path, "/proc/%ld/map_files/%" PRIx64 "-%" PRIx64, (long)pid, mapping->begin,
           mapping->end);
  int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd >= 0) return fd;
  int error = errno;
  if (error == ENOENT) {
    snprintf(reason, reason_size, "is no longer mapped");
    return -1;
  }
  bool replaced = false;
  if (!mapping->deleted) fd = open_by_path(pid, mapping, &replaced);
  if (fd >= 0) return fd;
  if (replaced) {
    snprintf(
        reason, reason_size,
        "was replaced on disk, and opening what is mapped needs CAP_CHECKPOINT_RESTORE or CAP_SYS_ADMIN");
  } else if (mapping->deleted) {
    snprintf(reason, reason_size,
             "was deleted, and opening what is mapped needs CAP_CHECKPOINT_RESTORE or CAP_SYS_ADMIN");
  } else {
    snprintf(reason, reason_size, "cannot be opened: %s%s", strerror(errno),
             errno == EACCES ? " (needs CAP_SYS_PTRACE, and CAP_DAC_READ_SEARCH for files of others)" : "");
  }
  return -1;
}
