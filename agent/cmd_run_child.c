/* The child of `recvpool run`: start, signals, exit status. The parent installs no handlers: it blocks the
 * signals it passes on and takes them with sigwaitinfo, so it sleeps until there is something to do. */
#include "agent/command.h"

#include <errno.h>
#include <signal.h>
#include <stdbool.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static const int forwarded[] = {SIGINT,  SIGTERM,  SIGHUP,  SIGQUIT, SIGUSR1,
                                SIGUSR2, SIGWINCH, SIGTSTP, SIGCONT};

/* Signals of the parent as they were, to be the child's. */
struct signal_state {
  sigset_t mask;
  struct sigaction child_action;
};

static void signals_take(struct signal_state *before, sigset_t *set) {
  sigemptyset(set);
  sigaddset(set, SIGCHLD);
  for (size_t i = 0; i < sizeof forwarded / sizeof forwarded[0]; i++)
    sigaddset(set, forwarded[i]);
  sigprocmask(SIG_BLOCK, set, &before->mask);
  /* with SIGCHLD ignored, as some launchers leave it, the exit status of the child would be lost */
  struct sigaction normal = {.sa_handler = SIG_DFL};
  sigaction(SIGCHLD, &normal, &before->child_action);
}

static void signals_give_back(const struct signal_state *before) {
  sigaction(SIGCHLD, &before->child_action, NULL);
  sigprocmask(SIG_SETMASK, &before->mask, NULL);
}

static void __attribute__((noreturn)) run_child(char **argv, const struct signal_state *before) {
  signals_give_back(before);
  execvp(argv[0], argv);
  int error = errno;
  rp_cmd_error("run", "cannot run '%s': %s", argv[0], strerror(error));
  _exit(error == ENOENT || error == ENOTDIR ? 127 : 126);
}

/* True when the child has ended; `status` is then the exit status to end with, and `ended_by` the signal. */
static bool child_ended(pid_t child, int *status, int *ended_by) {
  int wait_status;
  pid_t got;
  while ((got = waitpid(child, &wait_status, WNOHANG | WUNTRACED)) != 0) {
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) {
      *status = RP_EXIT_FAILURE;
      return true;
    }
    if (WIFEXITED(wait_status)) {
      *status = WEXITSTATUS(wait_status);
      return true;
    }
    if (WIFSIGNALED(wait_status)) {
      *ended_by = WTERMSIG(wait_status);
      *status = 128 + *ended_by;
      return true;
    }
    /* the child stopped: stop as well, so that a shell sees the job stopped; SIGCONT wakes this process and
     * is then passed on by the loop */
    if (WIFSTOPPED(wait_status)) raise(SIGSTOP);
  }
  return false;
}

static void forward(pid_t child, const siginfo_t *info) {
  /* what the terminal sends (si_code SI_KERNEL) reaches the whole process group, the child included */
  if (info->si_code == SI_KERNEL && info->si_signo != SIGCONT) return;
  kill(child, info->si_signo);
}

int rp_cmd_spawn(char **argv, int *ended_by) {
  struct signal_state before;
  sigset_t set;
  *ended_by = 0;
  signals_take(&before, &set);
  pid_t child = fork();
  if (child == 0) run_child(argv, &before);
  int status = RP_EXIT_FAILURE;
  if (child < 0) {
    rp_cmd_error("run", "cannot start a process: %s", strerror(errno));
  } else {
    siginfo_t info;
    while (!child_ended(child, &status, ended_by))
      if (sigwaitinfo(&set, &info) > 0 && info.si_signo != SIGCHLD) forward(child, &info);
  }
  signals_give_back(&before);
  return status;
}
