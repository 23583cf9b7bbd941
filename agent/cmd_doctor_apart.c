/* Asking what may crash, hang, end the process or write to its output: in a child, whose output is caught and
 * whose time is bounded. Owns the memory that such a child leaves its findings in. */
#include "agent/doctor.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

void rp_doctor_asking(struct rp_doctor *doctor, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(doctor->asking, sizeof doctor->asking, format, arguments);
  va_end(arguments);
}

/* ---- the child ---- */

static _Noreturn void ask(struct rp_doctor *shared, int output, pid_t parent,
                          void (*check)(struct rp_doctor *doctor, void *context), void *context) {
  const struct rlimit none = {0, 0};
  int nothing = open("/dev/null", O_RDONLY | O_CLOEXEC);
  (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(1);
  (void)setrlimit(RLIMIT_CORE, &none);
  (void)dup2(nothing, STDIN_FILENO);
  (void)dup2(output, STDOUT_FILENO);
  (void)dup2(output, STDERR_FILENO);
  check(shared, context);
  shared->asked = true;
  (void)fflush(NULL);
  _exit(0);
}

/* ---- the parent ---- */

/* A child that was asked. */
struct child {
  pid_t pid;
  int ended;      /* becomes readable when it has; -1 where the kernel has no such thing */
  int output;     /* what it writes */
  char said[256]; /* the beginning of that */
  size_t said_bytes, all_bytes;
};

static int64_t now_ms(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* False at the end of it. */
static bool take_output(struct child *child) {
  char part[1024];
  ssize_t got = read(child->output, part, sizeof part);
  if (got < 0 && (errno == EINTR || errno == EAGAIN)) return true;
  if (got <= 0) return false;
  for (ssize_t i = 0; i < got && child->said_bytes < sizeof child->said - 1; i++)
    child->said[child->said_bytes++] = part[i];
  child->all_bytes += (size_t)got;
  return true;
}

/* Until it has ended or the time is over; false then. A child of its own may keep the pipe open, so the end
 * of the output is not waited for where the end of the process can be. */
static bool wait_for(struct child *child, unsigned seconds) {
  int64_t end_ms = now_ms() + (int64_t)seconds * 1000;
  for (int64_t left_ms; (left_ms = end_ms - now_ms()) > 0;) {
    struct pollfd ready[] = {{.fd = child->output, .events = POLLIN}, {.fd = child->ended, .events = POLLIN}};
    int count = poll(ready, 2, (int)left_ms);
    if (count < 0 && errno != EINTR) return true;
    bool more = count <= 0 || !ready[0].revents || take_output(child);
    bool ended = count > 0 && child->ended >= 0 && ready[1].revents;
    while (ended && more && poll(ready, 1, 0) == 1)
      more = take_output(child);
    if (ended || (!more && child->ended < 0)) return true;
    if (!more) child->output = -1 - child->output; /* poll leaves out what is negative */
  }
  return false;
}

static void say_end(struct rp_doctor *doctor, const char *name, enum rp_doctor_status otherwise, int status) {
  struct rp_doctor_finding *finding;
  if (WIFSIGNALED(status))
    finding = rp_doctor_add(doctor, name, otherwise, false, "%s crashed when it was asked (signal %d, %s)",
                            doctor->asking, WTERMSIG(status), strsignal(WTERMSIG(status)));
  else
    finding =
        rp_doctor_add(doctor, name, otherwise, false, "%s ended the process when it was asked (status %d)",
                      doctor->asking, WEXITSTATUS(status));
  rp_doctor_mend(finding,
                 "a program that uses it would fare as this one: install it again, or leave it out of "
                 "LD_LIBRARY_PATH");
}

static void say_printed(struct rp_doctor *doctor, const char *name, struct child *child) {
  char *line = child->said + strspn(child->said, " \t\r\n");
  line[strcspn(line, "\r\n")] = '\0';
  rp_doctor_mend(rp_doctor_add(doctor, name, RP_DOCTOR_WARNING, false,
                               "%s printed when it was asked (%zu bytes): %.160s", doctor->asking,
                               child->all_bytes, line),
                 "what reads the output of a program that uses it has to bear with that");
}

static void add_all(struct rp_doctor *doctor, const struct rp_doctor *more) {
  for (size_t i = 0; i < more->count && i < RP_DOCTOR_FINDINGS; i++)
    if (doctor->count < RP_DOCTOR_FINDINGS) doctor->findings[doctor->count++] = more->findings[i];
}

static void follow(struct rp_doctor *doctor, const struct rp_doctor *shared, struct child *child,
                   const char *name, enum rp_doctor_status otherwise) {
  int status = 0;
  bool in_time = wait_for(child, doctor->seconds);
  if (!in_time) (void)kill(child->pid, SIGKILL);
  while (waitpid(child->pid, &status, 0) < 0 && errno == EINTR)
    continue;
  snprintf(doctor->asking, sizeof doctor->asking, "%s", shared->asking);
  if (!in_time)
    rp_doctor_mend(rp_doctor_add(doctor, name, otherwise, false, "%s did not answer within %u s",
                                 doctor->asking, doctor->seconds),
                   "look at nvidia-smi and dmesg; recvpool doctor --timeout gives it more time");
  else if (!shared->asked)
    say_end(doctor, name, otherwise, status);
  if (child->all_bytes) say_printed(doctor, name, child);
  add_all(doctor, shared);
}

static pid_t start(struct rp_doctor *shared, struct child *child,
                   void (*check)(struct rp_doctor *doctor, void *context), void *context) {
  int ends[2];
  pid_t parent = getpid();
  if (pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0) return -1;
  (void)fflush(NULL); /* the child's copy would be written once more */
  child->pid = fork();
  if (child->pid == 0) {
    (void)fcntl(ends[1], F_SETFL, 0);
    ask(shared, ends[1], parent, check, context);
  }
  int error = errno;
  (void)close(ends[1]);
  child->output = ends[0];
  child->ended = child->pid > 0 ? (int)syscall(SYS_pidfd_open, child->pid, 0) : -1;
  if (child->pid < 0) (void)close(ends[0]);
  errno = error;
  return child->pid;
}

void rp_doctor_apart(struct rp_doctor *doctor, const char *name, enum rp_doctor_status otherwise,
                     void (*check)(struct rp_doctor *doctor, void *context), void *context) {
  struct rp_doctor *shared = rp_doctor_shared(sizeof *shared);
  struct child child = {0};
  if (!shared || start(shared, &child, check, context) < 0) {
    rp_doctor_add(doctor, name, otherwise, false, "cannot be asked: %s", strerror(errno));
  } else {
    follow(doctor, shared, &child, name, otherwise);
    (void)close(child.output < 0 ? -1 - child.output : child.output);
    if (child.ended >= 0) (void)close(child.ended);
  }
  if (shared) (void)munmap(shared, sizeof *shared);
}

void *rp_doctor_shared(size_t bytes) {
  void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  return memory == MAP_FAILED ? NULL : memory;
}
