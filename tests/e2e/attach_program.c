// A process to be observed: does what it is told, line by line, and answers each line with one.
//
//   open PATH               loads a library; calls go to the one loaded last
//   call NAME ARGUMENT...   calls; "&" stands for the address of 64 words, "&1" for the second of them, "@"
//   for the
//                           first word's value. Answers with the status and the first word
//   set NAME VALUE          sets a variable of the library: an int if the value fits, else 64 bits
//   repeat COUNT NAME ...   calls that often; answers with the nanoseconds per call
//   threads COUNT REPEATS NAME ...   the same on that many threads at once
//   fork ...                does the rest of the line in a child and waits for it
//   exec                    becomes this program anew
//   leave                   goes on in another thread, and the main thread ends
//   allow                   installs a seccomp filter that allows what is needed and kills for the rest
//   quit
#include <dlfcn.h>
#include <errno.h>
#include <inttypes.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

typedef int function(uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t,
                     uint64_t);

struct call {
  function *target;
  uint64_t argument[10];
  uint64_t repeats;
};

static void *library = RTLD_DEFAULT;
static uint64_t words[64];

static int make(const struct call *call) {
  const uint64_t *a = call->argument;
  return call->target(a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7], a[8], a[9]);
}

static uint64_t value_of(const char *text) {
  if (text[0] == '&') return (uint64_t)(uintptr_t)&words[strtoull(text + 1, NULL, 0) % 64];
  if (text[0] == '@') return words[0];
  return strtoull(text, NULL, 0);
}

/* The rest of the line; false if there is no such function. */
static int read_call(struct call *call) {
  const char *name = strtok(NULL, " "), *text;
  *call = (struct call){.repeats = 1};
  *(void **)&call->target = name ? dlsym(library, name) : NULL;
  for (int i = 0; i < 10 && (text = strtok(NULL, " ")); i++)
    call->argument[i] = value_of(text);
  return call->target != NULL;
}

static uint64_t now_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static void *repeat(void *argument) {
  const struct call *call = argument;
  for (uint64_t i = 0; i < call->repeats; i++)
    (void)make(call);
  return NULL;
}

static void do_threads(unsigned count, uint64_t repeats) {
  pthread_t threads[256];
  struct call call;
  if (!read_call(&call) || count > 256) {
    puts("no such function");
    return;
  }
  call.repeats = repeats;
  uint64_t began = now_ns();
  for (unsigned i = 0; i < count; i++)
    if (pthread_create(&threads[i], NULL, repeat, &call) != 0) abort();
  for (unsigned i = 0; i < count; i++)
    pthread_join(threads[i], NULL);
  printf("%.1f\n", (double)(now_ns() - began) / (double)(repeats * count));
}

static void do_call(void) {
  struct call call;
  if (!read_call(&call)) {
    puts("no such function");
    return;
  }
  int status = make(&call);
  printf("%d 0x%" PRIx64 "\n", status, words[0]);
}

static void do_repeat(uint64_t repeats) {
  struct call call;
  if (!read_call(&call)) {
    puts("no such function");
    return;
  }
  call.repeats = repeats;
  uint64_t began = now_ns();
  (void)repeat(&call);
  printf("%.1f\n", (double)(now_ns() - began) / (double)repeats);
}

static void do_set(const char *name, const char *value) {
  void *place = dlsym(library, name);
  uint64_t number = value_of(value);
  if (!place)
    puts("no such variable");
  else if (number <= INT32_MAX)
    *(int *)place = (int)number, puts("ok");
  else
    *(uint64_t *)place = number, puts("ok");
}

/* What this program needs afterwards; anything else kills it. */
static int allow(void) {
  static const int calls[] = {SYS_read,          SYS_write, SYS_exit_group,   SYS_exit,
                              SYS_clock_gettime, SYS_brk,   SYS_mmap,         SYS_munmap,
                              SYS_futex,         SYS_fstat, SYS_rt_sigreturn, SYS_newfstatat};
  struct sock_filter filter[2 * sizeof calls / sizeof calls[0] + 2];
  size_t used = 0;
  filter[used++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr));
  for (size_t i = 0; i < sizeof calls / sizeof calls[0]; i++) {
    filter[used++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)calls[i], 0, 1);
    filter[used++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
  }
  filter[used++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS);
  struct sock_fprog program = {.len = (unsigned short)used, .filter = filter};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

static void do_line(char *line, char **argv);

static void do_fork(char *rest, char **argv) {
  fflush(stdout);
  pid_t child = fork();
  if (child == 0) {
    do_line(rest, argv);
    fflush(stdout);
    _exit(0);
  }
  int status = 0;
  if (waitpid(child, &status, 0) != child || !WIFEXITED(status))
    printf("child ended by signal %d\n", WTERMSIG(status));
}

static void *serve(void *argv) {
  char line[4096];
  while (fgets(line, sizeof line, stdin))
    do_line(line, argv);
  exit(0);
}

static void do_line(char *line, char **argv) {
  line[strcspn(line, "\n")] = '\0';
  if (strncmp(line, "fork ", 5) == 0) {
    do_fork(line + 5, argv);
    return;
  }
  const char *command = strtok(line, " ");
  if (!command) return;
  if (strcmp(command, "open") == 0) {
    library = dlopen(strtok(NULL, ""), RTLD_LAZY | RTLD_LOCAL);
    puts(library ? "ok" : dlerror());
  } else if (strcmp(command, "call") == 0) {
    do_call();
  } else if (strcmp(command, "set") == 0) {
    const char *name = strtok(NULL, " ");
    do_set(name, strtok(NULL, " "));
  } else if (strcmp(command, "repeat") == 0) {
    do_repeat(strtoull(strtok(NULL, " "), NULL, 0));
  } else if (strcmp(command, "threads") == 0) {
    unsigned count = (unsigned)strtoul(strtok(NULL, " "), NULL, 0);
    do_threads(count, strtoull(strtok(NULL, " "), NULL, 0));
  } else if (strcmp(command, "exec") == 0) {
    execv("/proc/self/exe", argv);
    puts(strerror(errno));
  } else if (strcmp(command, "leave") == 0) {
    pthread_t other;
    puts(pthread_create(&other, NULL, serve, argv) == 0 ? "ok" : "no thread");
    pthread_exit(NULL);
  } else if (strcmp(command, "allow") == 0) {
    puts(allow() ? "ok" : "no filter");
  } else {
    exit(0);
  }
}

int main(int argc, char **argv) {
  (void)argc;
  setvbuf(stdout, NULL, _IOLBF, 0);
  setvbuf(stdin, NULL, _IONBF, 0); // nothing is lost when the program becomes another
  puts("ready");
  serve(argv);
}
