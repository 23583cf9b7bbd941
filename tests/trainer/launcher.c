// The launcher: starts the ranks as torchrun would, waits, forwards signals, and merges what they report.
// Makes no CUDA call.
#ifndef _GNU_SOURCE
#define _GNU_SOURCE // memfd_create, pipe2
#endif
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "rank.h"
#include "stage.h"

struct child {
  pid_t pid; /**< 0 once it is reaped */
  int result_fd;
};

struct launcher {
  const struct rp_program *program;
  struct child *children;
  int running;
  int status; /**< of the first child that failed */
  bool killing;
};

static void set_number(const char *name, int value) {
  char text[16];
  snprintf(text, sizeof text, "%d", value);
  setenv(name, text, 1);
}

/** In the child: becomes rank `rank`. `id_fd` is its end of the pipe. */
static _Noreturn void become_rank(const struct launcher *l, int rank, int id_fd, const sigset_t *signals,
                                  char **argv) {
  pid_t parent = getppid();
  if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0 || getppid() != parent) _exit(127);
  int id = dup(id_fd), result = dup(l->children[rank].result_fd); // without close-on-exec
  set_number("RANK", rank);
  set_number("LOCAL_RANK", rank);
  set_number("WORLD_SIZE", l->program->ranks);
  set_number("LOCAL_WORLD_SIZE", l->program->ranks);
  set_number(RP_TRAINER_ID_FD, id);
  set_number(RP_TRAINER_RESULT_FD, result);
  sigprocmask(SIG_SETMASK, signals, NULL);
  execv("/proc/self/exe", argv);
  fprintf(stderr, "trainer: cannot start rank %d: %s\n", rank, strerror(errno));
  _exit(127);
}

static int start_ranks(struct launcher *l, const sigset_t *signals, char **argv) {
  int id_pipe[2];
  if (pipe2(id_pipe, O_CLOEXEC) != 0) return -1;
  for (int r = 0; r < l->program->ranks; r++) {
    struct child *child = &l->children[r];
    child->result_fd = memfd_create("trainer-result", MFD_CLOEXEC);
    child->pid = child->result_fd < 0 ? -1 : fork();
    if (child->pid == 0) become_rank(l, r, id_pipe[r == 0], signals, argv);
    if (child->pid < 0) {
      child->pid = 0;
      fprintf(stderr, "trainer: cannot start rank %d: %s\n", r, strerror(errno));
      l->status = 1;
      break;
    }
    l->running++;
  }
  close(id_pipe[0]);
  close(id_pipe[1]);
  return l->status == 0 ? 0 : -1;
}

static void signal_all(const struct launcher *l, int number) {
  for (int r = 0; r < l->program->ranks; r++)
    if (l->children[r].pid > 0) kill(l->children[r].pid, number);
}

/** Reaps what has ended. */
static void reap(struct launcher *l) {
  int wait_status;
  for (pid_t pid; (pid = waitpid(-1, &wait_status, WNOHANG)) > 0;)
    for (int r = 0; r < l->program->ranks; r++) {
      if (l->children[r].pid != pid) continue;
      l->children[r].pid = 0;
      l->running--;
      int status = WIFSIGNALED(wait_status) ? 128 + WTERMSIG(wait_status) : WEXITSTATUS(wait_status);
      if (status != 0 && l->status == 0) {
        l->status = status;
        fprintf(stderr, "trainer: rank %d ended with status %d\n", r, status);
      }
    }
}

/** Waits for all ranks; once one has failed the others get SIGTERM, and SIGKILL after a grace time. */
static void wait_for_ranks(struct launcher *l, const sigset_t *watched) {
  const struct timespec grace = {.tv_sec = 3};
  while (l->running > 0) {
    if (l->status != 0 && !l->killing) {
      l->killing = true;
      signal_all(l, SIGTERM);
    }
    siginfo_t info;
    int number = l->killing ? sigtimedwait(watched, &info, &grace) : sigwaitinfo(watched, &info);
    if (number == SIGINT || number == SIGTERM) signal_all(l, number);
    if (number < 0 && errno == EAGAIN) signal_all(l, SIGKILL);
    reap(l);
  }
}

/** Reads a rank's results; NULL if it left none. The caller frees them. */
static struct rp_stage_result *read_result(int fd, struct rp_rank_result *result) {
  if (pread(fd, result, sizeof *result, 0) != (ssize_t)sizeof *result) return NULL;
  size_t bytes = result->stage_count * sizeof(struct rp_stage_result);
  struct rp_stage_result *stages = malloc(bytes + 1);
  if (stages != NULL && pread(fd, stages, bytes, sizeof *result) == (ssize_t)bytes) return stages;
  free(stages);
  return NULL;
}

/** Prints a line per rank and the checksum over all stages in model order. */
static int print_results(const struct launcher *l) {
  uint64_t *checksums = calloc((size_t)l->program->stages, sizeof *checksums), sum = 0;
  int failed = checksums == NULL;
  for (int r = 0; r < l->program->ranks && !failed; r++) {
    struct rp_rank_result result;
    struct rp_stage_result *stages = read_result(l->children[r].result_fd, &result);
    if (stages == NULL) {
      fprintf(stderr, "trainer: rank %d left no result\n", r);
      failed = 1;
      break;
    }
    rp_rank_print(r, &result, stages);
    for (uint64_t i = 0; i < result.stage_count; i++)
      checksums[stages[i].stage] = stages[i].checksum;
    free(stages);
  }
  for (int32_t s = 0; s < l->program->stages && !failed; s++)
    sum = rp_checksum_add(sum, checksums[s]);
  if (!failed) printf("parameters %016" PRIx64 "\n", sum);
  free(checksums);
  return failed;
}

int rp_launcher_run(const struct rp_program *program, char **argv) {
  struct launcher l = {.program = program};
  sigset_t watched, before;
  l.children = calloc((size_t)program->ranks, sizeof *l.children);
  if (l.children == NULL) return 1;
  for (int r = 0; r < program->ranks; r++)
    l.children[r].result_fd = -1;
  sigemptyset(&watched);
  sigaddset(&watched, SIGCHLD);
  sigaddset(&watched, SIGINT);
  sigaddset(&watched, SIGTERM);
  sigprocmask(SIG_BLOCK, &watched, &before);
  fflush(stdout);
  if (start_ranks(&l, &before, argv) != 0 && l.status == 0) l.status = 1;
  wait_for_ranks(&l, &watched);
  if (l.status == 0) l.status = print_results(&l);
  for (int r = 0; r < program->ranks; r++)
    if (l.children[r].result_fd >= 0) close(l.children[r].result_fd);
  sigprocmask(SIG_SETMASK, &before, NULL);
  free(l.children);
  return l.status;
}
