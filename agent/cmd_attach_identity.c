/* Who a process is: host, command and rank from /proc, and the libraries that it has mapped. */
#include "agent/attach.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "agent/launchers.h"

#define ENVIRONMENT_MAX (256u << 10)

/* A file of /proc/PID, NUL at its end; NULL if it cannot be read. */
static char *read_file(pid_t pid, const char *name, size_t most, size_t *length) {
  char path[64];
  snprintf(path, sizeof path, "/proc/%ld/%s", (long)pid, name);
  int file = open(path, O_RDONLY | O_CLOEXEC);
  char *text = file >= 0 ? malloc(most + 1) : NULL;
  ssize_t got = 0;
  *length = 0;
  while (text && *length < most &&
         ((got = read(file, text + *length, most - *length)) > 0 || (got < 0 && errno == EINTR)))
    *length += got > 0 ? (size_t)got : 0;
  if (file >= 0) (void)close(file);
  if (text) text[*length] = '\0';
  return text;
}

/* Arguments joined by blanks. */
static void read_command(pid_t pid, char *out, size_t size) {
  size_t length;
  char *text = read_file(pid, "cmdline", size - 1, &length);
  out[0] = '\0';
  if (!text) return;
  while (length > 0 && text[length - 1] == '\0')
    length--;
  for (size_t i = 0; i < length; i++)
    out[i] = text[i] ? text[i] : ' ';
  out[length] = '\0';
  free(text);
}

struct block {
  const char *text;
  size_t length;
};

static const char *block_variable(void *context, const char *name) {
  const struct block *block = context;
  size_t named = strlen(name);
  for (const char *at = block->text, *end = at + block->length; at < end; at += strlen(at) + 1)
    if (strncmp(at, name, named) == 0 && at[named] == '=') return at + named + 1;
  return NULL;
}

/* As rp_config_default_report_dir, for another process. */
static void read_agent_dir(struct block *environment, pid_t pid, char *out, size_t size) {
  const char *dir = block_variable(environment, "RECVPOOL_REPORT_DIR"),
             *runtime = block_variable(environment, "XDG_RUNTIME_DIR");
  char path[64];
  struct stat info = {0};
  snprintf(path, sizeof path, "/proc/%ld", (long)pid);
  (void)stat(path, &info);
  if (dir && dir[0])
    snprintf(out, size, "%s", dir);
  else if (runtime && runtime[0] == '/')
    snprintf(out, size, "%s/recvpool", runtime);
  else if (info.st_uid == 0)
    snprintf(out, size, "/run/recvpool");
  else
    snprintf(out, size, "/tmp/recvpool-%lu", (unsigned long)info.st_uid);
}

static void read_environment(pid_t pid, struct rp_attach_process *out) {
  struct block block;
  char path[64], *text = read_file(pid, "environ", ENVIRONMENT_MAX, &block.length);
  block.text = text ? text : "";
  if (!text) block.length = 0;
  rp_launcher_rank(block_variable, &block, &out->info);
  read_agent_dir(&block, pid, out->agent_dir, sizeof out->agent_dir);
  snprintf(path, sizeof path, "/proc/%ld/root", (long)pid);
  out->root = open(path, O_PATH | O_DIRECTORY | O_CLOEXEC);
  free(text);
}

struct rp_attach_process *rp_attach_identify(const struct rp_target *target) {
  struct rp_attach_process *out = calloc(1, sizeof *out);
  struct timespec now, monotonic;
  if (!out) return NULL;
  struct rp_process_info *info = &out->info;
  if (gethostname(info->host, sizeof info->host - 1) != 0)
    snprintf(info->host, sizeof info->host, "localhost");
  info->pid = target->process.pid;
  rp_incarnation_own(&info->incarnation); /* of this kernel, and counted in this namespace */
  info->incarnation.start_ticks = target->process.start_ticks;
  const pid_t speaker = rp_process_speaker(info->pid);
  read_command(speaker, info->command, sizeof info->command);
  if (!info->command[0]) snprintf(info->command, sizeof info->command, "%s", target->process.name);
  read_environment(speaker, out);
  clock_gettime(CLOCK_REALTIME, &now);
  clock_gettime(CLOCK_MONOTONIC, &monotonic);
  info->start_monotonic_ns = target->started_ns;
  info->start_time_unix_seconds = (double)(now.tv_sec - monotonic.tv_sec) +
                                  (double)(now.tv_nsec - monotonic.tv_nsec) / 1e9 +
                                  (double)target->started_ns / 1e9;
  return out;
}

void rp_attach_forget(struct rp_attach_process *process) {
  if (process && process->root >= 0) (void)close(process->root);
  if (process) json_decref(process->claim);
  if (process) json_decref(process->inside);
  free(process);
}

/* "libnccl.so.2.28.9" -> 22809, as NCCL numbers itself; 0 if the name does not tell. */
static int nccl_version(const char *path) {
  const char *name = strstr(path, "libnccl.so.");
  int major_number, minor_number, patch;
  if (!name || sscanf(name, "libnccl.so.%d.%d.%d", &major_number, &minor_number, &patch) != 3) return 0;
  return major_number * 10000 + minor_number * 100 + patch;
}

/* "libcudart.so.13.0.96" -> 13000; 0 if the name does not tell. */
static int runtime_version(const char *path) {
  const char *name = strstr(path, "libcudart.so.");
  int major_number, minor_number;
  if (!name || sscanf(name, "libcudart.so.%d.%d", &major_number, &minor_number) != 2) return 0;
  return major_number * 1000 + minor_number * 10;
}

void rp_attach_versions(const struct rp_libraries *libraries, const struct rp_target *target,
                        struct rp_versions *out) {
  memset(out, 0, sizeof *out);
  for (size_t i = 0; i < target->library_count; i++) {
    const struct rp_library *library = &libraries->files[target->library[i]];
    char *const paths[] = {
        [RP_PROBE_RUNTIME] = out->cuda_runtime_path,
        [RP_PROBE_DRIVER] = out->cuda_driver_path,
        [RP_PROBE_NCCL] = out->nccl_path,
    };
    for (size_t layer = 0; layer < sizeof paths / sizeof paths[0]; layer++)
      if (library->layers >> layer & 1 && !paths[layer][0])
        snprintf(paths[layer], sizeof out->nccl_path, "%s", library->path);
  }
  out->nccl = nccl_version(out->nccl_path);
  out->cuda_runtime = runtime_version(out->cuda_runtime_path);
}
