// attach_deny BPF-COMMAND ERRNO COMMAND...: runs a command for which bpf() fails with that error, always or
// (unless the number is negative) for one kind of bpf() call: a kernel that refuses, a container's seccomp
// profile.
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

int main(int argc, char **argv) {
  if (argc < 4) return 2;
  int kind = atoi(argv[1]);
  unsigned error = (unsigned)atoi(argv[2]);
  struct sock_filter filter[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_bpf, 0, 3),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args)),
      BPF_JUMP(BPF_JMP | (kind < 0 ? BPF_JGE : BPF_JEQ) | BPF_K, kind < 0 ? 0u : (unsigned)kind, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | error),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  struct sock_fprog program = {.len = sizeof filter / sizeof filter[0], .filter = filter};
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
      prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0) {
    perror("attach_deny");
    return 1;
  }
  execvp(argv[3], argv + 3);
  perror(argv[3]);
  return 127;
}
